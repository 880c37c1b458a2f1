"""Sessions over HTTP long polling: the server of their requests, and one session.

Rules of requests:
- A page with a disallowed Origin is refused for any request; programs send no Origin.
- `broker.net.http.channel` bounds requests, with `REQUEST_WITHIN` and `MAX_BODY`.
- Connections are reusable; the path alone selects the session of a request.
- Any other request gets an HTTP error status, is counted, and is rate-limited.

Rules of a session, whose input is in numbered requests (xmit), and whose output is in numbered answers (select):
- An answer may let the next request of the same connection in at once: the state must be final before
  `PendingRequest.answer`.
- At most one select is pending: a second one with the same number replaces it. It is answered when output exists, or
  after ``http_select_wait``, and then the next number is expected.
- Requests with a wrong number are refused without any effect.
- Messages that wait for another turn have the id of their request all the same: the session is paused until they are
  handled, so that no other request brings any.
- Backpressure: while the session is paused, the answer to the last xmit is withheld; further ones are refused.
- Without a pending select, output is buffered up to `FULL`; the rest waits in the `LineProtocol`, with its limits.
- A session ends after ``http_timeout`` without a pending request, at `disconnect`, and when the broker closes it: then
  the last output, and the number `LAST`, answer the pending select or the next one. When the listener stops, a session
  without output and select ends at once.

`broker.wires.elko.codec.long_poll_messages` has the paths and bodies.

The file is longer than others: a session and its requests change each other's state.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.memory_budget import MemoryBudget
from broker.core.place_table import Pool
from broker.net.http.channel import HttpChannel, plain_sentence
from broker.net.http.request import HttpDeadlines, HttpRequest, RequestBounds, RequestIds
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.proxies import proxied
from broker.net.refusal_log import Deadlines
from broker.net.web_origins import Origins, not_allowed
from broker.rest.messages import REQUEST_ID
from broker.wires.elko.codec import long_poll_messages as wire
from broker.wires.elko.transports.transport_limits import LongPollLimits, TransportLimits
from broker.wires.elko.transports.virtual_transport import ID_BITS, Listener, Sockets, VirtualTransport

FULL = 65_536
"""Bytes of output buffered for the next select; see `broker.net.connection_output.BATCH`."""


class PendingRequest(Protocol):
    """An unanswered request, with its id."""

    @property
    def request_id(self) -> str:
        """The id, for answers and log lines."""

    def answer(self, body: bytes) -> None:
        """Answer it, unless its connection is lost."""

    def when_lost(self, call: Callable[[], object]) -> None:
        """Call ``call`` if its connection is lost before the answer."""

    @property
    def over(self) -> bool:
        """True after the answer, or without the connection."""


class Origin(Protocol):
    """A connection that begins sessions."""

    begun: int
    """Their number."""


class Clocks:
    """The deadlines of a listener's sessions, and their limits."""

    def __init__(self, lines: LineFactory, limits: LongPollLimits) -> None:
        self.limits = limits
        self.idle: Deadlines[LongPollSession] = Deadlines(lines.clock, LongPollSession.expired)
        self.waiting: Deadlines[LongPollSession] = Deadlines(lines.clock, LongPollSession.nothing_came)


