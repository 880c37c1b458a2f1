"""One connection of HTTP within the scheduler, with every bound.

Rules:
- The scheduler bounds requests (`scheduled_input.py`): one request is parsed and answered in a step. A body in pieces
  is written one piece in each step.
- Backpressure: a connection that does not read its answers is not served, and is aborted if it reads nothing for
  ``stalled_after``. While a request is unanswered, at most two reads of further input are held; reads go on until then,
  so that the loss of the peer is noticed.
- A request must be complete ``within`` its time, or is answered by 408; its body has a maximum, and all incomplete
  bodies together count as unfinished input.
- A peer that pipelines, or sends a request in many small pieces or a long body, is not ordinary: its input waits for
  the rounds, behind that of others.
- The close after a refusal lingers, within `LINGER_BYTES` and `LINGER_WITHIN`: the output ends, and input is discarded
  until the peer closes. A close with unread input resets the connection, and the peer may lose the answer. A close
  over TLS waits for the peer in any case.
- Messages whose end is ambiguous are refused (`request.py`), and the connection is closed, since a proxy before the
  listener may interpret them otherwise (request smuggling; RFC 9112, 11.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from twisted.internet.interfaces import IPushProducer, ISSLTransport
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.access.identity import plain
from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import SHORT, MemoryBudget, Share
from broker.net.connection import CLOSE_WITHIN, NOT_READING
from broker.net.epoll_streams import plain_socket, push, send_now, unsent
from broker.net.http.request import (
    MAX_FIELDS,
    MAX_HEAD,
    HeadTooLong,
    HttpRequest,
    NoRequest,
    RequestBounds,
    head_end,
)
from broker.net.refusal_log import RefusalLimit
from broker.net.scheduled_input import Scheduled
from broker.rest.messages import REQUEST_ID

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
limit without reading the answer reads the answer afterwards, if its body is no larger than this."""

LINGER_READ = 65_536
"""Bytes of a read whose content is discarded: fewer reads cost less."""


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

    def write_part(self, data: bytes) -> None:
        """Write a part of a piece of output."""


TLS = b"\x16\x03"
"""The beginning of a handshake of TLS. It has no line end for which a parser of HTTP could wait."""


