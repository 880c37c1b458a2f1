"""Listener of HTTP: it makes a `broker.rest.messages.Request` of each request, and sends the answer of ``respond``.

Rules:
- At the connection limit, a connection without a complete request gives way: the one whose last request is the longest
  ago (`broker.core.place_table`). So neither idle nor slow peers lock others out.
- Answers that wait are bounded, all together and for each address; further ones are refused by 503.
- A request with a malformed target or query is a problem 400.
- When the listener ends, requests that wait are answered with 503, and streams end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from twisted.internet.defer import Deferred

from broker.access.identity import network_of, with_port
from broker.core.errors import Reason, Refusal
from broker.core.place_table import Pool
from broker.net.admission import DISCONNECTED, ConnectionFactory
from broker.net.connection import StreamConnection
from broker.net.http.channel import HttpChannel
from broker.net.http.request import HttpDeadlines, HttpLimits, HttpRequest, RequestBounds, RequestIds
from broker.net.http.responses import Answering, respond
from broker.net.http.websocket import WebSocket
from broker.net.refusal_log import Deadlines, RefusalLog
from broker.net.scheduled_input import Direction, Seen
from broker.net.scheduler import Scheduler
from broker.net.tls import client_names
from broker.rest.http_endpoint import Answer
from broker.rest.messages import Request, Response
from broker.rest.problem import MEDIA_TYPE, Problem

MAX_PARAMETERS = 100
"""Parameters of a query: no endpoint has as many, and each costs some µs."""

SINGLE = frozenset(("host", "authorization", "origin", "content-type"))
"""Header fields that may appear once only: two different values may be read differently by a proxy."""


class Channel(HttpChannel):
    """A connection of a listener."""

    requests_served = 0
    answering: Answering | None = None
    """The answer that waits or is being sent in pieces."""
    seen: Seen | None = None
    """Called with each request and each answer, for a trace."""

    def __init__(self, factory: HttpFactory, host: str, port: int, local: bool, turned_away: Refusal | None) -> None:
        self.factory = factory
        self.address = with_port(host, port)
        self.local = local
        self.turned_away = turned_away
        self.certificate: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of the peer's verified certificate; none without TLS, and none without a certificate."""
        if self.certificate is None:
            self.certificate = client_names(self.transport)
        return self.certificate

    def tap(self, seen: Seen) -> None:
        """Report each request, without its query and body, and the status of each answer, until `untap`. Idempotent."""
        self.seen = seen

    def untap(self) -> None:
        """Stop the reports. No-op without a tap."""
        self.seen = None

    def report(self, direction: Direction, text: bytes) -> None:
        """Report a line of a request or an answer to the trace, if there is one."""
        if self.seen is not None:
            self.seen(direction, text)

    def close(self) -> None:
        """Close in order: the listener ends."""
        if self.answering is not None:
            self.answering.close()
        else:
            self.hang_up()

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal. An answer is sent to requests only."""
        self.refused(refusal)

    def unclosed(self) -> None:
        """Close at once, at the deadline of a close."""
        self.abort()

    @property
    def state(self) -> str:
        """The state, for operators: idle, reading, waiting, stream or websocket."""
        if self.answering is not None:
            return self.answering.state
        return "answering" if self._answering else "reading" if self._arriving else "idle"


class HttpFactory(ConnectionFactory):
    """One listener. ``respond`` answers a complete request, and never raises. ``refusal`` returns the answer to a
    request whose own answer, which is not there yet, may not wait."""

    connections: set[Any]
    forwards = True

    def __init__(
        self,
        wire: str,
        respond: Callable[[Request], Answer],
        limits: HttpLimits,
        turns: Scheduler,
        refusal_log: RefusalLog,
        clock: Any,
        ids: RequestIds,
        pool: Pool | None = None,
        refusal: Callable[[Request, Problem], Answer] = lambda request, problem: problem.response(request.id),
    ) -> None:
        super().__init__(wire, limits.connections, turns, refusal_log, clock, half_close=False, pool=pool)
        self.http = limits
        self.deadlines = HttpDeadlines(clock, self._bounds)
        self.pings: Deadlines[WebSocket] = Deadlines(clock, WebSocket.ping)
        self.served = 0
        self.waiting: Counter[str] = Counter()
        """Answers that wait, by address."""
        self.respond = respond
        self.refusal = refusal
        self.ids = ids

    def make(self, host: str, port: int, local: bool, turned_away: Refusal | None) -> Any:
        return Channel(self, host, port, local, turned_away)

    def drain(self) -> None:
        """Keep all connections: operators follow the drain over them. The handlers of the wire refuse clients."""

    def disconnect(self, address: str) -> bool:
        """Close the connections from that address, ``host:port``, in order. Returns False if there is none."""
        found = [each for each in self.connections if each.address == address and not each.hanging_up]
        for connection in found:
            self.send_away(connection, Refusal(Reason.DISCONNECTED, DISCONNECTED))
        return bool(found)

    def use(self, limits: HttpLimits) -> None:
        """Apply new limits."""
        self.http = limits
        self.limit(limits.connections)

    def connected(self, connection: StreamConnection, authenticated: bool = False) -> None:
        # There is no deadline for a login: each request has its own credentials.
        super().connected(connection, authenticated=True)

    def serve(self, request: HttpRequest) -> None:
        """Answer a request."""
        channel: Any = request.channel
        self.served += 1
        channel.requests_served += 1
        if channel.seen is not None:
            channel.report("in", f"{request.method} {request.target.partition('?')[0]}".encode("latin-1"))
        try:
            asked = _asked(channel, request)
        except Problem as problem:
            self.refusal_log.add(self.wire, channel.host, Refusal(problem.reason, problem.detail))
            respond(channel, request, problem.response(channel.request_id))
            return
        answer = self.respond(asked)
        if isinstance(answer, Response) and isinstance(answer.body, bytes):
            respond(channel, request, answer)
            return
        answering = channel.answering = Answering(self, channel, request, asked)
        if isinstance(answer, Deferred):
            answering.wait(answer)
        else:
            answering.send(answer)

    def room_to_wait(self, host: str) -> bool:
        """Return True if one more answer to that address may wait."""
        limits, network = self.http, network_of(host)
        if self.waiting.total() >= limits.waiting:
            return False
        return not limits.waiting_per_address or self.waiting[network] < limits.waiting_per_address

    def waits(self, host: str, by: int) -> None:
        """Count an answer that begins to wait (1), or no longer waits (-1)."""
        network = network_of(host)
        self.waiting[network] += by
        if not self.waiting[network]:
            del self.waiting[network]

    def sentence(self, status: int, reason: Reason, text: str, request_id: str) -> tuple[bytes, str]:
        """Return the body and content type of a refusal before a request is complete."""
        body = Problem(status, text, reason).response(request_id).body
        assert isinstance(body, bytes)
        return body, MEDIA_TYPE

    def _bounds(self) -> RequestBounds:
        return self.http.requests


def _asked(channel: Channel, request: HttpRequest) -> Request:
    """Return the request as a value. Raises `Problem` 400."""
    if request.repeated and not SINGLE.isdisjoint(request.repeated):
        name = min(SINGLE.intersection(request.repeated))
        raise Problem(400, f"more than one {name.title()}", Reason.SYNTAX)
    headers, target = request.fields, request.target
    if "host" not in headers and request.minor:
        raise Problem(400, "a request of HTTP/1.1 must have a Host", Reason.SYNTAX)
    if not target.isascii():
        raise Problem(400, "the path is not ASCII: other characters are percent-encoded", Reason.SYNTAX)
    if target[:1] != "/" and target.lower().startswith(("http://", "https://")):
        # The absolute form, which proxies receive: its authority counts instead of Host (RFC 9112, 3.2.2).
        authority, slash, rest = target.partition("://")[2].partition("/")
        headers["host"] = authority
        target = slash + rest if slash else "/"
    path, _, query = target.partition("#")[0].partition("?")
    return Request(
        method=request.method,
        path=path,
        query=_parameters(query) if query else {},
        headers=headers,
        body=request.body(),
        address=channel.host,
        local=channel.local and request.local,
        secure=channel.secure,
        certificate=channel.names() if channel.secure else (),
        id=channel.request_id,
    )


def _parameters(query: str) -> dict[str, list[str]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise Problem(400, f"the query is not UTF-8, or has more than {MAX_PARAMETERS} parameters") from None
    parameters: dict[str, list[str]] = {}
    for name, value in pairs:
        parameters.setdefault(name, []).append(value)
    return parameters
