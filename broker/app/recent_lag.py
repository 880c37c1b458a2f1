"""The largest lag of the reactor within the last seconds, out of the samples of `broker.net.loop_probe`."""

from __future__ import annotations

from collections import deque

from twisted.internet.interfaces import IReactorTime

WINDOW = 10.0
"""Seconds for which a lag counts as recent."""


class RecentLag:
    """The recent lags on ``clock``."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, float]] = deque()
        """Times and lags of the window, with falling lags: the first one is the largest."""

    def add(self, lag: float) -> None:
        """Record a lag in seconds."""
        # A smaller lag that is older than this one can never be the largest again.
        while self._recent and self._recent[-1][1] <= lag:
            self._recent.pop()
        self._recent.append((self._clock.seconds(), lag))

    @property
    def largest(self) -> float:
        """The largest lag of the last `WINDOW` seconds, in seconds; 0.0 without any."""
        now = self._clock.seconds()
        # The reactor's clock is wall-clock time, and may be set back.
        while self._recent and not 0 <= now - self._recent[0][0] <= WINDOW:
            self._recent.popleft()
        return self._recent[0][1] if self._recent else 0.0