@implementer(IPushProducer)
class HttpChannel(Scheduled, TwistedProtocol):
    """One connection. ``factory`` is its listener, a `broker.net.http.http_listener.HttpFactory`."""

    factory: Any
    transport: Any
    requests: type[HttpRequest] = HttpRequest
    """The class of its requests."""
    costly = COSTLY_REQUEST
    # Class attributes as defaults: an idle connection has no instance entries for them, which saves memory.
    turned_away: Refusal | None = None
    """The refusal by admission, which is the only answer."""
    source = ""
    """The address that this connection counts for in the listener's table; see `StreamConnection.source`."""
    crowd = 0
    heard = 0.0
    """The time of the last complete request, of the end of its answer if that was later, or of the accept."""
    peer = ""
    """The address at the other end of the connection; ``host`` is that of the client of the present request."""
    client: str | None = None
    """The client that a trusted proxy names in the present request."""
    secure = False
    request: HttpRequest | None = None
    """The request that arrives, or is being answered."""
    unwritten: Iterator[bytes] | None = None
    """The rest of the body of the present answer, or of a piece of a stream, which is written in steps."""
    unwritten_size = 0
    """Bytes of memory that a piece of a stream holds."""
    upgraded: Upgraded | None = None
    producing: Producing | None = None
    hanging_up = False
    """True from the beginning of a close: no further request is served."""
    trusted = False
    """See `broker.core.memory_budget.Consumer`: each request has its own credentials."""
    _input = b""  # unread input: an incomplete head, or requests behind the present one
    _searched = 0  # bytes of it in which no head ends
    _arriving = False  # a part of a request has arrived, and its deadline runs
    _answering = False  # a complete request is unanswered
    _stalled = False  # the peer does not read
    _began = False  # an empty line before the first line was ignored
    _batch = 0  # requests since the last read
    _drips = 0  # short reads since the last request
    _losing = False  # the transport closes when all output is sent
    _request_id = ""
    _unsent = 0  # unsent bytes when the read deadline began
    _discarded = 0  # bytes of input since a lingering close began
    _plain: Connection | None = None  # the transport, if it is a plain socket
    _socket: Connection | None = None  # the connection at the bottom of the transport stack, if that is a plain socket
    _refusals: RefusalLimit | None = None

    def connectionMade(self) -> None:
        transport = self.transport
        self._socket = plain_socket(transport)
        if isinstance(transport, Connection):
            self._plain = transport
            transport.bufferSize = SHORT  # a queued connection holds no more than this
        self.host = self.peer = plain(getattr(transport.getPeer(), "host", "unix"))
        self.secure = ISSLTransport(transport, None) is not None
        transport.registerProducer(self, True)
        self.heard = self.factory.clock.seconds()
        self.factory.deadlines.idle.add(self, self.bounds.kept_open)
        self.factory.connected(self)
        if self.turned_away is not None:
            self.last_words(503, "Service Unavailable", self.turned_away)

    def dataReceived(self, data: bytes) -> None:
        if self.hanging_up:
            self._discard(len(data))
            return
        if self.request is None and not self._arriving and data.startswith(TLS):
            refusal = Refusal(Reason.SYNTAX, f"{self.factory.wire}: a handshake of TLS")
            self.last_words(400, "Bad Request", refusal, "this port speaks HTTP without TLS: use http://")
            return
        self._drips += len(data) < DRIP
        refusals, content = self._refusals, None if self.request is None else self.request.content
        ordinary = (
            self._batch <= FEW
            and self._drips <= DRIPS
            and (content is None or content.tell() <= SHORT)
            and (refusals is None or refusals.untouched())
        )
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
            self.identify(self.request)
        return self._request_id

    def identify(self, request: HttpRequest | None) -> None:
        """Give a request its id, from its header or a new one, and find the client for which a proxy sent it."""
        fields = {} if request is None else request.fields
        self._request_id = self.factory.ids.choose(fields.get("x-request-id"))
        if "forwarded" in fields or "x-forwarded-for" in fields or self.client is not None:
            named = [[fields[name]] if name in fields else [] for name in ("forwarded", "x-forwarded-for")]
            self.client = self.factory.turns.proxies.client(self.peer, *named)
            self.host = self.client or self.peer

    @property
    def behind(self) -> bool:
        """True while the peer does not read, or a piece of a stream is unwritten."""
        return self._stalled or self.unwritten is not None

    @property
    def pending(self) -> int:
        """Bytes of output that the kernel has not taken."""
        return unsent(self._socket)

    @property
    def all_sent(self) -> bool:
        """True if the connection is closing and the kernel has all its output."""
        return self._losing and self._socket is not None and not self.pending

    def send(self, data: bytes) -> None:
        """Send output: directly, as far as the kernel takes it."""
        if self._plain is not None and not self._losing:
            data = send_now(self._plain, data)
        if data:
            self.transport.write(data)

    def go_on_writing(self, pieces: Iterator[bytes], size: int = 0) -> None:
        """Write the body of the answer to the present request, or one piece of its stream, in steps."""
        self.unwritten = pieces
        self.unwritten_size = size
        self.go_on()

    def upgrade(self, upgraded: Upgraded) -> None:
        """Pass all further input on. The handshake is done; frames may have arrived behind it."""
        self.upgraded = upgraded
        self._answering = False
        self.go_on()

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Serve one request, or write one piece of an answer in each step.

        It yields before each further step, and not after the last one: a peer whose only request took the whole quantum
        would otherwise wait for the rounds with nothing left to handle, and its next request would wait with it.
        """
        self._input = self._input + data if self._input else data
        further = False
        while self.unwritten is not None or self._input:
            if further:
                yield
            further = True
            if self.unwritten is not None:
                self._write_piece()
            elif self.upgraded is not None:
                data, self._input = self._input, b""
                yield from self.upgraded.feed(data)
            elif self.hanging_up:
                self._input = b""
            elif not self._serve_next():
                return

    def _serve_next(self) -> bool:
        """Serve the request at the start of the input. Returns False if it is not complete."""
        request = self._next()
        if request is None:
            # An empty line before a request is ignored, and begins none.
            begun = bool(self._input) or self.request is not None
            if begun and not self._arriving and not self.hanging_up:
                self._arriving = True
                self.factory.deadlines.arriving.add(self, self.bounds.within)
            return False
        if self._arriving:
            self._arriving = False
            self.factory.deadlines.arriving.discard(self)
        if request.content is not None:
            self.memory.drop(self, Share.INPUT)
        self._batch += 1
        self._drips = 0
        self.heard = self.factory.clock.seconds()
        self.served = True
        self._answering = True
        self.factory.serve(request)
        return True

    def _next(self) -> HttpRequest | None:
        """Return the request at the start of the input; None if it is not complete, or was refused."""
        request = self.request
        try:
            if request is None:
                request = self._head()
                if request is None:
                    return None
            used = request.read(self._input)
            if used:
                self._input = self._input[used:]
        except NoRequest:
            self._refuse_input()
            return None
        except HeadTooLong:
            self._refuse_head()
            return None
        content = request.content
        if content is not None:
            size = content.tell()
            if size + (0 if request.chunks is None else request.chunks.announced) > self.bounds.body:
                request.too_large()
                return None
            self.memory.hold(self, Share.INPUT, size)
        return request if request.complete and not request.refused else None

    def _head(self) -> HttpRequest | None:
        """Read a head; None if it is not complete, or its body is too large. Raises `NoRequest` and `HeadTooLong`."""
        data = self._input
        if not self._began and data[:1] == b"\r":
            if len(data) < 2:
                return None
            self._began = True
            if data[1:2] == b"\n":
                data = self._input = data[2:]
        end = head_end(data, self._searched)
        if not end:
            self._searched = max(0, len(data) - 3)
            return None
        self._input = data[end:]
        self._searched = 0
        self._began = False
        request = self.request = self.requests(self, data[:end])
        # Before its body: that counts for the client, and so does its refusal.
        self.identify(request)
        if request.length is not None and request.length > self.bounds.body:
            request.too_large()
            return None
        if request.waits_for_permission:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        return request

    def go_on(self) -> None:
        """Continue after a hold-up, with the body of an answer that had to wait, and with the input that is held."""
        if self._rest is None and (self.unwritten is not None or self._input or self._held):
            held, self._held = self._held, b""
            self._rest = self.steps(held)
        super().go_on()

    def held_up(self) -> bool:
        """Return True while a request is unanswered, or the peer does not read."""
        return self._stalled or (self._answering and self.unwritten is None)

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads."""
        self.transport.resumeProducing()

    def _stop_reading(self) -> None:
        # While a request is unanswered, a read detects the loss of the peer. Its bytes are held, and reading stops.
        if self._held or not self._answering:
            super()._stop_reading()

    def _write_piece(self) -> None:
        assert self.unwritten is not None
        piece = next(self.unwritten, None)
        request = self.request
        if self.producing is not None:
            if piece is not None:
                self.producing.write_part(piece)
                return
            self.unwritten = None
            self.unwritten_size = 0
            if not self._stalled:
                self.producing.room()
        elif request is None or request.over:
            self.unwritten = None
        elif piece is None:
            self.unwritten = None
            request.end()
        else:
            request.write(piece)

    # for the transport

    def pauseProducing(self) -> None:
        """The peer does not read."""
        self._stalled = True
        self.hold_output()
        self._watch_progress()

    def resumeProducing(self) -> None:
        """The peer has read all output."""
        self._stalled = False
        self.memory.drop(self, Share.OUTPUT)
        self.factory.deadlines.stalls.discard(self)
        self.go_on()
        if self.producing is not None and not self.behind:
            self.producing.room()

    def stopProducing(self) -> None:
        """No-op: `connectionLost` follows."""

    def push(self) -> None:
        """Send buffered output now instead of in the next turn of the reactor."""
        push(self._socket)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.hanging_up = True
        self.drop()
        self._input = b""
        self.unwritten = self.producing = None
        self.memory.forget(self)
        self.factory.deadlines.forget(self)
        request, self.request = self.request, None
        upgraded, self.upgraded = self.upgraded, None
        if request is not None:
            request.lost()
        if upgraded is not None:
            upgraded.lost()
        self.factory.disconnected(self)

    # for requests, the listener, and the deadlines

    def answered(self, request: HttpRequest) -> None:
        """The answer to a request is complete."""
        self._request_id = ""
        self.request = None
        self._answering = False
        if self._plain is None:
            self.push()
        if self._queued and self._rest is not None:
            if not request.persistent:
                self.hang_up()
            return
        self.heard = self.factory.clock.seconds()
        if not request.persistent:
            self.hang_up()
        self.go_on()

    @property
    def needed(self) -> bool:
        """True while a request is to be answered, or is being answered, and for a WebSocket."""
        return self._answering or self.upgraded is not None

    def idle_over(self) -> None:
        """Close if there was no request for ``kept_open``; otherwise look again then."""
        kept_open, now = self.bounds.kept_open, self.factory.clock.seconds()
        busy = self.needed or self._arriving
        left = kept_open if busy else self.heard + kept_open - now
        if left > 0:
            self.factory.deadlines.idle.add(self, left)
        else:
            self.hang_up()

    def give_way(self, refusal: Refusal) -> None:
        """Close without an answer, since there is no request: the place is given to a newcomer."""
        self.hang_up()

    def last_words(self, status: int, phrase: str, refusal: Refusal, text: str = "") -> None:
        """Refuse an incomplete or malformed request with a sentence, by default that of the refusal, and close."""
        self.refused(refusal)
        if self.hanging_up:
            return
        request_id = self.request_id
        body, content_type = self.factory.sentence(status, refusal.reason, text or refusal.text, request_id)
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        head += f"{REQUEST_ID}: {request_id}\r\n"
        self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        self.push()  # now: the end of input, which may be there already, ends the connection with what is not sent
        self._linger()

    def _refuse_input(self) -> None:
        """Refuse input that is not HTTP."""
        refusal = Refusal(Reason.SYNTAX, f"{self.factory.wire}: no request of HTTP")
        self.last_words(400, "Bad Request", refusal, "this is no request of HTTP/1.1")

    def _refuse_head(self) -> None:
        """Refuse a head that is too long. A browser sends the cookies of all programs of a host to each of them."""
        text = f"the head of a request has more than {MAX_HEAD} bytes or {MAX_FIELDS} fields"
        refusal = Refusal(Reason.TOO_LARGE, text)
        self.last_words(431, "Request Header Fields Too Large", refusal, f"{text}; cookies count, too")

    def hang_up(self) -> None:
        """Close when all output is sent. Idempotent."""
        self._leave(CLOSE_WITHIN)
        if not self._losing:
            self._losing = True
            self.transport.unregisterProducer()  # a transport with a producer waits for its end
            self.transport.loseConnection()

    def evict(self, refusal: Refusal) -> None:
        """Refuse the unfinished request, or disconnect the peer that does not read: see `MemoryBudget`."""
        if refusal.reason is Reason.NOT_READING or self.request is None:
            self.not_reading(refusal)
        else:
            self.request.refuse_body(refusal)

    def too_slow(self) -> None:
        """Refuse an incomplete request at its deadline."""
        text = f"a request was begun, and not completed within {self.bounds.within:g} s"
        refusal = Refusal(Reason.TOO_SLOW, text)
        if self.request is None:
            self.last_words(408, "Request Timeout", refusal)
        else:
            self.request.refuse_body(refusal, 408, "Request Timeout")

    def stalled(self) -> None:
        """Handle the read deadline, which is renewed if the peer made progress."""
        if self._unsent != self.pending:
            self._watch_progress()
        else:
            self.not_reading()

    def hold_output(self) -> None:
        """Account for the output that the peer has not read. This may disconnect it."""
        self.memory.hold(self, Share.OUTPUT, self.pending + self.unwritten_size)

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
        return self.patient()

    def patient(self) -> bool:
        """Count an error. Returns False if the rate limit for refusals is exceeded."""
        if self._refusals is None:
            self._refusals = RefusalLimit(self.factory.clock.seconds)
        return self._refusals.admit()

    def _leave(self, within: float) -> None:
        """Serve no further request, and close ``within`` so many seconds."""
        self.hanging_up = True
        self.factory.table.leave(self)
        self.drop()
        self._input = b""
        deadlines = self.factory.deadlines
        deadlines.idle.discard(self)
        deadlines.arriving.discard(self)
        deadlines.leaving.add(self, within)

    def _linger(self) -> None:
        """End the output when all is sent, and discard input until the peer closes."""
        if self._plain is None:
            self.hang_up()
            return
        self._leave(LINGER_WITHIN)
        self._losing = True
        self._plain.bufferSize = LINGER_READ
        self.transport.unregisterProducer()  # a producer would be resumed instead
        self.transport.loseWriteConnection()

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


def plain_sentence(status: int, reason: Reason, text: str, request_id: str) -> tuple[bytes, str]:
    """Return the body and content type of a refusal as plain text, without the id."""
    return f"{text}\n".encode(), "text/plain"
