"""The places of peers: one bounded table for each listener, over one pool of descriptors for all of them.

Rules:
- A peer takes a place after it has passed admission, and gives it back when its connection begins to close. A refused
  peer has none.
- Connections that are closing still have a descriptor, and get some time to read their last output. While places or
  descriptors are scarce, at most `CLOSING` of a listener have that time, or as many as its pool has descriptors for
  besides those of places: the oldest of more are aborted, a few at a time.
- When the places of a listener, or the descriptors of the process, run out, a peer gives way to the newcomer: the
  oldest one that has not authenticated, else the one that has been idle for the longest time, of those that offer
  nothing and wait for nothing. If there is none, the newcomer is refused.
- Each address has a share: no address keeps more than half of the places while peers of others are refused, whatever
  its peers offer or wait for. And of the candidates, one of the address with the most peers gives way. A newcomer
  whose address has more peers than that is refused, so that a crowd behind one address replaces its own peers only.
  Among virtual sessions of one address, those that one connection began in numbers give way first.
- Each listener has a reserve of the pool, a part of an even share, which no other listener can take. The rest of the
  pool goes to the listeners that need it. At the end of the pool, peers of listeners within their reserve are safe.

All operations take constant time: a decision examines a bounded number of candidates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from broker.core.errors import Reason, Refusal, at_limit

K = TypeVar("K")

RESERVE = 4
"""The reserve of a listener is an even share of the pool divided by this number: so three quarters of the descriptors
go to the listeners that need them."""

LEAST = 8
"""Descriptors of a reserve where they are few: some operators and a probe of readiness still come in."""

EXAMINED = 20
"""Candidates that are compared for one decision. It costs some 15 µs, a fifth of an accept; a crowd that fills a table
is among its youngest peers."""

SHARE = 2
"""Divisor: while a table is full, an address keeps half of the places against newcomers of others."""

LOOKED_AT = 200
"""Authenticated peers that are looked at for candidates: most of them offer something, and do not give way. The next
decision looks at others."""

CLOSING = 32
"""Connections of a listener that are closing while its table is full, unless its pool has less for them."""

ABORTS = 4
"""Closing connections that are aborted for one that arrives or begins to close: fewer than a turn has time to end, so
that their descriptors are free soon. An abort over TLS takes some 50 µs besides."""

RECENT = 10.0
"""Seconds for which a table that refused or replaced a peer is reported as full: longer than the period of a readiness
probe."""

GAVE_WAY = Refusal(Reason.TOO_MANY_CONNECTIONS, "all places are taken, and this connection gives way to a new one")
NO_PLACE = at_limit("closing: all places are taken by peers that need them", "connections", Reason.TOO_MANY_CONNECTIONS)


def both_ends(ordered: OrderedDict[K, Any]) -> Iterator[K]:
    """Yield `EXAMINED` keys, half of them from each end; the first end comes first."""
    half = EXAMINED // 2
    yield from islice(ordered, half)
    yield from islice(reversed(ordered), min(half, max(0, len(ordered) - half)))


class Placed(Protocol):
    """A peer with a place. It is hashed by identity."""

    source: str
    """The address for which it counts; empty if it counts for none."""
    heard: float
    """The time of its last whole message, or of its arrival, by the clock of the table."""

    @property
    def crowd(self) -> int:
        """The number of virtual sessions of the same origin, if no connection carries this one now; otherwise 0."""

    @property
    def needed(self) -> bool:
        """True while it offers something, waits for something, or is being served."""

    def give_way(self, refusal: Refusal) -> None:
        """Close with that reason. Its place is free already."""

    def abort(self) -> None:
        """Close at once, without unsent output."""


class Pool:
    """The descriptors of the process for connections, shared by the tables that were made with it. ``size`` None is no
    limit. The closing connections of each table may use ``closing`` further ones."""

    def __init__(self, size: int | None = None, closing: int = CLOSING) -> None:
        self.size = size
        self.closing = closing
        self.tables: list[PlaceTable] = []

    def reserve(self, table: PlaceTable) -> int:
        """Return the places of a table that no other table can take."""
        assert self.size is not None
        even = self.size // len(self.tables)
        return min(table.limit, max(even // RESERVE, min(even, LEAST)))

    def has_room(self, table: PlaceTable) -> bool:
        """Return True if that table may take another descriptor."""
        if self.size is None or len(table) < self.reserve(table):
            return True
        return sum(max(each.descriptors, self.reserve(each)) for each in self.tables) < self.size

    def beyond_reserve(self) -> list[PlaceTable]:
        """Return the tables that have taken more than their reserve, the one that has taken most first."""
        beyond = [each for each in self.tables if len(each) > self.reserve(each)]
        return sorted(beyond, key=lambda each: self.reserve(each) - len(each))


class PlaceTable:
    """The places of one listener: ``limit`` peers, by the clock ``seconds``.

    A table with a ``pool`` takes a descriptor for each place; one of virtual sessions, which have none, has no pool.
    """

    def __init__(self, limit: int, seconds: Callable[[], float], pool: Pool | None = None) -> None:
        self.limit = limit
        self.displaced = 0
        """Peers that gave way."""
        self.turned_away = 0
        """Newcomers that were refused since no peer gave way."""
        self._seconds = seconds
        self._strangers: OrderedDict[Placed, None] = OrderedDict()
        """Peers that have not authenticated, in the order of their arrival."""
        self._known: OrderedDict[Placed, float] = OrderedDict()
        """All others, with the time since which they were idle when they were last moved to the end."""
        self._closing: OrderedDict[Placed, None] = OrderedDict()
        self._by_address: dict[str, int] = {}
        self._pool = pool
        self._most_closing = CLOSING if pool is None else pool.closing
        self._displaced_at = self._turned_away_at = -RECENT
        if pool is not None:
            pool.tables.append(self)

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    @property
    def descriptors(self) -> int:
        """The descriptors that count for the pool: those of places, and of closing connections beyond its own."""
        return len(self) + max(0, len(self._closing) - self._most_closing)

    @property
    def most(self) -> int:
        """The number of peers that the table can have."""
        size = None if self._pool is None else self._pool.size
        return self.limit if size is None else min(self.limit, size)

    def of(self, source: str) -> int:
        """Return the number of peers of an address."""
        return self._by_address.get(source, 0)

    @property
    def full(self) -> bool:
        """True if a newcomer gets a place only if another peer gives way."""
        return len(self) >= self.limit or (self._pool is not None and not self._pool.has_room(self))

    @property
    def trouble(self) -> str:
        """The state of a table that was full within the last `RECENT` seconds, for operators; empty otherwise."""
        now = self._seconds()
        if self.turns_away or now - self._displaced_at < RECENT:
            happens = "new ones are refused" if self.turns_away else "peers that are idle give way to new ones"
            return f"all places are taken ({len(self)} of {self.limit}): {happens}"
        return ""

    @property
    def turns_away(self) -> bool:
        """True if a newcomer was refused within the last `RECENT` seconds, since no peer gave way."""
        return self._seconds() - self._turned_away_at < RECENT

    def make_room(self, source: str) -> Refusal | None:
        """Make room for a newcomer from that address, if need be by displacing another peer. Returns the refusal of a
        newcomer without one."""
        if not self.full:
            return None
        self._hurry()
        if not self.full:
            return None
        tables = [self] if len(self) >= self.limit or self._pool is None else self._pool.beyond_reserve()
        found = self._to_displace(source, tables)
        if found is None:
            self.turned_away += 1
            self._turned_away_at = self._seconds()
            return NO_PLACE
        table, placed = found
        table.displaced += 1
        self._displaced_at = table._displaced_at = self._seconds()
        table.leave(placed)
        placed.give_way(GAVE_WAY)
        return None

    def take(self, placed: Placed, authenticated: bool) -> None:
        """Give a place to a peer that has just arrived."""
        placed.heard = self._seconds()
        if authenticated:
            self._known[placed] = placed.heard
        else:
            self._strangers[placed] = None
        self._count(placed, 1)

    def authenticated(self, placed: Placed) -> None:
        """Record that a peer has authenticated. No-op for one without a place."""
        if placed in self._strangers:
            del self._strangers[placed]
            self._known[placed] = placed.heard

    def move(self, placed: Placed, source: str) -> None:
        """Count a peer for another address from now on. No-op for one without a place."""
        if placed in self._strangers or placed in self._known:
            self._count(placed, -1)
            placed.source = source
            self._count(placed, 1)

    def refused(self, placed: Placed) -> None:
        """Record a newcomer that was refused: it has no place, and is closing."""
        self._close(placed)

    def leave(self, placed: Placed) -> None:
        """Free the place of a peer whose connection begins to close. Idempotent."""
        if self._free(placed):
            self._close(placed)

    def gone(self, placed: Placed) -> None:
        """Forget a peer whose connection is lost. Idempotent."""
        self._free(placed)
        self._closing.pop(placed, None)

    # inside

    def _close(self, placed: Placed) -> None:
        self._closing[placed] = None
        if self.full or len(self) + len(self._closing) > self.limit + self._most_closing:
            self._hurry()

    def _hurry(self) -> None:
        """Abort the oldest of too many closing connections, `ABORTS` at most."""
        left = ABORTS
        for table in [self] if self._pool is None else self._pool.tables:
            while left and len(table._closing) > table._most_closing:
                left -= 1
                table._closing.popitem(last=False)[0].abort()

    def _free(self, placed: Placed) -> bool:
        if placed in self._strangers:
            del self._strangers[placed]
        elif placed in self._known:
            del self._known[placed]
        else:
            return False
        self._count(placed, -1)
        return True

    def _count(self, placed: Placed, by: int) -> None:
        source = placed.source
        if source:
            number = self._by_address.get(source, 0) + by
            if number:
                self._by_address[source] = number
            else:
                del self._by_address[source]

    def _to_displace(self, source: str, tables: Iterable[PlaceTable]) -> tuple[PlaceTable, Placed] | None:
        """Return the peer that gives way to a newcomer of that address, and its table; None if the newcomer must."""
        for candidates in (PlaceTable._oldest_strangers, PlaceTable._idle):
            for table in tables:
                # The first one of equals is the oldest.
                found = max(candidates(table), key=lambda each: (table.of(each.source), each.crowd), default=None)
                if found is not None and table.of(found.source) >= self.of(source):
                    return table, found
        for table in tables:
            for each in islice(reversed(table._known), EXAMINED):
                if each.source != source and table.of(each.source) > table.most // SHARE:
                    return table, each
        return None

    def _oldest_strangers(self) -> Iterator[Placed]:
        """Return the oldest peers that have not authenticated, and the youngest, among which a crowd that has just
        arrived is."""
        return both_ends(self._strangers)

    def _idle(self) -> Iterator[Placed]:
        """Return peers that may give way, the longest idle first. Those that were active are moved to the end."""
        active, idle = [], []
        for placed, since in islice(self._known.items(), LOOKED_AT):
            if placed.needed or placed.heard > since:
                active.append(placed)
            else:
                idle.append(placed)
                if len(idle) == EXAMINED:
                    break
        for placed in active:
            self._known[placed] = placed.heard
            self._known.move_to_end(placed)
        if not idle:
            # All that were looked at were active since the last time.
            idle = sorted((each for each in active if not each.needed), key=lambda each: each.heard)
        return chain(idle)
