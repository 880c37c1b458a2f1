"""Frames and commands: bytes to messages, and messages to bytes (RFC 23, "Framing").

A frame is an octet of flags, a size (1 octet, or 8 in network order where LONG is set) and that many octets. A message
is a row of frames, of which all but the last have MORE. A command has COMMAND, and never MORE; it may come between
messages, and heartbeats between the frames of one. All other flags are reserved, and zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Protocol

import attrs

from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.limits import FRAME_COST, MAX_COMMAND, Limits

MORE, LONG, COMMAND = 1, 2, 4

SHORT = 256
"""Bytes from which a size needs eight octets."""

PARTIAL = 4_096
"""Bytes from which an unfinished frame is collected in a buffer of its own. A shorter one is put together with the next
read: that is cheaper, and copies no more than this for each packet."""

STEP = range(1_024)
"""Frames between two values that a decoder yields, at least: some 300 µs of work, so that one read of 64 KiB that is
full of empty frames does not hold up other connections."""

_long = Struct(">BQ").pack
_LAST = tuple(bytes((0, size)) for size in range(SHORT))
_MORE = tuple(bytes((MORE, size)) for size in range(SHORT))


@attrs.frozen
class Command:
    """A command: its name, such as b"PING", and its data."""

    name: bytes
    data: bytes


Decoded = list[bytes] | Command | None
"""A message, a command, or None: nothing yet, but a good moment to look at the clock."""


class Decoder(Protocol):
    """The input of a connection after its handshake."""

    @property
    def pending(self) -> int:
        """Bytes held of a message that is not complete, each frame counting for `FRAME_COST` more."""

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """Decode what was read. Raises `ZmtpError`. It is to be exhausted before the next call."""


class Encoder(Protocol):
    """The output of a connection after its handshake."""

    def message(self, frames: Sequence[bytes]) -> bytes:
        """The octets of one message, which has one frame at least."""

    def command(self, name: bytes, data: bytes) -> bytes:
        """The octets of one command."""


def message(frames: Sequence[bytes]) -> bytes:
    """The octets of one message, which has one frame at least."""
    parts: list[bytes] = []
    add = parts.append
    for frame in frames[:-1]:
        size = len(frame)
        add(_MORE[size] if size < SHORT else _long(MORE | LONG, size))
        add(frame)
    frame = frames[-1]
    size = len(frame)
    add(_LAST[size] if size < SHORT else _long(LONG, size))
    add(frame)
    return b"".join(parts)


def command(name: bytes, data: bytes) -> bytes:
    """The octets of one command."""
    body = bytes((len(name),)) + name + data
    if len(body) < SHORT:
        return bytes((COMMAND, len(body))) + body
    return _long(COMMAND | LONG, len(body)) + body


def split_command(body: bytes, fault: Fault) -> Command:
    """The command in the body of a frame. Raises `ZmtpError` with that fault."""
    end = 1 + body[0] if body else 0
    if not 1 < end <= len(body):
        raise ZmtpError(fault, "a command has no name")
    return Command(body[1:end], body[end:])


class PlainEncoder:
    """Output that is not encrypted: the same octets for every peer."""

    message = staticmethod(message)
    command = staticmethod(command)


class Assembly:
    """Frames to messages: what decoders have in common.

    ``overhead`` is the number of bytes by which a frame on the wire is longer than what it holds.
    """

    __slots__ = ("_cost", "_flags", "_frames", "_limits", "_overhead", "_partial", "_rest", "_size")

    def __init__(self, limits: Limits, overhead: int = 0) -> None:
        self._limits = limits
        self._overhead = overhead
        self._rest = b""
        """The beginning of a frame: its header is not complete, or the frame is short."""
        self._partial: bytearray | None = None
        """The beginning of the body of a long frame, with ``_flags``; it will have ``_size`` bytes."""
        self._flags = 0
        self._size = 0
        self._frames: list[bytes] = []
        """The frames of a message that is not complete."""
        self._cost = 0
        """The bytes that these count for."""

    @property
    def pending(self) -> int:
        """See `Decoder`."""
        partial = 0 if self._partial is None else len(self._partial)
        return self._cost + len(self._rest) + partial

    def _resume(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Add to the frame that `_begin` has kept. Returns its body, once it is complete, and what follows it."""
        assert self._partial is not None
        self._partial += data
        if len(self._partial) < self._size:
            return None
        body = bytes(memoryview(self._partial)[: self._size])
        data = bytes(memoryview(self._partial)[self._size :])
        self._partial = None
        return body, data

    def _header(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """The size of a frame that is long, or a command, and where its body begins; 0 where that is not known yet."""
        flags = data[position]
        if flags & ~(MORE | LONG | COMMAND) or flags & (MORE | COMMAND) == MORE | COMMAND:
            raise ZmtpError(Fault.FRAME, f"a frame with the flags {flags:#04x}")
        if not flags & LONG:
            size, start = data[position + 1], position + 2
        elif position + 9 > end:
            return 0, 0
        else:
            size, start = int.from_bytes(data[position + 1 : position + 9], "big"), position + 9
        if flags & COMMAND:
            if size > MAX_COMMAND:
                raise ZmtpError(Fault.TOO_LARGE, f"a command of {size} bytes; {MAX_COMMAND} are allowed")
        else:
            held = size - self._overhead
            if held > self._limits.frame:
                raise ZmtpError(Fault.TOO_LARGE, f"a frame of {held} bytes; {self._limits.frame} are allowed")
            if self._cost + held + FRAME_COST > self._limits.message:
                self._refuse(len(self._frames))
        return size, start

    def _begin(self, data: bytes, position: int, start: int, flags: int, size: int) -> None:
        """Keep the beginning of a frame that is not complete."""
        if size < PARTIAL:
            self._rest = data[position:]
            return
        self._partial = bytearray(memoryview(data)[start:])
        self._flags, self._size = flags, size

    def _whole(self, flags: int, body: bytes) -> Decoded:
        """Take a frame that is long, or a command. Returns what it completes."""
        if flags & COMMAND:
            return split_command(body, Fault.FRAME)
        self._frames.append(body)
        if flags & MORE:
            self._cost += len(body) + FRAME_COST
            if self._cost > self._limits.message or len(self._frames) >= self._limits.frames:
                self._refuse(len(self._frames))
            return None
        frames, self._frames, self._cost = self._frames, [], 0
        return frames

    def _refuse(self, frames: int) -> None:
        self._frames = []  # the memory is free before the connection is closed
        limits = self._limits
        raise ZmtpError(
            Fault.TOO_LARGE,
            f"a message of more than {limits.message} bytes or {limits.frames} frames (it has {frames} so far)",
        )


class PlainDecoder(Assembly):
    """Input that is not encrypted."""

    __slots__ = ()

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """See `Decoder`."""
        if self._partial is not None:
            resumed = self._resume(data)
            if resumed is None:
                return
            body, data = resumed
            yield self._whole(self._flags, body)
        elif self._rest:
            data = self._rest + data
        self._rest = b""
        frames, cost = self._frames, self._cost
        most_frames, most_cost = self._limits.frames, self._limits.message
        position, end = 0, len(data)
        while True:
            for _ in STEP:
                start = position + 2
                if start > end:
                    self._rest = data[position:] if position else data
                    self._cost = cost
                    return
                flags = data[position]
                stop = start + data[position + 1]
                if flags > MORE:  # long, a command, or wrong
                    self._frames, self._cost = frames, cost
                    size, start = self._header(data, position, end)
                    if start == 0:
                        self._rest = data[position:]
                        return
                    stop = start + size
                    if stop > end:
                        self._begin(data, position, start, flags, size)
                        return
                    position = stop
                    decoded = self._whole(flags, data[start:stop])
                    frames, cost = self._frames, self._cost
                    if decoded is not None:
                        yield decoded
                    continue
                if stop > end:
                    self._rest = data[position:]
                    self._cost = cost
                    return
                position = stop
                frames.append(data[start:stop])
                if flags:
                    cost += stop - start + FRAME_COST
                    if cost > most_cost or len(frames) >= most_frames:
                        self._cost = cost
                        self._refuse(len(frames))
                    continue
                # Without MORE: the last frame of a message.
                complete, frames, cost = frames, [], 0
                self._frames, self._cost = frames, 0
                yield complete
            self._cost = cost
            yield None


def messages(decoded: Iterable[Decoded]) -> list[list[bytes]]:
    """The messages among what was decoded."""
    return [each for each in decoded if isinstance(each, list)]
