"""Counts of what happened, by name and reason, for whoever shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping


class Counters:
    """Whole numbers that only rise. Names and reasons come from our own code, never from a peer, so they are few."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._others: list[Callable[[], Mapping[str, int]]] = []

    def include(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Show these too, by ``NAME.REASON``: what is so frequent that it is counted where it happens."""
        self._others.append(counts)

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Add to a count."""
        self._counts[name, reason] += by

    def get(self, name: str, reason: str) -> int:
        """One count; 0 if nothing was counted yet."""
        return self._counts[name, reason]

    def all(self) -> dict[str, int]:
        """Every count, as ``NAME.REASON``."""
        counts = {f"{name}.{reason}": count for (name, reason), count in self._counts.items()}
        for other in self._others:
            counts.update(other())
        return counts
