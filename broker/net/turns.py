"""Who is served when, so that no peer keeps the others waiting.

Rules:
- A peer that sends little at a time and causes little work is *ordinary*: it is served at once, as long as all that is
  served at once takes no more than `TURN` in one turn of the reactor.
- All others, and what a peer has beyond its quantum, are served in rounds: in each turn of the reactor for `TURN`
  seconds, ordinary ones first, and at least one of the others. A connection is not read from before it was served.
- A connection that many peers share (a ZeroMQ socket) is served at once in the same way, and what is left in every
  turn, before the rounds: one quantum, for `TURN` seconds at most.
- Output that was not caused by the peer's own messages (notices) is gathered, and flushed in the next turn, for `TURN`
  seconds at most; then the reactor sees to others in between.

So a thousand peers that flood the broker wait for each other, and a peer that does not flood it waits for none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

T = TypeVar("T")

TURN = 0.005
"""Seconds: a tenth of the 50 ms in which every peer is to be answered. A turn has three such shares, each of which may
end with one quantum too many, and the reads and accepts between them."""

ROUND = 100
"""Connections served in the rounds of one turn: they will be read again in the next, at some 40 µs each."""

QUANTUM = 64
"""Messages handled in one go: well under a millisecond of ordinary ones."""

QUANTUM_ALONE = 256
"""The same while no other connection has more to do: fewer, larger writes."""


class Connection(Protocol):
    """Who may have something left."""

    def serve(self) -> bool:
        """Handle the next quantum. Returns whether there is more."""

    def took(self, seconds: float) -> None:
        """Hear how long that took."""

    def flush(self) -> None:
        """Write what was gathered."""

    def abort(self) -> None:
        """Close at once."""


class Turns:
    """The connections that have something left, over ``clock``."""

    log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._ordinary: deque[Connection] = deque()
        self._others: deque[Connection] = deque()
        self._shared: deque[Connection] = deque()
        self._unflushed: deque[Connection] = deque()
        self._serving = False
        self._flushing = False
        self._spent = 0.0
        self._resetting = False
        self._end = 0.0

    def over(self) -> bool:
        """Whether the connection that is being served has been served for long enough."""
        return self._clock.seconds() >= self._end

    def quantum(self, queued: bool) -> int:
        """How many messages a connection may handle now; ``queued`` says that it is served in the rounds."""
        others = len(self._ordinary) + len(self._others) - queued
        return QUANTUM if others > 0 else QUANTUM_ALONE

    def serve(self, connection: Connection, ordinary: bool) -> None:
        """It has messages: serve it at once if it may be, and what is left in the rounds."""
        if ordinary and self._spent < TURN:
            if not self._serve_at_once(connection):
                return
            ordinary = False
        self.serve_later(connection, ordinary)

    def serve_later(self, connection: Connection, ordinary: bool = False) -> None:
        """It has messages: serve it in the rounds."""
        (self._ordinary if ordinary else self._others).append(connection)
        self._begin_rounds()

    def serve_shared(self, connection: Connection) -> None:
        """It has messages of many peers: serve it at once if it may be, and what is left in each turn."""
        if self._spent >= TURN or self._serve_at_once(connection):
            self._shared.append(connection)
            self._begin_rounds()

    def flush_later(self, connection: Connection) -> None:
        """It has gathered output."""
        self._unflushed.append(connection)
        if not self._flushing:
            self._flushing = True
            self._clock.callLater(0, self._flush)

    def _serve_at_once(self, connection: Connection) -> bool | None:
        """Serve one quantum now. Returns whether there is more."""
        start = self._clock.seconds()
        self._end = start + TURN
        more = self._guarded(connection, connection.serve)
        took = self._clock.seconds() - start
        connection.took(took)
        self._spend(took)
        return more

    def _begin_rounds(self) -> None:
        if not self._serving:
            self._serving = True
            self._clock.callLater(0, self._round)

    def _spend(self, seconds: float) -> None:
        """Count what was served at once. Short turns are counted together, which spares them a timer each."""
        self._spent += seconds
        if self._spent > TURN / 4 and not self._resetting:
            self._resetting = True
            self._clock.callLater(0, self._next_turn)

    def _next_turn(self) -> None:
        self._resetting = False
        self._spent = 0.0

    def _round(self) -> None:
        for _ in range(len(self._shared)):
            self._serve_first(self._shared, self._shared)
        end = self._clock.seconds() + TURN
        left = ROUND
        while self._ordinary and left and self._serve_first(self._ordinary, self._others) < end:
            left -= 1
        while self._others and self._serve_first(self._others, self._others) < end and left:
            left -= 1
        self._serving = bool(self._shared or self._ordinary or self._others)
        if self._serving:
            self._clock.callLater(0, self._round)

    def _serve_first(self, queue: deque[Connection], then: deque[Connection]) -> float:
        """Serve the first of a queue, which goes to the end of the queue ``then`` if it has more. Returns the time."""
        connection = queue[0]
        start = self._clock.seconds()
        self._end = start + TURN
        more = self._guarded(connection, connection.serve)
        now = self._clock.seconds()
        queue.popleft()
        connection.took(now - start)
        if more:
            then.append(connection)
        return now

    def _flush(self) -> None:
        end = self._clock.seconds() + TURN
        unflushed = self._unflushed
        for _ in range(len(unflushed)):
            connection = unflushed.popleft()
            self._guarded(connection, connection.flush)
            if self._clock.seconds() >= end:
                break
        self._flushing = bool(unflushed)
        if self._flushing:
            self._clock.callLater(0, self._flush)

    def _guarded(self, connection: Connection, act: Callable[[], T]) -> T | None:
        """A defect of ours costs the connection that met it, and keeps nobody else waiting."""
        try:
            return act()
        except Exception:
            self.log.failure("a connection failed, and is closed")
            connection.abort()
            return None
