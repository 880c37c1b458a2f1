"""ZMTP 1.0 (RFC 13), which libzmq 2 speaks: its frames, rewritten to those of ZMTP 3 and back.

A frame is a size, which counts the octet of flags too (1 octet, or FF and 8 octets in network order), the flags (MORE,
and seven reserved bits), and the body. There is no greeting, no mechanism and no command. Each side begins with its
identity as a frame: the signature of the later versions is one, that of an anonymous peer.

libzmq 3.0 announces the revision 0 behind the signature; its socket type follows, then its identity and its messages as
here.

Rules:
- A connection translates its input and its output, so limits, queues and fan-out work on the later frames only.
- The reserved flags of messages are ignored, as in libzmq. An identity with one of them is refused: it is noise of
  another protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker.net.zmtp.frames import HEADER, LONG, LONG_HEADER, MORE, Decoded, Decoder, Fault, ZmtpError, begin

ESCAPE = 255
"""The size of a frame whose size follows in eight octets."""

READ = 2_048
"""Octets that are translated at a time: 1,024 frames, some 500 µs of work."""

Header = tuple[int, bool, int]
"""Size of a frame, True if another frame of the message follows, and position of the body."""


def header(data: bytes, position: int = 0) -> Header | None:
    """Return the header of the frame at ``position``; None while it is incomplete. Raises `ZmtpError`."""
    start = position + (10 if data[position] == ESCAPE else 2)
    if start > len(data):
        return None
    size = data[position] if start == position + 2 else int.from_bytes(data[position + 1 : start - 1], "big")
    if not size:
        raise ZmtpError(Fault.FRAME, "a frame of ZMTP 1.0 without flags")
    return size - 1, bool(data[start - 1] & MORE), start


def own_header(data: bytes, position: int = 0) -> Header | None:
    """Return the header of a frame of ZMTP 3 that is no command; None while it is incomplete."""
    start = position + (LONG_HEADER if data[position] & LONG else HEADER)
    if start > len(data):
        return None
    return int.from_bytes(data[position + 1 : start], "big"), bool(data[position] & MORE), start


def begin_frame(size: int, more: bool) -> bytes:
    """Return the header of a frame of ZMTP 1.0."""
    size += 1
    return bytes((size, more)) if size < ESCAPE else b"\xff" + size.to_bytes(8, "big") + bytes((more,))


class Translation:
    """Frames of one version in those of the other. Octets may come in any pieces."""

    def __init__(self, incoming: bool) -> None:
        self._header: Callable[[bytes, int], Header | None] = header if incoming else own_header
        self._begin: Callable[[int, bool], bytes] = begin if incoming else begin_frame
        self._left = 0
        """Octets of a body that are still to come."""
        self.held = b""
        """The beginning of a header."""

    def take(self, data: bytes) -> bytes:
        """Return the octets of these in the other version."""
        data, self.held = self.held + bytes(data), b""
        parts: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._left:
                body = data[position : position + self._left]
                self._left -= len(body)
                position += len(body)
                parts.append(body)
                continue
            found = self._header(data, position)
            if found is None:
                self.held = data[position:]
                break
            self._left, more, position = found
            parts.append(self._begin(self._left, more))
        return b"".join(parts)


class Version1Decoder:
    """The decoder of a connection, by that of ZMTP 3."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._translation = Translation(incoming=True)

    @property
    def pending(self) -> int:
        """See `Decoder`."""
        return self._decoder.pending + len(self._translation.held)

    def feed(self, data: bytes) -> Iterator[Decoded]:
        """See `Decoder`."""
        for position in range(0, len(data), READ):
            yield from self._decoder.feed(self._translation.take(data[position : position + READ]))
            yield None


class Version1Output(list[bytes]):
    """A queue of output behind that of the handshake, translated as it is appended. Inserted output is translated
    already: the transport did not take it."""

    def __init__(self, handshake: Iterable[bytes]) -> None:
        super().__init__(handshake)
        self._translation = Translation(incoming=False)

    def append(self, octets: bytes) -> None:
        """Append whole frames, or a piece of one."""
        super().append(self._translation.take(octets))

    def extend(self, pieces: Iterable[bytes]) -> None:
        """Append pieces."""
        for piece in pieces:
            self.append(piece)

    def __iadd__(self, pieces: Iterable[bytes]) -> Version1Output:  # type: ignore[override,misc]
        self.extend(pieces)
        return self
