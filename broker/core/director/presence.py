"""Open contexts and the users in them: the tables, and the notices to watchers.

Rules:
- When a name changes, its watchers are notified first, then those of its clone set.
- The users of a closing context leave first: their notices precede that of the context.
- A hidden context is in no table, and neither are its users.
- Notices about names that stand for many places are sent less often than they change: see
  `farm_tables.BatchedNotices`.

`farm` makes the changes; `director` answers finds from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from twisted.internet.interfaces import IReactorTime

from broker.core.director.director_interfaces import ContextPlace, UserPlace
from broker.core.director.farm_state import OpenContext, context_set, user_set
from broker.core.director.farm_tables import BatchedNotices, CloneSet, CountedMultiMap, MultiMap, WatchTable
from broker.core.watches import Notifier


class Presence:
    """Tables of open contexts, clone sets and users."""

    def __init__(self, clock: IReactorTime, notifier: Notifier) -> None:
        self._batched_notices = BatchedNotices(clock, notifier)
        self.watched_contexts = WatchTable()
        self.watched_users = WatchTable()
        self.contexts: dict[str, OpenContext] = {}
        self.hidden: MultiMap[str, OpenContext] = MultiMap()
        self.sets: dict[str, CloneSet] = {}
        self.users: MultiMap[str, OpenContext] = MultiMap()
        self._user_sets: CountedMultiMap[str, OpenContext] = CountedMultiMap()
        """The contexts of each user set, counted: several clones of a user may be in one context."""
        self.present = 0
        """Sum of the users of all contexts; a user in two contexts counts twice."""

    # Changes

    def open(self, context: OpenContext) -> None:
        """Add a context that is open, without its users."""
        name = context.name
        self.contexts[name] = context
        context.server.shown += 1
        base = context_set(name)
        if base is not None:
            clones = self.sets.get(base)
            if clones is None:
                clones = self.sets[base] = CloneSet()
            clones.add(context)
        self._notify_context(name, base)

    def close(self, context: OpenContext) -> None:
        """Remove a context that all users have left."""
        name = context.name
        del self.contexts[name]
        context.server.shown -= 1
        base = context_set(name)
        if base is not None and self.sets[base].remove(context):
            del self.sets[base]
        self._notify_context(name, base)

    def enter(self, context: OpenContext, user: str) -> None:
        """Add a user to a context."""
        base = user_set(user)
        self.users.add(user, context)
        if base is not None:
            self._user_sets.add(base, context)
        self.present += 1
        context.server.shown_users += 1
        self._notify_user(user, base)

    def leave(self, context: OpenContext, user: str) -> None:
        """Remove a user from a context."""
        base = user_set(user)
        self.users.remove(user, context)
        if base is not None:
            self._user_sets.remove(base, context)
        self.present -= 1
        context.server.shown_users -= 1
        self._notify_user(user, base)

    # Finds

    def find_context(self, name: str) -> ContextPlace:
        """Implement `IDirector.find_context`."""
        context = self.contexts.get(name)
        clones = self.sets.get(name)
        return ContextPlace(
            name,
            None if context is None else context.server.label,
            () if clones is None else tuple(clones.clones),
        )

    def find_user(self, name: str) -> UserPlace:
        """Implement `IDirector.find_user`."""
        return UserPlace(name, tuple({context.name: None for context in self.contexts_of(name)}))

    def contexts_of(self, name: str) -> Iterable[OpenContext]:
        """Return the contexts of a user and of the user's clones; a context may occur twice."""
        return chain(self.users.all(name), self._user_sets.all(name))

    # Notices

    def _notify_context(self, name: str, base: str | None) -> None:
        watched = self.watched_contexts
        for each in (name, base):
            if each is not None and watched.of(each):
                clones = self.sets.get(each)
                self._batched_notices.changed(
                    watched, each, self.find_context, 0 if clones is None else len(clones.clones)
                )

    def _notify_user(self, name: str, base: str | None) -> None:
        watched = self.watched_users
        for each in (name, base):
            if each is not None and watched.of(each):
                places = self.users.count(each) + self._user_sets.count(each)
                self._batched_notices.changed(watched, each, self.find_user, places)
