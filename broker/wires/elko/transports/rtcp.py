"""RTCP sessions: what a peer is told is kept until it says that it has it, so that a lost connection loses nothing.

Rules:
- A session begins with `start`, and is known by an id that cannot be guessed. Who knows the id may resume it from any
  connection, and takes it from the one that had it.
- Blocks are numbered without a gap: another number than the next one is refused, and the session goes on. Each message
  that is sent has its number, and is kept until a number at or above it is acknowledged; `resume` sends it again.
- When more than ``rtcp_backlog`` is kept, and something else is to be sent, the session ends: its peer does not read.
- A peer that is silent for ``rtcp_timeout`` is gone; the broker itself is silent for half of that at most. Without a
  connection a session lasts ``rtcp_disconnected``. A connection must begin or resume one within `FIRST_REQUEST`.
- What is no request is counted and not answered; before a session has begun it closes the connection.
- Requests are handled in turns (`scheduled_input.py`). While a peer does not read, or its session has
  enough, its connection has none.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from typing import Any

from twisted.internet.interfaces import IAddress, IHalfCloseableProtocol, IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.connection import CLOSE_WITHIN
from broker.net.fast_write import send_now
from broker.net.line_protocol import LineFactory
from broker.net.rate_limits import Deadlines
from broker.net.scheduled_input import Scheduled
from broker.net.unfinished_input import SHORT
from broker.wires.elko.codec import rtcp as wire
from broker.wires.elko.codec.blocks import END
from broker.wires.elko.transports.limits import RtcpLimits, TransportLimits
from broker.wires.elko.transports.virtual_transport import ID_BITS, Carried, Listener, Patience, Sockets

FIRST_REQUEST = 60.0
"""Seconds that a connection may take to begin or resume a session, as with the original."""


BLOCKS = 16
"""Blocks that are delivered together: their answers go out in one write."""


class RtcpSession(Carried):
    """One peer's session. ``address`` is where it began."""

    def __init__(self, factory: RtcpFactory, id: str) -> None:
        super().__init__(factory.lines)
        self.id = id
        self.received = 0
        self._factory = factory
        self._socket: RtcpSocket | None = None
        self._sent = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_size = 0
        self._long = 0
        """The size of a message that is longer by itself than what may be kept. One such does not count."""
        self._long_number = 0

    # from its connections

    def attach(self, socket: RtcpSocket) -> None:
        """The peer speaks over this connection from now on."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.close()
        self._socket = socket
        self._factory.absent.discard(self)
        self.heard()
        if not self.reading:
            socket.pause_reading()

    def detach(self) -> None:
        """Its connection is lost: it may come back."""
        self._socket = None
        self._factory.absent.add(self, self._factory.limits.rtcp_disconnected)

    def heard(self) -> None:
        """The peer gave a sign of life."""
        self._factory.silent.add(self, self._factory.limits.rtcp_timeout)

    def acknowledged(self, last: int) -> None:
        """The peer has what was sent up to ``last``."""
        kept = self._kept
        while kept and kept[0][0] <= last:
            self._kept_size -= len(kept.popleft()[1])
        if last >= self._long_number:
            self._long = 0
            self.behind = False

    def resume(self, last: int) -> bytes | None:
        """All after ``last`` again; None where that is not known any more, or was never sent."""
        first = self._kept[0][0] if self._kept else self._sent + 1
        if not first - 1 <= last <= self._sent:
            return None
        self.acknowledged(last)
        again = [wire.message(number, self.received, data) for number, data in self._kept]
        return wire.resumed(self.id, self.received) + b"".join(again)

    def say(self, data: bytes) -> None:
        """Send over its connection, if it has one."""
        self._factory.quiet.add(self, self._factory.limits.rtcp_timeout / 2)
        if self._socket is not None:
            self._socket.write(data)

    # from its LineProtocol

    def write(self, data: bytes) -> None:
        """Send encoded messages, and keep them."""
        backlog = self._factory.limits.rtcp_backlog
        if self._kept_size - self._long > backlog:
            self.line.not_reading()
            return
        numbered = []
        for message in data.split(END):
            if message:
                message += END
                self._sent += 1
                self._kept.append((self._sent, message))
                self._kept_size += len(message)
                if len(message) > backlog and not self._long:
                    self._long = len(message)
                    self._long_number = self._sent
                    self.behind = True
                numbered.append(wire.message(self._sent, self.received, message))
        self.say(b"".join(numbered))

    def loseConnection(self) -> None:
        """End, with what was sent."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.close()
            self._socket = None
        self.end()

    def abortConnection(self) -> None:
        """End, and lose what was not sent."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.transport.abortConnection()
            self._socket = None
        self.end()

    def pauseProducing(self) -> None:
        """Read no more for now."""
        super().pauseProducing()
        if self._socket is not None:
            self._socket.pause_reading()

    def resumeProducing(self) -> None:
        """Read on."""
        super().resumeProducing()
        if self._socket is not None:
            self._socket.read_on()

    def ended(self) -> None:
        """It is over: to be forgotten."""
        self._factory.forget(self)

    # from the deadlines

    def keep_alive(self) -> None:
        """Nothing was sent for a while."""
        self.say(wire.ack(self.received))

    def gone(self) -> None:
        """The peer was silent, or away, for too long."""
        self.lines.complaints.count(f"{self.lines.wire}_rtcp", "gone")
        self.abortConnection()


@implementer(IHalfCloseableProtocol, IPushProducer)
class RtcpSocket(Scheduled, Protocol):
    """One connection, which carries a session or none yet."""

    factory: RtcpFactory
    transport: Any

    def __init__(self, factory: RtcpFactory, address: IAddress | None) -> None:
        self.factory = factory
        self.host = getattr(address, "host", "unix")
        self.session: RtcpSession | None = None
        self._address = address
        self._reader = wire.RtcpReader()
        self._patience = Patience(factory.lines.clock.seconds)
        self._closing = False
        self._stalled = False
        self._direct = False

    def connectionMade(self) -> None:
        self._direct = isinstance(self.transport, Connection)
        if self._direct:
            self.transport.bufferSize = SHORT  # a peer waits with as little as this
        self.transport.registerProducer(self, True)
        self.factory.sockets.add(self)
        self.factory.idle.add(self, FIRST_REQUEST)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        if self.session is not None:
            self.session.heard()
        self.take(data, self._patience.untouched())

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Take one request in each step. Blocks that follow each other are delivered together."""
        blocks: list[bytes] = []
        completed = False
        for request in self._reader.feed(data):
            if not completed:
                completed = True
                self.factory.lines.unfinished.drop(self)  # what is held at the end is another message's
            if len(blocks) == BLOCKS or not isinstance(request, wire.Block):
                self._deliver(blocks)  # what may close comes after them
                yield
            self._take(request, blocks)
            if self._closing:
                return
        self._deliver(blocks)
        yield

    def held_up(self) -> bool:
        """True if the peer does not read, or its session has enough."""
        return self._stalled or (self.session is not None and not self.session.reading)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Read on, unless something else holds it up."""
        if not self.held_up():
            self.transport.resumeProducing()

    def done(self) -> None:
        """All that was read has been handled."""
        if not self._closing:
            self.factory.lines.unfinished.hold(self, self._reader.pending)

    def write(self, data: bytes) -> None:
        """Send, at once where the kernel takes it."""
        if self._direct and not self._closing:
            data = send_now(self.transport, data)
        if data:
            self.transport.write(data)

    def readConnectionLost(self) -> None:
        """The peer sends no more: the connection is over, and the session may go on over another one."""
        if not self._closing:
            self._closing = True
            self.transport.unregisterProducer()
            self._detach()
        self.factory.closes.add(self, CLOSE_WITHIN)
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Our own end of output: all is sent. `connectionLost` follows when the peer closes too."""
        self.factory.closes.add(self, CLOSE_WITHIN)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self.drop()
        self.factory.lines.unfinished.drop(self)
        for deadlines in (self.factory.idle, self.factory.closes):
            deadlines.discard(self)
        self._detach()
        self.factory.sockets.discard(self)

    def close(self) -> None:
        """End our output when all is sent, and read and throw away what comes until the peer closes too."""
        if self._closing:
            return
        self._closing = True
        self._reader = wire.RtcpReader()
        self.drop()
        self.factory.lines.unfinished.drop(self)
        self.factory.idle.discard(self)
        self.factory.closes.add(self, self.factory.lines.limits.stalled_after)
        self.transport.unregisterProducer()
        self.transport.resumeProducing()
        if self.factory.lines.half_close:
            self.transport.loseWriteConnection()
        else:
            self.transport.loseConnection()

    def pauseProducing(self) -> None:
        """The peer does not read: nor is it read, or it could acknowledge what only waits here."""
        self._stalled = True
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """The peer has read."""
        self._stalled = False
        self.read_on()

    def stopProducing(self) -> None:
        """The transport is gone; `connectionLost` says so too."""

    def read_on(self) -> None:
        """One of those that held it up does not any more."""
        if self._rest is not None:
            self.go_on()
        elif not self.held_up():
            self._stopped_reading = False
            self.transport.resumeProducing()

    def hang_up(self) -> None:
        """The listener stops."""
        self.close()

    def evict(self, refusal: Refusal) -> None:
        """Refuse its unfinished request: too much is held, and this request began first."""
        self._refused(refusal)

    def abort(self) -> None:
        """It took too long."""
        self.transport.abortConnection()

    def _detach(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.detach()

    def _take(self, request: wire.Request | Malformed, blocks: list[bytes]) -> None:
        session = self.session
        if isinstance(request, Malformed):
            self._refused(request)
        elif isinstance(request, wire.Start | wire.Resume):
            if session is not None:
                self._error(wire.IN_PROGRESS)
            elif isinstance(request, wire.Start):
                self._start()
            else:
                self._resume(request)
        elif session is None:
            if not isinstance(request, wire.Complaint):
                self._error(wire.NO_SESSION)
        elif isinstance(request, wire.Complaint):
            session.line.debug("rtcp", request.text)
        else:
            session.acknowledged(request.last)
            if isinstance(request, wire.Block):
                if request.number != session.received + 1:
                    self._error(wire.SEQUENCE)
                else:
                    session.received += 1
                    blocks.append(request.data + END)
            elif isinstance(request, wire.End):
                self.factory.forget(session)
                session.end_of_input()

    def _start(self) -> None:
        session = self.factory.start()
        if session is None:
            self._error(wire.TOO_MANY)
            self.close()
            return
        self._use(session, wire.started(session.id))
        session.begin(self._address)

    def _resume(self, request: wire.Resume) -> None:
        session = self.factory.sessions.get(request.session)
        if session is None or session.over:
            self._error(wire.NO_SUCH_SESSION)
            return
        again = session.resume(request.last)
        if again is None:
            self._error(wire.SEQUENCE)
        else:
            self._use(session, again)

    def _use(self, session: RtcpSession, data: bytes) -> None:
        self.session = session
        self.factory.idle.discard(self)
        session.attach(self)
        session.say(data)

    def _deliver(self, blocks: list[bytes]) -> None:
        if blocks and self.session is not None:
            self.session.line.dataReceived(b"".join(blocks))
        blocks.clear()

    def _error(self, name: str) -> None:
        """Refuse a request, in the protocol's own way."""
        self.write(wire.error(name))
        self._refused(Refusal(Reason.PARAMETER, f"rtcp: {name}"))

    def _refused(self, refusal: Refusal) -> None:
        """Count what is refused; close where it is fatal, or was too much."""
        lines = self.factory.lines
        if self.session is not None:
            patient = self.session.line.refused(refusal)
        else:
            lines.complaints.add(lines.wire, self.host, refusal)
            # a browser that a page makes send its requests here begins with a line that is none
            patient = self._patience.lasts() and refusal.reason is not Reason.SYNTAX
        if refusal.reason.fatal or not patient:
            if self.session is not None:
                self.session.line.close()
            else:
                self.close()


class RtcpFactory(Listener, Factory):
    """One listener of RTCP: its connections and its sessions, of which each is a connection of ``lines``."""

    noisy = False

    def __init__(self, lines: LineFactory, limits: RtcpLimits) -> None:
        self.lines = lines
        self.limits: RtcpLimits = limits
        self.sockets = Sockets(lines)
        self.sessions: dict[str, RtcpSession] = {}
        self.idle: Deadlines[RtcpSocket] = Deadlines(lines.clock, RtcpSocket.close)
        self.closes: Deadlines[RtcpSocket] = Deadlines(lines.clock, RtcpSocket.abort)
        self.silent: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.gone)
        self.absent: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.gone)
        self.quiet: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.keep_alive)

    def limit(self, limits: TransportLimits) -> None:
        """See `Listener`."""
        self.limits = limits
        super().limit(limits)

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return RtcpSocket(self, addr)

    def start(self) -> RtcpSession | None:
        """A new session, if there is room for one."""
        if len(self.lines.connections) >= self.lines.limits.connections or self.lines.stopping:
            return None
        session = RtcpSession(self, str(secrets.randbits(ID_BITS)))
        self.sessions[session.id] = session
        return session

    def forget(self, session: RtcpSession) -> None:
        """Nobody may resume it any more."""
        self.sessions.pop(session.id, None)
        for deadlines in (self.silent, self.absent, self.quiet):
            deadlines.discard(session)
