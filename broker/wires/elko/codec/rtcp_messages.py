"""Codec of RTCP, whose sessions survive their TCP connections: bytes to requests, replies to bytes.

A client sends lines, some of which begin a block:

    start                 begin a session
    resume SESSION LAST   continue one; LAST is the last number received
    NUMBER LAST           one block follows, up to an empty line: messages, which count once
    ack LAST              the last number received
    end LAST              end the session
    error TEXT            an error at the client

Rules:
- Each message has a number. Numbers are decimal, and begin with 1 in each direction.
- Lines end with LF; CR and NUL bytes are dropped everywhere, and empty lines between requests are ignored.
- A line of any other form is a `Malformed`, and affects nothing else.
- A first line over `MAX_LINE`, and a block over `MAX_BLOCK`, are fatal errors.

The sessions are in `broker.wires.elko.transports.rtcp`; see docs/protocols/elko-transports.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import attrs

from broker.core.errors import Malformed, Reason
from broker.wires.elko.codec.blocks import END, MAX_BLOCK

MAX_LINE = 256
"""Bytes of a line outside of blocks: the longest one has a session id of some 40 digits and a number."""


@attrs.frozen
class Start:
    """Begin a session."""


@attrs.frozen
class Resume:
    """Continue ``session``; ``last`` is the number of the last message that the client has received."""

    session: str
    last: int


@attrs.frozen
class Block:
    """Messages: block ``number`` of the client, which has received the broker's messages up to ``last``."""

    number: int
    last: int
    data: bytes


@attrs.frozen
class Ack:
    """The client has received the broker's messages up to ``last``."""

    last: int


@attrs.frozen
class End:
    """The client ends the session, and has received the broker's messages up to ``last``."""

    last: int


@attrs.frozen
class Complaint:
    """The client reports an error."""

    text: str


Request = Start | Resume | Block | Ack | End | Complaint

NO_SESSION, NO_SUCH_SESSION = "noSession", "noSuchSession"
IN_PROGRESS, SEQUENCE = "sessionInProgress", "sequenceError"
TOO_MANY = "tooManySessions"
"""The errors in replies; the last one is an extension."""

_NUMBER = rb"([0-9]{1,18})"
_FORMS: tuple[tuple[re.Pattern[bytes], Callable[..., Request]], ...] = (
    (re.compile(rb"ack " + _NUMBER), lambda last: Ack(int(last))),
    (re.compile(rb"start"), Start),
    (re.compile(rb"resume ([0-9]{1,64}) " + _NUMBER), lambda session, last: Resume(session.decode(), int(last))),
    (re.compile(rb"end " + _NUMBER), lambda last: End(int(last))),
    (re.compile(rb"error(?: (.*))?"), lambda text: Complaint((text or b"").decode(errors="replace"))),
)
_HEAD = re.compile(_NUMBER + b" " + _NUMBER)


class RtcpReader:
    """Incremental decoder for the input of one connection."""

    __slots__ = ("_data", "_ended", "_head", "_searched")

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: tuple[int, int] | None = None
        self._searched = 0
        self._ended = False

    @property
    def pending(self) -> int:
        """Bytes held of an incomplete request."""
        return len(self._data)

    def feed(self, data: bytes) -> Iterator[Request | Malformed]:
        """Yield the requests that ``data`` completes, and nothing after a `Malformed` with a fatal reason."""
        if self._ended:
            return
        self._data += data.translate(None, b"\r\0")
        at = 0
        while True:
            if self._head is None:
                end = self._data.find(b"\n", at)
                if end < 0:
                    break
                line = bytes(self._data[at:end])
                at = end + 1
                if len(line) > MAX_LINE:
                    yield self._too_large()
                    return
                if line:
                    request = self._request(line)
                    if request is not None:
                        yield request
            else:
                block, at = self._block(at)
                if block is None:
                    break
                yield block
                if self._ended:
                    return
        del self._data[:at]
        # One byte less: the terminator may be split between two reads.
        self._searched = max(0, len(self._data) - 1)
        most = MAX_LINE if self._head is None else MAX_BLOCK
        if len(self._data) > most:
            yield self._too_large()

    def _request(self, line: bytes) -> Request | Malformed | None:
        """Parse a first line. Returns None if a block follows."""
        head = _HEAD.fullmatch(line)
        if head is not None:
            self._head = int(head[1]), int(head[2])
            self._searched = 0
            return None
        for form, request in _FORMS:
            match = form.fullmatch(line)
            if match is not None:
                return request(*match.groups())
        return Malformed(Reason.SYNTAX, "the line is not an RTCP request")

    def _block(self, at: int) -> tuple[Block | Malformed | None, int]:
        """Return the block that begins at a position, if it is complete, and the position after it."""
        assert self._head is not None
        if self._data.startswith(b"\n", at):
            start, end = at, at + 1
        else:
            # Data held from earlier reads begins at 0 and was searched then: a search from its start at each read would
            # be quadratic.
            start = self._data.find(END, at + (self._searched if at == 0 else 0))
            if start < 0:
                return None, at
            start, end = start + 1, start + 2
        data = bytes(self._data[at:start])
        if len(data) > MAX_BLOCK:
            return self._too_large(), end
        number, last = self._head
        self._head = None
        return Block(number, last, data), end

    def _too_large(self) -> Malformed:
        what, most = ("line that begins no block", MAX_LINE) if self._head is None else ("block", MAX_BLOCK)
        self._ended = True
        self._data = bytearray()
        return Malformed(Reason.TOO_LARGE, f"a {what} has more than {most} bytes")


def started(session: str) -> bytes:
    """Encode the reply to `Start`."""
    return f"start {session}\n".encode()


def resumed(session: str, last: int) -> bytes:
    """Encode the reply to `Resume`: ``last`` is the number of the last block that the broker has received."""
    return f"resume {session} {last}\n".encode()


def message(number: int, last: int, data: bytes) -> bytes:
    """Encode one message, already encoded with its end, under its number; ``last`` as in `resumed`."""
    return b"%d %d\n%b" % (number, last, data)


def ack(last: int) -> bytes:
    """Encode the acknowledgement of the blocks up to ``last``."""
    return b"ack %d\n" % last


def error(name: str) -> bytes:
    """Encode the refusal of a request."""
    return f"error {name}\n".encode()
