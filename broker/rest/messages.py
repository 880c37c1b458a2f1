"""Requests and responses of HTTP as values.

A transport (`broker.net.http`) makes a `Request` of a complete request and sends the `Response`. Bodies of responses
may be iterators, so that a long one is rendered in many turns of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Generic, Protocol, TypeVar

import attrs
import msgspec
from twisted.internet.interfaces import IDelayedCall, IReactorTime

JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"


@attrs.frozen(eq=False)
class Request:
    """A complete request.

    - ``method`` in upper case; ``path`` begins with a slash and is still percent-encoded; ``query``: the parameters,
      decoded, each with all its values in order.
    - ``headers``: by name in lower case; several fields of one name are joined by a comma (RFC 9110, 5.3).
    - ``address``: the peer's host; ``local``: True for a peer on this machine without signs of a web page or a proxy;
      ``secure``: True over TLS; ``certificate``: the names of its client certificate, common name and DNS names.
    - ``id``: the id of the request, in its answer, in log lines and in the audit log.
    """

    method: str
    path: str
    query: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    address: str = "127.0.0.1"
    local: bool = True
    secure: bool = False
    certificate: tuple[str, ...] = ()
    id: str = ""


@attrs.frozen(eq=False)
class Response:
    """A response.

    ``body`` is whole, or an iterator of pieces. The transport takes one piece in each step of the scheduler; an empty
    piece is a unit of work without output. An iterator that raises ends the connection.
    """

    status: int = 200
    body: bytes | Iterator[bytes] = b""
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = ()


class Outlet(Protocol):
    """The writing end of a `Stream`."""

    @property
    def behind(self) -> bool:
        """True while output is pending: the producer should wait or leave out."""

    def write(self, data: bytes) -> None:
        """Send one piece: for a WebSocket, one text message. Never raises; discarded once the peer has gone."""

    def write_in_steps(self, pieces: Iterator[bytes], size: int) -> None:
        """Send one piece of text, as by `write`, of which each step makes a part. It is ``behind`` until then.

        ``size`` is the number of bytes of memory that ``pieces`` holds.
        """

    def close(self) -> None:
        """Flush pending output, then close."""


@attrs.frozen(eq=False)
class Stream:
    """A response without an end: server-sent events, or, if ``upgrades``, a WebSocket where the request asks for one.

    ``begin`` is called once with the outlet, and returns the function that the transport calls when the peer has gone,
    or when the outlet is closed. ``room`` is called each time that `Outlet.behind` becomes False. ``received`` is
    called with each text message of a WebSocket.
    """

    begin: Callable[[Outlet], Callable[[], None]]
    room: Callable[[], None] = lambda: None
    received: Callable[[str], None] = lambda text: None
    content_type: str = "text/event-stream"
    headers: Sequence[tuple[str, str]] = ()
    upgrades: bool = False


def asks_for_websocket(headers: Mapping[str, str]) -> bool:
    """Return True if a request with these headers asks for a WebSocket."""
    return headers.get("upgrade", "").lower() == "websocket"


@attrs.define(eq=False)
class StreamReader:
    """A reader of a stream. ``written`` is the time of the last write to it."""

    outlet: Outlet
    written: float


KEEP_ALIVE = 15.0
"""Seconds without output after which a reader is sent a keep-alive: proxies close connections that are quiet for 30 s
or more."""

KEEP_ALIVE_CHECK = 1.0
"""Seconds between two searches for readers that need a keep-alive."""

WRITES = 25
"""Readers that are written to in one turn of the reactor: some 30 µs each."""

R = TypeVar("R", bound=StreamReader)


class KeepAlive(Generic[R]):
    """Sends keep-alives to those of ``readers`` that got no output for a while, by ``send``."""

    def __init__(self, clock: IReactorTime, readers: Collection[R], send: Callable[[R], None]) -> None:
        self._clock = clock
        self._readers = readers
        self._send = send
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        """Begin with the first reader. No-op while it runs."""
        if self._call is None:
            self._call = self._clock.callLater(KEEP_ALIVE_CHECK, self._check)

    def stop(self) -> None:
        """End after the last reader. Idempotent."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _check(self) -> None:
        now = self._clock.seconds()
        silent = [each for each in self._readers if now - each.written >= KEEP_ALIVE and not each.outlet.behind]
        self._call = self._clock.callLater(0 if len(silent) > WRITES else KEEP_ALIVE_CHECK, self._check)
        for reader in silent[:WRITES]:
            reader.written = now
            self._send(reader)


