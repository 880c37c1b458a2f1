"""Claims of owners: the one broker that serves a durable queue, and the one director that decides.

Rules:
- A claim is a key that is created if absent, under the lease of the owner; a lasting one has no lease.
- Claims follow the store: where the brokers share one, a lasting claim is replaced if its owner is no member.
- The present owner is the one in etcd, as far as it has been read: the watch reports each change of it. An answer of
  etcd counts once the watch has reached its revision, and at once only while there is no watch. So neither of them
  undoes what the other has brought.
- Claims and releases of one queue are made one after the other: a claim never finds the key that a release deletes.
- When the lease of this member has ended, its claims with a lease are gone at once, without an answer of etcd.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Compare, Delete, EtcdError, Get, IEtcd, KeyValue, Put
from broker.cluster.key_table import Table
from broker.cluster.layout import ClaimValue, Foreign, Keys
from broker.cluster.mirror import Shared
from broker.core.cluster.cluster_interfaces import QueueClaim
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait

MTL = "mtl"
"""Title of the listener whose endpoint readers and writers of queues use."""

T = TypeVar("T")

Changed = Callable[[str, str, QueueClaim | None], None]


@implementer(IWait)
class Subscription:
    """Handle of a callback in a table."""

    def __init__(self, table: dict[Subscription, object], callback: object) -> None:
        self._table = table
        table[self] = callback

    def cancel(self) -> None:
        self._table.pop(self, None)


class Claims:
    """Owners of durable queues, for the member ``name``. ``lease`` returns its present lease, 0 while it has none;
    ``fenced`` is called if the member's key is not under that lease. ``reached`` fires when the watch has brought a
    revision or has ended, and ``read`` returns the last revision that was read."""

    log = Logger()

    def __init__(
        self,
        shared: Shared,
        etcd: IEtcd,
        keys: Keys,
        name: str,
        lease: Callable[[], int],
        fenced: Callable[[], None],
        reached: Callable[[int], Deferred[None]],
        read: Callable[[], int],
    ) -> None:
        self._shared = shared
        self._etcd = etcd
        self._keys = keys
        self._name = name
        self._lease = lease
        self._fenced = fenced
        self._reached = reached
        self._read = read
        # A lock is there as long as it is in use.
        self._locks: WeakValueDictionary[tuple[str, str], DeferredLock] = WeakValueDictionary()
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}
        """Owners as they were last reported, and whether their claims are lasting."""
        self._callbacks: dict[Subscription, object] = {}
        self._under_way = 0
        """Claims without an answer."""
        self._waiting: list[Deferred[None]] = []

    def claim(self, space: str, name: str, lasting: bool = False, shared: bool = False) -> Deferred[QueueClaim]:
        """See `IQueueOwners.claim`."""
        self._under_way += 1
        made = self._in_order((space, name), partial(self._claim, space, name, lasting, shared))
        return made.addBoth(self._answered)

    def settled(self) -> Deferred[None]:
        """Fires when no claim is under way."""
        done: Deferred[None] = Deferred()
        self._waiting.append(done)
        self._settle()
        return done

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        """See `IQueueOwners.claim_of`."""
        known = self._known.get((space, name))
        return None if known is None else self._value(*known)

    def claims(self) -> Sequence[tuple[str, str, QueueClaim]]:
        """See `IQueueOwners.claims`."""
        return [(*queue, self._value(*known)) for queue, known in sorted(self._known.items())]

    def release(self, space: str, name: str) -> Deferred[None]:
        """See `IQueueOwners.release`."""
        return self._in_order((space, name), partial(self._release, space, name))

    def watch(self, changed: Changed) -> IWait:
        """See `IQueueOwners.watch_claims`."""
        return Subscription(self._callbacks, changed)

    def touched(self, queues: Iterable[tuple[str, str]]) -> None:
        """Take note of changes of the table."""
        table = self._shared.table
        for queue in queues:
            owner = table.owner(*queue)
            self._set(queue, None if owner is None else (owner, table.claims[queue][1] == 0))

    def reconcile(self, before: Table) -> None:
        """Take note of another table."""
        self.touched({**before.claims, **self._known, **self._shared.table.claims})

    def lost(self) -> None:
        """The lease of this member has ended."""
        for queue, (owner, lasting) in list(self._known.items()):
            if owner == self._name and not lasting:
                self._set(queue, None)

    # internal

    def _in_order(self, queue: tuple[str, str], work: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> Deferred[T]:
        """Begin some work after all that is under way for a queue."""
        lock = self._locks.setdefault(queue, DeferredLock())
        return lock.run(lambda: Deferred.fromCoroutine(work()))

    def _answered(self, result: QueueClaim | Failure) -> QueueClaim | Failure:
        self._under_way -= 1
        self._settle()
        return result

    def _settle(self) -> None:
        while self._waiting and not self._under_way:
            self._waiting.pop().callback(None)

    def _value(self, owner: str, lasting: bool) -> QueueClaim:
        member = self._shared.table.members.get(owner)
        return QueueClaim(owner, "" if member is None else member.member.listeners.get(MTL, ""), lasting)

    def _set(self, queue: tuple[str, str], known: tuple[str, bool] | None) -> None:
        before = self._known.get(queue)
        if known is None:
            self._known.pop(queue, None)
        else:
            self._known[queue] = known
        if (before and before[0]) == (known and known[0]):
            return
        value = None if known is None else self._value(*known)
        for callback in tuple(self._callbacks.values()):
            try:
                callback(*queue, value)  # type: ignore[operator]
            except Exception:
                self.log.failure("cluster: a watcher of the owners of queues failed")

    async def _claim(self, space: str, name: str, lasting: bool, shared: bool) -> QueueClaim:
        key = self._keys.claim(space, name)
        lease = self._lease()
        if not lease:
            raise _unknown("etcd cannot be reached")
        put = Put(key, layout.encode(ClaimValue(self._name)), 0 if lasting else lease)
        fence = Compare("LEASE", self._keys.member(self._name), lease)
        gets = [Get(self._keys.member(self._name)), Get(key)]
        try:
            result = await self._etcd.txn([fence, Compare("CREATE", key, 0)], [put], gets)
            revision = result.revision
            if not result.succeeded:
                holder, present = _first(result.found, 0), _first(result.found, 1)
                if holder is None or holder.lease != lease:
                    self._fenced()
                    raise _unknown("this broker has lost its lease")
                if present is None:
                    raise _changing()
                owner = layout.decode(present.value, ClaimValue).owner
                outlived = shared and present.lease == 0 and owner not in self._shared.table.members
                if owner != self._name and not outlived:
                    return self._value(owner, present.lease == 0)
                revision = present.mod_revision
                # From before a restart, or the attempt before this one: the lease may be another one.
                if present.lease != put.lease:
                    again = await self._etcd.txn([fence, Compare("MOD", key, revision)], [put])
                    if not again.succeeded:
                        raise _changing()
                    revision = again.revision
        except EtcdError as error:
            raise _unknown(str(error)) from None
        except Foreign:
            raise _unknown("its key in etcd is not one of elkobroker's") from None
        await self._reached(revision)
        if self._lease() != lease:
            raise _unknown("this broker has lost its lease")
        if self._read() < revision:
            self._set((space, name), (self._name, lasting))
        if self._known.get((space, name)) != (self._name, lasting):
            raise _changing()
        return self._value(self._name, lasting)

    async def _release(self, space: str, name: str) -> None:
        owner, lasting = self._known.get((space, name), ("", False))
        key, lease = self._keys.claim(space, name), self._lease()
        if owner != self._name:
            return
        if not lease:
            raise Refusal(Reason.UNAVAILABLE, "the claim of the queue could not be ended: etcd cannot be reached")
        # Another member may have replaced a lasting claim since.
        own = Compare("LEASE", key, 0 if lasting else lease)
        try:
            result = await self._etcd.txn([Compare("LEASE", self._keys.member(self._name), lease), own], [Delete(key)])
        except EtcdError as error:
            raise Refusal(Reason.UNAVAILABLE, f"the claim of the queue could not be ended: {error}") from None
        if result.succeeded:
            await self._reached(result.revision)


def _unknown(why: str) -> Refusal:
    return Refusal(Reason.UNAVAILABLE, f"the owner of the queue is unknown: {why}")


def _changing() -> Refusal:
    return Refusal(Reason.UNAVAILABLE, "the owner of the queue is changing")


def _first(found: tuple[tuple[KeyValue, ...], ...], place: int) -> KeyValue | None:
    return found[place][0] if len(found) > place and found[place] else None
