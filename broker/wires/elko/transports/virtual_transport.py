"""Virtual transports: sessions over many HTTP requests, or over RTCP, instead of over one connection.

`VirtualTransport` is the transport of a `LineProtocol`, which behaves as on a TCP connection: the same limits, the same
authentication deadline, the same scheduling. `Sockets` counts the underlying TCP connections.

Rules:
- One `VirtualTransport` is one peer. It begins when the peer requests a session, and ends once, with a call of `ended`.
- The `LineProtocol` gets no reentrant calls: an end is reported in the next turn, as for a socket.
- While `reading` is False, no input is delivered to it.
"""

from __future__ import annotations

from typing import Any
from typing import Protocol as TypingProtocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import connectionDone

from broker.core.errors import Refusal
from broker.core.place_table import Placed, PlaceTable, Pool
from broker.net.admission import STOP_WITHIN
from broker.net.connection import CLOSE_WITHIN
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.refusal_log import Deadlines, RefusalLog
from broker.net.scheduler import Scheduler
from broker.wires.elko.transports.transport_limits import TransportLimits

ID_BITS = 128
"""Bits of a session ID, which is a bearer credential: it must not be guessable."""


class VirtualTransport:
    """One session, as the transport of its `LineProtocol`. Subclasses implement output, input and the end."""

    def __init__(self, lines: LineFactory) -> None:
        self.lines = lines
        self.clock = lines.clock
        self.reading = True
        self.behind = False
        """True while the peer has unacknowledged output, if the protocol has acknowledgements."""
        self.ending = False
        """True once the session is to end, at the latest in the next turn."""
        self.over = False
        self.line: LineProtocol
        self._patience: IDelayedCall | None = None

    def begin(self, address: IAddress | None) -> None:
        """Connect the `LineProtocol`, with the peer's address, which was admitted."""
        line: Any = self.lines.accept(address, None)
        self.line = line
        line.makeConnection(self)

    def end_of_input(self) -> None:
        """Handle the end of input: pending input is handled, then the session is closed. No answer is awaited.

        Idempotent.
        """
        if self._patience is None:
            self._patience = self.clock.callLater(CLOSE_WITHIN, self._close)
            self.line.readConnectionLost()

    def end(self) -> None:
        """End the session in the next turn. Idempotent."""
        if not self.ending:
            self.ending = True
            self.clock.callLater(0, self._end)

    def ended(self) -> None:
        """Hook: the session has ended."""
        raise NotImplementedError

    # what its LineProtocol calls

    def write(self, data: bytes) -> None:
        """Send encoded messages."""
        raise NotImplementedError

    def loseConnection(self) -> None:
        """End the session after its output."""
        raise NotImplementedError

    def loseWriteConnection(self) -> None:
        """End the session after its output: a session has no half-close."""
        self.loseConnection()

    def abortConnection(self) -> None:
        """End the session, and lose unsent output."""
        self.end()

    def pauseProducing(self) -> None:
        """Pause input."""
        self.reading = False

    def resumeProducing(self) -> None:
        """Resume input."""
        self.reading = True

    def registerProducer(self, producer: LineProtocol, streaming: bool) -> None:
        """Accept a producer of output. No-op here."""

    def unregisterProducer(self) -> None:
        """Remove the producer. No-op here."""

    def _close(self) -> None:
        self._patience = None
        self.line.close()

    def _end(self) -> None:
        self.over = True
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self.ended()
        self.line.connectionLost(connectionDone)
        del self.line  # it refers to this object: without the cycle, no garbage collection is needed


class CountedConnection(Placed, TypingProtocol):
    """A connection counted by `Sockets`."""

    turned_away: Refusal | None
    """The refusal by admission, or None."""

    def hang_up(self) -> None:
        """Close it when all output is sent."""


class Sockets:
    """The TCP connections of one listener. Each may carry any session, or none yet.

    They have places of their own, and take descriptors of ``pool``; the sessions have those of ``lines``.
    """

    def __init__(self, lines: LineFactory, pool: Pool | None = None) -> None:
        self._lines = lines
        self.open: set[CountedConnection] = set()
        self.table = PlaceTable(lines.limits.connections, lines.clock.seconds, pool)
        self._closes: Deadlines[Any] = Deadlines(lines.clock, lambda socket: socket.abort())
        self._closed: Deferred[None] | None = None

    def admit(self, socket: CountedConnection, address: IAddress | None) -> None:
        """Decide on a new connection: it has a place to take, or is turned away."""
        source = self._lines.turns.proxies.source_of(getattr(address, "host", "unix"))
        socket.turned_away = self._lines.seat(self.table, source)
        if socket.turned_away is None:
            socket.source = source

    def add(self, socket: CountedConnection) -> None:
        """Count a connection, and give it its place if it was admitted."""
        self.open.add(socket)
        if socket.turned_away is None:
            self.table.take(socket, authenticated=False)
        else:
            self.table.refused(socket)
        if self._closed is not None:
            self._close_one(socket)

    def discard(self, socket: CountedConnection) -> None:
        """Discount a connection."""
        self.open.discard(socket)
        self.table.gone(socket)
        self._closes.discard(socket)
        if self._closed is not None and not self.open:
            self._closed.callback(None)
            self._closed = None

    def close(self, _: object = None) -> Deferred[None]:
        """Close all connections. Fires when they are closed, after at most `STOP_WITHIN` seconds."""
        if not self.open:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closed = closed
        for socket in list(self.open):
            self._close_one(socket)
        return closed

    def _close_one(self, socket: CountedConnection) -> None:
        self._closes.add(socket, STOP_WITHIN)
        socket.hang_up()


class Listener:
    """Common part of listeners: ``sockets`` has the connections, ``lines`` the sessions."""

    lines: LineFactory
    sockets: Sockets

    @property
    def turns(self) -> Scheduler:
        """The scheduler."""
        return self.lines.turns

    @property
    def refusal_log(self) -> RefusalLog:
        """The refusal counters and log."""
        return self.lines.refusal_log

    @property
    def wire(self) -> str:
        """The name of the protocol in counters and the log."""
        return self.lines.wire

    @property
    def table(self) -> PlaceTable:
        """The places of the connections."""
        return self.sockets.table

    def limit(self, limits: TransportLimits) -> None:
        """Apply new limits."""
        self.lines.limit(limits)
        self.sockets.table.limit = limits.connections

    def close(self) -> Deferred[None]:
        """Close all sessions and connections in order. Fires when they are closed."""
        return self.lines.close().addCallback(self.sockets.close)
