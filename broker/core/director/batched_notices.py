"""Notices about names that stand for many places: told once for all the changes of a while.

A notice has the whole of what it is about, so that of a clone set of ten thousand is a quarter of a megabyte; and when
its server goes, there would be ten thousand of them.

Rules:
- While a name stands for up to `FEW` places, each change of it is told at once.
- Beyond, it is told at most once in `EVERY` seconds, as it is then; and one such name in each turn of the reactor.
- A change that is told at once makes a notice that is still to come needless: no notice is older than one before it.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from broker.core.director.watch_table import WatchTable
from broker.core.notifier import Telling

MAX_UNBATCHED = 64
"""Places that are told with each change of one: a notice of 2 KB, which takes some ten microseconds."""

BATCH_INTERVAL = 1.0
"""Seconds in which a crowd is told once. People, who look at crowds, cannot follow more; programs ask for a dump."""


class BatchedNotices:
    """What is still to be told."""

    def __init__(self, clock: IReactorTime, telling: Telling) -> None:
        self._clock = clock
        self._telling = telling
        self._due: dict[tuple[WatchTable, str], Callable[[str], object]] = {}
        self._now: list[tuple[WatchTable, str]] = []
        """Those that are told in these turns, the next one last."""
        self._running = False

    def changed(self, watched: WatchTable, name: str, find: Callable[[str], object], places: int) -> None:
        """Something watched has changed. ``find`` says where it is, and ``places`` how many it stands for."""
        if places <= MAX_UNBATCHED:
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
            self._clock.callLater(0 if self._now else BATCH_INTERVAL, self._turn)

    def _tell(self, watched: WatchTable, name: str, find: Callable[[str], object]) -> None:
        watchers = watched.of(name)
        if watchers:
            place = find(name)
            for watcher in watchers:
                self._telling.add(watcher, place)
