"""Codec for frames and commands (RFC 23, "Framing").

A frame is an octet of flags, a size (1 octet, or 8 in network order if LONG is set) and that many octets. A message is
a sequence of frames, of which all but the last have MORE. A command has COMMAND, and never MORE; it may come between
messages, and heartbeats between the frames of one. All other flags are reserved, and zero.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Protocol

import attrs

from broker.net.pieces import Pieces
from broker.net.zmtp import helpers

# The exception of the codec, and its kinds.


class Fault(enum.Enum):
    """The kinds of invalid input. Each ends the connection."""

    GREETING = "greeting"
    """The first octets are not a greeting of a supported version."""
    MECHANISM = "mechanism"
    """The peer uses another security mechanism."""
    HANDSHAKE = "handshake"
    """A command of the handshake is malformed, out of order, or fails to verify."""
    REFUSED = "refused"
    """The other side refused the handshake, by ERROR."""
    FRAME = "frame"
    """A frame or command is malformed, or a box does not open."""
    TOO_LARGE = "too-large"
    """A frame, a message or its number of frames is beyond the limits."""


class ZmtpError(Exception):
    """Invalid input of a connection, or input beyond the limits. The connection must be closed.

    ``reply`` has the octets of an ERROR with the reason for the peer; empty outside the handshake.
    """

    def __init__(self, fault: Fault, text: str, reply: bytes = b"") -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text
        self.reply = reply


# Limits on the input of one ZMTP connection. All of them apply while bytes arrive.

FRAME_COST = 64
"""Accounted bytes of a frame besides its content: the object, its list entry, and the rounding of the allocator.
Without them, two bytes of a peer (an empty frame) would take that much unaccounted memory."""

ENVELOPE = 512 * 1024
"""Bytes by which a message may exceed its longest frame: headers, routing frames, and some thousand short frames."""

MAX_FRAMES = 8_192
"""Frames of one message. Messages of 2,000 occur in practice."""

MAX_HANDSHAKE = 2_048
"""Bytes of a command in the handshake. The largest is CURVE's INITIATE: 257 bytes and the metadata, of which libzmq
sends a Socket-Type and an Identity of up to 255 bytes."""

MAX_PROPERTIES = 32
"""Properties in the metadata of a peer. libzmq sends two, and applications a few of their own."""

MAX_COMMAND = 512
"""Bytes of a command between messages. PING has 23 at most; a subscription of SUB sockets would have its prefix."""


@attrs.frozen
class FrameLimits:
    """Limits on one connection.

    ``frame`` is in bytes, and at least 255: shorter frames are not compared with it. ``message`` is in bytes, plus
    `FRAME_COST` for each frame. ``frames`` is the number of frames in a message.
    """

    frame: int = 16 * 1024 * 1024
    message: int = 16 * 1024 * 1024 + ENVELOPE
    frames: int = MAX_FRAMES

    @classmethod
    def of_frame(cls, size: int) -> FrameLimits:
        """Return the limits for frames of at most ``size`` bytes."""
        return cls(frame=size, message=size + ENVELOPE)


MORE, LONG, COMMAND = 1, 2, 4

SHORT = 256
"""Bytes from which a size takes eight octets."""

HEADER, LONG_HEADER = 2, 9
"""Octets of the flags and the size of a frame."""

PARTIAL = 4_096
"""Bytes from which an incomplete frame has a buffer of its own. A shorter one is joined with the next read: that is
cheaper, and copies no more than this for each packet."""

STEP = range(1_024)
"""Minimum number of frames between two values that a decoder yields: some 300 µs of work, so that one read of 64 KiB
full of empty frames does not delay other connections."""

_long = Struct(">BQ").pack
_long_size = Struct(">Q").unpack_from
_LAST = tuple(bytes((0, size)) for size in range(SHORT))
_MORE = tuple(bytes((MORE, size)) for size in range(SHORT))


@attrs.frozen
class Command:
    """A command: its name, such as b"PING", and its data."""

    name: bytes
    data: bytes


Decoded = list[bytes] | Command | None
"""A message, a command, or None: nothing yet, but an opportunity to check the quantum."""


class Decoder(Protocol):
    """The decoder of a connection after its handshake."""

    @property
    def pending(self) -> int:
        """Bytes held of an incomplete message at the end of a read, plus `FRAME_COST` for each frame."""

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """Decode the octets of one read. Raises `ZmtpError`. The iterator must be exhausted before the next call."""


class Encoder(Protocol):
    """The encoder of a connection after its handshake."""

    def message(self, frames: Sequence[bytes]) -> bytes:
        """Return the octets of one message of at least one frame."""

    def command(self, name: bytes, data: bytes) -> bytes:
        """Return the octets of one command."""


def python_message(frames: Sequence[bytes]) -> bytes:
    """Return the octets of one message of at least one frame."""
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


message = helpers.FRAMING.join or python_message
"""The same: a fifth of the time with the compiled helper."""


def begin(frame_size: int, more: bool) -> bytes:
    """Return the flags and the size of a frame; ``more`` is True if another frame of the message follows."""
    if frame_size < SHORT:
        return _MORE[frame_size] if more else _LAST[frame_size]
    return _long(MORE | LONG if more else LONG, frame_size)


def pieces(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the octets of one message in two pieces: the second is the last frame itself, which is not copied."""
    *head, last = frames
    parts: list[bytes] = []
    for frame in head:
        size = len(frame)
        parts += (_MORE[size] if size < SHORT else _long(MORE | LONG, size), frame)
    size = len(last)
    parts.append(_LAST[size] if size < SHORT else _long(LONG, size))
    return b"".join(parts), last


