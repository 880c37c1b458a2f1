"""Probes of the reactor's lag and of the scheduler's delay, which leave the hot paths as they are.

The *lag* of the reactor is the lateness of a timer. The *delay* of the scheduler is the time for which input waits that
is not served at once: that of a probe, which queues among the connections that are not ordinary, in a lane of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.net.scheduler import Scheduler

INTERVAL = 0.1
"""Seconds between two probes. Each costs some 30 µs, so 0.03 % of a core; a stall of that length is always seen."""


class LoopProbe:
    """The probes on ``clock``: each calls ``lag`` and ``delay`` with a time in seconds."""

    lane = "probe"
    host = ""

    def __init__(
        self,
        clock: IReactorTime,
        scheduler: Scheduler,
        lag: Callable[[float], object],
        delay: Callable[[float], object],
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._lag = lag
        self._delay = delay
        self._due = 0.0
        self._queued: float | None = None
        """Time at which the probe was queued; None while it is not."""
        self._call: IDelayedCall | None = None

    def start(self) -> None:
        """Begin to probe."""
        self._due = self._clock.seconds() + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._probe)

    def stop(self) -> None:
        """Send no more probes."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _probe(self) -> None:
        now = self._clock.seconds()
        self._lag(max(0.0, now - self._due))  # the reactor's clock is wall-clock time, and may be set back
        self._due = now + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._probe)
        if self._queued is None:
            self._queued = now
            self._scheduler.serve_later(self)

    # called by the scheduler

    def serve(self) -> bool:
        """Record the delay."""
        if self._queued is not None:
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
