"""The time of day, for stamps: of records, answers and certificates, and for comparison with stamps of others.

Waits, rates and time-outs count on the reactor's own clock, `IReactorTime.seconds`, which an operator or NTP cannot
set: a step of the time of day ends no session. The two agree at the start of the process.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime


def wall_of(clock: IReactorTime) -> Callable[[], float]:
    """Return the function of the time of day in seconds since the epoch: `broker.net.reactor.Reactor.wall`, or the only
    time of a clock that has no other."""
    seconds: Callable[[], float] = getattr(clock, "wall", clock.seconds)
    return seconds


def wall(clock: IReactorTime) -> float:
    """Return the time of day now; see `wall_of`."""
    return wall_of(clock)()
