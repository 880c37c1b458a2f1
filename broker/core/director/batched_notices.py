"""Rate limit for notices about names that stand for many places.

A notice lists all places of its name: for a clone set of ten thousand it has a quarter of a megabyte, and the end of
the set's server would send ten thousand of them.

Rules:
- While a name stands for up to `MAX_UNBATCHED` places, each change sends its notice at once.
- Beyond that, the name has at most one notice in `BATCH_INTERVAL` seconds, with the state at that time. One turn of the
  reactor sends one such notice.
- A notice that is sent at once cancels a pending one: the last notice of a name is always its latest state.

`broker.core.director.presence` reports the changes.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from broker.core.director.watch_table import WatchTable
from broker.core.notifier import Telling

MAX_UNBATCHED = 64
"""Places up to which each change sends a notice: 2 KB, encoded in some ten microseconds."""

BATCH_INTERVAL = 1.0
"""Seconds between two notices of one large name: people cannot follow more, and programs request a dump."""


class BatchedNotices:
    """Pending notices of large names, and the timer that sends them."""

    def __init__(self, clock: IReactorTime, telling: Telling) -> None:
        self._clock = clock
        self._telling = telling
        self._due: dict[tuple[WatchTable, str], Callable[[str], object]] = {}
        self._now: list[tuple[WatchTable, str]] = []
        """The batch that is being sent, one notice in each turn of the reactor; the next one is last."""
        self._running = False

    def changed(self, watched: WatchTable, name: str, find: Callable[[str], object], places: int) -> None:
        """Send or schedule the notice of a changed name.

        ``find`` returns the present state of the name, and ``places`` is the number of places that it stands for.
        """
        if places <= MAX_UNBATCHED:
            # A pending notice would repeat this state a second later.
            self._due.pop((watched, name), None)
            self._tell(watched, name, find)
            return
        self._due[watched, name] = find
        if not self._running:
            self._running = True
            self._clock.callLater(BATCH_INTERVAL, self._turn)

    def _turn(self) -> None:
        if not self._now:
            self._now = list(reversed(self._due))
        while self._now:
            key = self._now.pop()
            find = self._due.pop(key, None)
            if find is not None:
                self._tell(*key, find)
                self._telling.tell()
                break
        self._running = bool(self._now or self._due)
        if self._running:
            # A turn between two large notices lets the reactor serve connections.
            self._clock.callLater(0 if self._now else BATCH_INTERVAL, self._turn)

    def _tell(self, watched: WatchTable, name: str, find: Callable[[str], object]) -> None:
        watchers = watched.of(name)
        if watchers:
            # One object for all watchers, which is encoded once (see `interfaces`).
            place = find(name)
            for watcher in watchers:
                self._telling.add(watcher, place)
