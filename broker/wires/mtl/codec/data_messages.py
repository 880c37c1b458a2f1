"""The data flow of MTL: commands of two frames, a binary header and a body.

    01 Lease     sequence, lease                 06 Confirm   sequence, multiple
    02 Response  sequence; body: a code          07 Reject    sequence, multiple, recycle
    03 Summon    sequence, resource              08 Ping
    04 Dismiss   sequence, resource              09 Pong
    05 Content   sequence, resource, properties; body: the content

Rules:
- Sequences are 64 bits, unsigned, in network order. Booleans are one byte, 0 or 1. Strings have a length byte, and are
  UTF-8 and printable; they may be empty. Properties are a table (`broker.wires.mtl.codec.field_table`).
- A header ends with its last field. The body of a command that has none is ignored.
- A command that breaks one of these rules is ill-formed, and is dropped. The session decides if a command makes sense.
- The *tail* of a Content is its header from the resource on. Writers send the same tail again and again, and it is
  passed on to all readers: it is checked once, cached (`Tails`), and forwarded unchanged.

Rules of frames, by which a socket distinguishes commands of the data flow from requests of the control flow:
- A request is an envelope (`broker.net.peer_interfaces`), a command and a body. The envelope is sent back
  unchanged before the reply.
- A data command is a header, which is not empty, and a body. It has no empty frame that would delimit routing frames:
  so a data flow cannot pass a proxy.
- So one socket can carry both: two frames, the first of them not empty, are data; everything else is control.

The identity of the peer, which a ROUTER prepends, is not among the frames here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec

from broker.wires.mtl.codec.field_table import EMPTY, MAX_TABLE, Fault, IllFormed, check

MAX_HEADER = 70 * 1024
"""Bytes of a header: the largest table (`field_table.MAX_EXTENDED`) with the longest name fits."""

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a body. The transport closes a connection that sends more: a body is in memory until its last reader has
read it. Larger contents are sent in parts."""

MAX_STRING = 255
"""Bytes of a short string, such as a name or a lease: its length is one byte."""

MAX_TAILS = 1_000
"""Cached tails: writers have few resources, and their properties are often the same."""

MAX_TAILS_SIZE = 1024 * 1024
"""Bytes of all cached tails."""

MAX_TAIL = 2_048
"""Bytes of a cached tail: the lookup of a longer one takes nearly as long as its check."""

