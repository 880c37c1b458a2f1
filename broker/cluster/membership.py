"""Membership: the database of etcd, the name of this member, and its lease.

Rules:
- The key ``meta`` has the version of the layout and the epoch, a random text. It is created once, together with
  ``ids``: the member that notices a loss of etcd's data first knows which ids were in use. Another epoch, or a
  lower revision than one that was seen, says that etcd's data were lost or replaced. With a lower revision of the same
  epoch (a restored backup) the epoch is changed, so that all members notice.
- A newer or an unknown older layout ends the start: this program would misunderstand the values, or damage them.
- The name is the key ``b/<name>``, created if absent, under the lease of the member.
- A member that starts again within the TTL has the same instance in its memory: it keeps name, lease and entries.
- A name under another instance belongs to a live member if its lease is renewed: its remaining time rises. One rise may
  come from a change of etcd's leader, so `RISES` are required. Otherwise the name is free after the TTL.
- An attempt to take the name whose result was unknown may have taken it: the next attempt ends the lease of that one.
- A member that finds its name under another instance later is fenced for good. A key without a lease is not a broker's:
  a member takes its name back; at the start it is refused, since an operator may know more.
- Each session writes the key again. While etcd has no space, the present lease and key suffice.
- Keepalives are sent every TTL/4; a failed one is repeated at the next endpoint.

Memory of a member across restarts, in the database of the state directory.

Rules:
- It belongs to one farm and one name: a broker with another name, or in another farm, begins without any.
- Writes happen in the thread of the disk, one at a time; the newest memory wins. A failed write is tried again.

The file is longer than others: the lease, the name and what is remembered of them change together.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import (
    Compare,
    Delete,
    EtcdError,
    Get,
    IEtcd,
    KeyValue,
    LeaseGone,
    NoSpace,
    Put,
    Unavailable,
)
from broker.cluster.layout import LAYOUT, Foreign, IdsValue, Keys, OtherLayout
from broker.cluster.settings import KEEPALIVE_RETRY, ClusterFailed, ClusterMemory, Memory
from broker.core.cluster.cluster_interfaces import Member
from broker.core.database import StateError
from broker.core.disk import DiskErrors
from broker.wall_clock import wall

RISES = 2
"""Number of times that the remaining time of a lease must rise before its holder counts as alive. A change of etcd's
leader causes one rise."""

LOOK = 0.5
"""Seconds between two checks of a lease: keepalives come every TTL/4, at least each 1.25 s."""

KEEPALIVES = 4
"""Keepalives within the TTL, so that two may fail."""

RECORDED = "@"
"""End of the identity of the row that has the time of the last record, which no name of a member has."""

INTERRUPTED = 2
"""Divisor of the TTL: without a renewal for that part of it, this member counts as interrupted. An outage that ends a
lease lasts three quarters of the TTL, since keepalives come every quarter."""

DOUBT = (2, 3.0)
"""Time after an interruption in which leases of other members may end because of it, as TTLs and seconds: a new leader
of etcd gives each lease its full time again, and both it and the watch may take some seconds."""

MAX_TRIES = 20
"""Limit of consecutive attempts of one transaction that others interfere with, before the whole join is tried again."""


MAX_ATTEMPTS = 32
"""Limit of the attempts to take the name that are remembered: more than are made within a TTL."""


@attrs.frozen
class Database:
    """The data of etcd: their epoch, the present revision, and whether they were lost or replaced since the last
    look."""

    epoch: str
    revision: int
    replaced: bool


class Membership:
    """Name and lease of a member. ``lost`` is called when the lease has ended; ``failed`` with each error of a
    keepalive, and with None when one succeeds."""

    log = Logger()

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        rng: random.Random,
        keys: Keys,
        name: str,
        ttl: int,
        describe: Callable[[str], Member],
        instance: str,
        lease: int,
        lost: Callable[[], None],
        failed: Callable[[EtcdError | None], None],
    ) -> None:
        self._etcd = etcd
        self._clock = clock
        self._rng = rng
        self._keys = keys
        self._name = name
        self._key, self._beat = keys.member(name), keys.beat(name)
        self._ttl = ttl
        self._describe = describe
        self.instance = instance
        self.lease = lease
        """The lease, 0 without one."""
        self.revision = 0
        """Revision of the last write of the member's key."""
        self._renewed = clock.seconds()
        """Time at which the last renewal that succeeded was sent; minus infinity for a start while etcd was away."""
        self._doubtful = self._renewed
        """Time until which leases of other members may end because of an interruption that has ended."""
        self.written = False
        """True if the present session has written the key, False if etcd had no space for that."""
        self.restored = False
        """True once all own registrations are written under the lease; see `layout.MemberValue`."""
        self.waiting = ""
        """Sentence while another member has, or had, the name; empty otherwise."""
        self._lost = lost
        self._failed = failed
        self._timer: IDelayedCall | None = None
        self._renewing = False
        self._attempts: deque[str] = deque(maxlen=MAX_ATTEMPTS)
        """Instances of the attempts to take the name since this run held it last."""
        self._joined = False
        """True once this run has held the name: from then on another holder fences it at once."""

    def is_doubtful(self) -> bool:
        """Return True if a lease of another member that ends now may do so because of an interruption that this member
        shares: there is no renewal now, or there was none until a while ago, as `DOUBT` has it."""
        now = self._clock.seconds()
        return now < self._doubtful or self._is_interrupted(now)

    def interrupted(self) -> None:
        """Etcd was away since the start. Nothing is known of the time before this run."""
        self._renewed = -math.inf

    # the database

    async def database(self, epoch: str, revision: int, first_id: Callable[[], int]) -> Database:
        """Read or create ``meta``. ``epoch`` and ``revision`` are the last ones that were seen, empty and 0 without
        any; ``first_id`` returns the first provider id of new data.

        Raises `ClusterFailed` for a layout that this program does not know.
        """
        for _ in range(MAX_TRIES):
            found = await self._etcd.range(self._keys.meta)
            if found.keys:
                known = _epoch(self._keys, found.keys[0])
                if known != epoch:
                    return Database(known, found.revision, epoch != "")
                if found.revision >= revision:
                    return Database(epoch, found.revision, False)
                # A restored backup: its epoch alone would not show that.
                present = found.keys[0].mod_revision
            else:
                present = 0
            new = f"{self._rng.getrandbits(128):032x}"
            put = Put(self._keys.meta, layout.meta_value(new), 0)
            ids = (await self._etcd.range(self._keys.ids)).keys
            last = ids[0].mod_revision if ids else 0
            compare = [Compare("MOD", self._keys.meta, present), Compare("MOD", self._keys.ids, last)]
            first = Put(self._keys.ids, layout.encode(IdsValue(first_id())), 0)
            # Present ids of a restored backup are raised when the next block is taken.
            result = await self._etcd.txn(compare, [put] if ids else [put, first])
            if result.succeeded:
                return Database(new, result.revision, epoch != "")
        raise Unavailable("the key meta of etcd changes all the time")

    # the name

    async def enter(self, resume: bool) -> bool:
        """Hold the name under a lease. ``resume`` allows the present lease. Returns whether it is the same lease, so
        that the entries under it are still there.

        Raises `ClusterFailed` if the name is another's, `NoSpace` if etcd has no space for another lease.
        """
        if resume and self.lease and await self._resumed():
            self._keep()
            return True
        self._forget()
        while True:
            now = self._clock.seconds()
            granted = await self._etcd.grant(self._ttl)
            before = self.instance
            self.instance = f"{self._rng.getrandbits(64):016x}"
            self._attempts.append(self.instance)
            self.restored = False
            member = layout.member_value(self._describe(self.instance), self.restored)
            holder = await self._create(granted.lease, member)
            if holder is None:
                self.lease = granted.lease
                self._note_renewal(now)
                self._joined = True
                self._attempts.clear()
                self.waiting = ""
                self._keep()
                return False
            self.instance = before
            await self._etcd.revoke(granted.lease)
            await self._look(holder)

    def leave(self) -> None:
        """Send no more keepalives. The lease ends after the TTL."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._renewing = False

    async def end(self) -> None:
        """End the lease, and with it all entries."""
        self.leave()
        lease, self.lease = self.lease, 0
        if lease:
            # Otherwise the end of a lease of a member that has just beaten would be taken for a mistake of etcd.
            await self._etcd.txn([Compare("LEASE", self._beat, lease)], [Delete(self._beat)])
            await self._etcd.revoke(lease)

    # internal

    def _is_interrupted(self, now: float) -> bool:
        return now - self._renewed > self._ttl / INTERRUPTED

    def _note_renewal(self, sent: float) -> None:
        """The lease was granted or renewed by a request that was sent at that time."""
        now = self._clock.seconds()
        if self._is_interrupted(now):
            self._doubtful = now + DOUBT[0] * self._ttl + DOUBT[1]
        self._renewed = sent

    def _forget(self) -> None:
        self.leave()
        self.lease = 0

    async def _resumed(self) -> bool:
        """Return True if the present lease still has the name, after a renewal of it."""
        now = self._clock.seconds()
        try:
            await self._etcd.keep_alive(self.lease)
        except LeaseGone:
            return False
        self._note_renewal(now)
        member = layout.member_value(self._describe(self.instance), self.restored)
        put = Put(self._key, member, self.lease)
        try:
            result = await self._etcd.txn([Compare("LEASE", self._key, self.lease)], [put], [Get(self._key)])
        except LeaseGone:
            return False
        except NoSpace:
            # The lease and the name are held all the same, and deletions are possible.
            found = (await self._etcd.range(self._key)).keys
            if not found or found[0].lease != self.lease:
                raise
            self.revision, self.written = found[0].mod_revision, False
        else:
            if not result.succeeded:
                return False
            self.revision, self.written = result.revision, True
        self._joined = True
        self.waiting = ""
        return True

    async def _create(self, lease: int, member: bytes) -> KeyValue | None:
        """Create the key of this member. Returns None, or the key as another holder has it."""
        put = Put(self._key, member, lease)
        unknown = False
        present = 0
        while True:
            try:
                result = await self._etcd.txn([Compare("MOD", self._key, present)], [put], [Get(self._key)])
            except Unavailable as error:
                if unknown or not error.unknown:
                    raise
                unknown = True
                continue
            if result.succeeded:
                self.revision, self.written = result.revision, True
                return None
            holder = result.found[0][0] if result.found and result.found[0] else None
            present = 0 if holder is None else holder.mod_revision
            if holder is None:
                continue
            if holder.lease == lease:
                self.revision, self.written = holder.mod_revision, True
                return None
            # A key without a lease is no broker's: another program has overwritten that of this member.
            if holder.lease or not self._joined:
                return holder

    async def _look(self, holder: KeyValue) -> None:
        """Return when the name is free. Raises `ClusterFailed` if its holder is alive."""
        if holder.lease == 0:
            raise ClusterFailed(
                f"the key {self._key.decode()} in etcd has no lease, so it was not written by a broker: delete it"
            )
        try:
            other, _ = layout.member(self._name, holder.value)
            instance, link = other.instance, other.link
        except Foreign:
            instance = link = ""
        if instance in self._attempts:
            await self._etcd.revoke(holder.lease)
            return
        where = f" at {link}" if link else ""
        taken = ClusterFailed(
            f"another broker{where} has the name {self._name}: give this one another name, or stop the other one"
        )
        if self._joined and instance != self.instance:
            raise taken
        self.waiting = f"the name {self._name} is held by another broker{where}, or by one that ended a moment ago"
        rises = 0
        last: int | None = None
        while rises < RISES:
            try:
                left = await self._etcd.time_to_live(holder.lease)
            except LeaseGone:
                return
            if last is not None and left > last:
                rises += 1
            last = left
            await deferLater(self._clock, LOOK)
        raise taken

    def _keep(self) -> None:
        if self._timer is None and not self._renewing:
            self._timer = self._clock.callLater(self._ttl / KEEPALIVES, self._renew)

    def _renew(self) -> None:
        self._timer = None
        self._renewing = True
        lease, now = self.lease, self._clock.seconds()
        renewal: Deferred[int] = self._etcd.keep_alive(lease)

        def renewed(ttl: int) -> None:
            if lease == self.lease and self._renewing:
                self._renewing = False
                self._note_renewal(now)
                self._keep()
                self._failed(None)

        def not_renewed(failure: Failure) -> None:
            error = failure.value
            if not isinstance(error, EtcdError):
                failure.raiseException()
            if lease != self.lease or not self._renewing:
                return
            self._renewing = False
            if isinstance(error, LeaseGone):
                self._forget()
                self._lost()
                return
            self._etcd.change_endpoint()
            self._timer = self._clock.callLater(KEEPALIVE_RETRY, self._renew)
            self._failed(error)

        renewal.addCallbacks(renewed, not_renewed).addErrback(
            lambda failure: self.log.failure("cluster: a keepalive could not be processed", failure)
        )


def _epoch(keys: Keys, kv: KeyValue) -> str:
    """Return the epoch in the value of ``meta``. Raises `ClusterFailed` for another layout."""
    try:
        return layout.epoch_of(kv.value)
    except OtherLayout as error:
        if error.version > LAYOUT:
            raise ClusterFailed(
                f"the layout of the farm's keys in etcd has version {error.version}, and this broker knows {LAYOUT}: "
                "run the newer version"
            ) from None
        raise ClusterFailed(
            f"the layout of the farm's keys in etcd has version {error.version}, which this broker does not know: "
            "stop all brokers of the farm, and delete its keys; the brokers write them again"
        ) from None
    except Foreign as error:
        raise ClusterFailed(
            f"the key {keys.meta.decode()} in etcd is not one of elkobroker's ({error}): give this farm another name, "
            "or delete the key"
        ) from None


class Store(Protocol):
    """The part of `broker.core.store.Store` that the memory uses. It blocks on the disk."""

    def remember_cluster(self, identity: str, memory: str) -> None:
        """Store the memory of a membership."""

    def record_cluster(self, changes: Mapping[str, str | None]) -> None:
        """Store rows by their identities, and with None delete them."""


class StoredMemory:
    """`ClusterMemory` in ``store``. ``known`` is the one of its snapshot; ``in_thread`` runs a function in the thread
    of the disk, in the order of the calls."""

    log = Logger()

    def __init__(
        self,
        store: Store,
        known: Mapping[str, str],
        farm: str,
        name: str,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
    ) -> None:
        self._store = store
        self._identity = f"{farm}/{name}"
        self._clock = clock
        self._in_thread = in_thread
        self._memory = _decoded(known.get(self._identity, ""))
        self._record = self._recorded(known)
        self._writing = False
        self._changed = False
        self._waiting: list[Deferred[None]] = []
        """Fire when the newest memory is written, or could not be."""
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self._errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "the memory of the cluster could not be stored: {why}. It is tried again, every {most:g} seconds at the "
            "latest; if the broker is killed before that succeeds, its entries in etcd go before it is back",
            "the memory of the cluster is being stored again, after {failures} failures",
        )
        self._record_errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "the record of the cluster could not be stored: {why}. It is tried again, every {most:g} seconds at the "
            "latest; a start without etcd until then finds the other brokers' services as they were before",
            "the record of the cluster is being stored again, after {failures} failures",
        )

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while writes succeed."""
        return self._errors.why or self._record_errors.why

    def load(self) -> Memory:
        return self._memory

    def load_record(self) -> tuple[float, Mapping[str, str]] | None:
        record, self._record = self._record, None
        return record

    def save_record(self, changes: Mapping[str, str | None]) -> Deferred[None]:
        rows = {f"{self._identity} {name}": value for name, value in changes.items()}
        rows[f"{self._identity}{RECORDED}"] = f"{wall(self._clock):.0f}"

        def written(_: object) -> None:
            self._record_errors.over()

        def failed(failure: Failure) -> Failure:
            self._record_errors.add(failure)
            return failure

        done: Deferred[Any] = self._in_thread(self._store.record_cluster, rows)
        return done.addCallbacks(written, failed)

    def save(self, memory: Memory) -> Deferred[None]:
        self._memory = memory
        self._changed = True
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._write()
        return done

    def stop(self) -> Deferred[None]:
        """Write what is not written yet. Fires when that is done, or has failed."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done: Deferred[None] = Deferred()
        if self._changed or self._writing:
            self._waiting.append(done)
            self._write()
        else:
            done.callback(None)
        return done

    # internal

    def _write(self) -> None:
        if self._writing or not self._changed or self._timer is not None:
            return
        self._writing, self._changed = True, False
        waiting, self._waiting = self._waiting, []

        def written(_: object) -> None:
            self._errors.over()

        def failed(failure: Failure) -> None:
            wait = self._errors.add(failure)
            if not self._stopped:
                self._changed = True
                self._timer = self._clock.callLater(wait, self._again)

        def ended(_: object) -> None:
            self._writing = False
            for each in waiting:
                each.callback(None)
            if self._timer is not None or not self._changed:
                # Nothing is to be written now: a disk that fails is not waited for, and a stop that came during this
                # write has all that it waits for.
                over, self._waiting = self._waiting, []
                for each in over:
                    each.callback(None)
            self._write()

        text = msgspec.json.encode(attrs.asdict(self._memory)).decode()
        writing = self._in_thread(self._store.remember_cluster, self._identity, text)
        writing.addCallbacks(written, failed).addBoth(ended)

    def _again(self) -> None:
        self._timer = None
        self._write()

    def _recorded(self, known: Mapping[str, str]) -> tuple[float, Mapping[str, str]] | None:
        """Return the record in the rows of the store."""
        prefix = self._identity + " "
        rows = {name.removeprefix(prefix): value for name, value in known.items() if name.startswith(prefix)}
        try:
            return max(0.0, wall(self._clock) - float(known[self._identity + RECORDED])), rows
        except (KeyError, ValueError):
            return None


def _decoded(text: str) -> Memory:
    """Return the memory in a text, an empty one if there is none that can be used."""
    try:
        return msgspec.json.decode(text, type=Memory) if text else Memory()
    except msgspec.DecodeError:
        return Memory()


# State of a member that outlives restarts, kept in step with its memory.


class SavedMembership:
    """The newest `Memory`. ``saved`` is what ``memory`` has, or is being given."""

    def __init__(self, memory: ClusterMemory) -> None:
        self._memory = memory
        self.saved = memory.load()

    def ids(self, next: int, end: int, spare: tuple[int, int]) -> Any:
        """Keep the blocks of provider ids; see `Memory`."""
        return self._save(attrs.evolve(self.saved, next_id=next, end_id=end, spare=spare))

    def membership(self, instance: str, lease: int, epoch: str, revision: int) -> None:
        """Store the name of this run, its lease, and the data of etcd that were read last."""
        self._save(attrs.evolve(self.saved, instance=instance, lease=lease, epoch=epoch, revision=revision))

    def _save(self, new: Memory) -> Any:
        if new == self.saved:
            return None
        self.saved = new
        return self._memory.save(new)
