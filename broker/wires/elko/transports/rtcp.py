"""RTCP sessions: output is buffered until the peer acknowledges it, so that a lost connection loses nothing.

Rules:
- A session begins with `start`, and has an unguessable ID. Any connection with the ID may resume the session, and takes
  it over from its previous connection.
- Blocks are numbered without gaps: a wrong number is refused, and the session continues. Each sent message has its
  number, and is buffered until a number at or above it is acknowledged; `resume` sends it again.
- When more than ``rtcp_backlog`` is buffered and further output arrives, the session ends: its peer does not read.
- A peer that is silent for ``rtcp_timeout`` is disconnected; the broker itself is silent for at most half of that.
  Without a connection a session lasts ``rtcp_disconnected``. A connection must begin or resume one within
  `FIRST_REQUEST`.
- Malformed input is counted and not answered; before a session has begun it closes the connection.
- The scheduler bounds requests (`scheduled_input.py`). Backpressure: while a peer does not read, or its session is
  paused, its connection is not served.

The file is longer than others: a session and its connections change each other's state.
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

from broker.access.identity import plain
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.memory_budget import SHORT, Share
from broker.core.place_table import Pool
from broker.net.connection import CLOSE_WITHIN
from broker.net.epoll_streams import plain_socket, send_now, unsent
from broker.net.line_protocol import LineFactory
from broker.net.refusal_log import Deadlines, RefusalLimit
from broker.net.scheduled_input import Scheduled
from broker.wires.elko.codec import rtcp_messages as wire
from broker.wires.elko.codec.blocks import END
from broker.wires.elko.transports.transport_limits import RtcpLimits, TransportLimits
from broker.wires.elko.transports.virtual_transport import ID_BITS, Listener, Sockets, VirtualTransport

FIRST_REQUEST = 60.0
"""Seconds within which a connection must begin or resume a session, as in the original."""


BLOCKS = 16
"""Blocks delivered together: their answers share one write."""


class RtcpSession(VirtualTransport):
    """One session. Its address is that of its first connection."""

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
        """The size of a single message beyond the backlog limit, which is exempt from it: otherwise it could never be
        sent."""
        self._long_number = 0

    @property
    def crowd(self) -> int:
        """1 for a session without a connection, which gives way before others."""
        return int(self._socket is None)

    # from its connections

    def attach(self, socket: RtcpSocket) -> None:
        """Attach a connection, which replaces the previous one."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.close()
        self._socket = socket
        self._factory.absent.discard(self)
        self.heard()
        if not self.reading:
            socket.pause_reading()

    def detach(self) -> None:
        """Detach a lost connection, and wait for a resume."""
        self._socket = None
        self._factory.absent.add(self, self._factory.limits.rtcp_disconnected)

    def heard(self) -> None:
        """Restart the idle timeout."""
        self._factory.silent.add(self, self._factory.limits.rtcp_timeout)

    def acknowledged(self, last: int) -> None:
        """Handle an acknowledgement: drop buffered messages up to ``last``."""
        kept = self._kept
        while kept and kept[0][0] <= last:
            self._kept_size -= len(kept.popleft()[1])
        if last >= self._long_number:
            self._long = 0
            self.behind = False
        self.line.hold_output()

    @property
    def unread(self) -> int:
        """Bytes of output without an acknowledgement."""
        return self._kept_size

    def resume(self, last: int) -> bytes | None:
        """Return the answer to a resume, with all messages after ``last``; None if that number is dropped or
        unknown."""
        first = self._kept[0][0] if self._kept else self._sent + 1
        if not first - 1 <= last <= self._sent:
            return None
        self.acknowledged(last)
        again = [wire.message(number, self.received, data) for number, data in self._kept]
        return wire.resumed(self.id, self.received) + b"".join(again)

    def say(self, data: bytes) -> None:
        """Send over the current connection, if any."""
        self._factory.quiet.add(self, self._factory.limits.rtcp_timeout / 2)
        if self._socket is not None:
            self._socket.write(data)

    # from its LineProtocol

    def write(self, data: bytes) -> None:
        """Number, buffer and send encoded messages."""
        backlog = self._factory.limits.rtcp_backlog
        # The limit is checked before the new output, so that a single message of any length can be sent.
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
        self.line.hold_output()

    def loseConnection(self) -> None:
        """End the session after its output."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.close()
            self._socket = None
        self.end()

    def abortConnection(self) -> None:
        """End the session, and lose unsent output."""
        if self._socket is not None:
            self._socket.session = None
            self._socket.transport.abortConnection()
            self._socket = None
        self.end()

    def pauseProducing(self) -> None:
        """Pause input."""
        super().pauseProducing()
        if self._socket is not None:
            self._socket.pause_reading()

    def resumeProducing(self) -> None:
        """Resume input."""
        super().resumeProducing()
        if self._socket is not None:
            self._socket.read_on()

    def ended(self) -> None:
        """Forget the session."""
        self._factory.forget(self)

    # from the deadlines

    def keep_alive(self) -> None:
        """Send an acknowledgement after a quiet period."""
        self.say(wire.ack(self.received))

    def gone(self) -> None:
        """End the session at its idle or resume timeout."""
        self.lines.refusal_log.count(f"{self.lines.wire}_rtcp", "gone")
        self.abortConnection()


@implementer(IHalfCloseableProtocol, IPushProducer)
class RtcpSocket(Scheduled, Protocol):
    """One connection, with or without a session."""

    factory: RtcpFactory
    transport: Any
    turned_away: Refusal | None = None
    source = ""
    crowd = 0
    heard = 0.0

    def __init__(self, factory: RtcpFactory, address: IAddress | None) -> None:
        self.factory = factory
        self.host = plain(getattr(address, "host", "unix"))
        self.session: RtcpSession | None = None
        self._address = address
        self._reader = wire.RtcpReader()
        self._refusals = RefusalLimit(factory.lines.clock.seconds)
        self._closing = False
        self._stalled = False
        self._direct = False

    def connectionMade(self) -> None:
        self._direct = isinstance(self.transport, Connection)
        if self._direct:
            self.transport.bufferSize = SHORT  # a queued connection holds no more than this
        self.transport.registerProducer(self, True)
        self.factory.sockets.add(self)
        self.factory.idle.add(self, FIRST_REQUEST)
        if self.turned_away is not None:
            self.give_way(self.turned_away)

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        if self.session is not None:
            self.session.heard()
            self.heard = self.factory.lines.clock.seconds()
        self.take(data, self._refusals.untouched())

    # for the scheduler

    @property
    def stranger(self) -> bool:
        """See `Scheduled`: True without a session."""
        return self.session is None

    def steps(self, data: bytes) -> Iterator[None]:
        """Handle one request in each step. Consecutive blocks are delivered together."""
        blocks: list[bytes] = []
        completed = False
        for request in self._reader.feed(data):
            if not completed:
                completed = True
                self.factory.lines.memory.drop(self, Share.INPUT)  # the rest belongs to another message
            if len(blocks) == BLOCKS or not isinstance(request, wire.Block):
                self._deliver(blocks)  # deliver first: this request may close
                yield
            self._take(request, blocks)
            if self._closing:
                return
        self._deliver(blocks)
        yield

    def held_up(self) -> bool:
        """Return True while the peer does not read, or its session is paused."""
        return self._stalled or (self.session is not None and not self.session.reading)

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads, unless held up."""
        if not self.held_up():
            self.transport.resumeProducing()

    def done(self) -> None:
        """Account for an incomplete message after each read."""
        if not self._closing:
            self.factory.lines.memory.hold(self, Share.INPUT, self._reader.pending)

    def write(self, data: bytes) -> None:
        """Send, at once if the kernel takes it."""
        if self._direct and not self._closing:
            data = send_now(self.transport, data)
        if data:
            self.transport.write(data)

    def readConnectionLost(self) -> None:
        """Close at the peer's end of output. The session may continue over another connection."""
        if not self._closing:
            self._closing = True
            self.factory.table.leave(self)
            self.transport.unregisterProducer()
            self._detach()
        self.factory.closes.add(self, CLOSE_WITHIN)
        self.transport.loseConnection()

    def writeConnectionLost(self) -> None:
        """Start the close deadline: all output has been sent. `connectionLost` follows once the peer closes too."""
        self.factory.closes.add(self, CLOSE_WITHIN)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._closing = True
        self.drop()
        self.factory.lines.memory.forget(self)
        for deadlines in (self.factory.idle, self.factory.closes):
            deadlines.discard(self)
        self._detach()
        self.factory.sockets.discard(self)

    def close(self) -> None:
        """End the output after pending data, and discard input until the peer closes too."""
        if self._closing:
            return
        self._closing = True
        self.factory.table.leave(self)
        self._reader = wire.RtcpReader()
        self.drop()
        self.factory.lines.memory.forget(self)
        self.factory.idle.discard(self)
        self.factory.closes.add(self, self.factory.lines.limits.stalled_after)
        self.transport.unregisterProducer()
        self.transport.resumeProducing()
        if self.factory.lines.half_close:
            self.transport.loseWriteConnection()
        else:
            self.transport.loseConnection()

    def pauseProducing(self) -> None:
        """Pause output and input: otherwise the peer could acknowledge output that is still in the buffer."""
        self._stalled = True
        self.factory.lines.memory.hold(self, Share.OUTPUT, unsent(plain_socket(self.transport)))
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume after backpressure."""
        self._stalled = False
        self.factory.lines.memory.drop(self, Share.OUTPUT)
        self.read_on()

    def stopProducing(self) -> None:
        """No-op: `connectionLost` follows."""

    def read_on(self) -> None:
        """Continue after one cause of a hold-up ended."""
        if self._rest is not None:
            self.go_on()
        elif not self.held_up():
            self._stopped_reading = False
            self.transport.resumeProducing()

    def hang_up(self) -> None:
        """Close in a shutdown."""
        self.close()

    @property
    def needed(self) -> bool:
        """True while the session offers something or waits for something."""
        return self.session is not None and not self.session.over and self.session.line.needed

    def give_way(self, refusal: Refusal) -> None:
        """Refuse and close. A session outlasts its connection."""
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal)
        self.write(wire.error(wire.TOO_MANY))
        self._detach()
        self.close()

    def evict(self, refusal: Refusal) -> None:
        """Refuse the unfinished request, or disconnect the peer that does not read: see `MemoryBudget`."""
        if refusal.reason is Reason.NOT_READING:
            self.factory.refusal_log.add(self.factory.wire, self.host, refusal)
            self.abort()
        else:
            self._refused(refusal)

    def too_slow(self) -> None:
        """Refuse a connection that has begun no session at its deadline."""
        self._refused(Refusal(Reason.TOO_SLOW, f"no session was begun or resumed within {FIRST_REQUEST:g} s"))

    @property
    def trusted(self) -> bool:
        """See `broker.core.memory_budget.Consumer`."""
        return self.session is not None and self.session.line.trusted

    def abort(self) -> None:
        """Close at once, at a deadline."""
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
        # Admission comes first: a refused session has no place, and no id.
        refusal = self.factory.lines.admit(self._address)
        if refusal is not None:
            self.give_way(refusal)
            return
        session = self.factory.start()
        self._use(session, wire.started(session.id))
        session.begin(self._address)

    def _resume(self, request: wire.Resume) -> None:
        session = self.factory.sessions.get(request.session)
        if session is None or session.ending:
            self._error(wire.NO_SUCH_SESSION)
            return
        again = session.resume(request.last)
        if again is None:
            self._error(wire.SEQUENCE)
        else:
            self._use(session, again)

    def _use(self, session: RtcpSession, data: bytes) -> None:
        self.session = session
        self.heard = self.factory.turns.end
        self.factory.table.authenticated(self)
        self.factory.idle.discard(self)
        session.attach(self)
        session.say(data)

    def _deliver(self, blocks: list[bytes]) -> None:
        if blocks and self.session is not None:
            self.session.line.dataReceived(b"".join(blocks))
        blocks.clear()

    def _error(self, name: str) -> None:
        """Refuse a request with an error of the protocol."""
        self.write(wire.error(name))
        self._refused(Refusal(Reason.PARAMETER, f"rtcp: {name}"))

    def _refused(self, refusal: Refusal) -> None:
        """Count a refusal; close if it is fatal or exceeds the rate limit."""
        lines = self.factory.lines
        if self.session is not None:
            patient = self.session.line.refused(refusal)
        else:
            lines.refusal_log.add(lines.wire, self.host, refusal)
            # a browser request on behalf of a page begins with a line that is malformed here
            patient = self._refusals.admit() and refusal.reason is not Reason.SYNTAX
        if refusal.reason.fatal or not patient:
            if self.session is not None:
                self.session.line.close()
            else:
                self.close()


class RtcpFactory(Listener, Factory):
    """One RTCP listener: its connections and its sessions. Each session is a connection of ``lines``."""

    noisy = False

    def __init__(self, lines: LineFactory, limits: RtcpLimits, pool: Pool | None = None) -> None:
        self.lines = lines
        self.limits: RtcpLimits = limits
        self.sockets = Sockets(lines, pool)
        self.sessions: dict[str, RtcpSession] = {}
        self.idle: Deadlines[RtcpSocket] = Deadlines(lines.clock, RtcpSocket.too_slow)
        self.closes: Deadlines[RtcpSocket] = Deadlines(lines.clock, RtcpSocket.abort)
        self.silent: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.gone)
        self.absent: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.gone)
        self.quiet: Deadlines[RtcpSession] = Deadlines(lines.clock, RtcpSession.keep_alive)

    def limit(self, limits: TransportLimits) -> None:
        """See `Listener`."""
        self.limits = limits
        super().limit(limits)

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        socket = RtcpSocket(self, addr)
        self.sockets.admit(socket, addr)
        return socket

    def start(self) -> RtcpSession:
        """Create a session."""
        session = RtcpSession(self, str(secrets.randbits(ID_BITS)))
        self.sessions[session.id] = session
        return session

    def forget(self, session: RtcpSession) -> None:
        """Invalidate the ID of a session, and cancel its deadlines."""
        self.sessions.pop(session.id, None)
        for deadlines in (self.silent, self.absent, self.quiet):
            deadlines.discard(session)
