"""One connection of HTTP: Twisted's parser within the scheduler, with every bound that it lacks.

Rules:
- The scheduler bounds requests (`scheduled_input.py`): input is parsed and answered one request at a time. A body in
  pieces is written one piece in each step.
- Backpressure: a connection that does not read its answers is not served, and is aborted if it reads nothing for
  ``stalled_after``. While a request is unanswered, at most two reads of further input are held; reads go on until then,
  so that the loss of the peer is noticed.
- A request must be complete ``within`` its time, its body has a maximum, and all incomplete bodies together count as
  unfinished input.
- A peer that pipelines, or sends a request in many small pieces, is not ordinary: its input waits for the rounds,
  behind that of others.
- The close after a refusal lingers, within `LINGER_BYTES` and `LINGER_WITHIN`: the output ends, and input is discarded
  until the peer closes. A close with unread input resets the connection, and the peer may lose the answer. A close
  over TLS waits for the peer in any case.
- Messages whose end is ambiguous are refused, and the connection is closed, since a proxy before the listener may
  interpret them otherwise (request smuggling; RFC 9112, 11.2): a Transfer-Encoding other than ``chunked``, one with
  HTTP/1.0 or with a Content-Length, a second Content-Length, folded header lines. Twisted refuses bare CR and LF in
  lines, spaces in names of headers, and malformed chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from broker.access.identity import plain
from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import SHORT, MemoryBudget, Share
from broker.core.place_table import PlaceTable
from broker.net.connection import CLOSE_WITHIN, NOT_READING
from broker.net.epoll_streams import plain_socket, push, unsent
from broker.net.http.bounds import HttpDeadlines, RequestBounds
from broker.net.http.reading import Reading
from broker.net.http.request import HttpRequest
from broker.net.proxies import PROXY_FIELDS
from broker.net.refusal_log import RefusalLimit, RefusalLog
from broker.net.scheduled_input import Scheduled, sliced
from broker.net.scheduler import Scheduler
from broker.rest.messages import RAW_REQUEST_ID, REQUEST_ID, RequestIds

LENGTH_DIGITS = 15
"""Digits of a Content-Length: a petabyte. Longer numbers are refused unread."""


FEW = 16
"""Requests between two reads of an ordinary peer. Browsers and scripts send one, and wait for its answer; a peer that
sends many at once waits for the rounds of the scheduler, so that it delays no other."""


DRIP, DRIPS = 512, 64
"""Bytes of a short read, and the number of them in one request of an ordinary peer. A thousand peers that send a
request byte by byte cost a read each time, and wait for the rounds as well."""

COSTLY_REQUEST = 0.004
"""Seconds beyond which a quantum is a strike: a request takes half a millisecond, and several times that on a machine
whose cores others have, where one that asks seldom must stay ordinary. `FEW` bounds the requests of a quantum."""

LINGER_BYTES, LINGER_WITHIN = 8 * 1024 * 1024, 5.0
"""Bytes that a lingering close discards, and its duration in seconds, at most. A client that sends a body over the
limit without a look at the answer reads the answer afterwards, if its body is no larger than this."""

LINGER_READ = 65_536
"""Bytes of a read whose content is discarded: fewer reads cost less."""


class HttpOwner(Protocol):
    """The factory of a channel: a listener."""

    wire: str
    turns: Scheduler
    refusal_log: RefusalLog
    deadlines: HttpDeadlines
    memory: MemoryBudget
    clock: Any
    ids: RequestIds

    @property
    def table(self) -> PlaceTable:
        """The places of the connections."""

    def connected(self, connection: Any) -> None:
        """Register a connection."""

    def disconnected(self, connection: Any) -> None:
        """Deregister a connection."""

    def serve(self, request: Any) -> None:
        """Answer a complete request, now or later."""


class Upgraded(Protocol):
    """The protocol of a connection that is no longer HTTP."""

    def feed(self, data: bytes) -> Iterator[None]:
        """Handle input, and yield after each step."""

    def lost(self) -> None:
        """The connection is lost."""


class Producing(Protocol):
    """A producer of output without an end."""

    def room(self) -> None:
        """Output is no longer pending."""


TLS = b"\x16\x03"
"""The beginning of a handshake of TLS. It has no line end for which a parser of HTTP could wait."""


class HttpChannel(Scheduled, HTTPChannel):
    """One connection. ``factory`` is an `HttpOwner`."""

    factory: Any
    transport: Any
    requestFactory = HttpRequest
    costly = COSTLY_REQUEST
    timeOut = None  # the deadlines of the listener replace the timer that Twisted has for each connection
    turned_away: Refusal | None = None
    """The refusal by admission, which is the only answer."""
    source = ""
    """The address that this connection counts for in the listener's table; see `StreamConnection.source`."""
    crowd = 0
    heard = 0.0
    """The time of the last complete request, or of the accept."""
    peer = ""
    """The address at the other end of the connection; ``host`` is that of the client of the present request."""
    client: str | None = None
    """The client that a trusted proxy names in the present request."""
    received: Any = None
    """A complete request that is still to be served."""
    unwritten: tuple[HttpRequest, Iterator[bytes]] | None = None
    """The present request, and the rest of the body of its answer, which is written in steps."""
    upgraded: Upgraded | None = None
    producing: Producing | None = None
    hanging_up = False
    """True from the beginning of a close: no further request is served."""
    trusted = False
    """See `broker.core.memory_budget.Consumer`: each request has its own credentials."""
    _arriving = False
    _answering = False  # a request is in progress
    _stalled = False  # the peer does not read
    _batch = 0  # requests since the last read
    _drips = 0  # short reads since the last request
    _losing = False  # the transport closes when all output is sent
    _request_id = ""
    _unsent = 0  # unsent bytes when the read deadline began
    _discarded = 0  # bytes of input since a lingering close began
    _plain: Connection | None = None  # the transport, if it is a plain socket

    def makeConnection(self, transport: Any) -> None:
        self._socket = plain_socket(transport)
        if isinstance(transport, Connection):
            self._plain = transport
            transport.bufferSize = SHORT  # a queued connection holds no more than this
        self.host = self.peer = plain(getattr(transport.getPeer(), "host", "unix"))
        super().makeConnection(Reading(transport))  # type: ignore[no-untyped-call]

    def connectionMade(self) -> None:
        self._refusals = RefusalLimit(self.factory.clock.seconds)
        self.factory.deadlines.wait(self)
        self.factory.connected(self)
        super().connectionMade()  # type: ignore[no-untyped-call]
        if self.turned_away is not None:
            self.refused(self.turned_away)
            self.last_words(503, "Service Unavailable", self.turned_away.text)

    def dataReceived(self, data: bytes) -> None:
        if self.hanging_up:
            self._discard(len(data))
            return
        if not self.requests and not self._arriving:
            if data.startswith(TLS):
                self.refused(Refusal(Reason.SYNTAX, f"{self.factory.wire}: a handshake of TLS"))
                self.last_words(400, "Bad Request", "this port speaks HTTP without TLS: use http://")
                return
            self._arriving = True
            self.factory.deadlines.begin(self)
        self._drips += len(data) < DRIP
        ordinary = self._batch <= FEW and self._drips <= DRIPS and self._refusals.untouched()
        self._batch = 0
        self.take(data, ordinary)

    @property
    def memory(self) -> MemoryBudget:
        """The account of the memory of connections."""
        account: MemoryBudget = self.factory.memory
        return account

    @property
    def bounds(self) -> RequestBounds:
        """The bounds of requests."""
        bounds: RequestBounds = self.factory.deadlines.bounds
        return bounds

    @property
    def request_id(self) -> str:
        """The id of the request that arrives or is answered. It is made when it is first needed."""
        if not self._request_id:
            self.identify(self.requests[-1] if self.requests else None)
        return self._request_id

    def identify(self, request: HttpRequest | None) -> None:
        """Give a request its id, the one of its head or another, and find the client for which a proxy sent it."""
        given = None if request is None else request.requestHeaders.getRawHeaders(RAW_REQUEST_ID)
        self._request_id = self.factory.ids.choose(given)
        if request is not None:
            # By names in bytes, since values are any bytes: names in text have values in UTF-8.
            fields = request.requestHeaders.getRawHeaders
            named = [[each.decode("latin-1") for each in fields(name, [])] for name in PROXY_FIELDS]
            self.client = self.factory.turns.proxies.client(self.peer, *named)
            self.host = self.client or self.peer

    @property
    def behind(self) -> bool:
        """True while the peer does not read."""
        return self._stalled

    @property
    def pending(self) -> int:
        """Bytes of output that the kernel has not taken."""
        return unsent(self._socket)

    def complete(self, request: HttpRequest) -> None:
        """Keep a complete request until it is served."""
        self.memory.drop(self, Share.INPUT)
        self.factory.deadlines.complete(self)
        self._batch += 1
        self._drips = 0
        self.heard = self.factory.clock.seconds()
        self.served = True
        self.received = request

    def go_on_writing(self, request: HttpRequest, pieces: Iterator[bytes]) -> None:
        """Write the body of the answer to the present request in steps."""
        self.unwritten = request, pieces
        self.go_on()

    def upgrade(self, upgraded: Upgraded) -> None:
        """Pass all further input on. The handshake is done; frames may have arrived behind it."""
        self.upgraded = upgraded
        # Twisted keeps the input behind a request there until the request is answered, which this one never is.
        held = b"".join(self._dataBuffer)
        self._dataBuffer: list[bytes] = []
        self._held = held + self._held
        self._answering = False
        self.go_on()

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Parse one piece, serve one request, or write one piece of an answer in each step.

        It yields before each further step, and not after the last one: a peer whose only request took the whole quantum
        would otherwise wait for the rounds with nothing left to handle, and its next request would wait with it.
        """
        yield from self._serve_received()
        further = False
        for piece in sliced(data):
            if further:
                yield
            further = True
            if self.upgraded is not None:
                yield from self.upgraded.feed(piece)
                continue
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            if self.line_mode and b"\n" in self._buffer:
                # A line that ends with LF alone: the parser would wait for CRLF until the deadline.
                self._respondToBadRequestAndDisconnect()
            yield from self._serve_received()

    def _serve_received(self) -> Iterator[None]:
        """Serve the complete request, and those that Twisted's parser held behind it. The body of an answer that had to
        wait is written here, too."""
        while self.received is not None or self.unwritten is not None:
            yield
            if self.unwritten is not None:
                self._write_piece(*self.unwritten)
            elif self.received is not None:
                request, self.received = self.received, None
                self._answering = True
                self.factory.serve(request)

    def go_on(self) -> None:
        """Continue after a hold-up, with the body of an answer that had to wait, and with the input that Twisted's
        parser, or an upgrade, had behind the request."""
        if self._rest is None and (self.received is not None or self.unwritten is not None or self._held):
            held, self._held = self._held, b""
            self._rest = self.steps(held)
        super().go_on()

    def held_up(self) -> bool:
        """Return True while a request is unanswered, or the peer does not read."""
        return self._stalled or (self._answering and self.unwritten is None)

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.wait()

    def resume_reading(self) -> None:
        """Resume the transport's reads."""
        self.transport.go_on()

    def _stop_reading(self) -> None:
        # While a request is unanswered, a read detects the loss of the peer. Its bytes are held, and reading stops.
        if self._held or not self._answering:
            super()._stop_reading()

    def _write_piece(self, request: HttpRequest, pieces: Iterator[bytes]) -> None:
        piece = next(pieces, None)
        if request.over:
            self.unwritten = None
        elif piece is None:
            self.unwritten = None
            request.end()
        elif piece:
            request.write(piece)  # type: ignore[no-untyped-call]

    # for Twisted

    def requestDone(self, request: Any) -> None:
        self._request_id = ""
        self._arriving = False
        self._answering = False
        self.factory.deadlines.wait(self)
        super().requestDone(request)  # type: ignore[no-untyped-call]
        if not self.persistent:
            self.hang_up()
        self.go_on()

    def setLineMode(self, extra: bytes = b"") -> None:
        # Twisted replays the input behind a request here. It comes before all input that waits for the scheduler.
        self.line_mode = 1
        if extra:
            self._arriving = True
            self.factory.deadlines.begin(self)
            super().dataReceived(extra)  # type: ignore[no-untyped-call]

    def pauseProducing(self) -> None:
        self._stalled = True
        self.hold_output()
        self._watch_progress()
        super().pauseProducing()  # type: ignore[no-untyped-call]

    def resumeProducing(self) -> None:
        self._stalled = False
        self.memory.drop(self, Share.OUTPUT)
        self.factory.deadlines.stalls.discard(self)
        super().resumeProducing()  # type: ignore[no-untyped-call]
        self.go_on()
        if self.producing is not None and not self._stalled:
            self.producing.room()

    def push(self) -> None:
        """Send buffered output now instead of in the next turn of the reactor."""
        push(self._socket)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.hanging_up = True
        self.drop()
        self.received = self.unwritten = self.producing = None
        self.memory.forget(self)
        self.factory.deadlines.forget(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        upgraded, self.upgraded = self.upgraded, None
        if upgraded is not None:
            upgraded.lost()
        self.factory.disconnected(self)
        # An incomplete request, its decoder and the channel refer to each other: without the cycle, no garbage
        # collection is needed to free the body.
        self.requests.clear()
        self._transferDecoder = None

    def lineReceived(self, line: bytes) -> None:
        if line[:1] in (b" ", b"\t"):
            self._respondToBadRequestAndDisconnect()
            return
        if self._receivedHeaderSize + len(line) > self.totalHeadersSize:
            self._refuse_head()
            return
        super().lineReceived(line)  # type: ignore[no-untyped-call]

    def headerReceived(self, line: bytes) -> bool:
        if self.hanging_up:
            return False
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        if (name == b"transfer-encoding" and value.lower() != b"chunked") or (
            name == b"content-length" and len(value) > LENGTH_DIGITS
        ):
            self._respondToBadRequestAndDisconnect()
            return False
        if self._receivedHeaderCount >= self.maxHeaders:
            self._refuse_head()
            return False
        return bool(super().headerReceived(line))  # type: ignore[no-untyped-call]

    def checkPersistence(self, request: Any, version: bytes) -> bool:
        if version != b"HTTP/1.1" and request.requestHeaders.hasHeader(b"Transfer-Encoding"):
            self._respondToBadRequestAndDisconnect()
            return False
        return bool(super().checkPersistence(request, version))  # type: ignore[no-untyped-call]

    def _send100Continue(self) -> None:
        # (The name is Twisted's, which has no public hook for this.)
        if not self.hanging_up:
            super()._send100Continue()  # type: ignore[no-untyped-call]

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Refuse input that is not HTTP. (The name is Twisted's, which has no public hook for this.)"""
        if self.hanging_up:
            return
        self.refused(Refusal(Reason.SYNTAX, f"{self.factory.wire}: no request of HTTP"))
        self.last_words(400, "Bad Request", "this is no request of HTTP/1.1")

    def _refuse_head(self) -> None:
        """Refuse a head that is too long. A browser sends the cookies of all programs of a host to each of them."""
        if self.hanging_up:
            return
        text = f"the head of a request has more than {self.totalHeadersSize} bytes or {self.maxHeaders} fields"
        self.refused(Refusal(Reason.TOO_LARGE, text))
        self.last_words(431, "Request Header Fields Too Large", f"{text}; cookies count, too")

    def lineLengthExceeded(self, line: bytes) -> None:
        """Refuse a head with an oversized line."""
        self._refuse_head()

    # for requests, the listener, and the deadlines

    @property
    def needed(self) -> bool:
        """True while a request is to be answered, or is being answered, and for a WebSocket."""
        return self._answering or self.received is not None or self.upgraded is not None

    def give_way(self, refusal: Refusal) -> None:
        """Close without an answer, since there is no request: the place is given to a newcomer."""
        self.hang_up()

    def last_words(self, status: int, phrase: str, text: str) -> None:
        """Answer an incomplete or malformed request with a sentence, and close."""
        if self.hanging_up:
            return
        request_id = self.request_id
        body, content_type = self.factory.sentence(status, text, request_id)
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        head += f"{REQUEST_ID}: {request_id}\r\n"
        self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self._linger()

    def loseConnection(self) -> None:
        """Close when all output is sent. Idempotent: Twisted calls it after the last answer, and `hang_up` does."""
        if not self._losing:
            self._losing = True
            super().loseConnection()  # type: ignore[no-untyped-call]

    def hang_up(self) -> None:
        """Close when all output is sent."""
        self._leave(CLOSE_WITHIN)
        self.loseConnection()

    def evict(self, refusal: Refusal) -> None:
        """Refuse the unfinished request, or disconnect the peer that does not read: see `MemoryBudget`."""
        if refusal.reason is Reason.NOT_READING:
            self.not_reading(refusal)
        else:
            self.requests[-1].refuse_body(refusal)

    def stalled(self) -> None:
        """Handle the read deadline, which is renewed if the peer made progress."""
        if self._unsent != self.pending:
            self._watch_progress()
        else:
            self.not_reading()

    def hold_output(self) -> None:
        """Account for the output that the peer has not read. This may disconnect it."""
        self.memory.hold(self, Share.OUTPUT, self.pending)

    def not_reading(self, refusal: Refusal = NOT_READING) -> None:
        """Disconnect the peer, since it does not read."""
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal)
        self.abort()

    def abort(self) -> None:
        """Close at once, at a deadline."""
        self.transport.abortConnection()

    def refused(self, refusal: Refusal) -> bool:
        """Count and log a refusal. Returns False if the rate limit for refusals is exceeded."""
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal)
        return self._refusals.admit()

    def _leave(self, within: float) -> None:
        """Serve no further request, and close ``within`` so many seconds."""
        self.hanging_up = True
        self.factory.table.leave(self)
        self.drop()
        self.received = None
        deadlines = self.factory.deadlines
        deadlines.idle.discard(self)
        deadlines.arriving.discard(self)
        deadlines.leaving.add(self, within)

    def _linger(self) -> None:
        """End the output when all is sent, and discard input until the peer closes."""
        self._leave(LINGER_WITHIN)
        if self._plain is None:
            self.loseConnection()
            return
        self._plain.bufferSize = LINGER_READ
        self.transport.unregisterProducer()  # a producer would be resumed instead
        self.transport.linger()

    def _discard(self, size: int) -> None:
        """Count discarded input. Reads wait for the rounds of the scheduler, since they cost time, too."""
        self._discarded += size
        if self._discarded > LINGER_BYTES:
            self.abort()
        else:
            self.take(b"", ordinary=False)

    def _watch_progress(self) -> None:
        self._unsent = self.pending
        self.factory.deadlines.stalls.add(self, self.bounds.stalled_after)


def plain_sentence(status: int, text: str, request_id: str) -> tuple[bytes, str]:
    """Return the body and content type of a refusal as plain text, without the id."""
    return f"{text}\n".encode(), "text/plain"
