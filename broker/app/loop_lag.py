"""Lag of the reactor: the lateness of a timer, measured all the time.

A loop that is busy for a second calls its timers a second late; every peer waits as long. The clock is monotonic, since
the wall clock may be set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

INTERVAL = 0.1
"""Seconds between two measurements: ten a second cost less than a thousandth of a core, and find each stall that is
longer than twice that time."""

WINDOW = 10.0
"""Seconds for which a lag counts as recent."""


class LoopLag:
    """Measurement of the lag on ``clock``. ``monotonic`` returns seconds, and is never set back.

    ``measured`` is a list of functions that are called with each lag in seconds, 0.0 or more.
    """

    def __init__(self, clock: IReactorTime, monotonic: Callable[[], float]) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._due = 0.0
        self._call: IDelayedCall | None = None
        self._recent: deque[tuple[float, float]] = deque()
        """Times and lags of the window, with falling lags: the first one is the largest."""
        self.measured: list[Callable[[float], object]] = []

    def start(self) -> None:
        """Measure until `stop`."""
        self._next()

    def stop(self) -> None:
        """End the measurement. No-op if it does not run."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def recent(self) -> float:
        """The largest lag of the last `WINDOW` seconds, in seconds."""
        self._forget(self._monotonic())
        return self._recent[0][1] if self._recent else 0.0

    def _next(self) -> None:
        self._due = self._monotonic() + INTERVAL
        self._call = self._clock.callLater(INTERVAL, self._measure)

    def _measure(self) -> None:
        now = self._monotonic()
        lag = max(0.0, now - self._due)
        # A smaller lag that is older than this one can never be the largest again.
        while self._recent and self._recent[-1][1] <= lag:
            self._recent.pop()
        self._recent.append((now, lag))
        self._forget(now)
        self._next()
        for measured in self.measured:
            measured(lag)

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()