def command(name: bytes, data: bytes) -> bytes:
    """Return the octets of one command."""
    body = bytes((len(name),)) + name + data
    if len(body) < SHORT:
        return bytes((COMMAND, len(body))) + body
    return _long(COMMAND | LONG, len(body)) + body


def split_command(body: bytes, fault: Fault) -> Command:
    """Return the command in the body of a frame. Raises `ZmtpError` with that fault."""
    end = 1 + body[0] if body else 0
    if not 1 < end <= len(body):
        raise ZmtpError(fault, "a command has no name")
    return Command(body[1:end], body[end:])


def header(data: bytes, position: int) -> tuple[int, int]:
    """Return the size of the frame at ``position``, and the position of its body. At least two octets must be there.

    Zeros while the size is incomplete. Raises `ZmtpError` for invalid flags, and for an oversized command.
    """
    flags = data[position]
    if flags & ~(MORE | LONG | COMMAND) or flags & (MORE | COMMAND) == MORE | COMMAND:
        raise ZmtpError(Fault.FRAME, f"a frame with the flags {flags:#04x}")
    if not flags & LONG:
        size, start = data[position + 1], position + HEADER
    elif position + LONG_HEADER > len(data):
        return 0, 0
    else:
        start = position + LONG_HEADER
        size = int.from_bytes(data[position + 1 : start], "big")
    if flags & COMMAND and size > MAX_COMMAND:
        raise ZmtpError(Fault.TOO_LARGE, f"a command has more than {MAX_COMMAND} bytes")
    return size, start


class PlainEncoder:
    """Unencrypted output: the same octets for every peer."""

    message = staticmethod(message)
    command = staticmethod(command)


