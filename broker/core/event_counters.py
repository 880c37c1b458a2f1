"""Counters of events, by name and reason, for the console and the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping


class Counters:
    """Monotonic counters. Names and reasons come from the code, never from a peer, so their number is bounded."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._others: list[Callable[[], Mapping[str, int]]] = []

    def include(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Include counters that are kept elsewhere, by ``NAME.REASON``: events too frequent for `count`."""
        self._others.append(counts)

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Add to a counter."""
        self._counts[name, reason] += by

    def get(self, name: str, reason: str) -> int:
        """Return one counter; 0 if it was never raised."""
        return self._counts[name, reason]

    def all(self) -> dict[str, int]:
        """Return all counters by ``NAME.REASON``."""
        counts = {f"{name}.{reason}": count for (name, reason), count in self._counts.items()}
        for other in self._others:
            counts.update(other())
        return counts
