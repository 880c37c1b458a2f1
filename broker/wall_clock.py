"""The time of day, for stamps: of records, answers and certificates, and for comparison with stamps of others.

Waits, rates and time-outs count on the reactor's own clock, `IReactorTime.seconds`, which an operator or NTP cannot
set: a step of the time of day ends no session. The two agree at the start of the process.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime


def wall(clock: IReactorTime) -> float:
    """Return the time of day in seconds of the epoch: `broker.net.reactor.Reactor.wall`, or the only time of a clock
    that has no other."""
    seconds: float = getattr(clock, "wall", clock.seconds)()
    return seconds
