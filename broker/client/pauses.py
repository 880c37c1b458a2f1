"""Pauses between attempts: each twice as long as the one before, and none exactly as long as somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from random import random as any_fraction

from broker.core.backoff import Backoff


class Pauses:
    """How long to wait before the next attempt. ``fraction`` gives numbers from 0 up to 1.

    A pause has at least half of its length, and the rest of it by chance, so that clients who lost the same broker at
    the same moment do not all come back at the same moment.
    """

    def __init__(self, least: float, most: float, fraction: Callable[[], float] = any_fraction) -> None:
        self._backoff = Backoff(least, most, jitter=0.5)
        self._fraction = fraction
        self._failures = 0

    def next(self) -> float:
        """The seconds to wait now."""
        self._failures += 1
        return self._backoff.after(self._failures, self._fraction())

    def reset(self) -> None:
        """It worked: the next pause is the shortest."""
        self._failures = 0
