"""Decoding of mc0 frames, errors for malformed ones, and encoding of replies.

The file is longer than others: it has all tests of `broker.wires.mc0.codec.mc0_messages`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.core import model
from broker.core.errors import Malformed, Reason
from broker.wires.mc0.codec.mc0_messages import (
    MAX_HEADERS,
    MAX_ID,
    MAX_SHOWN,
    MAX_TOPIC,
    MAX_TTL,
    NOOP,
    BadMessage,
    Connect,
    Disconnect,
    Message,
    Noop,
    Put,
    Sub,
    TooShort,
    Unsub,
    error,
    message,
    ok,
    parse,
)
from tests.wires.mc0.codec.examples import CONVERSATIONS, EVERY_BYTE, Said, read_as_the_connector

LONG = b"x" * 256
"""A frame whose length takes eight octets on the wire."""


def frames(text: str) -> list[bytes]:
    """A message whose frames after the delimiter stand between bars, each character of them one byte."""
    return [b"", *text.encode("latin-1").split(b"|")]


def say(text: str) -> Message:
    return parse(frames(text))


def refused(sent: str | Sequence[bytes]) -> BadMessage:
    with pytest.raises(BadMessage) as caught:
        parse(frames(sent) if isinstance(sent, str) else sent)
    return caught.value


# The grammar


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NOOP", Noop()),
        ("NOOP|ID|1234", Noop(b"1234")),
        ("NOOP|", Noop()),
        ("NOOP||positional|ID|1", Noop()),
        ("NOOP|ID|1||ID|2", Noop(b"1")),
        ("NOOP|X|y|ID|1|Z|a", Noop(b"1")),
        ("NOOP|id|1", Noop()),
        ("NOOP|ID\0x|1", Noop()),
        ("NOOP|ID|\0\xff\r\n", Noop(b"\0\xff\r\n")),
        ("NOOP|ID|1|ID|2", Noop(b"2")),
        ("NOOP|ID||ID|2", Noop(b"2")),
        ("NOOP|X|", Noop()),
        ("NOOP|X||ID|1", Noop(b"1")),
        ("DISCONNECT", Disconnect()),
        ("DISCONNECT|ID|d", Disconnect(b"d")),
        ("DISCONNECT|TTL||ID|d", Disconnect(b"d")),
        ("CONNECT", Connect()),
        ("CONNECT|VERSION|0.1|TTL|1000", Connect(None, 1000, b"0.1")),
        ("CONNECT|ID|c|TTL|30000|VERSION|0.2", Connect(b"c", 30_000, b"0.2")),
        ("CONNECT|VERSION|any thing\xff|ID|c", Connect(b"c", None, b"any thing\xff")),
        ("CONNECT|VERSION||ID|c", Connect(b"c", None, None)),
        ("CONNECT|TTL||ID|c", Connect(b"c", None, None)),
        ("CONNECT|ttl|1000", Connect()),
        ("CONNECT|TTL|1|TTL|2000", Connect(None, 2000)),
        ("CONNECT|TTL|2000|TTL|", Connect()),
        ("CONNECT|ID|c||TTL|1000", Connect(b"c")),
        ("SUB", Sub(None, [])),
        ("SUB|", Sub(None, [])),
        ("SUB|ID|s3", Sub(b"s3", [])),
        ("SUB||topic1|topic2", Sub(None, [b"topic1", b"topic2"])),
        ("SUB|ID|s||t|t||with spaces", Sub(b"s", [b"t", b"t", b"", b"with spaces"])),
        ("SUB|X||ID|s||t", Sub(b"s", [b"t"])),
        ("SUB|topic1|topic2", Sub(None, [])),
        ("UNSUB", Unsub(None, [])),
        ("UNSUB|ID|u", Unsub(b"u", [])),
        ("UNSUB|ID|u||t1|t2|", Unsub(b"u", [b"t1", b"t2", b""])),
    ],
)
def test_a_message_is_read(text: str, expected: Message) -> None:
    result = say(text)
    assert type(result) is type(expected)
    assert result == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PUT|TOPIC|topic1||body", Put(None, b"topic1", [], [b"body"])),
        ("PUT|TOPIC|t|ID|p||body", Put(b"p", b"t", [], [b"body"])),
        ("PUT|ID|p|TOPIC|t||body", Put(b"p", b"t", [], [b"body"])),
        ("PUT|TOPIC|t|X-REPLY-TO|r||1", Put(None, b"t", [b"X-REPLY-TO", b"r"], [b"1"])),
        ("PUT|X-REPLY-TO|r|TOPIC|t||2", Put(None, b"t", [b"X-REPLY-TO", b"r"], [b"2"])),
        (
            "PUT|ID|p3|X-A|1|X-B|2|TOPIC|t|FOO|bar|VERSION|9|TTL|x|MESSAGE|m||3",
            Put(
                b"p3",
                b"t",
                [b"X-A", b"1", b"X-B", b"2", b"FOO", b"bar", b"VERSION", b"9", b"TTL", b"x", b"MESSAGE", b"m"],
                [b"3"],
            ),
        ),
        ("PUT|TOPIC|t|id|lower|topic|lower||4", Put(None, b"t", [b"id", b"lower", b"topic", b"lower"], [b"4"])),
        ("PUT|A|1|B|2|A|3|TOPIC|t||", Put(None, b"t", [b"A", b"3", b"B", b"2"], [b""])),
        ("PUT|TOPIC|one|ID|1|TOPIC|two|ID|2||b", Put(b"2", b"two", [], [b"b"])),
        ("PUT|A||A|1|TOPIC||TOPIC|t||b", Put(None, b"t", [b"A", b"1"], [b"b"])),
        ("PUT|TOPIC|t|ID\0x|1||b", Put(None, b"t", [b"ID\0x", b"1"], [b"b"])),
        ("PUT|TOPIC|\0\xff\x01 bin|X|\0||\0", Put(None, b"\0\xff\x01 bin", [b"X", b"\0"], [b"\0"])),
        ("PUT|TOPIC|t", Put(None, b"t", [], [])),
        ("PUT|TOPIC|t|", Put(None, b"t", [], [])),
        ("PUT|TOPIC|t||", Put(None, b"t", [], [b""])),
        ("PUT|TOPIC|t||a|b|c", Put(None, b"t", [], [b"a", b"b", b"c"])),
        ("PUT|TOPIC|t||||TOPIC|other|", Put(None, b"t", [], [b"", b"", b"TOPIC", b"other", b""])),
    ],
)
def test_a_put_is_read(text: str, expected: Put) -> None:
    assert say(text) == expected


@pytest.mark.parametrize("delimiter", [b"", b"junk", b"PUT", LONG])
def test_the_delimiter_may_hold_anything(delimiter: bytes) -> None:
    assert parse([delimiter, b"NOOP", b"ID", b"d1"]) == Noop(b"d1")


def test_messages_cannot_be_changed() -> None:
    for text in ("NOOP", "CONNECT", "DISCONNECT", "SUB", "UNSUB", "PUT|TOPIC|t"):
        with pytest.raises(AttributeError):
            say(text).id = b"other"  # type: ignore[misc]


def test_a_body_may_have_thousands_of_frames() -> None:
    body = [b"%d" % number for number in range(2_000)]
    result = parse([*frames("PUT|TOPIC|t"), b"", *body])
    assert result == Put(None, b"t", [], body)


# Malformed messages


@pytest.mark.parametrize("sent", [[], [b""], [b"NOOP"], [LONG]])
def test_a_message_without_a_verb_is_too_short(sent: list[bytes]) -> None:
    malformed = refused(sent)
    assert type(malformed) is TooShort
    assert malformed.reason is Reason.SYNTAX
    assert malformed.id is None
    assert str(malformed) == malformed.text == "the message has no verb"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("NOOP|ID", None),
        ("NOOP|ID|1|ID", b"1"),
        ("NOOP|ID|1|ID||X", None),
        ("CONNECT|TTL", None),
        ("DISCONNECT|X|y|ID|d|Z", b"d"),
        ("SUB|topic", None),
        ("SUB|ID|s|topic", b"s"),
        ("UNSUB|t1|t2|t3", None),
        ("PUT|t", None),
        ("PUT|ID|p|TOPIC|t|X-A||body", b"p"),
        ("PUT|TOPIC|t|X-A||body|ID|p", None),
        ("NOOP|ID|old|ID|new|X", b"new"),
    ],
)
def test_a_key_without_a_value_is_refused_with_the_id_read_before(text: str, id: bytes | None) -> None:
    malformed = refused(text)
    assert malformed.reason is Reason.SYNTAX
    assert malformed.text == "the last header has no value"
    assert malformed.reply == b"the last header has no value"
    assert malformed.op == text.split("|")[0]
    assert malformed.id == id


@pytest.mark.parametrize(
    "verb", ["MESSAGE", "OK", "ERROR", "PING", "GET", "noop", "", "NOOP\0junk", "NOOP ", " PUT", "PUT\0", "\0", "it's"]
)
@pytest.mark.parametrize(
    ("rest", "id"), [("", None), ("|ID|x", b"x"), ("|ID|", None), ("|ID|x|odd", b"x"), ("|y", None)]
)
def test_an_unknown_verb_is_refused_as_the_original_does(verb: str, rest: str, id: bytes | None) -> None:
    malformed = refused(verb + rest)
    assert malformed.reason is Reason.UNKNOWN_OP
    assert malformed.reply == b"Unknown command verb '%b'" % verb.encode()
    assert malformed.id == id


@pytest.mark.parametrize(
    ("verb", "text"),
    [
        (b"\0\n\x1b[2J", r"Unknown command verb '\x00\n\x1b[2J'"),
        (b"\xff\xfe", r"Unknown command verb '\xff\xfe'"),
        (b"\xc2\x85", r"Unknown command verb '\xc2\x85'"),
        (b"a\\b", r"Unknown command verb 'a\\b'"),
        (EVERY_BYTE[:32], None),
        (EVERY_BYTE[127:227], None),
    ],
)
def test_the_text_of_an_unknown_verb_is_printable_and_its_reply_has_the_bytes(verb: bytes, text: str | None) -> None:
    malformed = refused([b"", verb])
    assert malformed.text.isascii()
    assert malformed.text.isprintable()
    assert malformed.summary == str(malformed) == malformed.text
    assert text in (None, malformed.text)
    assert malformed.op is not None
    assert malformed.text == f"Unknown command verb '{malformed.op}'"
    assert malformed.reply == b"Unknown command verb '%b'" % verb
    assert error(malformed.reply, b"i") == (b"", b"ERROR", b"MESSAGE", malformed.reply, b"ID", b"i")


def test_of_a_long_verb_only_the_start_is_shown() -> None:
    verb = b"PUT" + b"\xff" * 10_000
    malformed = refused([b"", verb, b"ID", b"x"])
    assert malformed.reason is Reason.UNKNOWN_OP
    assert malformed.reply == b"Unknown command verb '%b'" % verb[:MAX_SHOWN]
    assert malformed.id == b"x"
    assert len(malformed.text) < 500


@pytest.mark.parametrize(
    "text",
    ["NOOP|ID|", "CONNECT|TTL|1|ID|", "DISCONNECT|ID|", "SUB|ID|||t", "PUT|TOPIC|t|ID|||b", "PUT|ID||TOPIC|t||b"],
)
def test_an_empty_id_is_refused_and_not_sent_back(text: str) -> None:
    malformed = refused(text)
    verb = text.split("|")[0]
    assert (malformed.reason, malformed.text) == (Reason.PARAMETER, f"the ID of {verb} is empty")
    assert malformed.id is None
    assert malformed.op == verb


def test_an_empty_id_after_another_counts_since_the_last_one_does() -> None:
    malformed = refused("UNSUB|ID|u|ID|||t")
    assert (malformed.reason, malformed.id) == (Reason.PARAMETER, None)


@pytest.mark.parametrize(
    ("text", "id", "said"),
    [
        ("PUT", None, "PUT needs a TOPIC that is not empty"),
        ("PUT||body", None, "PUT needs a TOPIC that is not empty"),
        ("PUT|ID|p13||body", b"p13", "PUT needs a TOPIC that is not empty"),
        ("PUT|topic|t|ID|p||body", b"p", "PUT needs a TOPIC that is not empty"),
        ("PUT|TOPIC||ID|p||body", b"p", "PUT needs a TOPIC that is not empty"),
        ("PUT|TOPIC||", None, "PUT needs a TOPIC that is not empty"),
        ("PUT|TOPIC|||body", None, "PUT needs a TOPIC that is not empty"),
        ("PUT|ID|p|TOPIC||", b"p", "PUT needs a TOPIC that is not empty"),
        ("PUT|ID|p|TOPIC|||body", b"p", "PUT needs a TOPIC that is not empty"),
        ("PUT|TOPIC|t|TOPIC||ID|p||body", b"p", "PUT needs a TOPIC that is not empty"),
        ("PUT|TOPIC|t|X-E||ID|p||body", b"p", "PUT has an empty header: 'X-E'"),
        ("PUT|TOPIC|t|X-A|1|X-E|||body", None, "PUT has an empty header: 'X-E'"),
        ("PUT|X-E|1|TOPIC|t|X-E|||body", None, "PUT has an empty header: 'X-E'"),
        ("PUT|TOPIC|t|\0\xff|||body", None, r"PUT has an empty header: '\x00\xff'"),
    ],
)
def test_a_put_that_its_receivers_could_not_read_is_refused(text: str, id: bytes | None, said: str) -> None:
    malformed = refused(text)
    assert (malformed.reason, malformed.text, malformed.reply) == (Reason.PARAMETER, said, said.encode())
    assert malformed.id == id
    assert malformed.op == "PUT"


def test_of_a_long_key_only_the_start_is_shown() -> None:
    malformed = refused([*frames("PUT|TOPIC|t"), b"k" * 10_000, b""])
    assert malformed.text == f"PUT has an empty header: '{'k' * MAX_SHOWN}'"


@pytest.mark.parametrize("before", ["PUT|ID|i|TOPIC", "SUB|ID|i|", "UNSUB|ID|i||a", "SUB|ID|i||"])
def test_a_topic_has_at_most_so_many_bytes(before: str) -> None:
    longest = b"t" * MAX_TOPIC
    result = parse([*frames(before), longest])
    kept = result.topic if isinstance(result, Put) else result.topics[-1]  # type: ignore[union-attr]
    assert kept == longest
    malformed = refused([*frames(before), longest + b"t"])
    verb = before.split("|")[0]
    assert (malformed.reason, malformed.op, malformed.id) == (Reason.PARAMETER, verb, b"i")
    assert malformed.text == f"a topic of {verb} has more than 4096 bytes"


@pytest.mark.parametrize("before", ["PUT|TOPIC", "PUT|ID|i|TOPIC"])
def test_a_topic_of_a_put_with_a_body_has_at_most_so_many_bytes(before: str) -> None:
    longest = b"t" * MAX_TOPIC
    id = b"i" if "ID" in before else None
    assert parse([*frames(before), longest, b"", b"x"]) == Put(id, longest, [], [b"x"])
    malformed = refused([*frames(before), longest + b"t", b"", b"x"])
    assert (malformed.text, malformed.id) == ("a topic of PUT has more than 4096 bytes", id)


def test_an_id_of_a_put_with_a_body_has_at_most_so_many_bytes() -> None:
    longest = b"i" * MAX_ID
    assert parse([b"", b"PUT", b"ID", longest, b"TOPIC", b"t", b"", b"x"]) == Put(longest, b"t", [], [b"x"])
    malformed = refused([b"", b"PUT", b"ID", longest + b"i", b"TOPIC", b"t", b"", b"x"])
    assert (malformed.text, malformed.id) == (f"the ID of PUT has more than {MAX_ID} bytes", None)


def test_a_message_has_at_most_so_many_headers() -> None:
    headers = [frame for number in range(MAX_HEADERS - 1) for frame in (b"K%d" % number, b"v")]
    most = [b"", b"PUT", b"TOPIC", b"t", *headers]
    assert parse(most) == Put(None, b"t", headers, [])
    assert parse([*most, b"", b"body", b"more"]) == Put(None, b"t", headers, [b"body", b"more"])
    for rest in ([b"X", b"y"], [b"X", b"y", b"", b"body"], [b"X"], [b"ID", b"late"]):
        malformed = refused([*most, *rest])
        assert (malformed.reason, malformed.text) == (Reason.PARAMETER, "the message has more than 1000 headers")
        assert malformed.id is None


def test_headers_are_counted_before_duplicates_are_dropped_and_the_id_among_them_is_known() -> None:
    most = [b"", b"NOOP", b"ID", b"n", *[b"X", b"y"] * (MAX_HEADERS - 1)]
    assert parse(most) == Noop(b"n")
    malformed = refused([*most, b"X", b"y"])
    assert (malformed.reason, malformed.id, malformed.op) == (Reason.PARAMETER, b"n", "NOOP")


def test_all_that_is_refused_is_malformed_and_costs_no_connection() -> None:
    for text in ("DANCE", "NOOP|ID", "NOOP|ID|", "PUT||b", "CONNECT|TTL|x", f"SUB||{'t' * 5_000}"):
        malformed = refused(text)
        assert isinstance(malformed, Malformed)
        assert not malformed.reason.fatal


# TTL


@pytest.mark.parametrize(
    ("text", "ttl"),
    [
        ("0", 0),
        ("1000", 1000),
        ("30000", 30_000),
        ("+1000", 1000),
        ("-0", 0),
        (" 1000 ", 1000),
        ("\t\n\v\f\r 1000", 1000),
        ("0001000", 1000),
        ("1000abc", 1000),
        ("1500.7", 1500),
        ("1e3", 1),
        ("0x10", 0),
        ("1_000", 1),
        ("5\0", 5),
        ("86399999", 86_399_999),
        ("86400000", MAX_TTL),
        ("86400001", MAX_TTL),
        ("864000000", MAX_TTL),
        ("2045222521", MAX_TTL),
        ("99999999999999999999", MAX_TTL),
        ("9" * 1_000_000, MAX_TTL),
        ("0" * 1_000_000 + "7", 7),
        (" " * 1_000_000 + "7", 7),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_ttl_is_read_as_the_original_reads_it_up_to_a_day(text: str, ttl: int) -> None:
    assert say(f"CONNECT|TTL|{text}|ID|c") == Connect(b"c", ttl)


@pytest.mark.parametrize("text", ["abc", "x1", " ", "+", "-", "- 5", "+-5", "\0" + "5", ".5", "\xb2", "\xa0" + "1"])
def test_a_ttl_without_a_number_is_refused(text: str) -> None:
    malformed = refused(f"CONNECT|TTL|{text}|ID|c")
    assert (malformed.reason, malformed.text) == (Reason.PARAMETER, "the TTL of CONNECT is no number")
    assert (malformed.op, malformed.id) == ("CONNECT", b"c")


@pytest.mark.parametrize("text", ["-1", "-5", " -1000 ", "-0001", "-" + "9" * 1_000_000], ids=lambda value: value[:8])
def test_a_negative_ttl_is_refused(text: str) -> None:
    malformed = refused(f"CONNECT|TTL|{text}|ID|c")
    assert (malformed.reason, malformed.text) == (Reason.PARAMETER, "the TTL of CONNECT is negative")
    assert malformed.id == b"c"


# Long frames


def test_a_long_frame_is_no_verb() -> None:
    assert refused([b"", LONG]).reason is Reason.UNKNOWN_OP


def test_an_id_may_be_a_long_frame() -> None:
    assert parse([b"", b"NOOP", b"ID", LONG]) == Noop(LONG)
    assert refused([b"", b"NOOP", b"ID", LONG, b"X"]).id == LONG


def test_a_topic_may_be_a_long_frame() -> None:
    assert parse([b"", b"PUT", b"TOPIC", LONG, b"", b"b"]) == Put(None, LONG, [], [b"b"])
    assert parse([b"", b"SUB", b"", b"t", LONG]) == Sub(None, [b"t", LONG])
    assert parse([b"", b"UNSUB", b"", LONG]) == Unsub(None, [LONG])


def test_a_long_key_that_comes_twice_has_its_last_value() -> None:
    result = parse([b"", b"PUT", LONG, b"1", b"TOPIC", b"t", bytes(bytearray(LONG)), b"2"])
    assert result == Put(None, b"t", [LONG, b"2"], [])


def test_values_and_bodies_are_handed_on_without_a_copy() -> None:
    value, body = bytes(bytearray(LONG)), bytes(bytearray(LONG))
    result = parse([b"", b"PUT", b"TOPIC", b"t", b"X", value, b"", b"", body])
    assert isinstance(result, Put)
    assert result.headers[1] is value
    assert result.body[1] is body
    sent = message(result.topic, result.headers, result.body)
    assert sent[:5] == [b"", b"MESSAGE", b"TOPIC", b"t", b"X"]
    assert sent[5] is value
    assert sent[6:8] == [b"", b""]
    assert sent[8] is body


# Encoding


def test_ok_has_exactly_the_frames_that_clients_look_for() -> None:
    assert list(ok(b"\0id")) == [b"", b"OK", b"ID", b"\0id"]


def test_an_error_has_its_text_first_and_the_id_only_if_there_is_one() -> None:
    assert list(error(b"text", None)) == [b"", b"ERROR", b"MESSAGE", b"text"]
    assert list(error(b"text", b"x")) == [b"", b"ERROR", b"MESSAGE", b"text", b"ID", b"x"]


def test_an_error_has_no_empty_value() -> None:
    assert list(error(b"", b"")) == [b"", b"ERROR", b"MESSAGE", b"refused"]


def test_the_heartbeat_has_no_more_than_its_verb() -> None:
    assert list(NOOP) == [b"", b"NOOP"]


def test_a_message_has_its_separator_even_without_a_body() -> None:
    assert message(b"t", [], []) == [b"", b"MESSAGE", b"TOPIC", b"t", b""]
    assert message(b"t", [b"X-REPLY-TO", b"r"], [b"", b"2"]) == [
        b"", b"MESSAGE", b"TOPIC", b"t", b"X-REPLY-TO", b"r", b"", b"", b"2",
    ]  # fmt: skip


# Recorded conversations


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_recorded_conversation_is_understood_and_its_replies_are_made(name: str) -> None:
    said: list[Said] = CONVERSATIONS[name]
    due: list[tuple[str, tuple[bytes, ...]]] = []
    published: list[object] = []
    for direction, client, recorded in said:
        if direction == ">":
            command = parse(recorded)
            if command.id is not None:
                due.append((client, ok(command.id)))
            if isinstance(command, Put):
                made = message(command.topic, command.headers, command.body)
                published.append(read_as_the_connector([bytes(frame) for frame in made]))
        elif recorded[1] == b"OK":
            due.remove((client, tuple(recorded)))
        elif recorded[1] == b"NOOP":
            assert tuple(recorded) == NOOP
        else:
            assert read_as_the_connector(recorded) in published
    assert due == []


def test_the_recordings_have_every_verb() -> None:
    verbs = {recorded[1] for said in CONVERSATIONS.values() for _, _, recorded in said}
    assert verbs == {b"CONNECT", b"DISCONNECT", b"SUB", b"UNSUB", b"PUT", b"NOOP", b"OK", b"MESSAGE"}


def test_the_messages_of_the_document_are_read() -> None:
    # mc0 0.3, "Messages originated by the connector".
    assert say("CONNECT|VERSION|0.1|TTL|1000") == Connect(None, 1000, b"0.1")
    assert say("DISCONNECT") == Disconnect()
    assert say("SUB||topic1|topic2") == Sub(None, [b"topic1", b"topic2"])
    assert say("UNSUB||topic1|topic2") == Unsub(None, [b"topic1", b"topic2"])
    assert say("PUT|TOPIC|topic1||body") == Put(None, b"topic1", [], [b"body"])
    assert say("NOOP|ID|1234") == Noop(b"1234")


def test_topics_have_the_length_that_all_wires_pass() -> None:
    assert MAX_TOPIC == model.MAX_TOPIC
