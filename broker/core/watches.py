"""The changes of the registry: their revisions, the recent ones in a ring, and who watches them.

A watcher that must not be told faster than it can take things reads `Watches.since` at its own pace; when it has fallen
behind the ring it gets None, and takes a snapshot instead. So no change is ever buffered for a watcher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from zope.interface import implementer

from broker.core.interfaces import IWait
from broker.core.model import Change, Kind, Load, Service
from broker.core.notifier import Telling

RING = 4_096
"""Changes kept for watchers that resume: some seconds of a busy farm, and at most a few megabytes."""


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
class LoadWatch:
    """One who is told of loads, and needs no `Change` for it."""

    def __init__(self, watchers: dict[LoadWatch, None], told: Callable[[int, float], None]) -> None:
        self._watchers = watchers
        self._told: Callable[[int, float], None] | None = told

    def hear(self, news: tuple[int, float]) -> None:
        """A provider reported its load."""
        if self._told is not None:
            self._told(*news)

    def cancel(self) -> None:
        self._told = None
        self._watchers.pop(self, None)


class Watches:
    """Numbers changes, keeps the recent ones, and has them told by ``telling``."""

    def __init__(self, telling: Telling) -> None:
        self.revision = 0
        self._telling = telling
        self._watchers: dict[Kind, tuple[Watch, ...]] = dict.fromkeys(Kind, ())
        """Few, and they rarely change: each change of the registry is told to all that there are at the time."""
        self._load_watchers: dict[LoadWatch, None] = {}
        self._ring: deque[Change | tuple[int, int, str, float]] = deque(maxlen=RING)

    def add(self, changed: Callable[[Change], None], kinds: Collection[Kind]) -> Watch:
        """A new watcher; see `IRegistry.watch`."""
        watch = Watch(self._watchers, changed, kinds)
        for kind in kinds:
            self._watchers[kind] += (watch,)
        return watch

    def add_for_loads(self, told: Callable[[int, float], None]) -> LoadWatch:
        """A new one who is told of loads; see `IRegistry.watch_loads`."""
        watch = LoadWatch(self._load_watchers, told)
        self._load_watchers[watch] = None
        return watch

    def record(self, kind: Kind, provider: int, subject: Service | None = None, why: str = "") -> Change:
        """Number a change and keep it."""
        self.revision += 1
        change = Change(self.revision, kind, provider, subject, why)
        self._ring.append(change)
        return change

    def record_load(self, provider: int, label: str, load: float) -> Change | None:
        """The same for a load, of which there are most: its `Change` is only made if somebody watches.

        Who needs none is to be told of it when this returns.
        """
        self.revision = revision = self.revision + 1
        self._ring.append((revision, provider, label, load))
        if self._load_watchers:
            self._telling.add_all(tuple(self._load_watchers), (provider, load))
        if self._watchers[Kind.LOAD]:
            return Change(revision, Kind.LOAD, provider, Load(provider, label, load))
        return None

    def announce(self, change: Change) -> None:
        """Have a change told to those who watch its kind now."""
        watchers = self._watchers[change.kind]
        if watchers:
            self._telling.add_all(watchers, change)

    def since(self, revision: int) -> Sequence[Change] | None:
        """See `IRegistry.changes_since`."""
        missed = self.revision - revision
        if missed < 0 or missed > len(self._ring):
            return None
        recent = list(self._ring)[len(self._ring) - missed :]
        return [
            entry if isinstance(entry, Change) else Change(entry[0], Kind.LOAD, entry[1], Load(*entry[1:]))
            for entry in recent
        ]