# Conditional requests: entity tags by epoch and revision, and 304 (RFC 9110, 13.1.2).


def entity_tag(epoch: int, revision: int, variant: str = "") -> str:
    """Return the entity tag of a representation of the registry at that revision.

    ``variant`` distinguishes representations that differ without a revision.
    """
    return f'"{epoch}-{revision}{"-" if variant else ""}{variant}"'


def is_current(request: Request, tag: str) -> bool:
    """Return True if the client's copy has that tag: the answer is `not_modified`."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    if given.strip() == "*":
        return True
    # The comparison is the weak one: W/ does not count.
    return any(each.strip().removeprefix("W/") == tag for each in given.split(","))


def not_modified(tag: str) -> Response:
    """Return the answer to a client with a current copy."""
    return Response(304, headers=[("ETag", tag), CACHE])


CACHE = ("Cache-Control", "no-cache")
"""The header of representations with an entity tag: a copy may be kept, and is revalidated at each use."""


# Ids of requests: that of the client, or one of the listener's own.
#
# A request has one id, which its answer, its log lines and its line of the audit log have as well. A client, or a proxy
# before the listener, gives one by ``X-Request-ID`` to find its own request in the log. The alphabet and the length are
# bounded, since the id is written into headers and logs.

REQUEST_ID = "X-Request-ID"
"""The header with the id of a request."""

MAX_ID = 64
"""Characters of a client's id: a UUID has 36, the id of a trace 55."""

REQUEST_ID_PATTERN = rf"[A-Za-z0-9._-]{{1,{MAX_ID}}}"
"""A well-formed id, as a regular expression: it needs no escape in headers, JSON and lines of the log."""

# Bodies of answers in JSON: whole ones, and lists that are rendered in pieces of bounded work.

_UNCACHED = ("Cache-Control", "no-store")
"""The header of answers without an entity tag: they change at any time, and an old one misleads."""


def answer(value: object, status: int = 200) -> Response:
    """Return a small value as an answer."""
    return Response(status, msgspec.json.encode(value), headers=[_UNCACHED])


PIECE = 65_536
"""Characters that are encoded in one step: 1 ms where each one is escaped, and in all for 16 MiB 0.3 s."""


def in_steps(value: object) -> Iterator[bytes]:
    """Yield a value of JSON in pieces. ``value`` has the types of JSON, and bytes, which become text in base64."""
    gathered, size = [], 0
    for part in _parts(value):
        gathered.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _parts(value: object) -> Iterator[bytes]:
    if isinstance(value, str | bytes) and len(value) > PIECE:
        step = PIECE // 3 * 3  # base64 has no padding within
        yield b'"'
        for at in range(0, len(value), step):
            yield msgspec.json.encode(value[at : at + step])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        separator = b"{"
        for name, each in value.items():
            yield separator + msgspec.json.encode(name) + b":"
            yield from _parts(each)
            separator = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        separator = b"["
        for each in value:
            yield separator
            yield from _parts(each)
            separator = b","
        yield b"]" if value else b"[]"
    else:
        yield msgspec.json.encode(value)


def answer_in_steps(value: object, status: int = 200) -> Response:
    """Return a value with texts that may be long as an answer."""
    pieces = in_steps(msgspec.to_builtins(value))
    first = next(pieces)
    second = next(pieces, None)
    body = first if second is None else chain((first, second), pieces)
    return Response(status, body, headers=[_UNCACHED])


def streamed(body: Iterator[bytes], tag: str | None = None) -> Response:
    """Return an answer whose body is rendered in pieces, with its entity tag if it has one."""
    headers = [_UNCACHED] if tag is None else [("ETag", tag), CACHE]
    return Response(body=body, headers=headers)


def array(rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield a JSON array with the elements of all ``rows``, one piece for each sequence, empty ones included."""
    yield b"["
    separator = b""
    for some in rows:
        if some:
            yield separator + msgspec.json.encode(some)[1:-1]
            separator = b","
        else:
            yield b""
    yield b"]"


def members(about: Mapping[str, object]) -> bytes:
    """Return the members of an object, without its braces."""
    return msgspec.json.encode(about)[1:-1]


def moment(seconds: float, precision: str = "seconds") -> str:
    """Return a time in seconds since the epoch as text by RFC 3339, in UTC, to the ``precision`` of a timespec."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
