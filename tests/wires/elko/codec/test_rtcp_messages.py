"""RTCP on the wire: requests from bytes in whatever pieces, replies to bytes, and what is too much."""

from __future__ import annotations

import pytest

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec import rtcp_messages
from broker.wires.elko.codec.blocks import MAX_BLOCK
from broker.wires.elko.codec.rtcp_messages import MAX_LINE, Ack, Block, Complaint, End, Resume, RtcpReader, Start

PING = b'{to:"broker", op:"ping", tag:"one"}\n'

EXAMPLES: list[tuple[bytes, list[rtcp_messages.Request]]] = [
    (b"start\n", [Start()]),
    (b"start\r\n", [Start()]),
    (b"resume 6551079049892327179 2\n", [Resume("6551079049892327179", 2)]),
    (b"ack 0\n", [Ack(0)]),
    (b"end 5\n", [End(5)]),
    (b"error foo bar\n", [Complaint("foo bar")]),
    (b"error\n", [Complaint("")]),
    (b"error \xff\n", [Complaint("\ufffd")]),
    (b"1 0\n" + PING + b"\n", [Block(1, 0, PING)]),
    (b"2 1\r\n" + PING + b"\r\n", [Block(2, 1, PING)]),
    (b"2 1\n" + PING + PING + b"\n", [Block(2, 1, PING + PING)]),
    (b"3 3\n\n", [Block(3, 3, b"")]),
    (b"\n\n\nack 1\n\n\nack 2\n", [Ack(1), Ack(2)]),
    (b"1 0\n{}\n\n2 0\n{}\n\nack 7\n3 7\n\nstart\n", [
        Block(1, 0, b"{}\n"), Block(2, 0, b"{}\n"), Ack(7), Block(3, 7, b""), Start(),
    ]),
    # what looks like a request inside a block is none
    (b"1 0\nack 1\nstart\n\nack 2\n", [Block(1, 0, b"ack 1\nstart\n"), Ack(2)]),
]  # fmt: skip

NONSENSE = [
    b"bogus", b"start ", b"start now", b" start", b"START", b"ack", b"ack x", b"ack -1", b"ack 1 2", b"end", b"1",
    b"1 ",
    b"1 0 0", b"a b", b"0x1 0", b"+1 0", b"1  0", b"resume", b"resume 1", b"resume x 1", b"resume 1 x", b"errors",
    b"ack 1234567890123456789", b"\xc2\xb2 1", b"ack \xd9\xa1", b'{"to":"broker","op":"ping"}',
    b"resume " + b"1" * 65 + b" 1",
]  # fmt: skip


def read(*pieces: bytes) -> list[rtcp_messages.Request | Malformed]:
    reader = RtcpReader()
    return [item for piece in pieces for item in reader.feed(piece)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(("data", "expected"), EXAMPLES)
def test_the_examples_whole_bytewise_and_with_something_begun_behind_them(
    data: bytes, expected: list[rtcp_messages.Request]
) -> None:
    assert read(data) == expected
    assert read(*bytewise(data)) == expected
    for trailing in (b"st", b"ack 1", b"1 0", b"1 0\n", b"1 0\n{", b"1 0\n{}\n"):
        assert read(data + trailing) == expected
        assert read(*bytewise(data + trailing)) == expected


def test_the_examples_one_after_the_other() -> None:
    data = b"".join(data for data, _ in EXAMPLES)
    expected = [request for _, requests in EXAMPLES for request in requests]
    assert read(data) == expected
    assert read(*bytewise(data)) == expected


@pytest.mark.parametrize("line", NONSENSE)
def test_a_line_that_is_no_request_costs_itself_only(line: bytes) -> None:
    bad, good = read(line + b"\nack 5\n")
    assert isinstance(bad, Malformed)
    assert (bad.reason, bad.reason.fatal, good) == (Reason.SYNTAX, False, Ack(5))


def test_what_is_held_is_known() -> None:
    reader = RtcpReader()
    assert list(reader.feed(b"1 0\n" + PING)) == []
    assert reader.pending == len(PING)
    assert list(reader.feed(b"\n2 ")) == [Block(1, 0, PING)]
    assert reader.pending == 2


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_block_at_the_limit_and_one_over_it(pieces: int) -> None:
    for size, good in ((MAX_BLOCK, True), (MAX_BLOCK + 1, False)):
        data = b"1 0\n" + b"x" * (size - 1) + b"\n\nack 9\n"
        step = len(data) // pieces + 1
        items = read(*(data[at : at + step] for at in range(0, len(data), step)))
        if good:
            assert items == [Block(1, 0, b"x" * (size - 1) + b"\n"), Ack(9)]
        else:
            [end] = items
            assert isinstance(end, Malformed)
            assert end.reason is Reason.TOO_LARGE


def test_a_first_line_over_the_limit_ends_it_before_it_ends() -> None:
    reader = RtcpReader()
    assert list(reader.feed(b"x" * MAX_LINE)) == []
    [end] = reader.feed(b"x")
    assert isinstance(end, Malformed)
    assert (end.reason, reader.pending) == (Reason.TOO_LARGE, 0)
    assert list(reader.feed(b"\nack 1\n")) == []
    [end] = read(b"x" * (MAX_LINE + 1) + b"\nack 1\n")
    assert isinstance(end, Malformed)
    assert end.reason is Reason.TOO_LARGE


def test_a_block_that_grows_byte_by_byte_is_not_looked_through_again_and_again() -> None:
    reader = RtcpReader()
    assert list(reader.feed(b"1 0\n" + b"x" * 500_000)) == []
    for _ in range(20_000):  # each of which would look through half a megabyte: ten seconds and more
        assert list(reader.feed(b"y")) == []
    [block] = reader.feed(b"\n\n")
    assert block == Block(1, 0, b"x" * 500_000 + b"y" * 20_000 + b"\n")


def test_replies() -> None:
    assert rtcp_messages.started("17") == b"start 17\n"
    assert rtcp_messages.resumed("17", 3) == b"resume 17 3\n"
    assert rtcp_messages.message(3, 2, b"{}\n\n") == b"3 2\n{}\n\n"
    assert rtcp_messages.ack(4) == b"ack 4\n"
    assert rtcp_messages.error(rtcp_messages.NO_SESSION) == b"error noSession\n"
