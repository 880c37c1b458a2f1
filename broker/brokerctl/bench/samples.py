"""Latencies of a load test, and their meaning. Pure."""

from __future__ import annotations

import math
from array import array
from collections import Counter

import attrs

MAX_SAMPLES = 2_000_000
"""Latencies that are kept, of 8 bytes each: more requests than a minute has."""

MAX_REASONS = 20
"""Different errors that are kept."""


class Samples:
    """The latencies of the answered requests in seconds, and the errors by their text."""

    def __init__(self) -> None:
        self.latencies = array("d")
        self.errors: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """True if no more samples are kept; the test ends then."""
        return len(self.latencies) >= MAX_SAMPLES

    def answered(self, seconds: float) -> None:
        """Add a request that was answered as it should be."""
        self.latencies.append(seconds)

    def failed(self, reason: str) -> None:
        """Add a request without a good answer."""
        known = reason in self.errors or len(self.errors) < MAX_REASONS
        self.errors[reason if known else "others"] += 1


@attrs.frozen
class Summary:
    """The result. Latencies are in milliseconds; the CPU times are fractions of one core."""

    load: str
    seconds: float
    connections: int
    answered: int
    errors: dict[str, int]
    per_second: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    client_cpu: float
    broker_cpu: float | None

    @property
    def limited_by_client(self) -> bool:
        """True if this command had no more time for more requests, so that the broker may be able to do more."""
        return self.client_cpu >= 0.9


def summary(
    load: str, samples: Samples, seconds: float, connections: int, client: float, broker: float | None
) -> Summary:
    """Return the result of a test. ``client`` and ``broker`` are seconds of CPU time."""
    ordered = sorted(samples.latencies)

    def percentile(part: float) -> float | None:
        """Return the nearest rank: that part of the answers took at most as long."""
        return round(1000 * ordered[max(0, math.ceil(part * len(ordered)) - 1)], 3) if ordered else None

    return Summary(
        load,
        round(seconds, 3),
        connections,
        len(ordered),
        dict(samples.errors),
        round(len(ordered) / seconds, 1) if seconds else 0.0,
        percentile(0.5),
        percentile(0.9),
        percentile(0.99),
        percentile(1.0),
        round(client / seconds, 3) if seconds else 0.0,
        None if broker is None or not seconds else round(broker / seconds, 3),
    )


def cpu_seconds(metrics: str) -> float | None:
    """Return the CPU time of a process from its metrics in the text format of Prometheus, None without that."""
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name == "process_cpu_seconds_total":
            try:
                return float(value.split()[0])
            except (ValueError, IndexError):
                return None
    return None
