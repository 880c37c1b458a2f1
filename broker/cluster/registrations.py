"""Own registrations: the life of each, and what is written of it to etcd.

| state | in etcd | found here |
|---|---|---|
| CLAIMED: the session has acted, which is not written yet | any | own |
| HELD | our value | own |
| SUPERSEDED: another member has claimed the key since | theirs, and our standby | theirs |
| VACANT: nobody has the key; a restore is under way | nothing | own |
| DEPARTED: the session has ended in a drain; until the TTL | our value | own, as if held elsewhere |
| ENDED: the session has ended; the deletion is under way | our value | a standby |
| REMEMBERED: of the run before; until the grace | our value | the restored service |

`TRANSITIONS` has the events and what they lead to; any other is a defect. Each state has one kind of write:

| write | in the state | condition |
|---|---|---|
| claim | CLAIMED | the key is as it is in the table, and its owner admits that of the session |
| restore | VACANT, DEPARTED before its first write | there is no valid value |
| refresh | HELD, DEPARTED | the key is under our lease |
| standby | SUPERSEDED | none |
| delete | ENDED; the standby in all states but SUPERSEDED, CLAIMED and VACANT | the key is under our lease |

Rules:
- Only an act of a session takes a key from another member, and only while this member is in touch with etcd: a claim
  that is not written by the end of that becomes a restore. So what a member received while it was cut off evicts
  nothing that lives, and neither does a transaction that was under way for long: the key has changed since.
- An event counts only if its revision is later than that of our last confirmed write of the key.
- An entry of another member that is held (`broker.cluster.key_table`) is found, and supersedes as before: its member
  restores it. Etcd does not have it, so that a claim may take its key.
- A standby stays until the key itself is written again, so that one of the two is always there.
- A stop turns claims into restores, those of later acts too, and sessions that end from then on leave their keys
  behind.
- A remembered registration ends with its restored service (`broker.core.registered_services`), which one at another key
  may replace.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Compare, Delete, Put
from broker.cluster.key_table import Entry
from broker.cluster.layout import Keys
from broker.cluster.mirror import Shared
from broker.cluster.publisher import Publisher, Unit
from broker.core.cluster.cluster_interfaces import Key, Registration
from broker.core.model import FailingService
from broker.core.turns import PIECE


class State(enum.Enum):
    """State of an own registration; see the module."""

    CLAIMED = "claimed"
    HELD = "held"
    SUPERSEDED = "superseded"
    VACANT = "vacant"
    DEPARTED = "departed"
    ENDED = "ended"
    REMEMBERED = "remembered"
    GONE = "gone"
    """There is no such registration any more."""


class Happens(enum.Enum):
    """Event in the life of an own registration. The last three are found by `Registrations.reconcile`."""

    ACT = "the session offers or changes the service"
    WRITTEN = "our write of the key is confirmed"
    PUT = "another member has put the key"
    DELETED = "the key is gone, or has no valid value"
    ENDS = "the session ends, or withdraws the service"
    DEPARTS = "the session ends in a drain, or in a stop"
    TIME = "the TTL of a departed one, or the grace, has passed; a remembered one is withdrawn"
    LATE = "this member stops, or has lost touch with etcd"
    READ_OURS = "the key is ours in the table of a new session with etcd"
    READ_THEIRS = "the key is another member's there"
    READ_NOTHING = "the key is not there"


_S, _H = State, Happens
_READ = {_H.READ_OURS: _S.HELD, _H.READ_THEIRS: _S.SUPERSEDED, _H.READ_NOTHING: _S.VACANT}

TRANSITIONS: Mapping[State, Mapping[Happens, State]] = {
    _S.CLAIMED: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.HELD,
        _H.PUT: _S.SUPERSEDED,
        _H.ENDS: _S.ENDED,
        _H.DEPARTS: _S.DEPARTED,
        _H.LATE: _S.VACANT,
        **_READ,
    },
    _S.HELD: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.HELD,
        _H.PUT: _S.SUPERSEDED,
        _H.DELETED: _S.VACANT,
        _H.ENDS: _S.ENDED,
        _H.DEPARTS: _S.DEPARTED,
        **_READ,
    },
    _S.SUPERSEDED: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.HELD,
        _H.PUT: _S.SUPERSEDED,
        _H.DELETED: _S.VACANT,
        _H.ENDS: _S.GONE,
        _H.DEPARTS: _S.GONE,
        **_READ,
    },
    _S.VACANT: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.HELD,
        _H.PUT: _S.SUPERSEDED,
        _H.DELETED: _S.VACANT,
        _H.ENDS: _S.ENDED,
        _H.DEPARTS: _S.DEPARTED,
        **_READ,
    },
    _S.DEPARTED: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.DEPARTED,
        _H.PUT: _S.GONE,
        _H.DELETED: _S.GONE,
        _H.TIME: _S.ENDED,
        _H.READ_OURS: _S.DEPARTED,
        _H.READ_THEIRS: _S.GONE,
        _H.READ_NOTHING: _S.GONE,
    },
    _S.ENDED: {
        _H.ACT: _S.CLAIMED,
        _H.WRITTEN: _S.GONE,
        _H.PUT: _S.GONE,
        _H.DELETED: _S.GONE,
        _H.READ_OURS: _S.ENDED,
        _H.READ_THEIRS: _S.GONE,
        _H.READ_NOTHING: _S.GONE,
    },
    _S.REMEMBERED: {
        _H.ACT: _S.CLAIMED,
        _H.PUT: _S.GONE,
        _H.DELETED: _S.GONE,
        _H.TIME: _S.ENDED,
        _H.READ_OURS: _S.REMEMBERED,
        _H.READ_THEIRS: _S.GONE,
        _H.READ_NOTHING: _S.GONE,
    },
}
"""The next state by state and event. A confirmed claim is SUPERSEDED at once if the table has a later value."""


@attrs.define(eq=False)
class Own:
    """An own registration. ``acts`` counts the acts of its sessions, ``written`` is the revision of the last confirmed
    write of the key, 0 before. ``last`` is the registration of a session that has ended, ``reported`` the report of its
    check in the last value."""

    state: State
    acts: int = 0
    written: int = 0
    last: Registration | None = None
    reported: FailingService | None = None


class Registrations:
    """Own registrations of the member ``name`` in ``registry``, an `IMirror`; `OwnRegistrations`.

    ``lease`` returns the present lease, ``draining`` whether this member drains. ``show`` brings the registry and the
    record to the present state of keys, soon. ``seconds`` is the TTL, ``interval`` are the least seconds between two
    writes for another reason of a service that fails already.
    """

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        publisher: Publisher,
        keys: Keys,
        name: str,
        clock: IReactorTime,
        seconds: float,
        interval: float,
        lease: Callable[[], int],
        draining: Callable[[], bool],
        show: Callable[[Iterable[Key]], None],
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._publisher = publisher
        self._keys = keys
        self._name = name
        self._clock = clock
        self._seconds = seconds
        self._interval = interval
        self._lease = lease
        self._draining = draining
        self._show = show
        self._own: dict[Key, Own] = {}
        """As many as the registry has own registrations, and those that have ended within the TTL or the grace."""
        self._unconfirmed: dict[Key, None] = {}
        """The keys in CLAIMED: few, where a loss of touch would otherwise look at all own registrations."""
        self._departed: dict[Key, float] = {}
        """Ends of the times of departed ones, the earliest first."""
        self._departed_timer: IDelayedCall | None = None
        self._restated: dict[Key, None] = {}
        """Other reasons that are to be written at the end of an interval."""
        self._restated_timer: IDelayedCall | None = None
        self._remembered: list[Key] = []
        """The keys that `remember` has found."""
        self._stopped = False
        self.repairs = 0
        """Own keys that were written again after they had vanished."""
        self._unread: dict[Key, None] = {}
        """Keys that `reconcile` has not come to yet."""
        self._lost = False
        """True if the keys of the former session went with its lease."""
        registry.own_registrations = self

    # for the other parts

    def state(self, key: Key) -> State:
        """Return the state of a registration."""
        own = self._own.get(key)
        return State.GONE if own is None else own.state

    def is_superseded(self, key: Key) -> bool:
        """Return True if another member has the key."""
        own = self._own.get(key)
        return own is not None and own.state is State.SUPERSEDED

    def departed(self, key: Key) -> Registration | None:
        """Return a departed registration, None if there is none at a key."""
        own = self._own.get(key)
        return own.last if own is not None and own.state is State.DEPARTED else None

    @property
    def departing(self) -> int:
        """Number of departed registrations."""
        return len(self._departed)

    def remember(self) -> None:
        """Keep the keys of the table that are ours and have no session: they are from before a restart, and end with
        their restored services."""
        table = self._shared.table
        found: list[Registration] = []
        for key in table.of(self._name):
            entry = table.valid(key)
            if key not in self._own and entry is not None and entry.broker == self._name:
                self._own[key] = Own(State.REMEMBERED, written=entry.modified)
                self._remembered.append(key)
                found.append(entry.registration)
        self._registry.remember(found)

    def reconcile(self, lost: bool) -> Iterator[None]:
        """Reconcile all registrations with what a new session with etcd has read, in steps, while the publisher pauses.
        With ``lost`` the keys ended with the lease. An event of a registration reconciles it before its step."""
        self._lost = lost
        # Dicts that are made of dicts take over the hashes: 1 ms in place of 14 for a set of 50,000 keys.
        self._unread = dict.fromkeys(self._own) | self._shared.table.of(self._name)
        while self._unread:
            for _ in range(PIECE):
                if self._unread:
                    self._reconcile_one(self._unread.popitem()[0])
            yield

    def touched(self, keys: Mapping[Key, int]) -> None:
        """Take note of changes of the table, with their revisions."""
        table = self._shared.table
        for key, revision in keys.items():
            self._read(key)
            own = self._own.get(key)
            there = table.entries.get(key)
            if own is None and key not in table.standbys and (there is None or there.broker != self._name):
                continue  # as most are: of other members
            entry = table.valid(key)
            if own is None:
                if entry is not None and entry.broker == self._name:
                    self._adopt(key)
                self._check_standby(key)
                continue
            late = revision > own.written
            if entry is not None and entry.broker == self._name:
                own.written = max(own.written, entry.modified)
                if own.state in (State.SUPERSEDED, State.VACANT):
                    self._step(key, Happens.WRITTEN)
                self._check_provider(key, entry)
            elif late and (entry is None or not table.is_held(entry)):
                unwritten, own.written = not own.written, 0
                if own.state is State.CLAIMED:
                    pass  # its write is under way
                elif entry is not None:
                    self._step(key, Happens.PUT)
                elif own.state is State.DEPARTED and unwritten:
                    self._mark(key)
                else:
                    # With the key of this member itself, the lease has ended: that is for the session.
                    self.repairs += own.state is State.HELD and self._name in table.members
                    self._step(key, Happens.DELETED)
            self._check_standby(key)

    def begin_stop(self) -> None:
        """This member stops: nothing replaces what another one has."""
        self._stopped = True
        self.lost_touch()

    def lost_touch(self) -> None:
        """This member was not in touch with etcd: what it has not written takes nothing from another one."""
        for key in list(self._unconfirmed):
            self._step(key, Happens.LATE)

    def stop(self) -> None:
        """Follow the registry no more. Idempotent."""
        self._stopped = True
        self._registry.own_registrations = None
        for timer in (self._departed_timer, self._restated_timer):
            if timer is not None:
                timer.cancel()
        self._departed_timer = self._restated_timer = None

    # OwnRegistrations

    def acted(self, key: Key) -> None:
        """See `OwnRegistrations`."""
        self._read(key)
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = Own(State.CLAIMED)
            self._unconfirmed[key] = None
        else:
            self._step(key, Happens.ACT)
        own.acts += 1
        own.last = None
        self._departed.pop(key, None)
        self._mark(key)
        if self._stopped:
            self._step(key, Happens.LATE)

    def refreshed(self, key: Key) -> None:
        """See `OwnRegistrations`."""
        own = self._own.get(key)
        if own is not None:
            self._mark_standby(key) if own.state is State.SUPERSEDED else self._mark(key)

    def restated(self, key: Key) -> None:
        """See `OwnRegistrations`."""
        self._restated[key] = None
        if self._restated_timer is None and not self._stopped:
            self._restated_timer = self._clock.callLater(self._interval, self._restate)

    def ended(self, last: Registration, why: str) -> Registration | None:
        """See `OwnRegistrations`."""
        key = last.key
        self._read(key)
        own = self._own.get(key)
        if own is None:
            return None
        own.last = attrs.evolve(last, provider=attrs.evolve(last.provider, broker=self._name))
        if not self._stopped and not (why == "left" and self._draining()):
            self._step(key, Happens.ENDS)
            return None
        if self._step(key, Happens.DEPARTS) is not State.DEPARTED or self._stopped:
            return None
        self._departed[key] = self._clock.seconds() + self._seconds
        if self._departed_timer is None:
            self._departed_timer = self._clock.callLater(self._seconds, self._departures)
        return own.last

    def forgotten(self, key: Key) -> None:
        """See `OwnRegistrations`."""
        if self._stopped:
            return  # the store keeps it for the next start, too
        self._read(key)
        if self.state(key) is State.REMEMBERED:
            self._step(key, Happens.TIME)
        elif self._shared.table.other(key, self._name) is None:
            # The keys of the run before may not have been read yet.
            self._adopt(key)

    def none_remembered(self) -> None:
        """See `OwnRegistrations`."""
        if self._stopped:
            return
        # Two restored services may have had one place, where one is found.
        remembered, self._remembered = self._remembered, []
        for key in remembered:
            if self.state(key) is State.REMEMBERED:
                self._step(key, Happens.TIME)

    # internal: states

    def _read(self, key: Key) -> None:
        """Bring a registration to what the session has read, unless it is."""
        if key in self._unread:
            del self._unread[key]
            self._reconcile_one(key)

    def _reconcile_one(self, key: Key) -> None:
        """Bring a registration to what the session has read."""
        table, own = self._shared.table, self._own.get(key)
        entry = table.valid(key)
        ours = entry is not None and entry.broker == self._name
        if own is None:
            pass
        elif self._lost and own.state in (State.DEPARTED, State.ENDED, State.REMEMBERED):
            own.written = 0
            self._step(key, Happens.READ_NOTHING)
        elif entry is not None and ours:
            own.written = entry.modified
            self._step(key, Happens.READ_OURS)
            self._check_provider(key, entry)
        elif entry is not None and (not table.is_held(entry) or own.state is State.SUPERSEDED):
            # The member whose entry is held restores it. Ours, which it has replaced, would come first by chance.
            own.written = 0
            self._step(key, Happens.READ_THEIRS)
        elif own.state is State.DEPARTED and not own.written:
            self._mark(key)
        else:
            own.written = 0
            self._step(key, Happens.READ_NOTHING)
        if ours:
            self._adopt(key)
        # Standbys went with the lease, too.
        self._check_standby(key)

    def _step(self, key: Key, event: Happens) -> State:
        """Bring a registration to its next state, and mark what has to be written in it. Returns the state."""
        own = self._own[key]
        before = own.state
        own.state = TRANSITIONS[before][event]
        if own.state is before:
            if own.state is State.VACANT:
                self._mark(key)
            return before
        if before is State.DEPARTED:
            self._departed.pop(key, None)
        elif before is State.CLAIMED:
            del self._unconfirmed[key]
        if own.state is State.CLAIMED:
            self._unconfirmed[key] = None
        elif own.state is State.GONE:
            del self._own[key]
        elif own.state in (State.VACANT, State.ENDED):
            self._mark(key)
        self._check_standby(key)
        behind = own.state is State.ENDED and key in self._shared.table.standbys
        if behind or {before, own.state} & {State.SUPERSEDED, State.DEPARTED}:
            self._show((key,))
        return own.state

    def _adopt(self, key: Key) -> None:
        """Delete a key of this member that has no session."""
        if key not in self._own:
            self._own[key] = Own(State.ENDED)
            self._mark(key)

    def _check_provider(self, key: Key, entry: Entry) -> None:
        """Write our value again if it is that of an earlier session."""
        own = self._own.get(key)
        if own is not None and own.state in (State.HELD, State.VACANT):
            now = self._registry.own(key)
            if now is not None and now.provider.id != entry.provider:
                self._mark(key)

    def _departures(self) -> None:
        self._departed_timer = None
        now = self._clock.seconds()
        for key in [key for key, end in self._departed.items() if end <= now]:
            del self._departed[key]
            self._step(key, Happens.TIME)
        if self._departed:
            first = next(iter(self._departed.values()))
            self._departed_timer = self._clock.callLater(max(0.0, first - now), self._departures)

    def _restate(self) -> None:
        self._restated_timer = None
        restated, self._restated = self._restated, {}
        for key in restated:
            own, now = self._own.get(key), self._registry.own(key)
            if own is not None and now is not None and now.failing != own.reported:
                self.refreshed(key)

    # internal: writes

    def _mark(self, key: Key) -> None:
        self._publisher.mark(("s", key), lambda: self._build(key))

    def _mark_standby(self, key: Key) -> None:
        self._publisher.mark(("t", key), lambda: self._build_standby(key))

    def _check_standby(self, key: Key) -> None:
        """Write or delete our standby, if the table does not have it as it should be."""
        state = self.state(key)
        if state not in (State.CLAIMED, State.VACANT):
            mine = self._shared.table.standbys.get(key, {}).get(self._name)
            has = mine is not None and mine.lease == self._lease()
            now = self._registry.own(key) if has and state is State.SUPERSEDED else None
            # One of before a restart has the provider of an earlier session.
            if has is not (state is State.SUPERSEDED) or (now and mine and now.provider.id != mine.provider):
                self._mark_standby(key)

    def _value(self, key: Key, own: Own) -> bytes | None:
        registration = own.last or self._registry.own(key)
        if registration is None:
            return None
        own.reported = registration.failing
        return layout.registration_value(registration, self._name)

    def _build(self, key: Key) -> Unit | None:
        """Return the write of a registration in its present state."""
        own = self._own.get(key)
        if own is None:
            return None
        where, lease = self._keys.registration(key), self._lease()
        ours = Compare("LEASE", where, lease)
        if own.state is State.ENDED:
            return Unit(Delete(where), ours, lambda revision, held: self._deleted(key, own))
        value = self._value(key, own)
        if value is None or own.state in (State.SUPERSEDED, State.REMEMBERED):
            return None
        put = Put(where, value, lease)
        if own.state is State.CLAIMED:
            return self._claim(key, own, put)
        if own.state is State.HELD or own.written:
            condition = ours
        else:
            condition = Compare("MOD", where, self._shared.table.obstacle(key))
        return Unit(put, condition, lambda revision, held: self._written(key, own, revision, held))

    def _claim(self, key: Key, own: Own, put: Put) -> Unit | None:
        """Return the write of an act. One of another owner than that of the present value gives way to that."""
        table, acts = self._shared.table, own.acts
        entry, now = table.valid(key), self._registry.own(key)
        other = entry is not None and entry.broker != self._name and not table.is_held(entry)
        theirs = entry.registration.provider if entry is not None and other else None
        if theirs is not None and now is not None and not theirs.owner.admits(now.provider.owner):
            self._step(key, Happens.PUT)
            return None
        seen = max(table.modified(key), own.written)
        condition = Compare("MOD", put.key, seen)
        return Unit(put, condition, lambda revision, held: self._claimed(key, own, acts, seen, revision, held))

    def _claimed(self, key: Key, own: Own, acts: int, seen: int, revision: int, held: bool) -> None:
        if held:
            own.written = max(own.written, revision)
        if self._own.get(key) is not own or own.acts != acts or own.state is not State.CLAIMED:
            return
        if held:
            self._step(key, Happens.WRITTEN)
            self._look(key, own)
        elif self._shared.table.modified(key) != seen:
            self._mark(key)
        else:
            self._repeat(key)

    def _written(self, key: Key, own: Own, revision: int, held: bool) -> None:
        if held:
            own.written = max(own.written, revision)
        if self._own.get(key) is not own:
            return
        if own.state in (State.CLAIMED, State.ENDED) or self._look(key, own):
            return
        if held:
            self._step(key, Happens.WRITTEN)
        elif own.state in (State.VACANT, State.DEPARTED):
            self._repeat(key)

    def _look(self, key: Key, own: Own) -> bool:
        """Return True if the table has a later value of another member, which supersedes the own one."""
        table = self._shared.table
        entry = table.valid(key)
        if entry is None or table.is_held(entry) or entry.broker == self._name or entry.modified <= own.written:
            return False
        if own.state is not State.CLAIMED:
            self._step(key, Happens.PUT)
        return True

    def _deleted(self, key: Key, own: Own) -> None:
        if self._own.get(key) is own and own.state is State.ENDED:
            self._step(key, Happens.WRITTEN)

    def _repeat(self, key: Key) -> None:
        self._publisher.repeat(("s", key), lambda: self._build(key))

    def _build_standby(self, key: Key) -> Unit | None:
        own = self._own.get(key)
        where, lease = self._keys.standby(key, self._name), self._lease()
        if own is not None and own.state is State.SUPERSEDED:
            value = self._value(key, own)
            return None if value is None else Unit(Put(where, value, lease))
        if own is not None and own.state in (State.CLAIMED, State.VACANT):
            return None
        return Unit(Delete(where), Compare("LEASE", where, lease))
