"""Framing: blocks and lines to messages, their limits, the variants of UTF-8, and what goes out."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.blocks import (
    END,
    LINES_PER_STEP,
    MAX_BLOCK,
    BlockReader,
    Diagnostic,
    Message,
    Ping,
    PongOut,
    encode,
)
from broker.wires.elko.codec.broker_messages import VOCABULARY, Find
from broker.wires.elko.codec.lenient import TOKENS_PER_STEP
from tests.wires.elko.codec.examples import AUTH_AND_PING, FRAMING, SYNTAX, Row

EXAMPLES = pytest.mark.parametrize("rows", [AUTH_AND_PING, FRAMING, SYNTAX], ids=["b01", "b27", "b28"])

PING = b'{"to":"broker","op":"ping","tag":"later"}\n\n'
LATER = Ping("broker", "later")


def read(*pieces: bytes) -> list[Message | Malformed]:
    """The messages of a connection that sends these pieces."""
    reader = BlockReader(VOCABULARY)
    return [item for piece in pieces for item in reader.feed(piece) if item is not None]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def seen(items: Iterable[Message | Malformed | None]) -> list[object]:
    """The messages, and the reasons of what was no message."""
    return [item.reason if isinstance(item, Malformed) else item for item in items]


def tags(*pieces: bytes) -> list[str | None]:
    return [item.tag for item in read(*pieces) if isinstance(item, Ping)]


def ping(tag: bytes) -> bytes:
    return b'{"to":"broker","op":"ping","tag":"' + tag + b'"}'


def all_of(rows: list[Row]) -> tuple[bytes, list[object]]:
    """The bytes that were sent, and the messages in them."""
    results = [Reason.SYNTAX if message is None else message for _, messages in rows for message in messages]
    return b"".join(data for data, _ in rows), list(results)


# what was sent to the original


@EXAMPLES
def test_the_examples_write_by_write(rows: list[Row]) -> None:
    reader = BlockReader(VOCABULARY)
    for data, expected in rows:
        results = seen(reader.feed(data))
        assert results == [Reason.SYNTAX if message is None else message for message in expected], data


@EXAMPLES
def test_the_examples_whole(rows: list[Row]) -> None:
    data, expected = all_of(rows)
    assert seen(read(data)) == expected


@EXAMPLES
def test_the_examples_byte_by_byte(rows: list[Row]) -> None:
    data, expected = all_of(rows)
    assert seen(read(*bytewise(data))) == expected


@EXAMPLES
@pytest.mark.parametrize("trailing", [b"{", b'{"to":"broker","op":"ping"}', b"\xe4", b"\r", b"/*"])
def test_the_examples_with_something_begun_behind_them(rows: list[Row], trailing: bytes) -> None:
    data, expected = all_of(rows)
    assert seen(read(data + trailing)) == expected


@EXAMPLES
def test_each_example_alone_with_another_message_behind_it(rows: list[Row]) -> None:
    pending = b""
    expected: list[object] = []
    for data, messages in rows:
        pending += data
        expected += [Reason.SYNTAX if message is None else message for message in messages]
        if not pending.endswith(b"\n\n"):
            continue
        assert seen(read(pending + PING)) == [*expected, LATER], pending
        pending, expected = b"", []


# lines and blocks


def test_a_message_on_one_line_needs_no_empty_line() -> None:
    reader = BlockReader(VOCABULARY)
    for number in range(3):
        assert list(reader.feed(ping(b"%d" % number) + b"\n")) == [Ping("broker", str(number))]


def test_so_do_messages_in_the_lenient_syntax() -> None:
    assert tags(b"{to:'broker',op:'ping',tag:'a'}\n{to:'broker',\nop:'ping',\ntag:'b'}\n") == ["a", "b"]


def test_a_message_without_its_newline_waits_for_it() -> None:
    reader = BlockReader(VOCABULARY)
    assert list(reader.feed(ping(b"a"))) == []
    assert list(reader.feed(b"\n")) == [Ping("broker", "a")]


def test_several_messages_on_one_line_come_in_order() -> None:
    assert tags(ping(b"a") + ping(b"b") + b" \t" + ping(b"c") + b"\n") == ["a", "b", "c"]


def test_a_broken_line_costs_itself_and_not_the_good_line_behind_it() -> None:
    items = read(b'{"to":"broker" "op":"ping"}\n' + ping(b"good") + b"\n")
    assert seen(items) == [Reason.SYNTAX, Ping("broker", "good")]


def test_a_broken_line_without_balance_costs_the_rest_of_its_block() -> None:
    items = read(b'{"to":"broker", "op":\n' + ping(b"lost") + b"\n\n" + PING)
    assert seen(items) == [Reason.SYNTAX, LATER]


def test_after_a_syntax_error_the_messages_before_it_count_and_those_behind_it_are_lost() -> None:
    items = read(ping(b"before") + b"}" + ping(b"behind") + b"\n\n" + PING)
    assert seen(items) == [Ping("broker", "before"), Reason.SYNTAX, LATER]


def test_a_message_that_is_none_costs_itself_and_not_the_rest_of_its_block() -> None:
    items = read(b'{to:"broker",op:"dance"}{to:"broker",op:"debug"}{op:"ping"}' + ping(b"good") + b"\n")
    assert seen(items) == [Reason.UNKNOWN_OP, Reason.PARAMETER, Reason.UNKNOWN_TARGET, Ping("broker", "good")]


def test_a_syntax_error_says_where_it_is() -> None:
    [malformed] = read(b'{"to":"broker", "op" "ping"}\n')
    assert isinstance(malformed, Malformed)
    assert "position 21" in malformed.text
    assert '"op" "ping"' in malformed.text


@pytest.mark.parametrize("ending", [b"\r\n\r\n", b"\n\r\n", b"\r\r\n\n", b"\0\n\0\n", b"\r\n"])
def test_carriage_returns_and_zeros_are_dropped_wherever_they_stand(ending: bytes) -> None:
    data = b'{\r"to":"bro\0ker",\0"op":"pi\rng","tag":"a\r\0b"}' + ending
    assert tags(data) == ["ab"]
    assert tags(*bytewise(data)) == ["ab"]


def test_only_carriage_returns_are_an_empty_line() -> None:
    assert seen(read(b'{"to":"broker",\n\r\r\n')) == [Reason.SYNTAX]


def test_lines_are_joined_by_a_space() -> None:
    assert tags(b'{"to":"broker","op":"ping","tag":"a\nb\n\tc"}\n') == ["a b \tc"]


def test_nothing_but_empty_lines_is_nothing() -> None:
    assert read(b"\n\n\r\n\n   \n\t\n\n") == []


def test_what_has_not_ended_is_no_message() -> None:
    assert read(ping(b"a")) == []


def test_the_messages_of_one_read_can_be_taken_one_by_one() -> None:
    messages = BlockReader(VOCABULARY).feed(ping(b"a") + b"\n" + ping(b"b") + b"\n")
    assert next(messages) == Ping("broker", "a")
    assert next(messages) == Ping("broker", "b")
    assert next(messages, None) is None


# strict and lenient are one meaning


@pytest.mark.parametrize(
    "line",
    [
        b'{"to":"broker","op":"find","service":"x","wait":5,"monitor":true,"tag":"t","protocol":"http"}',
        b'{"to":"broker","op":"find","service":"x","wait":-1}',
        b'{"to":"broker","op":"find","service":"x","wait":2.75}',
        b'{"to":"broker","op":"find","service":"x","wait":18446744073709551616}',
        b'{"to":"broker","op":"find","service":"x","wait":1e300}',
        b'{"to":"broker","op":"find","service":"x","wait":null,"monitor":null,"tag":null}',
        b'{"to":"broker","op":"load","factor":3}',
        b'{"to":"broker","op":"load","factor":-0.125}',
        b'{"op":"ping","tag":"first \\ud83d\\ude00 \\u00e9 \\n","to":"broker"}',
        b'{"to":"broker","op":"ping","tag":"1","tag":"2"}',
        b'{"to":"broker","op":"ping","op":"debug","msg":"m"}',
        b'{"to":"admin","op":"shutdown","self":true,"kill":false,"server":"x","cluster":true}',
        b'{"to":"broker","op":"willserve","services":[{"type":7,"service":"s","auth":{"mode":"open","zzz":[]}},'
        b'{"service":"t","provider":3}]}',
        b'{"to":"broker","op":"ping","unknown":{"a":[1,2.5,null,true,"x"]}}',
        b'{"to":"broker","op":"find","service":"x","wait":true}',
        b'{"to":"broker","op":"find","service":"x","wait":"5"}',
        b'{"to":"broker","op":"find","service":5}',
        b'{"to":"broker","op":"find"}',
        b'{"to":"broker","op":"load","factor":"1"}',
        b'{"to":"broker","op":"wontserve","services":["a",null]}',
        b'{"to":"broker","op":"wontserve","services":"a"}',
        b'{"to":"admin","op":"watch","services":1}',
        b'{"to":7,"op":"ping"}',
        b'{"to":"broker","op":7}',
        b"{}",
    ],
)
def test_the_fast_and_the_lenient_way_agree(line: bytes) -> None:
    [fast] = read(line + b"\n")
    [slow] = read(b"/**/ " + line + b"\n")
    if isinstance(fast, Malformed):
        assert isinstance(slow, Malformed)
        assert (slow.reason, slow.text, slow.op) == (fast.reason, fast.text, fast.op)
    else:
        assert slow == fast


# limits


def test_a_line_of_exactly_the_limit_is_taken() -> None:
    tag = b"x" * (MAX_BLOCK - len(ping(b"")))
    assert tags(ping(tag) + b"\n") == [tag.decode()]
    assert tags(ping(tag), b"\n") == [tag.decode()]


def test_a_line_one_over_the_limit_is_not() -> None:
    tag = b"x" * (MAX_BLOCK - len(ping(b"")) + 1)
    for pieces in ([ping(tag) + b"\n" + PING], [ping(tag), b"\n" + PING], [ping(tag)[:-1], b"}\n", PING]):
        assert seen(read(*pieces)) == [Reason.TOO_LARGE]


def test_a_line_without_its_newline_is_refused_while_it_grows() -> None:
    reader = BlockReader(VOCABULARY)
    piece = b"x" * 65_536
    for _ in range(MAX_BLOCK // len(piece)):
        assert list(reader.feed(piece)) == []
    assert seen(reader.feed(b"x")) == [Reason.TOO_LARGE]
    assert list(reader.feed(b"\n" + PING)) == [], "there is nothing after it"


def test_the_messages_before_a_line_that_is_too_long_count() -> None:
    data = PING + b"y" * (MAX_BLOCK + 1)
    assert seen(read(data)) == [LATER, Reason.TOO_LARGE]
    assert seen(read(data + b"\n" + PING)) == [LATER, Reason.TOO_LARGE]


@pytest.mark.parametrize(
    "block",
    [
        b"x:[" + b"1," * 14_000 + b"1]",
        b"\n".join(b"x%d:0," % number for number in range(7_000)),
        b"x:" + b"[" * 60 + b"]" * 60 + b",y:[" + b"[]," * 9_000 + b"]",
    ],
    ids=["elements", "lines", "nested"],
)
def test_a_block_of_many_tokens_is_decoded_in_steps(block: bytes) -> None:
    """Between two steps other connections are served."""
    items = list(BlockReader(VOCABULARY).feed(b'{to:"broker",op:"ping",tag:"end",' + block + b"}\n"))
    assert [item for item in items if item is not None] == [Ping("broker", "end")]
    assert items.count(None) >= 14_000 // TOKENS_PER_STEP


def test_lines_that_are_no_messages_are_decoded_in_steps() -> None:
    items = list(BlockReader(VOCABULARY).feed(b"{x:'\n" + b"'\n" * 10 * LINES_PER_STEP))
    assert items == [None] * 10


def test_a_block_of_many_lines_has_the_same_limit() -> None:
    line = b'"' + b"x" * 1_021 + b'",\n'  # with the space that joins it, 1,025 characters of the block
    fits = MAX_BLOCK // (len(line))
    head, tail = b'{to:"broker",op:"ping",n:[\n', b'1],tag:"end"}\n'
    assert tags(head + line * (fits - 1) + tail) == ["end"]
    assert seen(read(head + line * (fits + 1) + tail)) == [Reason.TOO_LARGE]
    assert seen(read(head, *[line] * (fits + 1), tail)) == [Reason.TOO_LARGE]


def test_a_block_of_exactly_the_limit_is_taken() -> None:
    head = b'{to:"broker",op:"ping",tag:"'
    tag = b"x" * (MAX_BLOCK - len(head) - 1 - 2)  # the space that joins the lines, and the end
    assert tags(head + b"\n" + tag + b'"}\n') == [" " + tag.decode()]
    assert seen(read(head + b"\n" + tag + b'x"}\n')) == [Reason.TOO_LARGE]


def test_blocks_do_not_add_up() -> None:
    data = ping(b"x" * 500_000) + b"\n"
    assert len(tags(data * 4)) == 4
    assert len(tags(*[b"/**/" + data + b"\n"] * 4)) == 4


def test_what_is_dropped_does_not_count() -> None:
    tag = b"x" * (MAX_BLOCK - len(ping(b"")))
    assert tags(b"\r\0" * 100 + ping(tag) + b"\r\n\r\n") == [tag.decode()]


def test_lines_of_blanks_before_a_message_do_not_fill_the_block() -> None:
    assert tags(*[b" " * 1_000 + b"\n"] * 2_000, PING) == ["later"]


# characters


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"\xc3\xa9 \xe4\xb8\xad", "\u00e9 \u4e2d"),
        (b"\xf0\x9f\x98\x80", "\U0001f600"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "\U0001f600"),  # CESU-8
        (b"\xc1\x81\xc0\xaf", "A/"),  # overlong
        (b"\xc0\x80", "\0"),  # as Java's modified UTF-8 writes it
        (b"\xed\xa0\xbd", "?"),
        (b"\xed\xb8\x80\xed\xa0\xbd", "??"),
        (b"\xc3\xa9\xed\xa0\xbd\xed\xb8\x80\xc1\x81\xf0\x9f\x98\x80", "\u00e9\U0001f600A\U0001f600"),
        (b"\xef\xbf\xbf\xf4\x8f\xbf\xbf", "\uffff\U0010ffff"),
        (b"\\ud83d\\ude00", "\U0001f600"),
        (b"\\ud83d", "?"),
        (b"\x01\x1f\x7f", "\x01\x1f\x7f"),
    ],
)
def test_utf_8_and_the_variants_of_it_that_the_original_takes(sent: bytes, meant: str) -> None:
    assert tags(ping(sent) + b"\n") == [meant]
    assert tags(*bytewise(ping(sent) + b"\n")) == [meant]
    assert tags(b"/**/" + ping(sent) + b"\n") == [meant]


INVALID = [
    b"\xff",
    b"\x80",
    b"a\xc3",
    b"\xe4\xb8",
    b"\xf0\x9f\x98",
    b"\xc3(",
    b"\xe0\x80\x80",  # overlong in three bytes
    b"\xf0\x80\x80\x80",
    b"\xf4\x90\x80\x80",  # beyond Unicode
    b"\xf8\x88\x80\x80\x80",
]


@pytest.mark.parametrize("bad", INVALID)
def test_bytes_that_are_no_utf_8_end_it_and_nothing_comes_after(bad: bytes) -> None:
    data = PING + ping(bad) + b"\n" + PING
    for pieces in ([data], bytewise(data)):
        items = read(*pieces)
        assert seen(items) == [LATER, Reason.ENCODING]
        assert items[1].reason.fatal  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", INVALID)
def test_so_they_do_in_the_middle_of_a_block(bad: bytes) -> None:
    assert seen(read(b'{"to":"broker",\n' + bad + b"\n\n" + PING)) == [Reason.ENCODING]


@pytest.mark.parametrize("member", [b'"junk":"\xff"', b'"\xff":1', b'"junk":["\xc3"]'])
def test_so_they_do_in_a_member_that_is_ignored(member: bytes) -> None:
    data = b'{"to":"broker","op":"ping",' + member + b"}\n" + PING
    for pieces in ([data], bytewise(data), [data[:-60], data[-60:]]):
        assert seen(read(*pieces)) == [Reason.ENCODING]


def test_a_read_of_one_whole_message_is_checked_as_any_other() -> None:
    ignored = b'{"to":"broker", "op":"ping", "tag":"1", "ignored":"%s"}\n\n'
    assert seen(read(ignored % b"\xff")) == [Reason.ENCODING]
    assert seen(read(ignored % b"\xff", PING)) == [Reason.ENCODING]
    plain, with_nul = read(ignored % b"text"), read(ignored % b"te\0xt")
    assert plain == with_nul
    assert len(plain) == 1


def test_a_character_cut_by_a_read_is_whole_again() -> None:
    assert tags(b'{"to":"broker","op":"ping","tag":"\xf0\x9f', b'\x98\x80"}\n') == ["\U0001f600"]


def test_a_mark_of_the_byte_order_is_no_white_space() -> None:
    assert seen(read(b"\xef\xbb\xbf" + ping(b"a") + b"\n\n")) == [Reason.SYNTAX]


@pytest.mark.parametrize("blank", ["\u00a0", "\u0085", "\u2007"])
def test_neither_is_what_java_does_not_call_so(blank: str) -> None:
    assert Reason.SYNTAX in seen(read(f"{blank}\n".encode() + ping(b"a") + b"\n\n"))


# out


def test_what_is_sent_is_one_line_and_an_empty_one() -> None:
    data = encode(PongOut("broker", tag="a\nb\r\n\n\tc\0"))
    assert data.endswith(END)
    assert b"\n" not in data[: -len(END)]
    assert b"\r" not in data
    assert json.loads(data) == {"to": "broker", "op": "pong", "tag": "a\nb\r\n\n\tc\0"}


def test_characters_beyond_the_basic_plane_go_out_as_escapes() -> None:
    data = encode(PongOut("broker", tag="\u00e9\u4e2d\uffff\U0001f600\U00010000\U0010ffff"))
    assert b"\\ud83d\\ude00\\ud800\\udc00\\udbff\\udfff" in data
    assert "\u00e9\u4e2d\uffff".encode() in data
    assert max(data) < 0xF0
    assert json.loads(data)["tag"] == "\u00e9\u4e2d\uffff\U0001f600\U00010000\U0010ffff"


def test_a_backslash_before_such_a_character_stays_one() -> None:
    tag = '\\\U0001f600 \\\\\U0001f600 \\u\U0001f600 "\U0001f600'
    assert json.loads(encode(PongOut("broker", tag=tag)))["tag"] == tag


@pytest.mark.parametrize("tag", ["", "a/b", "\x00\x1f\x7f\u2028", "\U0001f600", "\"\\'", "\ufeff"])
def test_what_is_sent_can_be_read(tag: str) -> None:
    reply = encode(PongOut("broker", tag=tag)).replace(b'"pong"', b'"ping"')
    assert tags(reply) == [tag]
    assert tags(b"/**/" + reply) == [tag]


def test_op_and_to_come_first() -> None:
    assert encode(Diagnostic(msg="m")) == b'{"to":"error","op":"debug","msg":"m"}\n\n'
    assert encode(PongOut("x")) == b'{"to":"x","op":"pong"}\n\n'


def test_a_message_of_one_protocol_has_no_more_than_its_fields() -> None:
    [message] = read(b'{"to":"broker","op":"find","service":"x","extra":1}\n')
    assert msgspec.structs.asdict(message) == msgspec.structs.asdict(Find("broker", "x"))  # type: ignore[arg-type]
