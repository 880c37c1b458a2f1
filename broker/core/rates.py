"""Limits on rates: token buckets, and log lines about frequent events.

Token buckets: the rates of connections, requests, log lines, and guesses of passwords.

Invariants: a table has at most `ADDRESSES` entries and evicts the least recently used one, which fills it; each
computation tolerates a clock that is set back, as that of another reactor than the broker's own may be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IReactorTime

ADDRESSES = 10_000
"""Entries of a table of rates: more than a farm has."""

K = TypeVar("K", bound=Hashable)


class Bucket:
    """Token bucket: a burst of ``burst``, refilled at ``rate`` per second."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = burst
        self._at = now

    def take(self, rate: float, burst: float, now: float) -> bool:
        """Take a token. Returns False if the rate is exceeded."""
        if not self.has(rate, burst, now):
            return False
        self._tokens -= 1
        return True

    def has(self, rate: float, burst: float, now: float) -> bool:
        """Return True if `take` would."""
        passed = max(0.0, now - self._at)  # the clock of another reactor may be set back
        self._tokens = min(burst, self._tokens + passed * rate)
        self._at = now
        return self._tokens >= 1

    def give_back(self) -> None:
        """Put a token back."""
        self._tokens += 1

    def full(self, rate: float, burst: float, now: float) -> bool:
        """Return True if no token is missing."""
        return self._tokens + max(0.0, now - self._at) * rate >= burst


class Rates(Generic[K]):
    """A token bucket for each key, in a bounded table. ``seconds`` returns the time of a clock, in seconds."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._buckets: OrderedDict[K, Bucket] = OrderedDict()

    def take(self, key: K, rate: float, burst: float) -> bool:
        """Take a token of this key. Returns False beyond ``rate`` per second and a burst of ``burst``."""
        now = self._seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(burst, now)
            if len(self._buckets) > ADDRESSES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(rate, burst, now)

    def has(self, key: K, rate: float, burst: float) -> bool:
        """Return True if `take` would."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.has(rate, burst, self._seconds())

    def give_back(self, key: K, rate: float, burst: float) -> None:
        """Put a token of this key back. A bucket that is full then is not stored."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.give_back()
            if bucket.full(rate, burst, self._seconds()):
                del self._buckets[key]

    def __len__(self) -> int:
        return len(self._buckets)


# Rate limit of log lines about frequent events.

LINE_EVERY = 60.0
"""Seconds between two log lines for the same key. An event that a program repeats all the time had made 30 lines a
second."""

KEYS = 10_000
"""Limit of the keys of one table: more than a farm has addresses. The least recently logged one is evicted."""

Subject = TypeVar("Subject", bound=Hashable)


class LogLimit(Generic[Subject]):
    """Rate limit for log lines: one in `LINE_EVERY` for each key, in a bounded table."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._logged: OrderedDict[Subject, float] = OrderedDict()

    def due(self, key: Subject) -> bool:
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
