"""The changes of the registry: their revisions, the recent ones in two rings, and their watchers.

A watcher that resumes, or reads at its own pace, calls `Watches.since`. When it has fallen behind a ring it gets None,
and takes a snapshot instead. So no change is buffered for a single watcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Any, Generic, TypeVar

from twisted.logger import Logger
from zope.interface import implementer

from broker.core.interfaces import IWait
from broker.core.model import Change, Kind, Load, Service
from broker.core.notifier import Telling

RING = 4_096
"""Changes kept for watchers that resume, and as many loads: at most a few megabytes each. Loads have a ring of their
own, since a busy farm reports thousands in a second, and would push a change of a service out within a few."""

E = TypeVar("E", bound=tuple[Any, ...])


@implementer(IWait)
class Watch:
    """One watcher of changes of some kinds."""

    def __init__(
        self, watchers: dict[Kind, tuple[Watch, ...]], changed: Callable[[Change], None], kinds: Collection[Kind]
    ) -> None:
        self._watchers = watchers
        self._kinds = kinds
        self.hear = changed
        """Something of these kinds changed."""

    def cancel(self) -> None:
        self.hear = _ignore
        for kind in self._kinds:
            self._watchers[kind] = tuple(watch for watch in self._watchers[kind] if watch is not self)


def _ignore(change: Change) -> None:
    """Told to a watcher that ended meanwhile."""


@implementer(IWait)
class ReportWatch:
    """Watcher of loads or of heartbeats. It gets two plain values instead of a `Change`, which costs less.

    ``remove`` takes it out of its table.
    """

    log = Logger()

    def __init__(self, told: Callable[[int, Any], None], remove: Callable[[ReportWatch], None]) -> None:
        self._told: Callable[[int, Any], None] | None = told
        self._remove = remove

    def hear(self, news: tuple[int, Any]) -> None:
        """Pass on a provider and its report."""
        if self._told is not None:
            self._told(*news)

    def report(self, provider: int, value: Any) -> None:
        """Pass on a report outside of `Telling`: a failure of the watcher is logged here."""
        try:
            if self._told is not None:
                self._told(provider, value)
        except Exception:
            self.log.failure("a watcher of the registry failed on a heartbeat")

    def cancel(self) -> None:
        self._told = None
        self._remove(self)


class ChangeRing(Generic[E]):
    """The last `RING` entries, each a tuple that begins with its revision.

    ``lost`` is the highest revision that is not kept any more, 0 at first.
    """

    def __init__(self) -> None:
        self._entries: deque[E] = deque()
        self.lost = 0

    def add(self, entry: E) -> None:
        """Keep an entry, and drop the oldest one if there are too many."""
        entries = self._entries
        entries.append(entry)
        if len(entries) > RING:
            self.lost = entries.popleft()[0]

    def after(self, revision: int) -> list[E]:
        """Return the entries after a revision, in order. It costs the size of the answer, not that of the ring."""
        found = list(takewhile(lambda entry: entry[0] > revision, reversed(self._entries)))
        found.reverse()
        return found


class Watches:
    """Numbers changes, keeps the recent ones, and has them told by ``telling``."""

    def __init__(self, telling: Telling) -> None:
        self.revision = 0
        self._telling = telling
        self._watchers: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Few, and they rarely change: each change of the registry is told to all that there are at the time."""
        self.load_watchers: tuple[ReportWatch, ...] = ()
        self.beat_watchers: tuple[ReportWatch, ...] = ()
        """Tuples, because they are handed to `Telling` at each report, and must not change while it works."""
        self._changes: ChangeRing[Change] = ChangeRing()
        self._loads: ChangeRing[tuple[int, int, str, float]] = ChangeRing()
        """Revision, provider, label and load: a `Change` is made of it only when it is asked for."""

    def add(self, changed: Callable[[Change], None], kinds: Collection[Kind]) -> Watch:
        """A new watcher; see `IRegistry.watch`."""
        watch = Watch(self._watchers, changed, kinds)
        for kind in kinds:
            self._watchers[kind] += (watch,)
        return watch

    def add_for_loads(self, told: Callable[[int, float], None]) -> ReportWatch:
        """Add a watcher of loads; see `IRegistry.watch_loads`."""

        def remove(watch: ReportWatch) -> None:
            self.load_watchers = tuple(each for each in self.load_watchers if each is not watch)

        watch = ReportWatch(told, remove)
        self.load_watchers += (watch,)
        return watch

    def add_for_beats(self, told: Callable[[int, float | None], None]) -> ReportWatch:
        """Add a watcher of heartbeats; see `IRegistry.watch_beats`."""

        def remove(watch: ReportWatch) -> None:
            self.beat_watchers = tuple(each for each in self.beat_watchers if each is not watch)

        watch = ReportWatch(told, remove)
        self.beat_watchers += (watch,)
        return watch

    def record(self, kind: Kind, provider: int, subject: Service | None = None, why: str = "") -> Change:
        """Number a change and keep it."""
        self.revision += 1
        change = Change(self.revision, kind, provider, subject, why)
        self._changes.add(change)
        return change

    def record_load(self, provider: int, label: str, load: float) -> Change | None:
        """The same for a load, of which there are most: its `Change` is only made if somebody watches.

        Who needs none is to be told of it when this returns.
        """
        self.revision = revision = self.revision + 1
        self._loads.add((revision, provider, label, load))
        if self.load_watchers:
            self._telling.add_all(self.load_watchers, (provider, load))
        if self._watchers[Kind.LOAD]:
            return Change(revision, Kind.LOAD, provider, Load(provider, label, load))
        return None

    def announce(self, change: Change) -> None:
        """Have a change told to those who watch its kind now."""
        watchers = self._watchers[change.kind]
        if watchers:
            self._telling.add_all(watchers, change)

    def since(self, revision: int, kinds: Collection[Kind]) -> Sequence[Change] | None:
        """Return the changes of these kinds after a revision, None where not all are kept; see `IRegistry`."""
        if not 0 <= revision <= self.revision:
            return None
        found: list[Change] = []
        if any(kind is not Kind.LOAD for kind in kinds):
            if revision < self._changes.lost:
                return None
            found += (change for change in self._changes.after(revision) if change.kind in kinds)
        if Kind.LOAD in kinds:
            if revision < self._loads.lost:
                return None
            found += (Change(entry[0], Kind.LOAD, entry[1], Load(*entry[1:])) for entry in self._loads.after(revision))
        found.sort(key=itemgetter(0))
        return found
