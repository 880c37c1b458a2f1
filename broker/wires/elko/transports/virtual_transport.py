"""Virtual transports: sessions over many HTTP requests, or over RTCP, instead of over one connection.

`Carried` is the transport of a `LineProtocol`, which so works as on a TCP connection: the same limits, the same time to
authenticate, the same order of service. What a peer's TCP connections are is counted by `Sockets`.

Rules:
- One `Carried` is one peer. It begins when the peer asks for a session, and ends once: `ended` is called then.
- Nothing is told to the `LineProtocol` while it acts: an end comes in the next turn, as a socket's does.
- What may not be read now is not given to it: `reading` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Protocol as TypingProtocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IAddress, IDelayedCall
from twisted.internet.protocol import connectionDone

from broker.net.admission import STOP_WITHIN, Accepting
from broker.net.connection import CLOSE_WITHIN, REFUSALS_A_SECOND, REFUSALS_AT_ONCE
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.rate_limits import Bucket, Complaints, Deadlines
from broker.net.scheduler import Turns
from broker.wires.elko.transports.limits import TransportLimits

ID_BITS = 128
"""Bits of a session's id, which is all that a peer needs to take part in the session: it must not be guessed."""


class Carried:
    """One session, as the transport that its `LineProtocol` sees. Its wire says how it writes, reads and ends."""

    def __init__(self, lines: LineFactory) -> None:
        self.lines = lines
        self.clock = lines.clock
        self.reading = True
        self.behind = False
        """True while the peer has not acknowledged its output, where the protocol has acknowledgements."""
        self.over = False
        self.line: LineProtocol
        self._ending = False
        self._patience: IDelayedCall | None = None

    def begin(self, address: IAddress | None) -> None:
        """Begin the conversation with a peer from there. It may be refused at once."""
        line: Any = self.lines.buildProtocol(address)
        self.line = line
        line.makeConnection(self)

    def end_of_input(self) -> None:
        """The peer sends no more, and waits for no answer: what it sent is handled, then the session is closed.

        May be called more than once.
        """
        if self._patience is None:
            self._patience = self.clock.callLater(CLOSE_WITHIN, self._close)
            self.line.readConnectionLost()

    def end(self) -> None:
        """The session is over, in the next turn. May be called more than once."""
        if not self._ending:
            self._ending = True
            self.clock.callLater(0, self._end)

    def ended(self) -> None:
        """It is over: to be forgotten."""
        raise NotImplementedError

    # what its LineProtocol calls

    def write(self, data: bytes) -> None:
        """Send encoded messages."""
        raise NotImplementedError

    def loseConnection(self) -> None:
        """Send what is still to be sent, and end."""
        raise NotImplementedError

    def loseWriteConnection(self) -> None:
        """The same: there is no half of a session."""
        self.loseConnection()

    def abortConnection(self) -> None:
        """End, and lose what was not sent."""
        self.end()

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self.reading = False

    def resumeProducing(self) -> None:
        """Read on."""
        self.reading = True

    def registerProducer(self, producer: LineProtocol, streaming: bool) -> None:
        """The `LineProtocol` says that it can be paused."""

    def unregisterProducer(self) -> None:
        """It writes no more."""

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
        del self.line  # it knows us, and would wait for the garbage collector with us


class Socket(TypingProtocol):
    """A connection of which `Sockets` knows."""

    def hang_up(self) -> None:
        """Close it when all is sent."""

    def abort(self) -> None:
        """Close it at once."""


class Sockets:
    """The TCP connections of one listener, of which each may carry any session, or none yet.

    While there are as many as may be, further ones wait in the kernel's queue.
    """

    def __init__(self, lines: LineFactory) -> None:
        self._lines = lines
        self.port: Accepting | None = None
        self.open: set[Socket] = set()
        self._full = False
        self._closes: Deadlines[Any] = Deadlines(lines.clock, lambda socket: socket.abort())
        self._closed: Deferred[None] | None = None

    def add(self, socket: Socket) -> None:
        """One more."""
        self.open.add(socket)
        if self._closed is not None:
            self._close_one(socket)
        elif len(self.open) >= self._lines.limits.connections and self.port is not None and not self._full:
            self._full = True
            self._lines.complaints.count(f"{self._lines.wire}_accept", "paused")
            self.port.stopReading()

    def discard(self, socket: Socket) -> None:
        """One fewer."""
        self.open.discard(socket)
        self._closes.discard(socket)
        self.accept()
        if self._closed is not None and not self.open:
            self._closed.callback(None)
            self._closed = None

    def accept(self) -> None:
        """Accept again, if there is room."""
        if self._full and self.port is not None and len(self.open) < self._lines.limits.connections:
            self._full = False
            self.port.startReading()

    def close(self, _: object = None) -> Deferred[None]:
        """Close them all. Fires when they are closed, some seconds later at most."""
        self.port = None
        if not self.open:
            return succeed(None)
        closed: Deferred[None] = Deferred()
        self._closed = closed
        for socket in list(self.open):
            self._close_one(socket)
        return closed

    def _close_one(self, socket: Socket) -> None:
        self._closes.add(socket, STOP_WITHIN)
        socket.hang_up()


class Listener:
    """One listener, for its factory: the connections are those of ``sockets``, the sessions those of ``lines``."""

    lines: LineFactory
    sockets: Sockets

    @property
    def turns(self) -> Turns:
        """The scheduler."""
        return self.lines.turns

    @property
    def complaints(self) -> Complaints:
        """The log of what peers did wrong."""
        return self.lines.complaints

    @property
    def wire(self) -> str:
        """The name of what is spoken, in counters and the log."""
        return self.lines.wire

    @property
    def port(self) -> Accepting | None:
        """The listening port."""
        return self.sockets.port

    @port.setter
    def port(self, port: Accepting | None) -> None:
        self.sockets.port = port

    def limit(self, limits: TransportLimits) -> None:
        """Other limits from now on."""
        self.lines.limit(limits)
        self.sockets.accept()

    def close(self) -> Deferred[None]:
        """Close all sessions and connections in good order. Fires when they are closed."""
        return self.lines.close().addCallback(self.sockets.close)


class Patience:
    """Rate limit on refusals of a connection without a session; within one, its `LineProtocol` counts."""

    __slots__ = ("_bucket", "_seconds")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._bucket = Bucket(REFUSALS_AT_ONCE, seconds())

    def lasts(self) -> bool:
        """Count one more. Returns False if there were too many."""
        return self._bucket.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())

    def untouched(self) -> bool:
        """True if the connection sent no nonsense of late."""
        return self._bucket.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())
