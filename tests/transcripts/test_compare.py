"""The comparison notices what it is there for."""

from __future__ import annotations

import pytest

from tests.transcripts.compare import PROMPT, Difference, differences, same
from tests.transcripts.listed import parse
from tests.transcripts.recordings import Event, Recording
from tests.transcripts.replay import ABORTED, CLOSED, Said
from tests.transcripts.shown import shown

OPEN = Event(0.0, "A", "open", b"", "to listener open")
PING = Event(1.0, "A", ">", b'{to:"broker", op:"ping"}\n\n', "")
PONG = Event(1.01, "A", "<", b'{"to":"broker", "op":"pong"}\n\n', "")
RESET = Event(2.0, "A", "peer-reset", b"", "")
CLOSE = Event(3.0, "A", "close", b"", "")
OURS = '{"to":"broker","op":"pong"}'


def _differ(events: list[Event], *ours: Said) -> list[tuple[str | None, str | None]]:
    found = differences(Recording("b00_x", "", True, tuple(events)), ours)
    return [(difference.original, difference.ours) for difference in found]


def _said(at: float, text: str = OURS) -> Said:
    return Said(at, 0, "A", text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"to":"a", "op":"b"}', '{"to":"a","op":"b"}'),
        ('{"load":1.0E-5}', '{"load":0.00001}'),
        ('{"desc":[{"a":1}, {"a":2}]}', '{"desc":[{"a":2},{"a":1}]}'),
        (CLOSED, CLOSED),
    ],
)
def test_the_same(one: str, other: str) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"to":"a","op":"b"}', '{"op":"b","to":"a"}'),
        ('{"to":"a","op":"b"}', '{"to":"a","op":"b","tag":null}'),
        ('{"load":1.0}', '{"load":1}'),
        ('{"load":0.0}', '{"load":-0.0}'),
        ('{"on":true}', '{"on":1}'),
        ('{"tag":"\\u0001"}', '{"tag":"\x01"}'),
        ('{"tag":"a\\\\u0001"}', '{"tag":"a\\u0001"}'),
        ('{"list":[1,2]}', '{"list":[2,1]}'),
        ('{"desc":[{"a":1},{"a":1}]}', '{"desc":[{"a":1}]}'),
        ('{"desc":[{"a":1,"b":2}]}', '{"desc":[{"b":2,"a":1}]}'),
        (CLOSED, ABORTED),
        (CLOSED, OURS),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert not same(one, other)


def test_nothing_differs() -> None:
    assert _differ([OPEN, PING, PONG, RESET], _said(1.0), _said(2.0, CLOSED)) == []


def test_a_message_is_missing_or_too_much() -> None:
    assert _differ([OPEN, PING, PONG]) == [('1.010 {"to":"broker", "op":"pong"}', None)]
    assert _differ([OPEN, PING], _said(1.0)) == [(None, f"1.000 {OURS}")]
    assert _differ([OPEN, PING, PONG], _said(1.0), _said(1.0)) == [(None, f"1.000 {OURS}")]


def test_a_message_comes_at_another_time() -> None:
    assert _differ([OPEN, PING, PONG], _said(1.011)) == [
        ('1.010 {"to":"broker", "op":"pong"}', None),
        (None, f"1.011 {OURS}"),
    ]
    early = PONG.at - PROMPT - 0.01
    assert _differ([OPEN, PING, PONG], _said(early)) == [
        ('1.010 {"to":"broker", "op":"pong"}', f"{early:.3f} {OURS}"),
    ]


def test_another_message_comes_in_its_place() -> None:
    other = '{"to":"admin","op":"pong"}'
    assert _differ([OPEN, PING, PONG], _said(1.0, other)) == [
        ('1.010 {"to":"broker", "op":"pong"}', f"1.000 {other}"),
    ]


def test_a_close_is_missing_or_too_much_or_not_orderly() -> None:
    assert _differ([OPEN, RESET]) == [("2.000 closed", None)]
    assert _differ([OPEN, CLOSE], _said(2.0, CLOSED)) == [(None, "2.000 closed")]
    assert _differ([OPEN, RESET], _said(2.0, ABORTED)) == [("2.000 closed", "2.000 aborted")]


def test_what_a_client_that_hangs_up_did_not_read_is_no_difference() -> None:
    assert _differ([OPEN, CLOSE], _said(2.995)) == []
    assert _differ([OPEN, CLOSE], _said(2.9)) == [(None, f"2.900 {OURS}")]


def test_notices_of_one_withdrawal_have_no_order_but_others_do() -> None:
    def events(*texts: str) -> list[Event]:
        return [OPEN, PING, Event(1.01, "A", "<", "".join(f"{text}\n\n" for text in texts).encode(), "")]

    off = ['{"desc":[1],"on":false}', '{"desc":[2],"on":false}']
    assert _differ(events(*off), _said(1.0, off[1]), _said(1.0, off[0])) == []
    on = ['{"desc":[1],"on":true}', '{"desc":[2],"on":true}']
    assert _differ(events(*on), _said(1.0, on[1]), _said(1.0, on[0])) != []


def test_the_list_of_differences_is_read_as_it_is_printed() -> None:
    both = Difference("b08", "P-1", "1.000 {}", '1.000 {"a":1}')
    only_ours = Difference("b09", "P", None, "1.000 closed")
    entries = [str(difference).replace("\n", " word\n", 1) for difference in (both, only_ours)]
    text = "# remark\n\nword: A sentence\n  goes on.\n\n" + "\n\n".join(entries) + "\n"
    known = parse(text)
    assert known.reasons == {"word": "A sentence goes on."}
    assert [difference for difference, _ in known.entries] == [both, only_ours]
    assert known.of("b08") == [both]


def test_nothing_invisible_is_shown() -> None:
    assert shown("a\n\r\0\x7f\u2028é中") == "a␊␍␀␡⟨U+2028⟩é中"
