"""What is left for the reactor's next turns, so that no peer keeps the others waiting.

A connection handles a quantum of messages as they come in; what it has beyond that is served in rounds, each connection
in its turn, for `TURN` seconds in each turn of the reactor, and it is not read from until it is done. So a peer that
sends little is answered at once, however much others send. Output that was not caused by the peer's own messages
(notices) is gathered, and flushed once in each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

T = TypeVar("T")

QUANTUM = 64
"""Messages handled in one go: well under a millisecond of ordinary ones."""

QUANTUM_ALONE = 256
"""The same while no other connection has more to do: fewer, larger writes."""

TURN = 0.010
"""Seconds of each reactor turn for those that have more: a fifth of the 50 ms in which every peer is to be answered."""


class Connection(Protocol):
    """Who may have something left."""

    def serve(self) -> bool:
        """Handle the next quantum. Returns whether there is more."""

    def flush(self) -> None:
        """Write what was gathered."""

    def abort(self) -> None:
        """Close at once."""


class Turns:
    """The connections that have something left, over ``clock``."""

    log = Logger()

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._unserved: deque[Connection] = deque()
        self._unflushed: list[Connection] = []

    @property
    def quantum(self) -> int:
        """How many messages a connection may handle now."""
        return QUANTUM_ALONE if len(self._unserved) <= 1 else QUANTUM

    def serve_later(self, connection: Connection) -> None:
        """It has more messages."""
        self._unserved.append(connection)
        if len(self._unserved) == 1:
            self._clock.callLater(0, self._serve)

    def flush_later(self, connection: Connection) -> None:
        """It has gathered output."""
        self._unflushed.append(connection)
        if len(self._unflushed) == 1:
            self._clock.callLater(0, self._flush)

    def _serve(self) -> None:
        unserved = self._unserved
        end = self._clock.seconds() + TURN
        while unserved:
            connection = unserved[0]
            more = self._guarded(connection, connection.serve)
            unserved.popleft()
            if more:
                unserved.append(connection)
            if self._clock.seconds() >= end:
                break
        if unserved:
            self._clock.callLater(0, self._serve)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            self._guarded(connection, connection.flush)

    def _guarded(self, connection: Connection, act: Callable[[], T]) -> T | None:
        """A defect of ours costs the connection that met it, and keeps nobody else waiting."""
        try:
            return act()
        except Exception:
            self.log.failure("a connection failed, and is closed")
            connection.abort()
            return None
