"""Histograms of the loop: the reactor's lag and the scheduler's delay, as `broker.net.loop_probe` measures them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Histogram, disable_created_metrics
from prometheus_client.core import Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds in seconds: from the scheduler's quantum to a stall. Peers are to be answered within 0.05 s."""

disable_created_metrics()  # type: ignore[no-untyped-call]


class LoopTimes:
    """The two histograms."""

    def __init__(self) -> None:
        self._lag = Histogram(
            "elkobroker_reactor_lag_seconds",
            "Lateness of a timer, sampled ten times a second.",
            buckets=BUCKETS,
            registry=None,
        )
        self._delay = Histogram(
            "elkobroker_scheduler_delay_seconds",
            "Time for which queued input waits to be served, sampled ten times a second.",
            buckets=BUCKETS,
            registry=None,
        )
        self.lag = self._lag.observe
        """Takes a lateness in seconds."""
        self.delay = self._delay.observe
        """Takes a delay in seconds."""

    def collect(self) -> Iterator[Metric]:
        """Yield the two metrics."""
        yield from self._lag.collect()
        yield from self._delay.collect()
