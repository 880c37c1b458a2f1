"""Backoff between attempts: each twice as long as the one before, and none exactly as long as somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from random import random as any_fraction


class Backoff:
    """How long to wait before the next attempt. ``fraction`` gives numbers from 0 up to 1.

    A pause has at least half of its length, and the rest of it by chance, so that clients who lost the same broker at
    the same moment do not all come back at the same moment.
    """

    def __init__(self, least: float, most: float, fraction: Callable[[], float] = any_fraction) -> None:
        self._least = least
        self._most = most
        self._fraction = fraction
        self._next = least

    def next(self) -> float:
        """The seconds to wait now."""
        length, self._next = self._next, min(2 * self._next, self._most)
        return length * (1 + self._fraction()) / 2

    def reset(self) -> None:
        """It worked: the next pause is the shortest."""
        self._next = self._least
