"""Requests and responses of HTTP as values.

A transport (`broker.net.http`) makes a `Request` of a complete request and sends the `Response`. Bodies of responses
may be iterators, so that a long one is rendered in many turns of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

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

    def close(self) -> None:
        """Flush pending output, then close."""


@attrs.frozen(eq=False)
class Stream:
    """A response without an end: server-sent events, or a WebSocket where the request asks for an upgrade.

    ``begin`` is called once with the outlet, and returns the function that the transport calls when the peer has gone,
    or when the outlet is closed. ``room`` is called each time that `Outlet.behind` becomes False. ``received`` is
    called with each text message of a WebSocket.
    """

    begin: Callable[[Outlet], Callable[[], None]]
    room: Callable[[], None] = lambda: None
    received: Callable[[str], None] = lambda text: None
    content_type: str = "text/event-stream"
    headers: Sequence[tuple[str, str]] = ()
