"""Tables of the director: multimaps, watches, clones, capacities of closed contexts, and their cleaning.

Rate limit for notices about names that stand for many places.

A notice lists all places of its name: for a clone set of ten thousand it has 250 kB, and the end of the set's server
would send ten thousand of them.

Rules:
- While a name stands for up to `MAX_UNBATCHED` places, each change sends its notice at once.
- Beyond that, the name has at most one notice in `BATCH_INTERVAL` seconds, with the state at that time. One turn of the
  reactor sends one such notice.
- A notice that is sent at once cancels a pending one: the last notice of a name is always its latest state.

`broker.core.director.presence` reports the changes.

Capacities of contexts, remembered while the contexts are closed.

Without a hint, a burst of reservations for a closed context could not be counted against its capacity: `placement`
would direct them all to one server. The table is bounded by `MAX_CAPACITY_HINTS`; the least recently reported hint is
dropped first.

Incremental cleanup of departed servers: a bounded part in each turn of the reactor.

Rules:
- Small servers are cleaned up at once. For large ones, one turn executes `STEPS_PER_TURN` steps, in the order in which
  the servers left. All servers share the steps of one turn, so that a thousand small servers that leave together do not
  stall the reactor either.
- Code that needs a part cleaned up earlier does that part itself. A step that finds nothing to do is a no-op.

`farm` supplies the steps.

The file is longer than others: it has all tables that the parts of the director share.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.director.director_interfaces import UNLIMITED, PlaceWatcher
from broker.core.director.farm_state import (
    MAX_CAPACITY_HINTS,
    MAX_PROTOCOL_PROBES,
    MAX_WATCHES,
    OpenContext,
    Server,
    context_set,
)
from broker.core.errors import Reason, Refusal
from broker.core.model import Policy
from broker.core.watches import Notifier

# Multimaps for tables in which a key usually has one value. They serve the tables of `presence` and `reservations`.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
T = TypeVar("T")


SPARSE, LARGE = 8, 10_000
"""A table that once had more than ``LARGE`` keys is copied when fewer than one in ``SPARSE`` are left: a dictionary
never shrinks by itself, and the entries of 130,000 users of one anonymous peer kept 17 MiB. A copy takes a millisecond
at most."""


class _Keys(Generic[K, T]):
    """The dictionary of a multimap."""

    __slots__ = ("_most", "_values")

    def __init__(self) -> None:
        self._values: dict[K, T] = {}
        self._most = 0

    def _delete(self, key: K) -> None:
        values = self._values
        self._most = max(self._most, len(values))
        del values[key]
        if self._most > LARGE and len(values) * SPARSE < self._most:
            self._values = dict(values)
            self._most = len(values)


class MultiMap(_Keys[K, "V | OrderedDict[V, None]"], Generic[K, V]):
    """Values by key: each value once, in insertion order; the first one is found in constant time.

    A single value is stored without a container, which takes a fifth of the memory.
    """

    __slots__ = ()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys."""
        return iter(self._values)

    def add(self, key: K, value: V) -> bool:
        """Add a value that the key does not have. Returns True if it is the key's first."""
        values = self._values.setdefault(key, value)
        if values is value:
            return True
        if isinstance(values, OrderedDict):
            values[value] = None
        else:
            self._values[key] = OrderedDict(((values, None), (value, None)))
        return False

    def remove(self, key: K, value: V) -> bool:
        """Remove a value that the key has. Returns True if it was the key's last."""
        values = self._values[key]
        if not isinstance(values, OrderedDict):
            self._delete(key)
            return True
        del values[value]
        if len(values) == 1:
            self._values[key] = next(iter(values))
        return False

    def count(self, key: K) -> int:
        """Return the number of values of the key."""
        values = self._values.get(key)
        if values is None:
            return 0
        return len(values) if isinstance(values, OrderedDict) else 1

    def first(self, key: K) -> V | None:
        """Return the value that was added first, or None."""
        values = self._values.get(key)
        return next(iter(values)) if isinstance(values, OrderedDict) else values

    def all(self, key: K) -> tuple[V, ...]:
        """Return all values of the key."""
        values = self._values.get(key)
        if values is None:
            return ()
        return tuple(values) if isinstance(values, OrderedDict) else (values,)


