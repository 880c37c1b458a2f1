"""HTTP server for long-polling sessions, on Twisted's HTTP implementation.

Rules:
- A page with a disallowed Origin is refused for any request; programs send no Origin.
- `broker.net.http.channel` bounds requests, with `REQUEST_WITHIN` and `MAX_BODY`.
- Connections are reusable; the path alone selects the session of a request.
- Any other request gets an HTTP error status, is counted, and is rate-limited.

Read on in `long_poll_session` (one session) and `broker.wires.elko.codec.long_poll` (paths and bodies).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.memory_budget import MemoryBudget
from broker.core.place_table import Pool
from broker.net.http.bounds import HttpDeadlines, RequestBounds
from broker.net.http.channel import HttpChannel, plain_sentence
from broker.net.http.request import HttpRequest
from broker.net.line_protocol import LineFactory
from broker.net.proxies import proxied
from broker.net.web_origins import Origins, not_allowed
from broker.web.request_ids import HEADER, RequestIds
from broker.wires.elko.codec import long_poll as wire
from broker.wires.elko.transports.limits import LongPollLimits, TransportLimits
from broker.wires.elko.transports.long_poll_session import Clocks, LongPollSession
from broker.wires.elko.transports.virtual_transport import ID_BITS, Listener, Sockets

MAX_BODY = 1_048_576
"""Bytes of a request's body: the original's limit, and that of one block."""

REQUEST_WITHIN = 30.0
"""Seconds from the first byte of a request to its last: equal to the authentication deadline on TCP."""

KEPT_OPEN = 60.0
"""Keep-alive timeout in seconds of a connection without a request: as long as a select lasts."""

PREFLIGHT_COUNTS = "31536000"
"""Max-Age in seconds of a preflight result, as in the original: a year."""

METHODS = "GET, POST, OPTIONS"


class LongPollRequest(HttpRequest):
    """One request. `LongPollFactory` and the session answer it."""

    channel: LongPollChannel

    @property
    def request_id(self) -> str:
        """See `PendingRequest`."""
        return self.channel.request_id

    def answer(self, body: bytes) -> None:
        """Answer with a body of the protocol."""
        if not self.over:
            self.responseHeaders.setRawHeaders("Cache-Control", ["no-cache"])
            self.reply(200, body, "text/plain; charset=UTF-8")

    def reply(
        self, status: int, body: bytes, content_type: str = "text/plain", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answer, unless the connection is lost. The answer names the origin that may read it."""
        if self.over:
            return
        shared_with = self.channel.factory.origins.shared_with(self.text("Origin"))
        if shared_with is not None:
            self.responseHeaders.setRawHeaders("Access-Control-Allow-Origin", [shared_with])
            if shared_with != "*":
                # The header depends on the Origin, so that shared caches need Vary.
                self.responseHeaders.setRawHeaders("Vary", ["Origin"])
        self.responseHeaders.setRawHeaders(HEADER, [self.request_id])
        super().reply(status, body, content_type, headers)


class LongPollChannel(HttpChannel):
    """One HTTP connection."""

    requestFactory = LongPollRequest
    begun = 0
    """Sessions that were begun over this connection."""


