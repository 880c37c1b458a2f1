"""Which contexts are open where, and who is in them: the tables, and the notices to those who watch.

Rules:
- Where a name changes, its watchers hear first, then those of its clone set.
- A context that closes is left by its users first: their notices come before its own.
- A hidden context is in no table, and neither are the users in it.
- Names that stand for many places are told of less often than they change: see `crowds`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from twisted.internet.interfaces import IReactorTime

from broker.core.director.batched_notices import BatchedNotices
from broker.core.director.clones import CloneSet
from broker.core.director.interfaces import ContextPlace, UserPlace
from broker.core.director.multimap import CountedMultiMap, MultiMap
from broker.core.director.names import context_set, user_set
from broker.core.director.state import OpenContext
from broker.core.director.watch_table import WatchTable
from broker.core.notifier import Telling


class Presence:
    """Open contexts, clone sets, users."""

    def __init__(self, clock: IReactorTime, telling: Telling) -> None:
        self._batched_notices = BatchedNotices(clock, telling)
        self.watched_contexts = WatchTable()
        self.watched_users = WatchTable()
        self.contexts: dict[str, OpenContext] = {}
        self.hidden: MultiMap[str, OpenContext] = MultiMap()
        self.sets: dict[str, CloneSet] = {}
        self.users: MultiMap[str, OpenContext] = MultiMap()
        self._user_sets: CountedMultiMap[str, OpenContext] = CountedMultiMap()
        """Where the clones of a user are."""
        self.present = 0
        """How many users are in all contexts; one who is in two counts twice."""

    # changes

    def open(self, context: OpenContext) -> None:
        """A context is open, and nobody is in it that counts yet."""
        name = context.name
        self.contexts[name] = context
        context.server.shown += 1
        base = context_set(name)
        if base is not None:
            clones = self.sets.get(base)
            if clones is None:
                clones = self.sets[base] = CloneSet()
            clones.add(context)
        self._tell_context(name, base)

    def close(self, context: OpenContext) -> None:
        """A context is not open any more; everybody has left it."""
        name = context.name
        del self.contexts[name]
        context.server.shown -= 1
        base = context_set(name)
        if base is not None and self.sets[base].remove(context):
            del self.sets[base]
        self._tell_context(name, base)

    def enter(self, context: OpenContext, user: str) -> None:
        """A user is in a context."""
        base = user_set(user)
        self.users.add(user, context)
        if base is not None:
            self._user_sets.add(base, context)
        self.present += 1
        context.server.shown_users += 1
        self._tell_user(user, base)

    def leave(self, context: OpenContext, user: str) -> None:
        """A user has left a context."""
        base = user_set(user)
        self.users.remove(user, context)
        if base is not None:
            self._user_sets.remove(base, context)
        self.present -= 1
        context.server.shown_users -= 1
        self._tell_user(user, base)

    # questions

    def find_context(self, name: str) -> ContextPlace:
        """See `IDirector.find_context`."""
        context = self.contexts.get(name)
        clones = self.sets.get(name)
        return ContextPlace(
            name,
            None if context is None else context.server.label,
            () if clones is None else tuple(clones.clones),
        )

    def find_user(self, name: str) -> UserPlace:
        """See `IDirector.find_user`."""
        return UserPlace(name, tuple({context.name: None for context in self.contexts_of(name)}))

    def contexts_of(self, name: str) -> Iterable[OpenContext]:
        """Where a user is, and the clones of one; a context may come twice."""
        return chain(self.users.all(name), self._user_sets.all(name))

    # notices

    def _tell_context(self, name: str, base: str | None) -> None:
        watched = self.watched_contexts
        for each in (name, base):
            if each is not None and watched.of(each):
                clones = self.sets.get(each)
                self._batched_notices.changed(
                    watched, each, self.find_context, 0 if clones is None else len(clones.clones)
                )

    def _tell_user(self, name: str, base: str | None) -> None:
        watched = self.watched_users
        for each in (name, base):
            if each is not None and watched.of(each):
                places = self.users.count(each) + self._user_sets.count(each)
                self._batched_notices.changed(watched, each, self.find_user, places)