class CountedMultiMap(_Keys[K, "V | dict[V, int]"], Generic[K, V]):
    """A multimap that counts: a value may be added several times, and remains until it is removed as often."""

    __slots__ = ()

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys."""
        return iter(self._values)

    def add(self, key: K, value: V) -> None:
        """Add a value once more."""
        values = self._values.get(key)
        if values is None:
            self._values[key] = value
        elif isinstance(values, dict):
            values[value] = values.get(value, 0) + 1
        elif values == value:
            self._values[key] = {value: 2}
        else:
            self._values[key] = {values: 1, value: 1}

    def remove(self, key: K, value: V) -> None:
        """Remove one occurrence of a value that the key has."""
        values = self._values[key]
        if not isinstance(values, dict):
            self._delete(key)
            return
        values[value] -= 1
        if not values[value]:
            del values[value]
            if not values:
                self._delete(key)

    def count(self, key: K) -> int:
        """Return the number of different values of the key."""
        values = self._values.get(key)
        if values is None:
            return 0
        return len(values) if isinstance(values, dict) else 1

    def all(self, key: K) -> tuple[V, ...]:
        """Return the different values of the key, in the order in which they were added first."""
        values = self._values.get(key)
        if values is None:
            return ()
        return tuple(values) if isinstance(values, dict) else (values,)


# Watches by name and by watcher. `presence` has one such table for contexts, and one for users.


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


MAX_UNBATCHED = 64
"""Places up to which each change sends a notice: 2 KB, encoded in some ten microseconds."""

BATCH_INTERVAL = 1.0
"""Seconds between two notices of one large name: people cannot follow more, and programs request a dump."""


class BatchedNotices:
    """Pending notices of large names, and the timer that sends them."""

    def __init__(self, clock: IReactorTime, notifier: Notifier) -> None:
        self._clock = clock
        self._notifier = notifier
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
            self._notify(watched, name, find)
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
                self._notify(*key, find)
                self._notifier.deliver()
                break
        self._running = bool(self._now or self._due)
        if self._running:
            # A turn between two large notices lets the reactor serve connections.
            self._clock.callLater(0 if self._now else BATCH_INTERVAL, self._turn)

    def _notify(self, watched: WatchTable, name: str, find: Callable[[str], object]) -> None:
        watchers = watched.of(name)
        if watchers:
            # One object for all watchers, which is encoded once (see `interfaces`).
            place = find(name)
            for watcher in watchers:
                self._notifier.add(watcher, place)


@attrs.frozen
class CapacityHint:
    """The capacity of a context, or of one clone in a clone set (``cloned``), in users; -1 is unlimited."""

    cloned: bool
    room: int


class CapacityHints:
    """The capacities that contexts and clone sets had when they were last reported."""

    def __init__(self) -> None:
        self._shapes: OrderedDict[str, CapacityHint] = OrderedDict()

    def get(self, name: str) -> CapacityHint | None:
        """Return the hint for a context or a clone set, or None if the table has none."""
        return self._shapes.get(name)

    def remember(self, context: OpenContext) -> None:
        """Record the capacity of an open context, under its clone set's name if it is a clone."""
        base = context_set(context.name)
        name = base or context.name
        cloned = base is not None and context.basecap >= 0
        # A clone invites users up to the lower of both: the next clone opens beyond ``basecap``.
        rooms = [room for room in (context.maxcap, context.basecap) if room >= 0] if cloned else [context.maxcap]
        room = min(rooms, default=UNLIMITED)
        if not cloned and room < 0:
            # As without a hint. Ten thousand names that say nothing would keep the pages of a burst of contexts.
            self._shapes.pop(name, None)
            return
        self._shapes[name] = CapacityHint(cloned, room)
        self._shapes.move_to_end(name)
        if len(self._shapes) > MAX_CAPACITY_HINTS:
            self._shapes.popitem(last=False)


# The clones of one context, with constant-time choice of a clone that has room.


