"""Changes of the registry: their revisions, two rings with the recent ones, and their watchers.

A watcher that resumes, or that reads at its own pace, calls `Watches.since`. If the ring no longer has all changes that
it lacks, the call returns None, and the watcher takes a snapshot instead. So no change is buffered for a single
watcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from operator import itemgetter
from typing import Any, Generic, TypeVar

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import IWait
from broker.core.model import Change, Kind, Load, LoadDetails, Service
from broker.core.notifier import Notifier
from broker.wall_clock import wall

RING = 4_096
"""Capacity of each ring, in entries: a few megabytes at most. Loads have a ring of their own, because a busy farm
reports thousands in a second, and these would push out a change of a service within a few seconds."""

_new = tuple.__new__

E = TypeVar("E", bound=tuple[Any, ...])


@implementer(IWait)
class Watch:
    """Watcher of changes of some kinds."""

    def __init__(
        self,
        tables: Sequence[dict[Kind, tuple[Watch, ...]]],
        changed: Callable[[Change], None],
        kinds: Collection[Kind],
    ) -> None:
        self._tables = tables
        self._kinds = kinds
        self.hear = changed
        """Callback for changes of these kinds."""

    def cancel(self) -> None:
        # The notifier may still hold this watcher in its queue, so the callback becomes a no-op too.
        self.hear = _ignore
        for table in self._tables:
            for kind in self._kinds:
                table[kind] = tuple(watch for watch in table[kind] if watch is not self)


def _ignore(change: Change) -> None:
    """Callback of a cancelled watcher."""


@implementer(IWait)
class ReportWatch:
    """Watcher of loads or of heartbeats. It receives plain values instead of a `Change`, which costs less.

    ``remove`` removes it from its table.
    """

    log = Logger()

    def __init__(self, told: Callable[..., None], remove: Callable[[ReportWatch], None]) -> None:
        self._told: Callable[..., None] | None = told
        self._remove = remove

    def hear(self, news: tuple[Any, ...]) -> None:
        """Deliver a report of a provider."""
        if self._told is not None:
            self._told(*news)

    def report(self, provider: int, value: Any) -> None:
        """Deliver a report outside of the notifier's queue. An exception in the watcher is logged here."""
        try:
            if self._told is not None:
                self._told(provider, value)
        except Exception:
            self.log.failure("a watcher of the registry failed on a heartbeat")

    def cancel(self) -> None:
        self._told = None
        self._remove(self)


class ChangeRing(Generic[E]):
    """Ring of the last `RING` entries, tuples that begin with their revision.

    ``lost`` is the highest revision that was discarded, 0 at first.
    """

    def __init__(self) -> None:
        self._entries: deque[E] = deque()
        self.lost = 0

    def add(self, entry: E) -> None:
        """Append an entry, and discard the oldest one if the ring is full."""
        entries = self._entries
        entries.append(entry)
        if len(entries) > RING:
            self.lost = entries.popleft()[0]

    def after(self, revision: int) -> list[E]:
        """Return the entries after a revision, in order. The cost is that of the answer, not of the ring."""
        found = list(takewhile(lambda entry: entry[0] > revision, reversed(self._entries)))
        found.reverse()
        return found


