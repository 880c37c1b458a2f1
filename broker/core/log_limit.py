"""Rate limit of log lines about frequent events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

LINE_EVERY = 60.0
"""Seconds between two log lines for the same key. An event that a program repeats all the time had made 30 lines a
second."""

KEYS = 10_000
"""Limit of the keys of one table: more than a farm has addresses. The least recently logged one is evicted."""

K = TypeVar("K", bound=Hashable)


class LogLimit(Generic[K]):
    """Rate limit for log lines: one in `LINE_EVERY` for each key, in a bounded table."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._logged: OrderedDict[K, float] = OrderedDict()

    def due(self, key: K) -> bool:
        """Return True if a line for this key may be logged now, and count it as logged."""
        now = self._clock.seconds()
        last = self._logged.get(key)
        if last is not None and 0 <= now - last < LINE_EVERY:  # the wall clock may be set back
            return False
        self._logged[key] = now
        self._logged.move_to_end(key)
        if len(self._logged) > KEYS:
            self._logged.popitem(last=False)
        return True

    def __len__(self) -> int:
        return len(self._logged)