class CloneSet:
    """The open clones of a context.

    The clone that has had room for the longest time is chosen. Another server is used only when the first one has no
    clone with room left.
    """

    def __init__(self) -> None:
        self.clones: dict[str, OpenContext] = {}
        """All clones by name, in the order in which they opened."""
        self.servers: dict[Server, int] = {}
        """Number of clones on each server."""
        self._rooms: dict[Server, OrderedDict[OpenContext, None]] = {}
        """The clones that have room, by server; servers without such a clone are absent."""
        self._ready: OrderedDict[Server, None] = OrderedDict()
        """The servers of ``_rooms``, without those that `first` set aside because they are full."""

    def add(self, context: OpenContext) -> None:
        """Add a clone that has opened."""
        self.clones[context.name] = context
        self.servers[context.server] = self.servers.get(context.server, 0) + 1
        context.clone_group = self
        self.refresh(context)

    def remove(self, context: OpenContext) -> bool:
        """Remove a clone that has closed. Returns True if it was the last one."""
        context.clone_group = None
        self._take(context)
        del self.clones[context.name]
        left = self.servers.pop(context.server) - 1
        if left:
            self.servers[context.server] = left
        return not self.clones

    def refresh(self, context: OpenContext) -> None:
        """Update the tables after a change of the clone's users, reservations, capacity or gate."""
        if not context.inviting:
            self._take(context)
            return
        rooms = self._rooms.get(context.server)
        if rooms is None:
            self._rooms[context.server] = OrderedDict(((context, None),))
            self._ready[context.server] = None
        elif context not in rooms:
            rooms[context] = None

    def take_back(self, server: Server) -> None:
        """Return a server that is not full any more to the choice."""
        if server in self._rooms:
            self._ready[server] = None

    def first(self, protocol: str) -> OpenContext | None:
        """Return a clone with room on a server that is not full, or None.

        A clone whose server speaks ``protocol`` and has no failing health check is preferred among the first
        `MAX_PROTOCOL_PROBES` servers.
        """
        found: OpenContext | None = None
        failing: OpenContext | None = None
        looks = 0
        while looks < min(len(self._ready), MAX_PROTOCOL_PROBES):
            server = next(iter(self._ready))
            if server.full:
                # Set aside until `Server.room_made` calls `take_back`: no later choice meets it before it has room.
                del self._ready[server]
                server.room_waiters[self] = None
                continue
            context = next(iter(self._rooms[server]))
            if protocol in server.addresses:
                if server.policy is Policy.SHOW:
                    return context
                failing = failing or context
            found = found or context
            looks += 1
            # Rotation: a farm in which the first servers lack the protocol does not probe the same ones each time.
            self._ready.move_to_end(server)
        return failing or found

    def _take(self, context: OpenContext) -> None:
        """Remove a clone that has no room, or that has closed, from the choice."""
        server = context.server
        rooms = self._rooms.get(server)
        if rooms is None or context not in rooms:
            return
        del rooms[context]
        if not rooms:
            del self._rooms[server]
            self._ready.pop(server, None)
            server.room_waiters.pop(self, None)


STEPS_PER_TURN = 1_500
"""Users, contexts and reservations that are removed in one turn: 3 to 8 ms, and some more for their notices."""


class Cleanup:
    """Queue of pending cleanup work."""

    log = Logger()

    def __init__(self, clock: IReactorTime, notifier: Notifier) -> None:
        self._clock = clock
        self._notifier = notifier
        self._work: deque[Iterator[None]] = deque()
        self._left = STEPS_PER_TURN
        """Steps that the present turn may still execute."""
        self._due = False

    def add(self, work: Iterator[None]) -> None:
        """Queue work of which each step removes one user, context or reservation.

        As many steps as this turn has left are executed at once; the caller then delivers their notices.
        """
        self._work.append(work)
        self._go_on()
        if not self._due:
            self._due = True
            self._clock.callLater(0, self._turn)

    def _go_on(self) -> None:
        while self._work and self._left > 0:
            try:
                self._left -= sum(1 for _ in islice(self._work[0], self._left))
            except Exception:
                # A defect in one server's cleanup ends that cleanup only; the next servers are still cleaned up.
                self.log.failure("the cleanup of a departed server failed")
                self._work.popleft()
            else:
                if self._left > 0:
                    self._work.popleft()

    def _turn(self) -> None:
        self._left = STEPS_PER_TURN
        self._due = bool(self._work)
        if self._due:
            self._clock.callLater(0, self._turn)
            self._go_on()
            self._notifier.deliver()