class Watches:
    """Revisions, recent changes and watchers of a registry.

    Notifications go through ``notifier``; ``clock`` gives the time of each change.
    """

    def __init__(self, notifier: Notifier, clock: IReactorTime) -> None:
        self.revision = 0
        self._seconds = partial(wall, clock)
        self._notifier = notifier
        self._watchers: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Few, and rarely changed. Tuples: a queued notification keeps the watchers of its time."""
        self._watchers_of_all: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Those of them that watch the providers of other members of the cluster as well."""
        self.load_watchers: tuple[ReportWatch, ...] = ()
        self._load_watchers_of_all: tuple[ReportWatch, ...] = ()
        self.beat_watchers: tuple[ReportWatch, ...] = ()
        """Tuples, because each report hands them to the notifier, and they must not change during delivery."""
        self._changes: ChangeRing[Change] = ChangeRing()
        self._loads: ChangeRing[tuple[int, int, str, float, LoadDetails | None, float]] = ChangeRing()
        """Revision, provider, label, load, details and time. A `Change` is made of an entry only on request."""

    def add(self, changed: Callable[[Change], None], kinds: Collection[Kind], own: bool = False) -> Watch:
        """Add a watcher; see `IRegistry.watch`."""
        tables = (self._watchers,) if own else (self._watchers, self._watchers_of_all)
        watch = Watch(tables, changed, kinds)
        for table in tables:
            for kind in kinds:
                table[kind] += (watch,)
        return watch

    def add_for_loads(self, told: Callable[[int, float, LoadDetails | None], None], own: bool = False) -> ReportWatch:
        """Add a watcher of loads; see `IRegistry.watch_loads`."""

        def remove(watch: ReportWatch) -> None:
            self.load_watchers = tuple(each for each in self.load_watchers if each is not watch)
            self._load_watchers_of_all = tuple(each for each in self._load_watchers_of_all if each is not watch)

        watch = ReportWatch(told, remove)
        self.load_watchers += (watch,)
        if not own:
            self._load_watchers_of_all += (watch,)
        return watch

    def add_for_beats(self, told: Callable[[int, float | None], None]) -> ReportWatch:
        """Add a watcher of heartbeats; see `IRegistry.watch_beats`."""

        def remove(watch: ReportWatch) -> None:
            self.beat_watchers = tuple(each for each in self.beat_watchers if each is not watch)

        watch = ReportWatch(told, remove)
        self.beat_watchers += (watch,)
        return watch

    def record(self, kind: Kind, provider: int, subject: Service | str, why: str = "") -> Change:
        """Assign a revision to a change, and keep it in the ring."""
        self.revision = revision = self.revision + 1
        # As `Change(...)`, without the call of its constructor in Python: there are four for each short connection.
        change = _new(Change, (revision, kind, provider, subject, why, self._seconds()))
        self._changes.add(change)
        return change

    def record_load(
        self, provider: int, label: str, load: float, details: LoadDetails | None = None, mirrored: bool = False
    ) -> Change | None:
        """Assign a revision to a load, keep it, and queue it for the watchers of loads.

        Loads are the most frequent changes, so a `Change` is made only if a watcher needs one, and is returned for
        `announce`. ``mirrored``: of another member's provider.
        """
        self.revision = revision = self.revision + 1
        at = self._seconds()
        self._loads.add((revision, provider, label, load, details, at))
        load_watchers = self._load_watchers_of_all if mirrored else self.load_watchers
        if load_watchers:
            self._notifier.add_all(load_watchers, (provider, load, details))
        if (self._watchers_of_all if mirrored else self._watchers)[Kind.LOAD]:
            return Change(revision, Kind.LOAD, provider, Load(provider, label, load, details), at=at)
        return None

    def announce(self, change: Change, mirrored: bool = False) -> None:
        """Queue a change for the present watchers of its kind. ``mirrored``: of another member's provider."""
        watchers = (self._watchers_of_all if mirrored else self._watchers)[change.kind]
        if watchers:
            self._notifier.add_all(watchers, change)

    def since(self, revision: int, kinds: Collection[Kind], most: int | None = None) -> Sequence[Change] | None:
        """Return the first changes of these kinds after a revision, None if not all are kept; see `IRegistry`."""
        if not 0 <= revision <= self.revision:
            return None
        if revision < self._changes.lost and any(kind is not Kind.LOAD for kind in kinds):
            return None
        if revision < self._loads.lost and Kind.LOAD in kinds:
            return None
        return self._kept(revision, kinds, slice(most))

    def recent(self, kinds: Collection[Kind], most: int) -> Sequence[Change]:
        """Return the last changes of these kinds that are kept; see `IRegistry`."""
        return self._kept(0, kinds, slice(-most, None))

    def _kept(self, revision: int, kinds: Collection[Kind], part: slice) -> Sequence[Change]:
        """Return a part of the changes of these kinds after a revision that are kept: the first or the last ones."""
        found: list[Change] = []
        if any(kind is not Kind.LOAD for kind in kinds):
            found += [change for change in self._changes.after(revision) if change.kind in kinds][part]
        if Kind.LOAD in kinds:
            loads = self._loads.after(revision)[part]
            found += (Change(entry[0], Kind.LOAD, entry[1], Load(*entry[1:5]), at=entry[5]) for entry in loads)
        # The rings are in order each, and not with each other.
        found.sort(key=itemgetter(0))
        return found[part]
