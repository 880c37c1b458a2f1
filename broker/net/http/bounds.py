"""Bounds of requests, and the deadlines of the connections of one listener."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.net.refusal_log import Deadlines


@attrs.frozen
class RequestBounds:
    """Bounds of requests. Sizes in bytes, times in seconds."""

    body: int = 1_048_576
    """Size of a request's body."""
    within: float = 30.0
    """Time from the first byte of a request to its last: a slow sender holds its connection no longer."""
    kept_open: float = 75.0
    """Time for which a connection without a request stays open. Load balancers keep theirs for 60 s by default, and one
    that sends a request as the other side closes gets no answer."""
    stalled_after: float = 30.0
    """Time for which output may be pending while the peer reads none of it."""


class HttpDeadlines:
    """The deadlines of a listener's connections. Each connection is in at most one of the first three."""

    def __init__(self, clock: IReactorTime, bounds: Callable[[], RequestBounds]) -> None:
        self._bounds = bounds
        self.idle: Deadlines[Any] = Deadlines(clock, methodcaller("hang_up"))
        self.arriving: Deadlines[Any] = Deadlines(clock, methodcaller("abort"))
        self.leaving: Deadlines[Any] = Deadlines(clock, methodcaller("abort"))
        self.stalls: Deadlines[Any] = Deadlines(clock, methodcaller("stalled"))

    @property
    def bounds(self) -> RequestBounds:
        """The present bounds."""
        return self._bounds()

    def wait(self, connection: object) -> None:
        """Begin the wait for a request."""
        self.arriving.discard(connection)
        self.idle.add(connection, self.bounds.kept_open)

    def begin(self, connection: object) -> None:
        """Begin the time of a request, at its first byte."""
        self.idle.discard(connection)
        self.arriving.add(connection, self.bounds.within)

    def complete(self, connection: object) -> None:
        """End the time of a request: it is complete."""
        self.arriving.discard(connection)

    def forget(self, connection: object) -> None:
        """Cancel all deadlines of a connection."""
        for each in (self.idle, self.arriving, self.leaving, self.stalls):
            each.discard(connection)