_TAIL = 400
"""Bytes that a cached tail takes beside its own: three objects, their tuple, and the entry in the dictionary."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """01: begins a flow. ``lease`` is the token that the control flow issued. Answered by a `Response`."""

    sequence: int
    lease: str


class Response(msgspec.Struct, frozen=True, gc=False):
    """02: answers a command; only servers send it. ``sequence`` is that of the command; ``code`` has three digits."""

    sequence: int
    code: bytes


class Summon(msgspec.Struct, frozen=True, gc=False):
    """03: Contents of that resource are wanted. Answered by a `Response`.

    ``body`` is the profile's: only "registry" reads it.
    """

    sequence: int
    resource: str
    body: bytes = b""


class Dismiss(msgspec.Struct, frozen=True, gc=False):
    """04: ends a Summon. Answered by a `Response`."""

    sequence: int
    resource: str


class Content(msgspec.Struct, frozen=True, gc=False):
    """05, in both directions. ``table`` has the checked properties; ``tail`` is for `content_header`."""

    sequence: int
    resource: str
    table: bytes
    tail: bytes
    body: bytes


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """06: a Content was accepted; with ``multiple``, all up to it. Never answered."""

    sequence: int
    multiple: bool


class Reject(msgspec.Struct, frozen=True, gc=False):
    """07: a Content is refused; with ``multiple``, all up to it. ``recycle``: send it again. Never answered."""

    sequence: int
    multiple: bool
    recycle: bool


class Ping(msgspec.Struct, frozen=True, gc=False):
    """08: liveness check. Answered by a `Pong`."""


class Pong(msgspec.Struct, frozen=True, gc=False):
    """09: the answer to a Ping."""


Command = Lease | Response | Summon | Dismiss | Content | Confirm | Reject | Ping | Pong

_PING, _PONG = Ping(), Pong()
_LEASE, _RESPONSE, _SUMMON, _DISMISS, _CONTENT, _CONFIRM, _REJECT = range(1, 8)
_BARE: dict[bytes, Command] = {b"\x08": _PING, b"\x09": _PONG}
_TYPES = 10

_HEAD = struct.Struct(">BQ")
_READ_HEAD = _HEAD.unpack_from
_WRITE_HEAD = _HEAD.pack

CheckedTail = tuple[str, bytes, bytes]
"""Resource and table of a tail, and the tail itself."""


class Tails(dict[bytes, CheckedTail]):
    """Cache of checked tails: ``tails[tail]`` is the `CheckedTail`, or raises `IllFormed`.

    A repeated tail costs one dictionary lookup. The cache is an approximate LRU in two generations: when the younger is
    full, it becomes the older; tails found in the older one move to the younger. An exact LRU would write at each use.

    ``most`` is the limit of bytes of entries in a table.
    """

    def __init__(self, most: int = MAX_TABLE) -> None:
        super().__init__()
        self._most = most
        self._size = 0
        self._older: dict[bytes, CheckedTail] = {}
        self._older_size = 0

    @property
    def kept(self) -> tuple[int, int]:
        """Number of cached tails, and an upper bound of their bytes."""
        return len(self) + len(self._older), self._size + self._older_size

    def __missing__(self, tail: bytes) -> CheckedTail:
        checked = self._older.pop(tail, None)
        if checked is None:
            checked = self._check(tail)
            if len(tail) > MAX_TAIL:
                return checked
        size = 2 * len(tail) + len(checked[0]) + _TAIL
        # Each generation has half of the bounds.
        if 2 * (self._size + size) > MAX_TAILS_SIZE or 2 * len(self) >= MAX_TAILS:
            self._older, self._older_size = self.copy(), self._size
            self.clear()
            self._size = 0
        self._size += size
        self[tail] = checked
        return checked

    def _check(self, tail: bytes) -> CheckedTail:
        if not tail:
            raise IllFormed(Fault.CUT, "the Content has no resource")
        start = 1 + tail[0]
        if len(tail) < start:
            raise IllFormed(Fault.CUT, "the name of the resource is cut short")
        resource = _text(tail[1:start])
        table = tail[start:]
        check(table, self._most)
        return resource, table, tail


def parse(frames: Sequence[bytes], tails: Tails) -> Command:
    """Decode the frames that follow the identity of the peer. Raises `IllFormed`.

    ``tails`` is the cache of all flows with the same limit of tables.
    """
    if len(frames) != 2:
        raise IllFormed(Fault.FRAMES, "a data command has exactly two frames")
    header, body = frames
    if len(header) > MAX_HEADER:
        raise IllFormed(Fault.TOO_LARGE, f"the header has more than {MAX_HEADER} bytes")
    # The common case first: unpacking fails for the short headers of Ping and Pong only.
    try:
        kind, sequence = _READ_HEAD(header)
    except struct.error:
        return _bare(header)
    if kind == _CONTENT:
        resource, table, tail = tails[header[9:]]
        return Content(sequence, resource, table, tail, body)
    reader = _READERS.get(kind)
    return reader(header, sequence, body) if reader is not None else _bare(header)


def _bare(header: bytes) -> Command:
    """Decode a command without fields. Raises `IllFormed` for anything else: it is too short, or of unknown type."""
    command = _BARE.get(header)
    if command is not None:
        return command
    if not header:
        raise IllFormed(Fault.EMPTY, "the header is empty")
    if not 0 < header[0] < _TYPES:
        raise IllFormed(Fault.TYPE, f"there is no command of the type {header[0]:#04x}")
    if header[:1] in _BARE:
        raise _left_over()
    raise IllFormed(Fault.CUT, "the sequence is cut short")


def _lease(header: bytes, sequence: int, body: bytes) -> Lease:
    return Lease(sequence, _string(header))


def _summon(header: bytes, sequence: int, body: bytes) -> Summon:
    return Summon(sequence, _string(header), body)


def _dismiss(header: bytes, sequence: int, body: bytes) -> Dismiss:
    return Dismiss(sequence, _string(header))


def _response(header: bytes, sequence: int, body: bytes) -> Response:
    if len(header) > 9:
        raise _left_over()
    code = body if len(body) == 3 else b""
    if not code.isdigit():
        raise IllFormed(Fault.CODE, "the body of the Response is not three digits")
    return Response(sequence, code)


def _confirm(header: bytes, sequence: int, body: bytes) -> Confirm:
    if len(header) != 10 or header[9] > 1:
        raise _no_booleans(header, 1)
    return Confirm(sequence, header[9] == 1)


def _reject(header: bytes, sequence: int, body: bytes) -> Reject:
    if len(header) != 11 or header[9] > 1 or header[10] > 1:
        raise _no_booleans(header, 2)
    return Reject(sequence, header[9] == 1, header[10] == 1)


_READERS: dict[int, Callable[[bytes, int, bytes], Command]] = {
    _LEASE: _lease,
    _RESPONSE: _response,
    _SUMMON: _summon,
    _DISMISS: _dismiss,
    _CONFIRM: _confirm,
    _REJECT: _reject,
}


def _string(header: bytes) -> str:
    """Return the short string after the sequence, which is the last field."""
    end = 10 + header[9] if len(header) > 9 else 10
    if len(header) < end:
        raise IllFormed(Fault.CUT, "the short string is cut short")
    if len(header) > end:
        raise _left_over()
    return _text(header[10:])


def _no_booleans(header: bytes, count: int) -> IllFormed:
    """Return the fault of a header that should end with ``count`` Booleans."""
    if len(header) < 9 + count:
        return IllFormed(Fault.CUT, "a Boolean is missing")
    if len(header) > 9 + count:
        return _left_over()
    return IllFormed(Fault.BOOLEAN, "a Boolean is neither 0 nor 1")


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise IllFormed(Fault.STRING, "a short string is not UTF-8") from None
    if not text.isprintable():
        raise IllFormed(Fault.STRING, "a short string is not printable")
    return text


def _left_over() -> IllFormed:
    return IllFormed(Fault.LEFT_OVER, "there are bytes behind the last field")


def is_name(text: str) -> bool:
    """Return True for a valid name of a resource: a short string that is not empty."""
    # Printable text has no surrogates, so it can be encoded. The first test is cheap, and rejects long text early.
    return 0 < len(text) <= MAX_STRING and text.isprintable() and len(text.encode()) <= MAX_STRING


# Encoding

EncodedCommand = tuple[bytes, bytes]

OK = b"200"
BAD_REQUEST = b"400"
FORBIDDEN = b"403"
MISDIRECTED = b"421"
UNAVAILABLE = b"503"
"""The codes of Responses."""

PING: EncodedCommand = (b"\x08", b"")
PONG: EncodedCommand = (b"\x09", b"")


def lease(sequence: int, token: str) -> EncodedCommand:
    """Encode a Lease."""
    return _WRITE_HEAD(_LEASE, sequence) + _short(token), b""


def response(sequence: int, code: bytes) -> EncodedCommand:
    """Encode a Response."""
    return _WRITE_HEAD(_RESPONSE, sequence), code


def summon(sequence: int, resource: str, body: bytes = b"") -> EncodedCommand:
    """Contents of that resource are wanted. Only the profile "registry" reads a body."""
    return _WRITE_HEAD(_SUMMON, sequence) + _short(resource), body


def dismiss(sequence: int, resource: str) -> EncodedCommand:
    """Encode a Dismiss."""
    return _WRITE_HEAD(_DISMISS, sequence) + _short(resource), b""


def content(sequence: int, resource: str, table: bytes, body: bytes) -> EncodedCommand:
    """Encode a Content with these properties."""
    return content_header(sequence, make_tail(resource, table)), body


def content_header(sequence: int, tail: bytes) -> bytes:
    """Return the header of a Content with that tail."""
    return _WRITE_HEAD(_CONTENT, sequence) + tail


def make_tail(resource: str, table: bytes = EMPTY) -> bytes:
    """Return the tail of a resource with these properties. Raises ValueError if the name is no short string."""
    return _short(resource) + table


def confirm(sequence: int, multiple: bool = False) -> EncodedCommand:
    """Encode a Confirm."""
    return _WRITE_HEAD(_CONFIRM, sequence) + (b"\1" if multiple else b"\0"), b""


def reject(sequence: int, multiple: bool = False, recycle: bool = False) -> EncodedCommand:
    """Encode a Reject."""
    return _WRITE_HEAD(_REJECT, sequence) + bytes((multiple, recycle)), b""


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_STRING or not text.isprintable():
        raise ValueError(f"a short string has up to {MAX_STRING} bytes, all of them printable")
    return len(data).to_bytes(1) + data


class RequestFrames(msgspec.Struct, frozen=True, gc=False):
    """The frames of a request. ``envelope`` is sent back before the reply; it ends with an empty frame."""

    envelope: tuple[bytes, ...]
    command: bytes
    body: bytes


def is_data(frames: Sequence[bytes]) -> bool:
    """Return True if these frames, at a socket that carries both flows, belong to the data flow."""
    return len(frames) == 2 and bool(frames[0])


def split_request(frames: Sequence[bytes], size: int | None) -> RequestFrames:
    """Split a request into its parts. ``size`` is the number of frames of its envelope, 0 without one and None for one
    beyond the limits. Raises `IllFormed`."""
    if size is None:
        raise IllFormed(Fault.ENVELOPE, "the envelope of the request is too long")
    if not size:
        raise IllFormed(Fault.DELIMITER, "the request has no empty frame before the command")
    if len(frames) != size + 2:
        raise IllFormed(Fault.FRAMES, "the empty frame is not followed by exactly a command and a body")
    return RequestFrames(tuple(frames[:size]), frames[size], frames[size + 1])
