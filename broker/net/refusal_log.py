"""Refusals: their counters, their log, the limit on them; and deadlines.

All tables are bounded, independent of the peers' behaviour. Rates are in `broker.core.rates`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.identity import network_of
from broker.core.errors import Refusal
from broker.core.rates import LINE_EVERY, Bucket, LogLimit, Rates

# Counters of events, by name and reason, for the console and the metrics.


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


LINES = 200
"""Log lines for one reason of one wire: at once, and per `LINE_EVERY`. So the mistakes of a farm of some hundred
machines are logged completely, and forged source addresses, which cost a sender one datagram each, cannot fill a disk:
30,000 of them had made 9,000 lines."""

MAX_SHOWN = 1_000
"""Characters of a peer's text in one log line."""

K = TypeVar("K", bound=Hashable)


class Conversing(Protocol):
    """A connection whose log lines have an id."""

    @property
    def conversation(self) -> str:
        """The id."""


class RefusalLog:
    """Refusal counters, and a rate-limited log of refusals.

    At most one line a minute is logged for each wire, address and reason, and at most `LINES` for each wire and reason.
    The number of suppressed lines is logged, in one line a minute.
    """

    log = Logger()

    def __init__(self, counters: Counters, clock: IReactorTime) -> None:
        self._counters = counters
        self._clock = clock
        self._logged: LogLimit[tuple[str, str, str]] = LogLimit(clock)
        self._lines: Rates[tuple[str, str]] = Rates(clock.seconds)
        self._left_out: Counter[tuple[str, str]] = Counter()
        """Suppressed lines since the last summary, by wire and reason."""

    @property
    def logged(self) -> int:
        """The number of entries in the table of recent lines."""
        return len(self._logged)

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Increment a counter without a log line."""
        self._counters.count(name, reason, by)

    def add(
        self, wire: str, address: str, refusal: Refusal, about: Conversing | None = None, request_id: str = ""
    ) -> None:
        """Count a refusal to a peer of that wire at that address, and log it within the rate limit.

        ``about`` is its connection, and ``request_id`` its request, for the ids in the line; within a quantum they are
        known without them.
        """
        code = refusal.reason.code
        self._counters.count(f"{wire}_refused", code)
        if self._due(wire, address, code):
            text = refusal.summary[:MAX_SHOWN]
            fields = _about(about, request_id)
            self.log.warn(
                "{wire} peer {address}: {reason}: {text}", wire=wire, address=address, reason=code, text=text, **fields
            )

    def failed(self, wire: str, address: str, about: Conversing | None = None, request_id: str = "") -> None:
        """Log the current exception, which a message of that peer caused."""
        if self._due(wire, address, "failure"):
            fields: dict[str, Any] = _about(about, request_id)
            text = "a message of the {wire} peer {address} made the broker fail"
            self.log.failure(text, wire=wire, address=address, **fields)

    def _due(self, wire: str, address: str, code: str) -> bool:
        """Return True if a line may be logged now, and count it as logged."""
        if not self._logged.due((wire, network_of(address), code)):
            return False
        if self._lines.take((wire, code), LINES / LINE_EVERY, LINES):
            return True
        if not self._left_out:
            self._clock.callLater(LINE_EVERY, self._summarize)
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
                seconds=LINE_EVERY,
            )


def _about(about: Conversing | None, request_id: str) -> dict[str, str]:
    """Return the fields of a line about a connection and a request."""
    fields = {} if about is None else {"conversation": about.conversation}
    return {**fields, "request_id": request_id} if request_id else fields


class Deadlines(Generic[K]):
    """Deadlines of any number of items, checked once a second by one timer."""

    log = Logger()

    CHECK = 1.0
    """Seconds between checks: the upper bound of a deadline's lateness, but for those that wait for another turn."""

    MISSED_SECONDS = 0.002
    """Seconds of one turn for missed deadlines, of some 50 us each: a thousand connections may have the same one."""

    def __init__(self, clock: IReactorTime, missed: Callable[[K], None]) -> None:
        self._clock = clock
        self._missed = missed
        self._due: dict[K, float] = {}
        self._timer: IDelayedCall | None = None

    def add(self, key: K, seconds: float) -> None:
        """Set the deadline of an item, in seconds from now."""
        self._due[key] = self._clock.seconds() + seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self.CHECK, self._check)

    def discard(self, key: K) -> None:
        """Cancel the deadline of an item. No-op if it has none."""
        self._due.pop(key, None)

    def move(self, seconds: float) -> None:
        """Make all deadlines later by that time, or earlier if it is negative."""
        if seconds:
            self._due = {key: due + seconds for key, due in self._due.items()}

    def first(self) -> K | None:
        """Return the oldest item, or None if there is none."""
        return next(iter(self._due), None)

    def oldest(self, most: int) -> Iterator[K]:
        """Return the oldest items, ``most`` at most, the oldest first."""
        return islice(self._due, most)

    def stop(self) -> None:
        """Cancel all deadlines."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, keys: Iterator[K] | None = None) -> None:
        self._timer = None
        now = self._clock.seconds()
        if keys is None:
            keys = iter([key for key, due in self._due.items() if due <= now])
        pause = self.CHECK
        for key in keys:
            if self._due.get(key, inf) > now:
                continue  # discarded or renewed by an earlier callback, or between two turns
            del self._due[key]
            try:
                self._missed(key)
            except Exception:
                self.log.failure("the callback of a deadline raised an exception")
            if self._clock.seconds() >= now + self.MISSED_SECONDS:
                pause = 0.0
                break
        if self._timer is not None:  # a callback has set a deadline
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer = self._clock.callLater(pause, self._check, None if pause else keys)


# Rate limit for the refusals of one connection.

REFUSALS_AT_ONCE = 100
REFUSALS_A_SECOND = 10.0
"""Rate limit for refusals of one connection. A peer beyond it does not speak the protocol, and is disconnected."""


class RefusalLimit:
    """Rate limit for refusals of a connection that is no `StreamConnection`, which counts its own."""

    __slots__ = ("_bucket", "_seconds")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._bucket = Bucket(REFUSALS_AT_ONCE, seconds())

    def admit(self) -> bool:
        """Count a refusal. Returns False if the rate limit is exceeded."""
        return self._bucket.take(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())

    def untouched(self) -> bool:
        """Return True if the connection has no recent refusals."""
        return self._bucket.full(REFUSALS_A_SECOND, REFUSALS_AT_ONCE, self._seconds())
