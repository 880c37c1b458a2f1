"""Fake etcd of three members, as the real one was measured: keys with revisions, leases, watches, faults.

It keeps the data once, since etcd is linearizable; members differ in what they can reach only. `FakeEtcd.client`
makes an `IEtcd`, whose calls and answers are delayed and lost by chance; see `tests.cluster.simulation.fake_client`.

Faults are methods: `kill` and `restart`, `pause` and `resume`, `isolate` and `rejoin` a member, `lose_leader`,
`compact`, `wipe`, `fill` and `drain_alarm`, `vanish` of a lease. The same seed and calls give the same history.

The file is longer than others: the state of etcd and the requests that change it are one model.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster.etcd.etcd_interface import (
    MAX_OPERATIONS,
    MAX_REQUEST,
    BadRequest,
    Compacted,
    Compare,
    Delete,
    Event,
    FutureRevision,
    Get,
    Granted,
    KeyValue,
    LeaseGone,
    Nested,
    NoSpace,
    Operation,
    Put,
    RangeResult,
    Status,
    TxnResult,
)

MEMBERS = 3
"""Members of the fake etcd: it works while two of them reach each other."""

LEAST_TTL = 2
"""Least TTL of a lease, to which etcd raises shorter ones."""

EXPIRY = (0.3, 0.5)
"""Seconds from the end of a TTL to the end of the lease."""

ELECTION = (1.1, 2.2)
"""Seconds without a leader, from its loss to the next one."""

STALE = (0.5, 2.0)
"""Seconds for which a leader that was cut off from the others goes on answering renewals, without effect."""

WATCH_END = 4.0
"""Seconds after which a member without a quorum ends its watches."""

OVERHEAD = 65
"""Bytes of the database for each write, beside key and value."""


class Stream(Protocol):
    """A watch as etcd knows it."""

    key: bytes
    end: bytes
    member: int

    def push(self, revision: int, events: Sequence[Event]) -> None:
        """Send the events of one revision."""

    def broken(self) -> None:
        """The connection ends."""


@attrs.define
class Lease:
    """A lease with its keys."""

    id: int
    ttl: int
    deadline: float
    keys: dict[bytes, None] = attrs.field(factory=dict)
    timer: IDelayedCall | None = None


@attrs.define
class Member:
    """A member of etcd: ``up`` unless it was killed, ``paused`` by SIGSTOP, ``isolated`` from the other members."""

    up: bool = True
    paused: bool = False
    isolated: bool = False
    stale_until: float = 0.0

    @property
    def healthy(self) -> bool:
        """True if it takes part."""
        return self.up and not self.paused and not self.isolated


class FakeEtcd:
    """The data and the members. ``trace`` is called with a kind and details of each thing that happens."""

    def __init__(self, clock: IReactorTime, rng: random.Random, trace: Callable[..., object] = lambda *_: None) -> None:
        self.clock = clock
        self.rng = rng
        self.trace = trace
        self.members = [Member() for _ in range(MEMBERS)]
        self.leader: int | None = 0
        self.alarm = False
        self.revision = 1
        self.compacted = 0
        self.leases: dict[int, Lease] = {}
        self.keys: dict[bytes, KeyValue] = {}
        """The present keys."""
        self.applied: list[Callable[[int, Sequence[Event]], object]] = []
        """Called with each revision and its events, when it is applied."""
        self._sorted: list[bytes] = []
        self._versions: dict[bytes, list[tuple[int, KeyValue | None]]] = {}
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._size = 0
        self._streams: list[Stream] = []
        self._election: IDelayedCall | None = None

    # reading and writing; these take effect at once

    def range(self, key: bytes, end: bytes | None = None, limit: int = 0, revision: int = 0) -> RangeResult:
        """See `IEtcd.range`."""
        if revision > self.revision:
            raise FutureRevision(f"revision {revision} is in the future")
        if 0 < revision < self.compacted:
            raise Compacted(f"revision {revision} was compacted")
        if 0 < revision < self.revision:
            found = [
                kv for each in sorted(self._versions) if _within(each, key, end) and (kv := self._at(each, revision))
            ]
        elif end is None:
            found = [self.keys[key]] if key in self.keys else []
        else:
            places = range(bisect_left(self._sorted, key), bisect_left(self._sorted, end))
            found = [self.keys[self._sorted[place]] for place in places]
        page = found[:limit] if limit else found
        return RangeResult(tuple(page), self.revision, len(page) < len(found), len(found))

    def txn(
        self, compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        """See `IEtcd.txn`."""
        for branch in (success, failure):
            _check_branch(branch)
        if max(len(compare), len(success), len(failure)) > MAX_OPERATIONS:
            raise BadRequest("too many operations in txn request")
        if self.alarm and any(isinstance(each, Put) for each in map(_operation, (*success, *failure))):
            raise NoSpace("database space exceeded")
        succeeded = all(self._holds(each) for each in compare)
        branch = success if succeeded else failure
        events: list[Event] = []
        found: list[tuple[KeyValue, ...]] = []
        nested: list[bool] = []
        executed: list[Operation] = []
        for each in branch:
            # All conditions are those of the beginning.
            if isinstance(each, Nested):
                nested.append(self._holds(each.compare))
                executed += [each.operation] * nested[-1]
            else:
                executed.append(each)
        for each in executed:
            if isinstance(each, Put) and each.lease and each.lease not in self.leases:
                raise LeaseGone(f"lease {each.lease} does not exist")
        for each in executed:
            match each:
                case Put(key, value, lease):
                    events.append(self._put(key, value, lease))
                case Delete(key, end):
                    events += [self._delete(kv.key) for kv in self.range(key, end).keys]
                case Get(key, end):
                    found.append(self.range(key, end).keys)
        self._apply(events)
        return TxnResult(succeeded, self.revision, tuple(found), tuple(nested))

    def grant(self, ttl: int) -> Granted:
        """See `IEtcd.grant`."""
        if self.alarm:
            raise NoSpace("database space exceeded")
        lease = Lease(self.rng.randrange(1, 2**62), max(LEAST_TTL, ttl), 0.0)
        self.leases[lease.id] = lease
        self._renew(lease)
        self.trace("grant", lease.id)
        return Granted(lease.id, lease.ttl)

    def keep_alive(self, id: int) -> int:
        """See `IEtcd.keep_alive`. A lease whose time is over is gone, though its keys may still be there."""
        lease = self.leases.get(id)
        if lease is None or lease.deadline <= self.clock.seconds():
            raise LeaseGone(f"lease {id} does not exist")
        lease.deadline = self.clock.seconds() + lease.ttl
        return lease.ttl

    def time_to_live(self, id: int) -> int:
        """See `IEtcd.time_to_live`."""
        lease = self.leases.get(id)
        if lease is None:
            raise LeaseGone(f"lease {id} does not exist")
        return max(0, int(lease.deadline - self.clock.seconds()))

    def revoke(self, id: int) -> None:
        """See `IEtcd.revoke`."""
        lease = self.leases.pop(id, None)
        if lease is None:
            return
        if lease.timer is not None and lease.timer.active():
            lease.timer.cancel()
        self.trace("lease ends", id)
        self._apply([self._delete(key) for key in sorted(lease.keys)])

    def compact(self, revision: int) -> None:
        """See `IEtcd.compact`."""
        if revision > self.revision:
            raise FutureRevision(f"revision {revision} is in the future")
        if revision <= self.compacted:
            return
        self.trace("compact", revision)
        self.compacted = revision
        self._history = [each for each in self._history if each[0] >= revision]
        for key, versions in list(self._versions.items()):
            newest = [each for each in versions if each[0] <= revision][-1:]
            if newest and newest[0][1] is None:
                newest = []
            kept = newest + [each for each in versions if each[0] > revision]
            if kept:
                self._versions[key] = kept
            else:
                del self._versions[key]
        self._size = sum(len(kv.key) + len(kv.value) + OVERHEAD for kv in self.keys.values())

    def status(self) -> Status:
        """See `IEtcd.status`."""
        errors = ("etcdserver: no leader",) if self.leader is None else ()
        return Status("3.4.23", self._size, self._size, errors)

    # watches

    def open(self, stream: Stream, revision: int) -> None:
        """Begin to send the changes from a revision on, 0 for the next one. Raises `Compacted`, `FutureRevision`."""
        if 0 < revision < self.compacted:
            raise Compacted(f"revision {revision} was compacted")
        if revision > self.revision + 1:
            raise FutureRevision(f"revision {revision} is in the future")
        self._streams.append(stream)
        if revision:
            for each, events in self._history:
                if each >= revision:
                    self._push(stream, each, events)
        if not self.members[stream.member].healthy:
            self._watch_end(stream)

    def close(self, stream: Stream) -> None:
        """End a watch. No-op for one that has ended."""
        if stream in self._streams:
            self._streams.remove(stream)

    def has(self, stream: Stream) -> bool:
        """Return True if a watch has not ended."""
        return stream in self._streams

    # faults

    def kill(self, member: int) -> None:
        """Kill a member: its connections end."""
        self.trace("etcd killed", member)
        self.members[member].up = False
        self.members[member].paused = False
        for stream in [each for each in self._streams if each.member == member]:
            self.close(stream)
            stream.broken()
        self._settle()

    def restart(self, member: int) -> None:
        """Start a killed member."""
        self.trace("etcd started", member)
        self.members[member].up = True
        self._settle()

    def pause(self, member: int) -> None:
        """Stop a member: its connections stay, silent."""
        self.trace("etcd paused", member)
        self.members[member].paused = True
        self._settle()

    def resume(self, member: int) -> None:
        """Have a paused member go on."""
        self.trace("etcd resumed", member)
        self.members[member].paused = False
        self._settle()

    def isolate(self, member: int) -> None:
        """Cut a member off from the other members; clients still reach it."""
        self.trace("etcd isolated", member)
        self.members[member].isolated = True
        if member == self.leader:
            self.members[member].stale_until = self.clock.seconds() + self.rng.uniform(*STALE)
        for stream in self._streams:
            if stream.member == member:
                self._watch_end(stream)
        self._settle()

    def rejoin(self, member: int) -> None:
        """Connect an isolated member with the others again."""
        self.trace("etcd rejoined", member)
        self.members[member].isolated = False
        self._settle()

    def lose_leader(self) -> None:
        """Have the members elect another leader."""
        self.trace("etcd loses its leader")
        self.leader = None
        self._settle()

    def vanish(self, lease: int) -> None:
        """End a lease although it was renewed, as a former leader that returns from a partition may do."""
        self.trace("lease vanishes", lease)
        self.revoke(lease)

    def fill(self) -> None:
        """Use up the quota of the database: writes are refused until `drain_alarm`."""
        self.trace("etcd has no space")
        self.alarm = True

    def drain_alarm(self) -> None:
        """Take the alarm of the quota back."""
        self.trace("etcd has space")
        self.alarm = False

    def wipe(self) -> None:
        """Replace all data by none, as members that start with empty disks do: all connections end."""
        self.trace("etcd wiped")
        for stream in list(self._streams):
            self.close(stream)
            stream.broken()
        for lease in self.leases.values():
            if lease.timer is not None and lease.timer.active():
                lease.timer.cancel()
        self.revision, self.compacted, self._size, self.alarm = 1, 0, 0, False
        self.leases, self.keys, self._sorted, self._versions, self._history = {}, {}, [], {}, []
        self.leader = None
        self._settle()

    # internal

    def _holds(self, compare: Compare) -> bool:
        kv = self.keys.get(compare.key)
        if kv is None:
            return compare.value == 0
        if compare.target == "LEASE":
            return kv.lease == compare.value
        return (kv.mod_revision if compare.target == "MOD" else kv.create_revision) == compare.value

    def _at(self, key: bytes, revision: int) -> KeyValue | None:
        found = None
        for each, kv in self._versions[key]:
            if each > revision:
                break
            found = kv
        return found

    def _put(self, key: bytes, value: bytes, lease: int) -> Event:
        before = self.keys.get(key)
        revision = self.revision + 1
        created = revision if before is None else before.create_revision
        kv = KeyValue(key, value, created, revision, lease)
        if before is None:
            insort(self._sorted, key)
        elif before.lease and before.lease != lease:
            self.leases[before.lease].keys.pop(key, None)
        if lease:
            self.leases[lease].keys[key] = None
        self.keys[key] = kv
        self._versions.setdefault(key, []).append((revision, kv))
        return Event(key, kv, revision)

    def _delete(self, key: bytes) -> Event:
        kv = self.keys.pop(key)
        del self._sorted[bisect_left(self._sorted, key)]
        if kv.lease in self.leases:
            self.leases[kv.lease].keys.pop(key, None)
        self._versions[key].append((self.revision + 1, None))
        return Event(key, None, self.revision + 1)

    def _apply(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.revision += 1
        self._size += sum(OVERHEAD + len(e.key) + (len(e.value.value) if e.value else 0) for e in events)
        self._history.append((self.revision, tuple(events)))
        self.trace("applied", self.revision, events)
        for told in self.applied:
            told(self.revision, events)
        for stream in list(self._streams):
            self._push(stream, self.revision, events)

    def _push(self, stream: Stream, revision: int, events: Sequence[Event]) -> None:
        wanted = [each for each in events if stream.key <= each.key < stream.end]
        if wanted:
            stream.push(revision, wanted)

    def _renew(self, lease: Lease) -> None:
        """Give a lease its full time from now on."""
        lease.deadline = self.clock.seconds() + lease.ttl
        if lease.timer is None or not lease.timer.active():
            lease.timer = self.clock.callLater(lease.ttl + self.rng.uniform(*EXPIRY), self._expire, lease)

    def _expire(self, lease: Lease) -> None:
        if self.leader is None:
            # The next leader gives it its full time.
            return
        left = lease.deadline - self.clock.seconds()
        if left > 0:
            lease.timer = self.clock.callLater(left + self.rng.uniform(*EXPIRY), self._expire, lease)
        else:
            self.revoke(lease.id)

    def _settle(self) -> None:
        """Look for a leader after a change of the members."""
        healthy = [number for number, each in enumerate(self.members) if each.healthy]
        if self.leader is not None and (self.leader not in healthy or len(healthy) <= MEMBERS // 2):
            self.leader = None
        if self.leader is None and len(healthy) > MEMBERS // 2 and self._election is None:
            self._election = self.clock.callLater(self.rng.uniform(*ELECTION), self._elect)

    def _elect(self) -> None:
        self._election = None
        healthy = [number for number, each in enumerate(self.members) if each.healthy]
        if self.leader is not None or len(healthy) <= MEMBERS // 2:
            return
        self.leader = self.rng.choice(healthy)
        self.trace("etcd elects", self.leader)
        for lease in self.leases.values():
            self._renew(lease)

    def _watch_end(self, stream: Stream) -> None:
        def end() -> None:
            if stream in self._streams and self.members[stream.member].isolated:
                self.close(stream)
                stream.broken()

        self.clock.callLater(WATCH_END, end)


def _within(key: bytes, start: bytes, end: bytes | None) -> bool:
    return key == start if end is None else start <= key < end


def _operation(each: Operation) -> Put | Delete | Get:
    return each.operation if isinstance(each, Nested) else each


def _check_branch(branch: Sequence[Operation]) -> None:
    """Raise `BadRequest` for a branch of a transaction that etcd refuses."""
    puts: set[bytes] = set()
    size = 0
    deletes = False
    operations = [_operation(each) for each in branch]
    for each in operations:
        if not each.key:
            raise BadRequest("key is not provided")
        if isinstance(each, Put):
            if each.key in puts:
                raise BadRequest("duplicate key given in txn request")
            puts.add(each.key)
            size += len(each.key) + len(each.value)
        elif isinstance(each, Delete):
            deletes = True
    if size > MAX_REQUEST:
        raise BadRequest("request is too large")
    for each in operations if deletes else ():
        if isinstance(each, Delete) and any(_within(put, each.key, each.end) for put in puts):
            raise BadRequest("duplicate key given in txn request")