class PlainDecoder:
    """Unencrypted input.

    The octets of a message are counted by position: ``begin`` in `feed` is the position at which the message would
    begin in this read if all of it were there, each frame had a header of `HEADER` octets, and no commands came
    between. So the loop has no accounting for a frame, and one comparison for a message.

    Where a message begins, the compiled helper splits off all whole ones first: the loop has the message at which a
    read begins or ends, and all that the helper leaves to it.
    """

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._split = helpers.FRAMING.split
        self.pending = 0
        """See `Decoder`."""
        self._easy = min(HEADER * limits.frames, HEADER * limits.message // (HEADER + FRAME_COST))
        """Octets of a message, headers included, that are within the limits for any number of frames."""
        self._rest = b""
        """The beginning of a frame with an incomplete header, or of a short frame."""
        self._partial: Pieces | None = None
        """The beginning of a long frame's body, with ``_flags``; ``_missing`` bytes of it are outstanding."""
        self._flags = 0
        self._missing = 0
        self._frames: list[bytes] = []
        """The frames of an incomplete message."""
        self._octets = 0
        """The octets of these frames with their headers."""

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """See `Decoder`."""
        position = 0
        if self._partial is not None:
            position = self._missing
            written = self._partial.write(memoryview(data)[:position])
            self._missing -= written
            self.pending += written
            if self._missing:
                return
            body = self._partial.getvalue()
            self._partial = None
            self._frames.append(body)
            self._octets += HEADER + len(body)
            if not self._flags & MORE:
                complete, self._frames, self._octets = self._frames, [], 0
                yield complete
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        frames, end, easy = self._frames, len(data), self._easy
        longest = self._limits.frame
        if not frames and self._split is not None:
            position = yield from self._whole(data, position)
        begin = position - self._octets
        while True:
            for _ in STEP:
                start = position + HEADER
                if start > end:
                    if position < end or frames:
                        self._keep(data, position, frames, position - begin)
                    elif self.pending:
                        self.pending = 0
                    return
                flags = data[position]
                stop = start + data[position + 1]
                if flags > MORE:  # long, a command, or invalid
                    if flags < COMMAND and position + LONG_HEADER <= end:
                        start = position + LONG_HEADER
                        size = _long_size(data, position + 1)[0]
                        if size > longest or position - begin + HEADER + size > easy:
                            self._announced(frames, position - begin, size)
                    else:
                        size, start = self._header(data, position, frames, position - begin)
                    stop = start + size
                    if start == 0 or stop > end:
                        apart = size >= PARTIAL
                        self._keep(data, end if apart else position, frames, position - begin)
                        if apart:
                            self._begin(data, start, flags, size)
                        return
                    if flags & COMMAND:
                        begin += stop - position
                        position = stop
                        yield split_command(data[start:stop], Fault.FRAME)
                        continue
                    begin += start - position - HEADER
                    flags &= MORE
                elif stop > end:
                    self._keep(data, position, frames, position - begin)
                    return
                frames.append(data[start:stop])
                position = stop
                if flags:
                    continue
                # Without MORE: the last frame of a message.
                if position - begin > easy:
                    self._check(frames, position - begin)
                complete = frames
                self._frames = frames = []
                self._octets, begin = 0, position
                yield complete
                if self._split is not None:
                    begin = position = yield from self._whole(data, position)
            self._check(frames, position - begin)
            yield None

    def _whole(self, data: bytes, position: int) -> Generator[Decoded, None, int]:
        """Decode whole messages from ``position`` on by the helper. Returns the position after them."""
        assert self._split is not None
        easy, longest = self._easy, self._limits.frame
        while True:
            messages, position = self._split(data, position, easy, longest)
            if not messages:
                return position
            yield from messages

    def _header(self, data: bytes, position: int, frames: list[bytes], octets: int) -> tuple[int, int]:
        """Return the size of a long frame or command, and the position of its body; zeros while the size is
        incomplete."""
        size, start = header(data, position)
        if start and not data[position] & COMMAND:
            self._announced(frames, octets, size)
        return size, start

    def _announced(self, frames: list[bytes], octets: int, size: int) -> None:
        """Refuse an announced frame if it or its message is beyond the limits, before its body arrives."""
        if size > self._limits.frame:
            raise ZmtpError(Fault.TOO_LARGE, f"a frame has more than {self._limits.frame} bytes")
        if octets + HEADER + size > self._easy:
            self._check(frames, octets, 1, HEADER + size)

    def _keep(self, data: bytes, position: int, frames: list[bytes], octets: int) -> None:
        """Buffer an incomplete message at the end of a read: its frames, and the beginning of the next one."""
        if octets > self._easy:
            self._check(frames, octets)
        self._frames, self._octets = frames, octets
        self._rest = data[position:]
        self.pending = _cost(octets, len(frames)) + len(self._rest)

    def _begin(self, data: bytes, start: int, flags: int, size: int) -> None:
        """Begin a buffer for a long frame."""
        self._partial = Pieces()
        written = self._partial.write(memoryview(data)[start:])
        self._missing = size - written
        self.pending += written
        self._flags = flags

    def _check(self, frames: list[bytes], octets: int, more: int = 0, more_octets: int = 0) -> None:
        """Refuse a message beyond the limits, given its frames and the announced ones."""
        count, limits = len(frames) + more, self._limits
        if count <= limits.frames and _cost(octets + more_octets, count) <= limits.message:
            return
        frames.clear()  # frees the memory before the connection is closed
        raise ZmtpError(
            Fault.TOO_LARGE,
            f"a message has more than {limits.message} bytes or {limits.frames} frames (it has {count} so far)",
        )


def _cost(octets: int, frames: int) -> int:
    """Return the accounted size of ``frames`` frames with ``octets`` octets, headers included."""
    return octets + (FRAME_COST - HEADER) * frames


# Metadata codec: the properties that both sides exchange in the handshake (RFC 23, "The READY Command").

SOCKET_TYPE = "socket-type"
IDENTITY = "identity"


def encode_metadata(properties: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the octets of properties."""
    return b"".join(bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties)


def own_metadata(socket_type: str, identity: bytes = b"") -> bytes:
    """Return the metadata that a socket sends."""
    properties = [(b"Socket-Type", socket_type.encode())]
    if socket_type in ("REQ", "DEALER", "ROUTER"):
        properties.append((b"Identity", identity))
    return encode_metadata(properties)


def parse_metadata(data: bytes) -> Mapping[str, bytes]:
    """Return the properties in metadata by lower-case name, since names are case-insensitive. Raises `ZmtpError`."""
    properties: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        start = at + 1 + data[at]
        stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if start == at + 1 or start + 4 > len(data) or stop > len(data):
            raise ZmtpError(Fault.HANDSHAKE, "malformed metadata")
        if len(properties) >= MAX_PROPERTIES:
            raise ZmtpError(Fault.HANDSHAKE, f"more than {MAX_PROPERTIES} properties in the metadata")
        name = data[at + 1 : start].decode("latin-1").lower()
        if name in properties:  # otherwise two decoders could read two identities from the same octets
            raise ZmtpError(Fault.HANDSHAKE, "a property comes twice in the metadata")
        properties[name] = data[start + 4 : stop]
        at = stop
    return properties
