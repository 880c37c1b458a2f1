"""Rates, deadlines and the log of what peers did wrong: all bounded, whatever peers do."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.counters import Counters
from broker.core.errors import Refusal

ADDRESSES = 10_000
"""Addresses remembered for rates and complaints: more than a farm has; the least recently seen one is forgotten."""

COMPLAIN_EVERY = 60.0
"""Seconds between two log lines on the same address and reason. The counters count every one."""

LINES = 200
"""Log lines on one reason of one wire: at once, and in each `COMPLAIN_EVERY`. So a farm of some hundred machines that
all make the same mistake is logged whole; and forged source addresses, of which a datagram costs nothing, cannot fill a
disk: 30,000 of them had made 9,000 lines."""

MAX_SHOWN = 1_000
"""Characters of a peer's text that one log line shows."""

K = TypeVar("K", bound=Hashable)


class Bucket:
    """A token bucket: ``burst`` at once, ``rate`` a second."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, now: float) -> None:
        self._tokens = burst
        self._at = now

    def take(self, rate: float, burst: float, now: float) -> bool:
        """Take a token. Returns False if the rate is exceeded."""
        passed = max(0.0, now - self._at)  # the reactor's clock is the time of day, and may be set back
        self._tokens = min(burst, self._tokens + passed * rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def full(self, rate: float, burst: float, now: float) -> bool:
        """Return True if no token is missing."""
        return self._tokens + max(0.0, now - self._at) * rate >= burst


class Rates(Generic[K]):
    """A token bucket for each key, in a bounded table."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._buckets: OrderedDict[K, Bucket] = OrderedDict()

    def take(self, key: K, rate: float, burst: float) -> bool:
        """Take a token of this key. Returns False beyond ``rate`` a second and ``burst`` at once."""
        now = self._clock.seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(burst, now)
            if len(self._buckets) > ADDRESSES:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket.take(rate, burst, now)

    def __len__(self) -> int:
        return len(self._buckets)


class Seldom(Generic[K]):
    """Says of what something may be logged now: once in `COMPLAIN_EVERY` for each key, in a bounded table."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._logged: OrderedDict[K, float] = OrderedDict()

    def due(self, key: K) -> bool:
        """True if a line on this may be logged now; it is taken to be."""
        now = self._clock.seconds()
        last = self._logged.get(key)
        if last is not None and 0 <= now - last < COMPLAIN_EVERY:  # the time of day may be set back
            return False
        self._logged[key] = now
        self._logged.move_to_end(key)
        if len(self._logged) > ADDRESSES:
            self._logged.popitem(last=False)
        return True

    def __len__(self) -> int:
        return len(self._logged)


class Complaints:
    """The counters and the log of what peers did wrong.

    At most one line a minute for each wire, address and reason is logged, and at most `LINES` for each wire and reason.
    The number of lines that this leaves out is logged, in one line a minute.
    """

    log = Logger()

    def __init__(self, counters: Counters, clock: IReactorTime) -> None:
        self._counters = counters
        self._clock = clock
        self._logged: Seldom[tuple[str, str, str]] = Seldom(clock)
        self._lines: Rates[tuple[str, str]] = Rates(clock)
        self._left_out: Counter[tuple[str, str]] = Counter()
        """Lines that were not logged since the last summary, by wire and reason."""

    @property
    def logged(self) -> int:
        """The number of entries in the table of lines that were logged lately."""
        return len(self._logged)

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Count what needs no log line."""
        self._counters.count(name, reason, by)

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """A peer of that wire, at that address, was refused something."""
        code = refusal.reason.code
        self._counters.count(f"{wire}_refused", code)
        if self._due(wire, address, code):
            text = refusal.summary[:MAX_SHOWN]
            self.log.warn("{wire} peer {address}: {reason}: {text}", wire=wire, address=address, reason=code, text=text)

    def failed(self, wire: str, address: str) -> None:
        """A message of that peer made the broker fail: the exception being handled is logged."""
        if self._due(wire, address, "failure"):
            self.log.failure("a message of the {wire} peer {address} made the broker fail", wire=wire, address=address)

    def _due(self, wire: str, address: str, code: str) -> bool:
        """True if a line on this may be logged now; it is taken to be."""
        if not self._logged.due((wire, address, code)):
            return False
        if self._lines.take((wire, code), LINES / COMPLAIN_EVERY, LINES):
            return True
        if not self._left_out:
            self._clock.callLater(COMPLAIN_EVERY, self._summarize)
        self._left_out[wire, code] += 1
        return False

    def _summarize(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        for (wire, code), count in left_out.items():
            self.log.warn(
                "{wire}: {reason}: {count} more lines, of other addresses, were left out in the last {seconds:g} s",
                wire=wire,
                reason=code,
                count=count,
                seconds=COMPLAIN_EVERY,
            )


class Deadlines(Generic[K]):
    """Things that must happen in time, checked once a second by one timer, however many there are."""

    log = Logger()

    CHECK = 1.0
    """Seconds between checks: how late a deadline may be noticed."""

    def __init__(self, clock: IReactorTime, missed: Callable[[K], None]) -> None:
        self._clock = clock
        self._missed = missed
        self._due: dict[K, float] = {}
        self._timer: IDelayedCall | None = None

    def add(self, key: K, seconds: float) -> None:
        """This must be discarded within so many seconds."""
        self._due[key] = self._clock.seconds() + seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self.CHECK, self._check)

    def discard(self, key: K) -> None:
        """It happened, or need not any more."""
        self._due.pop(key, None)

    def first(self) -> K | None:
        """The one that has waited for the longest time, or None if there is none."""
        return next(iter(self._due), None)

    def stop(self) -> None:
        """No deadline counts any more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        for key in [key for key, due in self._due.items() if due <= now]:
            if self._due.pop(key, None) is None:
                continue  # one that was missed before it had this one discarded
            try:
                self._missed(key)
            except Exception:
                self.log.failure("what was to be done at a deadline failed")
        if self._due and self._timer is None:
            self._timer = self._clock.callLater(self.CHECK, self._check)