class LongPollSession(VirtualTransport):
    """One session. ``forget`` is called when its ID becomes invalid. ``origin`` is the connection that began it."""

    def __init__(
        self, lines: LineFactory, clocks: Clocks, id: str, forget: Callable[[LongPollSession], None], origin: Origin
    ) -> None:
        super().__init__(lines)
        self._origin: Origin | None = origin  # until the first request with the ID
        self.id = id
        self.request_id = ""
        """The id of the request whose messages are being handled, for log lines and the audit log."""
        self._clocks = clocks
        self._forget = forget
        self._next_xmit = 1
        self._next_select = 1
        self._out: list[bytes] = []
        self._size = 0
        self._producer: LineProtocol | None = None
        self._full = False
        self._closing = False
        self._select: PendingRequest | None = None
        self._held: tuple[PendingRequest, bytes] | None = None
        self._note()

    @property
    def crowd(self) -> int:
        """0 while a request is pending; otherwise 1, or the number of sessions that began as this one, if its ID was
        never used."""
        if self._select is not None or self._held is not None:
            return 0
        return 1 if self._origin is None else self._origin.begun

    # from its requests

    def xmit(self, exchange: PendingRequest, number: int, blocks: bytes) -> None:
        """Handle a request with messages of the peer."""
        self._origin = None
        # A withheld request whose connection was lost may be repeated: its messages have not been delivered.
        pending = self._held is not None and not self._held[0].over
        if number != self._next_xmit or pending or self._closing:
            self._out_of_sequence(exchange, f"xmit {number}, not {self._next_xmit}")
        elif self.reading:
            self._held = None
            self._deliver(exchange, blocks)
        else:
            self._held = exchange, blocks
        self._note()

    def select(self, exchange: PendingRequest, number: int) -> None:
        """Handle a request for output."""
        self._origin = None
        if number != self._next_select:
            self._out_of_sequence(exchange, f"select {number}, not {self._next_select}")
            self._note()
            return
        before, self._select = self._select, exchange
        exchange.when_lost(lambda: self._select_lost(exchange))
        self._clocks.waiting.add(self, self._clocks.limits.http_select_wait)
        self._note()
        if before is not None:
            before.answer(wire.error(wire.SEQUENCE))
        if self._select is exchange and (self._out or self._closing):
            self._answer()
            if self._closing:
                self.end()
        if self._full and not self._closing and self._producer is not None:
            self._full = False
            self._producer.resumeProducing()

    def disconnect(self, exchange: PendingRequest) -> None:
        """Handle the peer's end of the session."""
        self._forget(self)
        self._closing = True
        if self._select is not None:
            self._answer()
        self.end_of_input()
        exchange.answer(wire.disconnected())

    # from its LineProtocol

    def write(self, data: bytes) -> None:
        """Buffer encoded messages, or answer the pending select with them."""
        self._out.append(data)
        self._size += len(data)
        if self._select is not None:
            self._answer()
        elif self._size >= FULL and self._producer is not None and not self._full:
            self._full = True
            self._producer.pauseProducing()
        else:
            self.line.hold_output()

    @property
    def unread(self) -> int:
        """Bytes of output that wait for a select."""
        return self._size

    def loseConnection(self) -> None:
        """End the session. The last output answers the pending select or the next one."""
        if self._closing:
            self.end()
            return
        self._closing = True
        if self._select is not None:
            self._answer()
            self.end()
        elif self.lines.stopping and not self._out:
            self.end()  # without output, the shutdown need not wait for a further request
        self._note()

    def registerProducer(self, producer: LineProtocol, streaming: bool) -> None:
        """Set the `LineProtocol` as the producer of the output."""
        self._producer = producer

    def unregisterProducer(self) -> None:
        """Remove the producer."""
        self._producer = None

    def resumeProducing(self) -> None:
        """Resume input, and deliver a withheld xmit in the next turn."""
        super().resumeProducing()
        self.request_id = ""
        if self._held is not None:
            self.clock.callLater(0, self._deliver_held)

    def ended(self) -> None:
        """Forget the session, and refuse its pending requests."""
        self._forget(self)
        self._clocks.idle.discard(self)
        self._clocks.waiting.discard(self)
        for exchange in (self._select, self._held and self._held[0]):
            if exchange is not None:
                exchange.answer(wire.error(wire.SESSION_ID))
        self._select = self._held = self._producer = None
        self._out.clear()

    # from the deadlines

    def nothing_came(self) -> None:
        """Answer a select after its maximum wait."""
        if self._select is not None:
            self._answer()

    def expired(self) -> None:
        """End the session at its idle timeout."""
        self.lines.refusal_log.count(f"{self.lines.wire}_http", "expired")
        self.end()

    # inside

    def _deliver(self, exchange: PendingRequest, blocks: bytes) -> None:
        self._next_xmit += 1
        following = self._next_xmit
        self.request_id = exchange.request_id
        self.line.dataReceived(blocks)
        if self.reading:
            self.request_id = ""
        exchange.answer(wire.received(following))

    def _deliver_held(self) -> None:
        if self._held is not None and self.reading and not self.over:
            (exchange, blocks), self._held = self._held, None
            self._deliver(exchange, blocks)
            self._note()

    def _answer(self) -> None:
        """Answer the pending select with all buffered output."""
        exchange, self._select = self._select, None
        assert exchange is not None
        self._clocks.waiting.discard(self)
        out = self._out
        self._out = []
        self._size = 0
        self.line.hold_output()
        self._next_select = wire.LAST if self._closing else self._next_select + 1
        self._note()
        exchange.answer(wire.selected(out, self._next_select))

    def _select_lost(self, exchange: PendingRequest) -> None:
        if self._select is exchange:
            self._select = None
            self._clocks.waiting.discard(self)
            self._note()

    def _out_of_sequence(self, exchange: PendingRequest, text: str) -> None:
        exchange.answer(wire.error(wire.SEQUENCE))
        if not self._closing and not self.line.refused(Refusal(Reason.PARAMETER, f"http: out of sequence: {text}")):
            self.line.close()

    def _note(self) -> None:
        """Restart the idle timeout, or suspend it while a request is pending."""
        if self._select is None and self._held is None:
            self._clocks.idle.add(self, self._clocks.limits.http_timeout)
        else:
            self._clocks.idle.discard(self)


