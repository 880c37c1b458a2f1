"""The HTTP server of sessions that poll; the HTTP is Twisted's.

Rules:
- A page whose Origin is not allowed is refused whatever it asks for; programs send no Origin.
- Requests are handled in turns (`scheduled_input.py`): what a connection sent is parsed and answered a request at a
  time. A connection whose request waits for its answer, or that does not read its answers, has no turn.
- A request must be complete within `REQUEST_WITHIN`, its body no longer than `MAX_BODY`, and what all bodies hold
  together counts as unfinished input does.
- Connections are reused; which session a request is for, its path alone says.
- What is no request of the protocol is answered as HTTP does, counted, and may not come too often.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, HTTPFactory
from twisted.web.http import Request as HttpRequest
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection import CLOSE_WITHIN
from broker.net.fast_write import plain_socket, push
from broker.net.line_protocol import LineFactory
from broker.net.rate_limits import Deadlines
from broker.net.scheduled_input import Scheduled, sliced
from broker.net.unfinished_input import SHORT, UnfinishedInput
from broker.net.web_origins import FROM_ELSEWHERE, Origins, not_allowed
from broker.wires.elko.codec import long_poll as wire
from broker.wires.elko.transports.limits import LongPollLimits, TransportLimits
from broker.wires.elko.transports.long_poll_session import Clocks, LongPollSession
from broker.wires.elko.transports.virtual_transport import ID_BITS, Listener, Patience, Sockets

MAX_BODY = 1_048_576
"""Bytes of a request's body: the original's limit, and that of one block."""

REQUEST_WITHIN = 30.0
"""Seconds from the first byte of a request to its last: as long as a peer on TCP may take to authenticate."""

KEPT_OPEN = 60.0
"""Seconds that a connection without a request is kept: as long as a select lasts."""

PREFLIGHT_COUNTS = "31536000"
"""Seconds for which a browser may remember what OPTIONS said, as with the original: a year."""

METHODS = "GET, POST, OPTIONS"


class LongPollRequest(HttpRequest):
    """One request. What it is answered, `LongPollFactory` and the session say."""

    channel: LongPollChannel
    content: BytesIO
    _refused = False

    def gotLength(self, length: int | None) -> None:
        """The head has come: ``length`` is the body's, None where it comes in chunks."""
        self.content = BytesIO()
        if length is not None and length > MAX_BODY:
            self._refuse_body()

    def handleContentChunk(self, data: bytes) -> None:
        """A piece of the body."""
        if self._refused:
            return
        self.content.write(data)
        size = self.content.tell()
        if size > MAX_BODY:
            self._refuse_body()
        else:
            self.channel.unfinished.hold(self.channel, size)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """All of it has come. (Twisted's own would also read forms, in one go whatever their size.)"""
        if self._refused:
            return
        self.method, self.uri, self.clientproto = command, path, version
        self.channel.unfinished.drop(self.channel)
        self.channel.factory.arriving.discard(self.channel)
        self.channel.received = self

    def text(self, header: str) -> str | None:
        """A header of the request. Bytes that are no ASCII stand for themselves (ISO 8859-1), as RFC 9110 has it."""
        value = self.requestHeaders.getRawHeaders(header.encode())
        return None if value is None else value[-1].decode("latin-1")

    @property
    def local(self) -> bool:
        """True if no header shows a web page or a proxy."""
        return not any(map(self.requestHeaders.hasHeader, FROM_ELSEWHERE))

    def answer(self, body: bytes) -> None:
        """Answer in the protocol."""
        self.responseHeaders.setRawHeaders("Cache-Control", ["no-cache"])
        self.reply(200, body, "text/plain; charset=UTF-8")

    def reply(self, status: int, body: bytes, content_type: str = "text/plain") -> None:
        """Answer, unless the connection is lost."""
        if self._disconnected or self.finished:
            return
        self.setResponseCode(status)
        shared_with = self.channel.factory.origins.shared_with(self.text("Origin"))
        if shared_with is not None:
            self.responseHeaders.setRawHeaders("Access-Control-Allow-Origin", [shared_with])
            if shared_with != "*":
                self.responseHeaders.setRawHeaders("Vary", ["Origin"])
        self.responseHeaders.setRawHeaders("Content-Type", [content_type])
        self.responseHeaders.setRawHeaders("Content-Length", [str(len(body))])
        self.write(body)  # type: ignore[no-untyped-call]
        channel = self.channel
        self.finish()  # type: ignore[no-untyped-call]
        channel.push()

    def last(self) -> None:
        """Close the connection after the answer."""
        self.responseHeaders.setRawHeaders("Connection", ["close"])
        self.channel.persistent = False

    def _refuse_body(self) -> None:
        self.refuse_body(Refusal(Reason.TOO_LARGE, f"the body of a request has more than {MAX_BODY} bytes"))

    def refuse_body(self, refusal: Refusal) -> None:
        """Free what has come of the body, and close."""
        self._refused = True
        self.content = BytesIO()
        channel = self.channel
        channel.unfinished.drop(channel)
        channel.refused(refusal)
        channel.last_words(413, "Content Too Large", refusal.text)


