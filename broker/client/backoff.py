"""Exponential backoff with jitter: the delay between attempts doubles, and half of it is random."""

from __future__ import annotations

from collections.abc import Callable
from random import random as any_fraction


class Backoff:
    """Delays between attempts, in seconds, from ``least`` to ``most``. ``fraction`` returns random numbers from 0 to 1.

    A delay has at least half of its nominal length and a random rest, so that clients which lost the same broker at the
    same
    moment do not reconnect at the same moment.
    """

    def __init__(self, least: float, most: float, fraction: Callable[[], float] = any_fraction) -> None:
        self._least = least
        self._most = most
        self._fraction = fraction
        self._next = least

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds, and double the one after it."""
        length, self._next = self._next, min(2 * self._next, self._most)
        return length * (1 + self._fraction()) / 2

    def reset(self) -> None:
        """Return to the shortest delay, after an attempt that succeeded."""
        self._next = self._least
