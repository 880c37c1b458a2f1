"""A probe of the scheduler's delay: the time for which input waits that is not served at once.

The probe queues among the connections that are not ordinary, in a lane of its own, so that the hot paths of the
scheduler stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from broker.net.scheduler import Scheduler


class SchedulerProbe:
    """A probe of ``scheduler`` on ``clock``, which calls ``delay`` with each delay in seconds."""

    lane = "probe"
    strikes = 0
    host = ""

    def __init__(self, clock: IReactorTime, scheduler: Scheduler, delay: Callable[[float], object]) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._delay = delay
        self._queued: float | None = None
        """Time at which the probe was queued; None while it is not."""

    def queue(self) -> None:
        """Queue the probe, unless it still waits."""
        if self._queued is None:
            self._queued = self._clock.seconds()
            self._scheduler.serve_later(self)

    # called by the scheduler

    def serve(self) -> bool:
        """Report the delay."""
        if self._queued is not None:
            # The clock of another reactor is the time of day, and may be set back.
            self._delay(max(0.0, self._clock.seconds() - self._queued))
            self._queued = None
        return False

    def took(self, seconds: float) -> None:
        """Ignore the duration of the quantum."""

    def flush(self) -> None:
        """Do nothing: a probe has no output."""

    def abort(self) -> None:
        """Forget a probe that failed."""
        self._queued = None