@implementer(IPushProducer)
class _Reading:
    """The transport that Twisted's HTTP sees: both it and the scheduler may stop the reading."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._paused = self._waits = False

    def pauseProducing(self) -> None:
        """Twisted's HTTP wants no more for now."""
        self._paused = True
        self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Twisted's HTTP reads on."""
        self._paused = False
        if not self._waits:
            self._transport.resumeProducing()

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    def wait(self) -> None:
        """The scheduler wants no more for now."""
        self._waits = True
        self._transport.pauseProducing()

    def go_on(self) -> None:
        """The scheduler reads on."""
        self._waits = False
        if not self._paused:
            self._transport.resumeProducing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class LongPollChannel(Scheduled, HTTPChannel):
    """One connection."""

    factory: LongPollFactory
    transport: Any
    requestFactory = LongPollRequest
    received: LongPollRequest | None = None
    """A request that is complete, and still to be served."""
    _arriving = False
    _answering = False  # a request is served, and not answered yet
    _stalled = False  # the peer does not read

    def makeConnection(self, transport: Any) -> None:
        self._socket = plain_socket(transport)
        if isinstance(transport, Connection):
            transport.bufferSize = SHORT  # a peer waits with as little as this
        self.host = getattr(transport.getPeer(), "host", "unix")
        super().makeConnection(_Reading(transport))  # type: ignore[no-untyped-call]

    def connectionMade(self) -> None:
        self._patience = Patience(self.factory.lines.clock.seconds)
        self.factory.sockets.add(self)
        super().connectionMade()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        if not self.requests and not self._arriving:
            self._arriving = True
            self.factory.arriving.add(self, REQUEST_WITHIN)
        self.take(data, self._patience.untouched())

    @property
    def unfinished(self) -> UnfinishedInput:
        """The unfinished messages of the listener's connections."""
        return self.factory.lines.unfinished

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Parse a piece, or serve a request, in one step."""
        for piece in sliced(data):
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            yield
            while (request := self.received) is not None:
                self.received = None
                self._answering = True
                self.factory.serve(request)
                yield

    def held_up(self) -> bool:
        """True if a request waits for its answer, or the peer does not read."""
        return self._answering or self._stalled

    def pause_reading(self) -> None:
        """Read no more for now."""
        self.transport.wait()

    def resume_reading(self) -> None:
        """Read on."""
        self.transport.go_on()

    # for Twisted

    def requestDone(self, request: LongPollRequest) -> None:
        self._arriving = False
        self._answering = False
        super().requestDone(request)  # type: ignore[no-untyped-call]
        self.go_on()

    def pauseProducing(self) -> None:
        self._stalled = True
        super().pauseProducing()  # type: ignore[no-untyped-call]

    def resumeProducing(self) -> None:
        self._stalled = False
        super().resumeProducing()  # type: ignore[no-untyped-call]
        self.go_on()

    def push(self) -> None:
        """Send what is written now, not in the next turn of the reactor."""
        push(self._socket)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.drop()
        self.unfinished.drop(self)
        self.factory.arriving.discard(self)
        self.factory.leaving.discard(self)
        self.factory.sockets.discard(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def timeoutConnection(self) -> None:
        """Nothing was asked for a while."""
        self.hang_up()

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Refuse input that is no HTTP. (Twisted's own name: it has no other place where that could be counted.)"""
        self.refused(Refusal(Reason.SYNTAX, "http: no request of HTTP"))
        self.last_words(400, "Bad Request", "this is no request of HTTP/1.1, or its head is too long")

    def lineLengthExceeded(self, line: bytes) -> None:
        """A line of the head is too long."""
        self._respondToBadRequestAndDisconnect()

    def last_words(self, status: int, phrase: str, text: str) -> None:
        """Answer what is no whole request, with a sentence, and close."""
        body = f"{text}\n".encode()
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self.hang_up()

    def hang_up(self) -> None:
        """Close when all is sent."""
        self.drop()
        self.factory.leaving.add(self, CLOSE_WITHIN)
        self.loseConnection()  # type: ignore[no-untyped-call]

    def evict(self, refusal: Refusal) -> None:
        """Refuse its unfinished request: too much is held, and this request began first."""
        self.requests[-1].refuse_body(refusal)

    def abort(self) -> None:
        """It took too long."""
        self.transport.abortConnection()

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns whether the connection may go on."""
        lines = self.factory.lines
        lines.complaints.add(lines.wire, self.host, refusal)
        return self._patience.lasts()


class LongPollFactory(Listener, HTTPFactory):
    """One listener of HTTP: its connections, and its sessions, of which each is a connection of ``lines``."""

    noisy = False
    protocol = LongPollChannel  # type: ignore[assignment]

    def __init__(self, lines: LineFactory, limits: LongPollLimits, root: str, origins: Origins) -> None:
        super().__init__(timeout=KEPT_OPEN, reactor=lines.clock)
        self.lines = lines
        self.origins = origins
        self.sessions: dict[str, LongPollSession] = {}
        self.sockets = Sockets(lines)
        self.arriving: Deadlines[LongPollChannel] = Deadlines(lines.clock, LongPollChannel.abort)
        self.leaving: Deadlines[LongPollChannel] = Deadlines(lines.clock, LongPollChannel.abort)
        self._root = root
        self._clocks = Clocks(lines, limits)

    def limit(self, limits: TransportLimits) -> None:
        """See `Listener`."""
        self._clocks.limits = limits
        super().limit(limits)

    def startFactory(self) -> None:
        """There is no access log."""

    def stopFactory(self) -> None:
        """There is no access log."""

    def log(self, request: HttpRequest) -> None:
        """There is no access log."""

    def serve(self, request: LongPollRequest) -> None:
        """Answer a request, or have its session do it."""
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
        lines = self.lines
        if len(lines.connections) >= lines.limits.connections or lines.stopping:
            self._refuse(request, 503, Refusal(Reason.LIMIT, "http: there is no room for another session"))
            return
        session = LongPollSession(lines, self._clocks, str(secrets.randbits(ID_BITS)), self._forget)
        self.sessions[session.id] = session
        request.answer(wire.connected(session.id))
        session.begin(request.client)
        session.line.local &= request.local

    def _serve_session(self, request: LongPollRequest, asked: wire.Xmit | wire.Select | wire.Disconnect) -> None:
        session = self.sessions.get(asked.session)
        if session is None:
            self._refuse(request, 200, Refusal(Reason.PARAMETER, "http: there is no such session"))
            return
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

    def _forget(self, session: LongPollSession) -> None:
        self.sessions.pop(session.id, None)