class LongPollFactory(Listener, Factory):
    """One HTTP listener: its connections, and its sessions. Each session is a connection of ``lines``."""

    noisy = False

    def __init__(
        self,
        lines: LineFactory,
        limits: LongPollLimits,
        root: str,
        origins: Origins,
        ids: RequestIds,
        pool: Pool | None = None,
    ) -> None:
        self.lines = lines
        self.clock = lines.clock
        self.origins = origins
        self.sessions: dict[str, LongPollSession] = {}
        self.sockets = Sockets(lines, pool)
        self.deadlines = HttpDeadlines(lines.clock, self._bounds)
        self.sentence = plain_sentence
        self.ids = ids
        self._root = root
        self._clocks = Clocks(lines, limits)

    def limit(self, limits: TransportLimits) -> None:
        """See `Listener`."""
        self._clocks.limits = limits
        super().limit(limits)

    @property
    def memory(self) -> MemoryBudget:
        """The account of what connections and sessions hold."""
        return self.lines.memory

    def buildProtocol(self, addr: IAddress | None) -> LongPollChannel:
        channel = LongPollChannel()  # type: ignore[no-untyped-call]
        channel.factory = self
        self.sockets.admit(channel, addr)
        return channel

    def connected(self, connection: LongPollChannel) -> None:
        """Register a connection."""
        self.sockets.add(connection)

    def disconnected(self, connection: LongPollChannel) -> None:
        """Deregister a connection."""
        self.sockets.discard(connection)

    def log(self, request: HttpRequest) -> None:
        """Write no access log. Twisted calls this after each answer."""

    def serve(self, request: LongPollRequest) -> None:
        """Route a request: refuse it, answer it, or pass it to its session."""
        request.channel.identify(request)
        origin = request.text("Origin")
        asked = wire.request(request.uri.decode("latin-1"), self._root)
        site = request.text("Sec-Fetch-Site")
        if not self.origins.allow(origin, site):
            self._refuse(request, 403, not_allowed(origin, site))
        elif request.method == b"OPTIONS":
            self._preflight(request)
        elif request.method != b"POST" and (request.method != b"GET" or isinstance(asked, wire.Xmit)):
            request.responseHeaders.setRawHeaders("Allow", [METHODS])
            self._refuse(request, 405, Refusal(Reason.UNKNOWN_OP, "http: not with this method"))
        elif asked is None:
            self._refuse(request, 404, Refusal(Reason.UNKNOWN_TARGET, "http: there is nothing at this path"))
        elif isinstance(asked, wire.Connect):
            self._connect(request)
        else:
            self._serve_session(request, asked)

    def _connect(self, request: LongPollRequest) -> None:
        # Admission comes first: a refused session has no place, and no id.
        client = request.channel.client
        address = request.client if client is None else proxied(client)
        refusal = self.lines.admit(address)
        if refusal is not None:
            self._refuse(request, 503, refusal)
            return
        request.channel.begun += 1
        session = LongPollSession(
            self.lines, self._clocks, str(secrets.randbits(ID_BITS)), self._forget, request.channel
        )
        self.sessions[session.id] = session
        request.answer(wire.connected(session.id))
        session.begin(address)
        session.line.local &= request.local

    def _serve_session(self, request: LongPollRequest, asked: wire.Xmit | wire.Select | wire.Disconnect) -> None:
        session = self.sessions.get(asked.session)
        if session is None:
            self._refuse(request, 200, Refusal(Reason.PARAMETER, "http: there is no such session"))
            return
        self.sockets.table.authenticated(request.channel)
        # A session is trusted as local only while all its requests are.
        session.line.local &= request.local
        if isinstance(asked, wire.Select):
            session.select(request, asked.number)
        elif isinstance(asked, wire.Disconnect):
            session.disconnect(request)
        else:
            try:
                blocks = wire.messages(request.content.getvalue(), request.text("Content-Type") or "")
            except Malformed as malformed:
                self._refuse(request, 400, malformed)
            else:
                session.xmit(request, asked.number, blocks)

    def _preflight(self, request: LongPollRequest) -> None:
        request.responseHeaders.setRawHeaders("Access-Control-Max-Age", [PREFLIGHT_COUNTS])
        request.responseHeaders.setRawHeaders("Access-Control-Allow-Methods", [METHODS])
        headers = request.text("Access-Control-Request-Headers")
        if headers is not None:
            request.responseHeaders.setRawHeaders("Access-Control-Allow-Headers", [headers])
        request.reply(200, b"")

    def _refuse(self, request: LongPollRequest, status: int, refusal: Refusal) -> None:
        if not request.channel.refused(refusal):
            request.last()
        if status == 200:
            request.answer(wire.error(wire.SESSION_ID))
        else:
            request.reply(status, f"{refusal.text}\n".encode())

    def _bounds(self) -> RequestBounds:
        return RequestBounds(MAX_BODY, REQUEST_WITHIN, KEPT_OPEN, self.lines.limits.stalled_after)

    def _forget(self, session: LongPollSession) -> None:
        self.sessions.pop(session.id, None)
