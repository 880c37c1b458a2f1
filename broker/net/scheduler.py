"""The scheduler: all handling of input goes through it, so that no peer delays the others.

Rules:
- The unit is time. A connection is served for one quantum, `QUANTUM` seconds, and goes on in its next turn. A request,
  a frame, a message or a command costs what it takes; one that takes longer than a quantum ends the quantum.
- A peer that sends little at a time and causes little work is *ordinary*: it is served at once, as long as all that is
  served at once takes no more than `TURN` in one turn of the reactor.
- A peer that has not authenticated is served at once as well, but where there is no time for that it waits with those
  that are not ordinary: a thousand that connect again and again would delay those that are connected.
- All others, and what a peer has beyond its quantum, are served in rounds: in each turn of the reactor for `TURN`
  seconds, ordinary ones first, and at least one of the others. A connection is not read from before it was served.
- In the rounds listeners take turns, and within a listener the addresses (`fair_queue.py`).
- A connection may hand what it read to another one, as a TLS connection does: that is served at once as part of the
  same quantum while the quantum lasts, and in the rounds after that.
- A connection that many peers share (a ZeroMQ socket) is served at once in the same way, and what is left in every
  turn, before the rounds: one quantum, for `TURN` seconds at most.

Order of output between connections:
- What a quantum wrote to its own connection goes out at the end of the quantum.
- What it wrote to others (notices) is gathered, and flushed in the next turn, for `TURN` seconds at most; then the
  reactor sees to others in between.
- What another connection must receive *first* goes out before anything else that is written from then on, to whichever
  connection. A connection whose peer does not read keeps it, and delays no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.net.fair_queue import Lanes, Placed

T = TypeVar("T")

TURN = 0.005
"""Seconds: a tenth of the 50 ms in which every peer is to be answered. A turn has three such shares, each of which may
end with one quantum too many, and the reads and accepts between them."""

QUANTUM = 0.001
"""Seconds for which a connection is served in one go: a thousand ordinary messages, or some HTTP requests. The longer,
the fewer writes; the shorter, the sooner it is the turn of the next one. Five fit into a turn."""

ROUND = 100
"""Connections served in the rounds of one turn: they will be read again in the next, at some 40 µs each."""

CROWD = 256
"""Connections that wait for their turn, from which on further ones are read from in small pieces: each holds what was
read until it is served. So many that senders of large messages seldom meet it; they hold 16 MiB."""

MESSAGES = 64
"""Messages that a shared connection takes in one quantum."""

MESSAGES_ALONE = 256
"""The same while no other connection has more to do: fewer, larger writes."""


class Gathering(Protocol):
    """Something that gathers output: a connection, or all connections of a ROUTER."""

    def flush(self) -> None:
        """Write what was gathered."""

    def abort(self) -> None:
        """Close at once: it failed."""


class Shared(Protocol):
    """A connection of many peers."""

    def serve(self) -> bool:
        """Handle input until `Turns.over`. Returns True if there is more."""

    def took(self, seconds: float) -> None:
        """Take note of how long that took."""

    def abort(self) -> None:
        """Close at once."""


class Connection(Gathering, Shared, Placed, Protocol):
    """A connection of one peer."""


class Turns:
    """The connections that have something left, over ``clock``.

    ``look`` is called at the beginning of each quantum: life time goes on by it (`broker.core.liveness`).
    """

    log = Logger()

    def __init__(self, clock: IReactorTime, look: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._look = look
        self._ordinary: Lanes[Connection] = Lanes()
        self._others: Lanes[Connection] = Lanes()
        self._shared: deque[Shared] = deque()
        self._unflushed: deque[Gathering] = deque()
        self.first: list[Connection] = []
        """Connections with output that goes out before anything else."""
        self.crowded = False
        """More than `CROWD` connections wait for their turn."""
        self._rounds = False
        self._in_round = False
        self._flushing = False
        self._serving = False
        self._spent = 0.0
        self._resetting = False
        self.given = 0.0
        """Seconds of the quantum that goes on."""
        self._end = 0.0

    def left(self) -> float:
        """Seconds that are left of the quantum; zero or less when it is over."""
        return self._end - self._clock.seconds()

    def over(self) -> bool:
        """True if the quantum of the connection that is being served is over."""
        return self._clock.seconds() >= self._end

    @property
    def busy(self) -> bool:
        """True if any connection waits for its turn."""
        return self._rounds

    def messages(self) -> int:
        """The number of messages that a shared connection may handle now."""
        return MESSAGES if self._ordinary or self._others else MESSAGES_ALONE

    def serve(self, connection: Connection, ordinary: bool, stranger: bool = False) -> None:
        """It has input: serve it at once if it may be, and what is left in the rounds.

        A ``stranger`` has not authenticated: where it has to wait, it waits with the others.
        """
        if self._serving:
            if not self.over():
                if not self._guarded(connection, connection.serve):
                    return
                ordinary = False
        elif ordinary and self._spent < TURN:
            waiting = self._rounds and (self._ordinary or self._others)
            took, more = self._quantum(connection, QUANTUM if waiting else TURN)
            self._spent += took
            if self._spent > TURN / 4 and not self._resetting:
                self._reset_soon()
            if not more:
                return
            ordinary = False
        self.serve_later(connection, ordinary and not stranger)

    def serve_later(self, connection: Connection, ordinary: bool = False) -> None:
        """It has input: serve it in the rounds."""
        (self._ordinary if ordinary else self._others).append(connection)
        if not self.crowded:
            self.crowded = len(self._ordinary) + len(self._others) > CROWD
        self._begin_rounds()

    def serve_shared(self, connection: Shared) -> None:
        """It has messages of many peers: serve it at once if it may be, and what is left in each turn."""
        if self._spent >= TURN or self._serve_at_once(connection, TURN):
            self._shared.append(connection)
            self._begin_rounds()

    def flush_later(self, connection: Gathering) -> None:
        """It has gathered output."""
        self._unflushed.append(connection)
        self._flush_soon()

    def flush_before(self, connection: Connection) -> None:
        """It has gathered output that goes out before anything else is written."""
        self.first.append(connection)
        self._flush_soon()

    def flush_first(self) -> None:
        """Write what goes out before anything else; to be called before anything is written."""
        first, self.first = self.first, []
        for connection in first:
            self._guarded(connection, connection.flush)

    def _serve_at_once(self, connection: Shared, seconds: float) -> bool | None:
        """Serve one quantum now. Returns True if there is more."""
        took, more = self._quantum(connection, seconds)
        self._spent += took
        if self._spent > TURN / 4 and not self._resetting:
            self._reset_soon()
        return more

    def _reset_soon(self) -> None:
        """Begin to count again in the next turn: short turns share a timer."""
        self._resetting = True
        self._clock.callLater(0, self._next_turn)

    def _quantum(self, connection: Shared, seconds: float) -> tuple[float, bool | None]:
        """Serve a connection for so long. Returns how long it took, and whether there is more."""
        self._look()
        now = self._clock.seconds
        start = now()
        self.given = seconds
        self._end = start + seconds
        self._serving = True
        more = None
        try:  # as in `_guarded`, without its call: this is done for each read
            more = connection.serve()
        except Exception:
            self._failed(connection)
        self._serving = False
        took = now() - start
        connection.took(took)
        return took, more

    def _begin_rounds(self) -> None:
        if not self._rounds:
            self._rounds = True
            self._clock.callLater(0, self._round)

    def _next_turn(self) -> None:
        self._resetting = False
        self._spent = 0.0

    def _round(self) -> None:
        self._in_round = True
        self._serve_round()
        self._in_round = False
        if self._flushing:
            self._flush()

    def _serve_round(self) -> None:
        for _ in range(len(self._shared)):
            shared = self._shared.popleft()
            if self._quantum(shared, TURN)[1]:
                self._shared.append(shared)
        end = self._clock.seconds() + TURN
        left = ROUND
        while self._ordinary and left and self._serve_first(self._ordinary) < end:
            left -= 1
        while self._others and self._serve_first(self._others) < end and left:
            left -= 1
        self.crowded = len(self._ordinary) + len(self._others) > CROWD
        self._rounds = bool(self._shared or self._ordinary or self._others)
        if self._rounds:
            self._clock.callLater(0, self._round)

    def _serve_first(self, queue: Lanes[Connection]) -> float:
        """Serve the next one of a queue, which waits with the others if it has more. Returns the time."""
        connection = queue.popleft()
        alone = not self._ordinary and not self._others
        if self._quantum(connection, TURN if alone else QUANTUM)[1]:
            self._others.append(connection)
        return self._clock.seconds()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            if not self._in_round:  # which ends with a flush
                self._clock.callLater(0, self._flush)

    def _flush(self) -> None:
        end = self._clock.seconds() + TURN
        self.flush_first()
        unflushed = self._unflushed
        for _ in range(len(unflushed)):
            connection = unflushed.popleft()
            self._guarded(connection, connection.flush)
            if self._clock.seconds() >= end:
                break
        self._flushing = bool(unflushed)
        if self._flushing:
            self._clock.callLater(0, self._flush)

    def _guarded(self, connection: Shared | Gathering, act: Callable[[], T]) -> T | None:
        """A defect of ours costs the connection that met it, and delays no other."""
        try:
            return act()
        except Exception:
            self._failed(connection)
            return None

    def _failed(self, connection: Shared | Gathering) -> None:
        self.log.failure("a connection failed, and is closed")
        connection.abort()
