"""Decoding, refusal and encoding of data commands, and the cache of their tails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.core.errors import Reason
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.data_messages import (
    MAX_HEADER,
    MAX_STRING,
    MAX_TAIL,
    MAX_TAILS,
    MAX_TAILS_SIZE,
    PING,
    PONG,
    Command,
    Confirm,
    Content,
    Dismiss,
    EncodedCommand,
    Lease,
    Ping,
    Pong,
    Reject,
    Response,
    Summon,
    Tails,
    content_header,
    is_name,
    make_tail,
    parse,
)
from broker.wires.mtl.codec.field_table import EMPTY, MAX_EXTENDED, MAX_TABLE, Fault, IllFormed, encode

TABLE = encode({"a": "bc"})
TAIL = b"\x08resource" + TABLE
SEQUENCES = [0, 1, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1]
BODY = b"body"


def u64(number: int) -> bytes:
    return number.to_bytes(8)


def read(header: bytes, body: bytes = b"") -> Command:
    return parse((header, body), Tails())


def fault_of(header: bytes, body: bytes = b"") -> Fault:
    with pytest.raises(IllFormed) as caught:
        read(header, body)
    assert caught.value.reason is Reason.SYNTAX
    assert not caught.value.reason.fatal
    return caught.value.fault


COMMANDS: list[tuple[bytes, bytes, Command, EncodedCommand]] = [
    (b"\1" + u64(7) + b"\5token", b"", Lease(7, "token"), data_messages.lease(7, "token")),
    (b"\1" + u64(7) + b"\0", b"", Lease(7, ""), data_messages.lease(7, "")),
    (b"\2" + u64(7), b"200", Response(7, b"200"), data_messages.response(7, data_messages.OK)),
    (b"\2" + u64(7), b"403", Response(7, b"403"), data_messages.response(7, data_messages.FORBIDDEN)),
    (b"\3" + u64(7) + b"\3res", b"", Summon(7, "res"), data_messages.summon(7, "res")),
    (b"\4" + u64(7) + b"\3\xc3\xa9s", b"", Dismiss(7, "és"), data_messages.dismiss(7, "és")),
    (
        b"\5" + u64(7) + TAIL,
        BODY,
        Content(7, "resource", TABLE, TAIL, BODY),
        data_messages.content(7, "resource", TABLE, BODY),
    ),
    (b"\5" + u64(7) + bytes(5), b"", Content(7, "", EMPTY, bytes(5), b""), data_messages.content(7, "", EMPTY, b"")),
    (b"\6" + u64(7) + b"\0", b"", Confirm(7, False), data_messages.confirm(7)),
    (b"\6" + u64(7) + b"\1", b"", Confirm(7, True), data_messages.confirm(7, multiple=True)),
    (b"\7" + u64(7) + b"\0\0", b"", Reject(7, False, False), data_messages.reject(7)),
    (b"\7" + u64(7) + b"\1\0", b"", Reject(7, True, False), data_messages.reject(7, multiple=True)),
    (b"\7" + u64(7) + b"\0\1", b"", Reject(7, False, True), data_messages.reject(7, recycle=True)),
    (b"\x08", b"", Ping(), PING),
    (b"\x09", b"", Pong(), PONG),
]
HEADERS = [header for header, *_ in COMMANDS]


@pytest.mark.parametrize(("header", "body", "expected", "written"), COMMANDS)
def test_each_command_is_read_and_written(
    header: bytes, body: bytes, expected: Command, written: tuple[bytes, bytes]
) -> None:
    """D01, D03, S01, W01, K03, K05, H01, F01."""
    result = read(header, body)
    assert type(result) is type(expected)
    assert result == expected
    assert written == (header, body)
    assert parse([header, body], Tails()) == expected


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_sequence_is_read_and_written_bit_for_bit(sequence: int) -> None:
    """D04, F01."""
    for header, body, *_ in COMMANDS[:-2]:
        header = header[:1] + u64(sequence) + header[9:]
        result = read(header, body)
        assert result.sequence == sequence  # type: ignore[union-attr]
    assert content_header(sequence, TAIL) == b"\5" + u64(sequence) + TAIL
    assert data_messages.response(sequence, data_messages.OK)[0] == b"\2" + u64(sequence)
    assert data_messages.confirm(sequence)[0] == b"\6" + u64(sequence) + b"\0"


def test_commands_cannot_be_changed() -> None:
    for header, body, *_ in COMMANDS[:-2]:
        with pytest.raises(AttributeError):
            read(header, body).sequence = 0  # type: ignore[misc, union-attr]


def test_the_body_of_a_summon_is_passed_on() -> None:
    assert read(*data_messages.summon(7, "res", b"more")) == Summon(7, "res", b"more")


def test_a_body_that_is_not_used_is_not_looked_at() -> None:
    """X06, H04."""
    for header, _, expected, _ in COMMANDS:
        if not isinstance(expected, Response | Content | Summon):
            for body in (b"x", b"\xff" * 100_000):
                assert read(header, body) == expected


@pytest.mark.parametrize("body", [b"", bytes(range(256)), bytes(2**20)])
def test_a_body_of_content_is_passed_on(body: bytes) -> None:
    """W02."""
    result = read(content_header(1, TAIL), body)
    assert isinstance(result, Content)
    assert result.body is body


# Dropped commands


@pytest.mark.parametrize("header", HEADERS)
def test_every_truncation_of_every_command_is_none(header: bytes) -> None:
    """X03."""
    for end in range(len(header)):
        fault = fault_of(header[:end], b"200")
        if end == 0:
            assert fault is Fault.EMPTY
        elif header[0] == 5 and end >= 10 + header[9]:
            assert fault is Fault.TABLE_LENGTH
        else:
            assert fault is Fault.CUT


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("more", [b"\0", b"x", bytes(8), bytes(100_000)])
def test_bytes_behind_the_last_field_are_an_error(header: bytes, more: bytes) -> None:
    """X04."""
    if len(header + more) > MAX_HEADER:
        assert fault_of(header + more, b"200") is Fault.TOO_LARGE
    else:
        assert fault_of(header + more, b"200") is (Fault.TABLE_LENGTH if header[0] == 5 else Fault.LEFT_OVER)


WITH_STRINGS: list[Callable[[bytes], bytes]] = [
    lambda text: b"\1" + u64(1) + len(text).to_bytes(1) + text,
    lambda text: b"\3" + u64(1) + len(text).to_bytes(1) + text,
    lambda text: b"\4" + u64(1) + len(text).to_bytes(1) + text,
    lambda text: b"\5" + u64(1) + len(text).to_bytes(1) + text + EMPTY,
]


@pytest.mark.parametrize("text", ["", "a", " ", "a b", "é", "日本", "service/NAME", "x" * 255, "é" * 127])
@pytest.mark.parametrize("header", WITH_STRINGS)
def test_a_short_string_has_up_to_255_bytes(header: Callable[[bytes], bytes], text: str) -> None:
    """F01, D02, S02, W03."""
    result = read(header(text.encode()))
    assert (result.lease if isinstance(result, Lease) else result.resource) == text  # type: ignore[union-attr]
    assert is_name(text) is bool(text)


@pytest.mark.parametrize("text", ["x" * 256, "é" * 128, "\0", "\n", "\ud800", "\u200b"])
def test_what_cannot_be_a_short_string_is_not_written(text: str) -> None:
    """L08."""
    assert not is_name(text)
    for write in (data_messages.lease, data_messages.summon, data_messages.dismiss):
        with pytest.raises(ValueError):
            write(1, text)
    with pytest.raises(ValueError):
        make_tail(text)


@pytest.mark.parametrize("body", [b"", b"20", b"2000", b"abc", b"2 0", "²00".encode(), "٣".encode() + b"0"])
def test_a_response_has_a_code_of_three_digits(body: bytes) -> None:
    assert fault_of(b"\2" + u64(1), body) is Fault.CODE


def test_a_bad_table_is_no_content() -> None:
    """W11."""
    head = b"\5" + u64(1) + b"\1r"
    assert fault_of(head + TABLE[:-1]) is Fault.TABLE_LENGTH
    assert fault_of(head + TABLE + b"\0") is Fault.TABLE_LENGTH
    assert fault_of(head + b"\0\0\0\3\1kZ") is Fault.TABLE_TAG


def test_a_header_has_a_limit_and_the_largest_table_fits() -> None:
    largest = make_tail("é" * 127, encode({"k": bytes(MAX_EXTENDED - 7)}, MAX_EXTENDED))
    header = content_header(1, largest)
    assert len(header) <= MAX_HEADER
    result = parse((header, b""), Tails(MAX_EXTENDED))
    assert isinstance(result, Content)
    assert result.tail == largest
    assert fault_of(header) is Fault.TOO_LARGE
    assert isinstance(read(content_header(1, make_tail("r", encode({"k": bytes(MAX_TABLE - 7)})))), Content)
    for too_large in (bytes(MAX_HEADER + 1), b"\5" + bytes(10**6)):
        assert fault_of(too_large) is Fault.TOO_LARGE


# Tails


def content_of(tail: bytes, tails: Tails) -> Content:
    result = parse((content_header(1, tail), b""), tails)
    assert isinstance(result, Content)
    return result


def numbered(number: int) -> bytes:
    return make_tail("resource", encode({"message-id": f"{number:08}"}))


def test_a_tail_that_comes_again_is_remembered() -> None:
    tails = Tails()
    first, second = content_of(TAIL, tails), content_of(TAIL, tails)
    assert second == first
    assert second.tail is first.tail
    assert second.table is first.table
    assert second.resource is first.resource
    assert tails.kept[0] == 1


def test_a_bad_tail_is_not_remembered() -> None:
    tails = Tails()
    for _ in range(2):
        with pytest.raises(IllFormed):
            parse((b"\5" + u64(1) + b"\1r\0\0\0\1", b""), tails)
    assert tails.kept == (0, 0)


def test_tails_are_bounded_in_number_and_those_in_use_stay() -> None:
    tails = Tails()
    first = content_of(TAIL, tails)
    for number in range(5 * MAX_TAILS):
        content_of(numbered(number), tails)
        assert tails.kept[0] <= MAX_TAILS
        if number % 100 == 0:
            assert content_of(TAIL, tails).tail is first.tail
    last = content_of(numbered(5 * MAX_TAILS), tails)
    assert content_of(numbered(5 * MAX_TAILS), tails).tail is last.tail
    assert tails.kept[0] >= MAX_TAILS // 2


def test_a_tail_that_is_not_used_is_forgotten() -> None:
    tails = Tails()
    first = content_of(TAIL, tails)
    for number in range(MAX_TAILS):
        content_of(numbered(number), tails)
    again = content_of(TAIL, tails)
    assert again == first
    assert again.tail is not first.tail


def test_tails_are_bounded_in_bytes() -> None:
    tails = Tails()
    for number in range(2 * MAX_TAILS):
        tail = make_tail("resource", encode({"message-id": f"{number:08}", "pad": "x" * (MAX_TAIL - 100)}))
        assert content_of(tail, tails).tail is content_of(tail, tails).tail
        assert tails.kept[1] <= MAX_TAILS_SIZE
    assert tails.kept[1] > MAX_TAILS_SIZE // 4


def test_a_long_tail_is_checked_each_time() -> None:
    tails = Tails()
    tail = make_tail("resource", encode({"pad": "x" * MAX_TAIL}))
    first, second = content_of(tail, tails), content_of(tail, tails)
    assert first == second
    assert second.tail is not first.tail
    assert tails.kept == (0, 0)


def test_a_tail_makes_a_header_with_another_sequence() -> None:
    """W09: what is sent on has the number of its own flow."""
    received = content_of(TAIL, Tails())
    assert content_header(42, received.tail) == data_messages.content(42, "resource", TABLE, b"")[0]
    assert make_tail(received.resource, received.table) == TAIL
    assert len(make_tail("x" * MAX_STRING)) == 1 + MAX_STRING + 4