MAX_BODY = 1_048_576
"""Bytes of a request's body: the original's limit, and that of one block."""

REQUEST_WITHIN = 30.0
"""Seconds from the first byte of a request to its last: equal to the authentication deadline on TCP."""

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
            self.reply(200, body, "text/plain; charset=UTF-8", [("Cache-Control", "no-cache")])

    def reply(
        self, status: int, body: bytes, content_type: str = "text/plain", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answer, unless the connection is lost. The answer names the origin that may read it."""
        if self.over:
            return
        shared_with = self.channel.factory.origins.shared_with(self.fields.get("origin"))
        if shared_with is not None:
            self.fields_out.append(("Access-Control-Allow-Origin", shared_with))
            if shared_with != "*":
                # The header depends on the Origin, so that shared caches need Vary.
                self.fields_out.append(("Vary", "Origin"))
        self.fields_out.append((REQUEST_ID, self.request_id))
        super().reply(status, body, content_type, headers)


class LongPollChannel(HttpChannel):
    """One HTTP connection."""

    requests = LongPollRequest
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
        self.deadlines.stalls.move(limits.stalled_after - self.lines.limits.stalled_after)
        super().limit(limits)

    @property
    def memory(self) -> MemoryBudget:
        """The account of the bytes that connections and sessions hold."""
        return self.lines.memory

    def buildProtocol(self, addr: IAddress | None) -> LongPollChannel:
        channel = LongPollChannel()
        channel.factory = self
        self.sockets.admit(channel, addr)
        return channel

    def connected(self, connection: LongPollChannel) -> None:
        """Register a connection."""
        self.sockets.add(connection)

    def disconnected(self, connection: LongPollChannel) -> None:
        """Deregister a connection."""
        self.sockets.discard(connection)

    def serve(self, request: LongPollRequest) -> None:
        """Route a request: refuse it, answer it, or pass it to its session."""
        origin, site = request.fields.get("origin"), request.fields.get("sec-fetch-site")
        asked = wire.request(request.target, self._root)
        if not self.origins.allow(origin, site):
            self._refuse(request, 403, not_allowed(origin, site))
        elif request.method == "OPTIONS":
            self._preflight(request)
        elif request.method != "POST" and (request.method != "GET" or isinstance(asked, wire.Xmit)):
            request.fields_out.append(("Allow", METHODS))
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
        address = request.channel.transport.getPeer() if client is None else proxied(client)
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
                blocks = wire.messages(request.body(), request.fields.get("content-type", ""))
            except Malformed as malformed:
                self._refuse(request, 400, malformed)
            else:
                session.xmit(request, asked.number, blocks)

    def _preflight(self, request: LongPollRequest) -> None:
        request.fields_out += [
            ("Access-Control-Max-Age", PREFLIGHT_COUNTS),
            ("Access-Control-Allow-Methods", METHODS),
        ]
        headers = request.fields.get("access-control-request-headers")
        if headers is not None:
            request.fields_out.append(("Access-Control-Allow-Headers", headers))
        request.reply(200, b"")

    def _refuse(self, request: LongPollRequest, status: int, refusal: Refusal) -> None:
        if not request.channel.refused(refusal):
            request.last()
        if status == 200:
            request.answer(wire.error(wire.SESSION_ID))
        else:
            request.reply(status, f"{refusal.text}\n".encode())

    def _bounds(self) -> RequestBounds:
        return RequestBounds(MAX_BODY, within=REQUEST_WITHIN, stalled_after=self.lines.limits.stalled_after)

    def _forget(self, session: LongPollSession) -> None:
        self.sessions.pop(session.id, None)
