"""CURVE traffic: each frame of a message in a box of its own (RFC 26, "The MESSAGE Command").

On the wire a MESSAGE is an ordinary frame without MORE: ``07 MESSAGE``, a counter of 8 octets, and a box of one octet
of flags (MORE, COMMAND) and the frame's body. The counter is part of the box's nonce, and increases with each frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Protocol

import attrs

from broker.net.pieces import Pieces
from broker.net.zmtp.frames import (
    FRAME_COST,
    HEADER,
    LONG,
    MAX_COMMAND,
    MORE,
    PARTIAL,
    SHORT,
    Decoded,
    Decoder,
    Encoder,
    Fault,
    FrameLimits,
    ZmtpError,
    header,
    split_command,
)

MAC = 16
"""Bytes by which a box is longer than its content."""

MARK = b"\x07MESSAGE"

BOX = 16
"""Bytes before the box: `MARK` and the counter."""

OVERHEAD = BOX + MAC + 1
"""Bytes by which a frame on the wire is longer than its body."""

LAST_COUNTER = 2**64 - 1

FRAME_WORK, MOST_WORK = 8_192, 786_432
"""Work between two values that a decoder yields, in bytes. Each frame counts for `FRAME_WORK` more, since it takes 3
µs, in which as many bytes of a long one are decrypted. The upper bound is some 300 µs."""

BOXED_COMMAND = 2
"""The COMMAND flag inside a box, which differs from the one of frames."""

_head = Struct(">BB").pack
_long_head = Struct(">BQ").pack


@attrs.frozen
class Boxes:
    """The functions of NaCl. Nonces have 24 bytes, and keys 32.

    ``random`` returns random bytes; ``keypair`` a new public key and its secret; ``shared`` the shared secret of a
    public key and an own secret key (ValueError: invalid key); ``seal`` the box of a content, by nonce and shared key;
    ``open`` the content of a box (ValueError: forged or altered); ``open_within`` replaces the beginning of a box by
    its content, which is `MAC` bytes shorter (ValueError: as ``open``).
    """

    random: Callable[[int], bytes]
    keypair: Callable[[], tuple[bytes, bytes]]
    shared: Callable[[bytes, bytes], bytes]
    seal: Callable[[bytes, bytes, bytes], bytes]
    open: Callable[[bytes, bytes, bytes], bytes]
    open_within: Callable[[memoryview, bytes, bytes], None]


class Sealing(Protocol):
    """An implementation that opens and seals the boxes of traffic.

    ``name`` and ``reason`` are for the log; ``reason`` is the obstacle to the compiled implementation, or empty.
    ``prefix`` below is the first 16 bytes of the nonces, and ``counter`` the last used one. Encoders are valid only for
    the `Sealing` that created them.
    """

    name: str
    reason: str

    def decoder(self, limits: FrameLimits, key: bytes, prefix: bytes, counter: int) -> Decoder:
        """Create the decoder of one connection."""

    def encoder(self, key: bytes, prefix: bytes, counter: int) -> Encoder:
        """Create the encoder of one connection."""

    def seal_all(self, encoders: Sequence[Encoder], frames: Sequence[bytes]) -> list[bytes]:
        """Return the octets of one message for each of these connections, in their order."""

    def seal_each(
        self, encoders: Sequence[Encoder], frame: bytes, at: int, numbers: Sequence[int], body: bytes
    ) -> list[bytes]:
        """Return the octets of a message of two frames for each of these connections, in their order.

        In ``frame`` the 8 bytes from ``at`` on are replaced by the connection's number, in network order.
        """


Prepared = Sequence[tuple[bytes, bytes]]
"""The frames of a message: the octets before the counter, and the content of the box."""


def prepare(frames: Sequence[bytes]) -> Prepared:
    """Prepare the frames of one message."""
    last = len(frames) - 1
    return [(_outer(len(frame)), (b"\x01" if index < last else b"\x00") + frame) for index, frame in enumerate(frames)]


def prepare_command(name: bytes, data: bytes) -> Prepared:
    """Prepare a command."""
    body = bytes((len(name),)) + name + data
    return [(_outer(len(body)), bytes((BOXED_COMMAND,)) + body)]


def _outer(size: int) -> bytes:
    size += OVERHEAD
    return (_head(0, size) if size < SHORT else _long_head(LONG, size)) + MARK


class CurveEncoder:
    """Encoder of one connection."""

    __slots__ = ("_counter", "_key", "_prefix", "_seal")

    def __init__(self, boxes: Boxes, key: bytes, prefix: bytes, counter: int) -> None:
        self._seal = boxes.seal
        self._key = key
        self._prefix = prefix
        self._counter = counter

    def message(self, frames: Sequence[bytes]) -> bytes:
        """See `Encoder`."""
        return self.sealed(prepare(frames))

    def command(self, name: bytes, data: bytes) -> bytes:
        """See `Encoder`."""
        return self.sealed(prepare_command(name, data))

    def sealed(self, prepared: Prepared) -> bytes:
        """Return the octets of these frames. Raises OverflowError if the counter is exhausted."""
        seal, key, prefix, counter = self._seal, self._key, self._prefix, self._counter
        parts: list[bytes] = []
        for outer, content in prepared:
            counter += 1
            octets = counter.to_bytes(8, "big")
            parts += outer, octets, seal(content, prefix + octets, key)
        self._counter = counter
        return b"".join(parts)


class CurveDecoder:
    """Decoder of one connection."""

    __slots__ = (
        "_boxes", "_cost", "_counter", "_frames", "_key", "_limits", "_missing", "_partial", "_prefix", "_rest",
    )  # fmt: skip

    def __init__(self, limits: FrameLimits, boxes: Boxes, key: bytes, prefix: bytes, counter: int) -> None:
        self._limits = limits
        self._rest = b""
        """The beginning of a box with an incomplete header, or of a short box."""
        self._partial: Pieces | None = None
        """The beginning of a long box; ``_missing`` bytes of it are outstanding."""
        self._missing = 0
        self._frames: list[bytes] = []
        """The frames of an incomplete message."""
        self._cost = 0
        """The accounted size of these frames."""
        self._boxes = boxes
        self._key = key
        self._prefix = prefix
        self._counter = counter

    @property
    def pending(self) -> int:
        """See `Decoder`."""
        partial = 0 if self._partial is None else self._partial.tell()
        return self._cost + len(self._rest) + partial

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """See `Decoder`."""
        if self._partial is not None:
            data = self._collect(data)
            if self._missing:
                return
            yield self._collected()
        elif self._rest:
            data = self._rest + data
        self._rest = b""
        position, end, work = 0, len(data), 0
        while position < end:
            position, found = self._next(data, position, end)
            if found is None:
                return
            decoded = self._boxed(found)
            if decoded is not None:
                yield decoded
            work += FRAME_WORK + len(found)
            if work >= MOST_WORK:
                work = 0
                yield None

    def _collect(self, data: bytes) -> bytes:
        """Append to the buffered box, and update ``_missing``. Returns the octets after the box."""
        assert self._partial is not None
        taken = self._partial.write(memoryview(data)[: self._missing])
        self._missing -= taken
        return data[taken:]

    def _collected(self) -> Decoded:
        """Decode the complete buffered box. Returns the message or command that it completes.

        The box is decrypted in place and truncated.
        """
        assert self._partial is not None
        partial = self._partial.buffer()
        self._partial = None
        with partial.getbuffer() as body:
            counter = self._marked(bytes(body[:BOX]), len(body))
            with body[BOX:] as box:
                try:
                    self._boxes.open_within(box, self._nonce(counter), self._key)
                except ValueError:
                    raise _unopened() from None
            self._counter = counter
            flags, size = body[BOX], len(body) - OVERHEAD
            body[:size] = body[BOX + 1 : BOX + 1 + size]
        partial.truncate(size)
        # getvalue() returns the internal bytes object without a copy.
        return self._content(flags, partial.getvalue())

    def _next(self, data: bytes, position: int, end: int) -> tuple[int, bytes | None]:
        """Return the next position and the body of the next frame; None for an incomplete frame, which is buffered."""
        start = position + HEADER
        if data[position] == 0 and start <= end:
            size = data[position + 1]
        elif start > end:
            self._rest = data[position:]
            return end, None
        elif data[position] != LONG:
            raise ZmtpError(Fault.FRAME, f"a frame with the flags {data[position]:#04x} instead of a box")
        else:
            size, start = header(data, position)
            if start == 0:
                self._rest = data[position:]
                return end, None
            self._announced(size - OVERHEAD)
        stop = start + size
        if stop <= end:
            return stop, data[start:stop]
        if size < PARTIAL:
            self._rest = data[position:]
        else:
            self._partial = Pieces()
            self._missing = size - self._partial.write(memoryview(data)[start:])
        return end, None

    def _announced(self, size: int) -> None:
        """Refuse an announced frame beyond the limits, before its body arrives."""
        if size > self._limits.frame:
            raise ZmtpError(Fault.TOO_LARGE, f"a frame has more than {self._limits.frame} bytes")
        if self._cost + size + FRAME_COST > self._limits.message:
            self._refuse(len(self._frames) + 1)

    def _boxed(self, body: bytes) -> Decoded:
        """Decode a box. Returns the message or command that it completes."""
        counter = self._marked(body, len(body))
        try:
            content = self._boxes.open(body[BOX:], self._nonce(counter), self._key)
        except ValueError:
            raise _unopened() from None
        self._counter = counter
        return self._content(content[0], content[1:])

    def _marked(self, body: bytes, size: int) -> int:
        """Return the counter at the beginning of a MESSAGE of ``size`` bytes."""
        if size < OVERHEAD or not body.startswith(MARK):
            raise ZmtpError(Fault.FRAME, f"a frame of {size} bytes that is no MESSAGE of CURVE")
        counter = int.from_bytes(body[len(MARK) : BOX], "big")
        if counter <= self._counter:
            raise ZmtpError(Fault.FRAME, "a counter that does not grow")
        return counter

    def _nonce(self, counter: int) -> bytes:
        return self._prefix + counter.to_bytes(8, "big")

    def _content(self, flags: int, body: bytes) -> Decoded:
        """Handle the content of a box. Returns the message or command that it completes."""
        if flags > MORE:
            return self._boxed_command(flags, body)
        return self._whole(flags, body)

    def _boxed_command(self, flags: int, body: bytes) -> Decoded:
        """Decode a command frame."""
        if flags != BOXED_COMMAND:
            raise ZmtpError(Fault.FRAME, f"a box with the flags {flags:#04x}")
        if len(body) > MAX_COMMAND:
            raise ZmtpError(Fault.TOO_LARGE, f"a command has more than {MAX_COMMAND} bytes")
        return split_command(body, Fault.FRAME)

    def _whole(self, flags: int, body: bytes) -> Decoded:
        """Append a frame of a message. Returns the message if this completes it."""
        self._frames.append(body)
        self._cost += len(body) + FRAME_COST
        if self._cost > self._limits.message or len(self._frames) > self._limits.frames:
            self._refuse(len(self._frames))
        if flags:
            return None
        frames, self._frames, self._cost = self._frames, [], 0
        return frames

    def _refuse(self, frames: int) -> None:
        self._frames = []  # frees the memory before the connection is closed
        limits = self._limits
        raise ZmtpError(
            Fault.TOO_LARGE,
            f"a message has more than {limits.message} bytes or {limits.frames} frames (it has {frames} so far)",
        )


def _unopened() -> ZmtpError:
    return ZmtpError(Fault.FRAME, "a box that does not open")


class PythonSealing:
    """The Python implementation: one call of ``boxes`` for each frame and connection."""

    name = "python"

    def __init__(self, boxes: Boxes, reason: str = "") -> None:
        self._boxes = boxes
        self.reason = reason

    def decoder(self, limits: FrameLimits, key: bytes, prefix: bytes, counter: int) -> CurveDecoder:
        """See `Sealing`."""
        return CurveDecoder(limits, self._boxes, key, prefix, counter)

    def encoder(self, key: bytes, prefix: bytes, counter: int) -> CurveEncoder:
        """See `Sealing`."""
        return CurveEncoder(self._boxes, key, prefix, counter)

    def seal_all(self, encoders: Sequence[Encoder], frames: Sequence[bytes]) -> list[bytes]:
        """See `Sealing`."""
        prepared = prepare(frames)
        return [encoder.sealed(prepared) for encoder in _ours(encoders)]

    def seal_each(
        self, encoders: Sequence[Encoder], frame: bytes, at: int, numbers: Sequence[int], body: bytes
    ) -> list[bytes]:
        """See `Sealing`."""
        check_numbers(encoders, frame, at, numbers)
        (outer, first), second = prepare((frame, body))
        before, after = first[: at + 1], first[at + 9 :]
        return [
            encoder.sealed(((outer, before + number.to_bytes(8, "big") + after), second))
            for encoder, number in zip(_ours(encoders), numbers, strict=False)
        ]


def check_numbers(encoders: Sequence[Encoder], frame: bytes, at: int, numbers: Sequence[int]) -> None:
    """Raise ValueError for arguments that `Sealing.seal_each` does not allow."""
    if not 0 <= at <= len(frame) - 8:
        raise ValueError(f"a number has no place at {at} in a frame of {len(frame)} bytes")
    if len(numbers) != len(encoders):
        raise ValueError(f"{len(numbers)} numbers for {len(encoders)} connections")


def _ours(encoders: Sequence[Encoder]) -> Iterable[CurveEncoder]:
    return encoders  # type: ignore[return-value]  # a check of each would cost a tenth of the sealing
