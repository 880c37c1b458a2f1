"""Counts of what happened, by name and reason, for whoever shows them."""

from __future__ import annotations

from collections import Counter


class Counters:
    """Whole numbers that only rise. Names and reasons come from our own code, never from a peer, so they are few."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Add to a count."""
        self._counts[name, reason] += by

    def get(self, name: str, reason: str) -> int:
        """One count; 0 if nothing was counted yet."""
        return self._counts[name, reason]

    def all(self) -> dict[str, int]:
        """Every count, as ``NAME.REASON``."""
        return {f"{name}.{reason}": count for (name, reason), count in self._counts.items()}
