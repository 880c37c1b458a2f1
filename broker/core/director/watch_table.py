"""Watches by name and by watcher. `presence` has one such table for contexts, and one for users."""

from __future__ import annotations

from collections.abc import Collection

from broker.core.director.interfaces import PlaceWatcher
from broker.core.director.limits import MAX_WATCHES
from broker.core.errors import Reason, Refusal


class WatchTable:
    """The watchers of each name, in the order of their first watch, each with the number of its watches."""

    def __init__(self) -> None:
        self._watchers: dict[str, dict[PlaceWatcher, int]] = {}
        self._names: dict[PlaceWatcher, set[str]] = {}

    def of(self, name: str) -> Collection[PlaceWatcher]:
        """Return the watchers of a name."""
        return self._watchers.get(name, ())

    def add(self, name: str, watcher: PlaceWatcher) -> None:
        """Add one watch. Raises `Refusal` LIMIT if the watcher has too many names."""
        names = self._names.setdefault(watcher, set())
        if name not in names:
            if len(names) >= MAX_WATCHES:
                raise Refusal(Reason.LIMIT, f"an administrator may watch {MAX_WATCHES} contexts and as many users")
            names.add(name)
        watchers = self._watchers.setdefault(name, {})
        watchers[watcher] = watchers.get(watcher, 0) + 1

    def remove(self, name: str, watcher: PlaceWatcher) -> None:
        """Remove one watch. No-op if there is none."""
        times = self._watchers.get(name, {}).get(watcher, 0)
        if times > 1:
            self._watchers[name][watcher] = times - 1
        elif times:
            self._names[watcher].remove(name)
            if not self._names[watcher]:
                del self._names[watcher]
            self._end(name, watcher)

    def forget(self, watcher: PlaceWatcher) -> None:
        """Remove all watches of a watcher."""
        for name in self._names.pop(watcher, ()):
            self._end(name, watcher)

    def _end(self, name: str, watcher: PlaceWatcher) -> None:
        watchers = self._watchers[name]
        del watchers[watcher]
        if not watchers:
            del self._watchers[name]
