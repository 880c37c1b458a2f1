"""Ownership of queues: one broker of a cluster has a queue at a time, with its dead-letter queues.

States of a queue here, and the events that end them. "Absent" is a queue of another broker, or an unclaimed one.

    absent     `require`: CLAIMING, unless another broker is known to have it
    CLAIMING   the claim succeeds: LOADING; it fails, or another broker has the queue: absent
    LOADING    all messages are read from the store: HERE; the store fails: the claim is released, and it is absent
    HERE       the queue and its dead-letter queues were deleted: RELEASING; another broker has it: absent
    RELEASING  everything is written and the claim released: absent; a release that fails is tried again

Rules:
- A queue exists in the table (`broker.core.queues.queues.Queues`) from the end of LOADING until it is deleted or lost.
- A broker that loses its claim goes on until there is another owner, and claims the queue again meanwhile. A shared
  store rejects its writes from the moment at which another broker takes the queue.
- A lost queue is given up: authors get negative confirms for messages that are not written, ``lost`` ends the
  consumers, and the messages leave memory. Those of a queue that is not durable are gone.
- A queue whose messages are on the disk of this broker has a lasting claim, and is never given up. With a shared store
  a lasting claim of a broker that is away does not count.
- A queue that is not durable by the rules of this broker, but has a record in the shared store, is loaded as a durable
  one: it was durable before, or is for its former owner. While the store is away it is used without its messages there.
- Without a cluster this is used with a shared store only: every claim succeeds at once.

The file is longer than others: its methods are the transitions of the table above.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.backoff import Backoff
from broker.core.cluster.cluster_interfaces import IQueueOwners, QueueClaim
from broker.core.database import StateError
from broker.core.errors import Elsewhere, Reason, Refusal
from broker.core.queues.queue_interfaces import ISharedQueueStore, MessagePage, RestoredMessage
from broker.core.queues.queue_messages import living_name
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import MAX_QUEUES, QUEUE_BYTES, Queues
from broker.core.queues.work_queue import Queue

REQUIRE_SECONDS = 8.0
"""Seconds for which `QueueOwnership.require` waits: less than clients wait for a reply. Loading continues."""

WAIT_BYTES = 2_000
"""Bytes that a waiting request takes, with its timer: thousands of sessions may wait for the same queues."""

NAMES = ("queues", "taken", "given_up")
"""Names of the counters."""

_BACKOFF = Backoff(1.0, 30.0)
"""Back-off, in seconds, before a lost claim is tried again, and before the names of the store are read again."""

Key = tuple[str, str]
"""Space and name of a queue, without the suffix of dead-letter queues."""


class OwnershipState(enum.Enum):
    """State of a queue that is not absent."""

    CLAIMING = enum.auto()
    LOADING = enum.auto()
    HERE = enum.auto()
    RELEASING = enum.auto()


class _Unit:
    """A queue with its dead-letter queues. ``stored``: its messages may be written to the store."""

    def __init__(self, key: Key, stored: bool) -> None:
        self.key = key
        self.state = OwnershipState.CLAIMING
        self.stored = stored
        self.queues = 0
        """Number of its queues in the table."""
        self.waiting: dict[Deferred[None], str] = {}
        """Waiting requests, each with the address that the queue counts for if it is claimed for it."""
        self.refusal: Refusal | None = None
        """Reason for which it is absent again."""
        self.again: IDelayedCall | None = None
        self.attempts = 0
        self.payer = ""
        """The address that it counts for, until its queue does."""
        self.highest = 0
        """Highest order of its messages in the shared store when it was taken."""
        self.damaged: list[RestoredMessage] = []
        """Damaged messages, which become dead letters once all others are loaded."""


def _names(store: ISharedQueueStore) -> list[Key]:
    """Return the names of the queues in a store that can be written."""
    store.probe()
    return store.names()


class QueueOwnership:
    """Ownership of all queues of this broker, whose name in the cluster is ``name``.

    ``shared`` is the store of all brokers, None if durable messages are on the disk of this broker; then ``rows`` are
    those that it had at the start. ``in_thread`` calls the store. ``lost`` is called with space and name of each queue
    that this broker gives up, and must end its consumers and authors.
    """

    log = Logger()

    def __init__(
        self,
        queues: Queues,
        recorder: QueueRecorder,
        owners: IQueueOwners,
        name: str,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        shared: ISharedQueueStore | None = None,
        rows: Iterable[RestoredMessage] = (),
    ) -> None:
        self.lost: Callable[[str, str], None] = lambda space, name: None
        self.trouble = ""
        """Reason for which queues cannot be loaded; empty while they can."""
        self.taken = 0
        """Queues that this broker has taken."""
        self.given_up = 0
        """Queues that this broker gave up to another one."""
        self._queues = queues
        self._recorder = recorder
        self._owners = owners
        self._name = name
        self._clock = clock
        self._in_thread = in_thread
        self._shared = shared
        self._units: dict[Key, _Unit] = {}
        self._stash: dict[Key, list[RestoredMessage]] = {}
        self._retries: dict[Key, IDelayedCall] = {}
        """Claims of queues in the stash, and releases, that are tried again."""
        self._retry: IDelayedCall | None = None
        self._all_wanted = False
        """True until all queues in the shared store are claimed, if they are to be."""
        self._failures = 0
        self._stopped = False
        for row in rows:
            self._stash.setdefault((row.space, living_name(row.name)), []).append(row)
            # In one store on a disk a message is identified by its order: new ones must not replace those that wait.
            queues.pass_order(row.order)
        queues.gate = self
        recorder.fenced = self._fenced
        self._watch = owners.watch_claims(self._changed)

    def start(self, all: bool) -> None:
        """Claim the queues that this broker has messages of; with ``all``, also those in the shared store."""
        self._retry = None
        self._all_wanted = self._all_wanted or all
        for key in list(self._stash):
            self._want_stash(key)
        if self._shared is not None:
            names = self._in_thread(_names, self._shared)
            names.addCallbacks(self._started, self._not_started).addErrback(self._defect)

    def stop(self) -> None:
        """Stop: nothing more is claimed. Waiting requests fail."""
        self._stopped = True
        self._watch.cancel()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for call in self._retries.values():
            if call.active():
                call.cancel()
        for unit in list(self._units.values()):
            if unit.again is not None:
                unit.again.cancel()
                unit.again = None
            self._answer(unit, Refusal(Reason.UNAVAILABLE, "the broker is stopping"))

    def counts(self) -> dict[str, int]:
        """Return the counters by name."""
        return dict(zip(NAMES, (len(self._units), self.taken, self.given_up), strict=True))

    # for the profile

    def require(self, space: str, name: str, payer: str = "") -> Deferred[None] | None:
        """Claim and load a queue, unless it can be used here now: then None is returned.

        A queue that is claimed counts as memory of ``payer``, as in `Queues.open`; so does the request while it waits.

        The Deferred fires when it can be used here. It fails with `Refusal`: `Elsewhere` if another broker has it,
        UNAVAILABLE if that cannot be found out now, LIMIT if there are too many queues, or that address has too much.
        """
        key = (space, living_name(name))
        try:
            unit = self._asked(key, payer)
            if unit.state is OwnershipState.HERE:
                return None
            self._queues.admit(payer, WAIT_BYTES)
        except Refusal as refusal:
            return fail(refusal)
        ready: Deferred[None] = Deferred()
        self._queues.memory.store(payer, WAIT_BYTES)
        unit.waiting[ready] = payer
        late = self._clock.callLater(REQUIRE_SECONDS, self._late, key, ready)

        def answered(result: Any) -> Any:
            self._queues.memory.store(payer, -WAIT_BYTES)
            if late.active():
                late.cancel()
            return result

        return ready.addBoth(answered)

    # for the table of queues

    def admit(self, space: str, name: str, payer: str) -> None:
        """Raise `Refusal` if the queue cannot be used here now, and claim it for a later attempt."""
        unit = self._asked((space, living_name(name)), payer)
        if unit.state is OwnershipState.HERE:
            return
        if unit.state is OwnershipState.RELEASING and not unit.waiting:
            # It is claimed once more after the release. Otherwise nothing has to wait: there may be many attempts.
            ready = self.require(space, name, payer)
            if ready is not None:
                ready.addErrback(lambda failure: failure.trap(Refusal))
        raise Refusal(Reason.UNAVAILABLE, "the queue is being loaded")

    def stores(self, space: str, name: str) -> bool:
        """Return True if messages of the queue may be written to the store."""
        unit = self._units.get((space, living_name(name)))
        return unit is not None and unit.stored

    def made(self, queue: Queue) -> None:
        """Record a new queue in the table."""
        self._units[queue.space, living_name(queue.name)].queues += 1

    def forgotten(self, queue: Queue) -> None:
        """Record that a queue was deleted from the table. After the last one of a name, its claim is released."""
        unit = self._units.get((queue.space, living_name(queue.name)))
        if unit is None:
            return
        unit.queues -= 1
        if not unit.queues and unit.state is OwnershipState.HERE and not self._stopped:
            unit.state = OwnershipState.RELEASING
            # A queue without its claim must have nothing left to write: the next owner reads the store at once.
            self._recorder.flush().addCallback(lambda _: self._release(unit))

    # claims

    def _want(self, key: Key, payer: str = "") -> _Unit:
        """Return the unit of a queue, which is claimed if it is absent. Raises `Refusal`."""
        unit = self._units.get(key)
        if unit is not None and (unit.state is OwnershipState.HERE or not self._stopped):
            return unit
        if self._stopped:
            raise Refusal(Reason.UNAVAILABLE, "the broker is stopping")
        known = self._owners.claim_of(*key)
        outlived = known is not None and known.lasting and not known.endpoint and self._shared is not None
        if known is not None and known.owner != self._name and not outlived:
            raise self._elsewhere(key, known)
        if len(self._units) >= MAX_QUEUES:
            raise Refusal(Reason.LIMIT, f"this broker has {MAX_QUEUES} queues, and takes no more")
        self._queues.admit(payer, QUEUE_BYTES)
        stored = key in self._stash or self._queues.is_durable(key[1])
        unit = self._units[key] = _Unit(key, stored)
        unit.payer = payer
        self._queues.memory.store(payer, QUEUE_BYTES)
        lasting = unit.stored and self._shared is None
        self._owners.claim(*key, lasting, self._shared is not None).addCallbacks(
            partial(self._claimed, unit), partial(self._not_claimed, unit)
        ).addErrback(self._defect)
        return unit

    def _asked(self, key: Key, payer: str) -> _Unit:
        """Return the unit of a queue as `_want`. Raises `Refusal`, also for a claim that failed at once."""
        unit = self._want(key, payer)
        if unit.refusal is not None:
            raise unit.refusal
        return unit

    def _claimed(self, unit: _Unit, claim: QueueClaim) -> None:
        if self._units.get(unit.key) is not unit or unit.state is not OwnershipState.CLAIMING:
            return
        if claim.owner != self._name:
            self._remove(unit, self._elsewhere(unit.key, claim))
            return
        unit.state = OwnershipState.LOADING
        if self._shared is None:
            self._restore(unit, self._stash.pop(unit.key, []))
            self._loaded(unit)
        elif self.trouble and not unit.stored:
            self._loaded(unit)
        else:
            work = self._in_thread(self._shared.take, *unit.key, self._name, not unit.stored)
            work.addCallback(partial(self._taken, unit))
            work.addErrback(partial(self._not_loaded, unit)).addErrback(self._defect)

    def _not_claimed(self, unit: _Unit, failure: Failure) -> None:
        if self._units.get(unit.key) is not unit:
            return
        error = failure.value
        if not isinstance(error, Refusal):
            self.log.failure("a claim of the queue {name} failed", failure, name=unit.key[1])
            error = Refusal(Reason.UNAVAILABLE, "the owner of the queue is unknown")
        self._remove(unit, error)
        if unit.key in self._stash and not self._stopped:
            self._later(unit.key, self._want_stash)

    def _want_stash(self, key: Key) -> None:
        """Claim a queue whose messages are on this disk: no other broker can serve them."""
        if self._stopped or key not in self._stash:
            return
        try:
            self._want(key)
        except Refusal as refusal:
            self._troubled(f"messages of the queue {key[1]} are on this disk: {refusal.text}")
            self._later(key, self._want_stash)

    def _later(self, key: Key, attempt: Callable[[Key], None]) -> None:
        before = self._retries.get(key)
        if before is not None and before.active():
            before.cancel()
        self._failures += 1
        self._retries[key] = self._clock.callLater(_BACKOFF.after(self._failures), attempt, key)

    def _elsewhere(self, key: Key, claim: QueueClaim) -> Refusal:
        if claim.endpoint:
            return Elsewhere(f"the queue {key[1]} belongs to the broker {claim.owner}", claim.owner, claim.endpoint)
        return Refusal(Reason.UNAVAILABLE, f"the queue {key[1]} belongs to the broker {claim.owner}, which is away")

    # loading

    def _taken(self, unit: _Unit, highest: int | None) -> Deferred[None] | None:
        if unit.state is not OwnershipState.LOADING:
            return None
        if highest is None:
            self._works()
            self._loaded(unit)
            return None
        unit.stored = True
        # A message may die before all are loaded: its dead letter must not replace one that is not.
        self._queues.pass_order(highest)
        unit.highest = highest
        return self._read(unit, None)

    def _read(self, unit: _Unit, after: tuple[str, int] | None) -> Deferred[None]:
        assert self._shared is not None
        return self._in_thread(self._shared.read, *unit.key, after).addCallback(partial(self._piece, unit))

    def _piece(self, unit: _Unit, piece: MessagePage) -> Deferred[None] | None:
        """Add some messages, and read the next ones: each piece takes a bounded part of a turn."""
        if unit.state is not OwnershipState.LOADING:
            return None
        if piece.last is None:
            self._loaded(unit)
            return None
        # Those above are dead letters that this broker has written since, and has in memory.
        self._restore(unit, [row for row in piece.messages if row.order <= unit.highest])
        return self._read(unit, piece.last)

    def _restore(self, unit: _Unit, rows: Sequence[RestoredMessage]) -> None:
        if self._shared is None:
            self._queues.restore(rows)
            return
        self._queues.restore(row for row in rows if not row.damaged)
        unit.damaged += [row for row in rows if row.damaged]
        for queue in self._queues.family(*unit.key):
            self._recorder.number(queue)

    def _bury_damaged(self, unit: _Unit) -> None:
        """Make dead letters of the damaged messages of a shared store, each in the name of its numbered queue."""
        rows, unit.damaged = unit.damaged, []
        for row in rows:
            self._recorder.number(self._queues.restored(row.space, row.name))
            self._queues.restore([row])

    def _loaded(self, unit: _Unit) -> None:
        unit.state = OwnershipState.HERE
        self.taken += 1
        if unit.stored:
            self._works()
        # The queue exists from now on, so that an unused one is deleted, and its claim released, after a while.
        queue = self._queues.restored(*unit.key)
        queue.payer, unit.payer = unit.payer, ""
        if self._shared is not None:
            self._queues.report(self._shared.found())
            self._bury_damaged(unit)
        waiting, unit.waiting = unit.waiting, {}
        for ready in waiting:
            ready.callback(None)

    def _not_loaded(self, unit: _Unit, failure: Failure) -> None:
        if unit.state is not OwnershipState.LOADING:
            return
        if not failure.check(StateError):
            self.log.failure("the queue {name} could not be loaded", failure, name=unit.key[1])
        self._store_failed(str(failure.value))
        if not unit.stored:
            self._loaded(unit)
            return
        self._forget_queues(unit)
        unit.state = OwnershipState.RELEASING
        self._answer(unit, Refusal(Reason.UNAVAILABLE, "the store of queues cannot be read now"))
        self._released(unit, self._owners.release(*unit.key))

    def _started(self, names: Sequence[Key]) -> None:
        self._works()
        all_wanted, self._all_wanted = self._all_wanted, False
        for key in names:
            unit = self._units.get(key)
            if unit is not None and unit.state is OwnershipState.HERE and not unit.stored:
                self.log.warn(
                    "messages of the queue {name}, which was claimed while the store was away, are in the store; they "
                    "are delivered once it has been unused, and is used again",
                    name=key[1],
                )
            if all_wanted and not self._stopped:
                ready = self.require(*key)
                if ready is not None:
                    ready.addErrback(lambda failure: self.log.info("a queue was not loaded: {why}", why=failure.value))

    def _not_started(self, failure: Failure) -> None:
        if not failure.check(StateError):
            self.log.failure("the names of queues could not be read", failure)
        self._store_failed(str(failure.value))

    def _store_failed(self, why: str) -> None:
        """Report that the shared store failed until it answers again, which is tested without any request."""
        self._troubled(why)
        if self._retry is None and not self._stopped:
            self._failures += 1
            self._retry = self._clock.callLater(_BACKOFF.after(self._failures), self.start, False)

    def _troubled(self, why: str) -> None:
        if not self.trouble:
            self.log.error("durable queues cannot be loaded: {why}. It is tried again", why=why)
        self.trouble = why

    def _works(self) -> None:
        if self.trouble:
            self.log.info("durable queues can be loaded again")
        self.trouble = ""
        self._failures = 0

    # the end of ownership

    def _changed(self, space: str, name: str, claim: QueueClaim | None) -> None:
        unit = self._units.get((space, name))
        if unit is None and claim is not None and claim.lasting:
            self._release_left((space, name))
        if unit is None or unit.state not in (OwnershipState.LOADING, OwnershipState.HERE):
            return
        if claim is not None and claim.owner == self._name:
            return
        if claim is not None and not self._keeps(unit):
            self._give_up(unit, claim)
        elif unit.again is None:
            unit.attempts = 0
            self._claim_again(unit)

    def _keeps(self, unit: _Unit) -> bool:
        """Return True if the messages of a queue are only on this disk, so giving up the queue would hide them."""
        return unit.stored and self._shared is None

    def _claim_again(self, unit: _Unit) -> None:
        unit.again = None
        if self._units.get(unit.key) is not unit or unit.state not in (OwnershipState.LOADING, OwnershipState.HERE):
            return

        def claimed(claim: QueueClaim) -> None:
            if self._units.get(unit.key) is not unit or claim.owner == self._name:
                return
            if self._keeps(unit):
                self.log.error(
                    "the queue {name} has messages on this disk, and belongs to the broker {owner} too",
                    name=unit.key[1],
                    owner=claim.owner,
                )
                failed(None)
            else:
                self._give_up(unit, claim)

        def failed(_: object) -> None:
            if not self._stopped and unit.again is None:
                unit.attempts += 1
                unit.again = self._clock.callLater(_BACKOFF.after(unit.attempts), self._claim_again, unit)

        claim = self._owners.claim(*unit.key, self._keeps(unit), self._shared is not None)
        claim.addCallbacks(claimed, failed).addErrback(self._defect)

    def _fenced(self, queue: Queue) -> None:
        unit = self._units.get((queue.space, living_name(queue.name)))
        if unit is not None and self._queues.present(queue.space, queue.name) is queue:
            self._give_up(unit, self._owners.claim_of(*unit.key))

    def _give_up(self, unit: _Unit, claim: QueueClaim | None) -> None:
        owner = "another broker" if claim is None or claim.owner == self._name else f"the broker {claim.owner}"
        unit.state = OwnershipState.RELEASING
        self.given_up += 1
        # Before they are forgotten: a durable message that is still to be written has its author, or is in the store in
        # another form.
        lost = sum(queue.unkept() for queue in self._queues.family(*unit.key))
        count = self._forget_queues(unit)
        self.log.warn(
            "the queue {name} belongs to {owner} now; {count} messages left this one{how}",
            name=unit.key[1],
            owner=owner,
            count=count,
            how=f"; lost, since they are not durable: {lost}" if lost else "",
        )
        self.lost(*unit.key)
        if claim is not None and claim.endpoint and claim.owner != self._name:
            self._answer(unit, self._elsewhere(unit.key, claim))
        else:
            self._answer(unit, Refusal(Reason.UNAVAILABLE, "the owner of the queue changes"))
        # No claim of its own is left, or a stale one, without which the new owner is found.
        self._released(unit, self._owners.release(*unit.key))

    def _forget_queues(self, unit: _Unit) -> int:
        """Give up the queues of a unit in the table. Returns the number of messages that leave memory."""
        self._unpay(unit)
        count = 0
        for queue in self._queues.family(*unit.key):
            self._recorder.give_up(queue)
            count += self._queues.give_up(queue)
        if self._shared is not None:
            # The one thread of the store does this before it takes the queue again.
            forgotten = self._in_thread(self._shared.forget, *unit.key)
            forgotten.addErrback(lambda failure: failure.trap(StateError)).addErrback(self._defect)
        return count

    def _release(self, unit: _Unit) -> None:
        if self._stopped:
            return
        if self._shared is not None and unit.stored:
            work = self._in_thread(self._shared.release, *unit.key)
            work.addErrback(lambda failure: self._store_failed(str(failure.value)))
        else:
            work = succeed(None)
        work.addCallback(lambda _: self._released(unit, self._owners.release(*unit.key)))

    def _released(self, unit: _Unit, released: Deferred[None]) -> None:
        def done(_: object) -> None:
            waiting, unit.waiting = unit.waiting, {}
            if self._units.get(unit.key) is unit:
                del self._units[unit.key]
            for ready, payer in waiting.items():  # requests that came during the release
                self._ask_again(unit.key, ready, payer)

        released.addErrback(partial(self._not_released, unit.key)).addCallback(done).addErrback(self._defect)

    def _not_released(self, key: Key, failure: Failure) -> None:
        # It is this broker's own until it is released, or its lease ends.
        if not self._stopped:
            self._later(key, self._release_left)

    def _release_left(self, key: Key) -> None:
        """Release the claim of a queue that is not here: it had no messages at the start, or was deleted while etcd was
        away. Otherwise the other brokers would refer to this one for ever."""
        known = self._owners.claim_of(*key)
        if self._stopped or key in self._units or key in self._stash or known is None or known.owner != self._name:
            return
        self._owners.release(*key).addErrback(partial(self._not_released, key)).addErrback(self._defect)

    # waiting requests

    def _ask_again(self, key: Key, ready: Deferred[None], payer: str) -> None:
        """Claim a queue that was released for a request that has waited. It goes on waiting, and counts once."""
        try:
            unit = self._asked(key, payer)
        except Refusal as refusal:
            ready.errback(refusal)
            return
        if unit.state is OwnershipState.HERE:
            ready.callback(None)
        else:
            unit.waiting[ready] = payer

    def _remove(self, unit: _Unit, refusal: Refusal) -> None:
        del self._units[unit.key]
        self._unpay(unit)
        unit.refusal = refusal
        self._answer(unit, refusal)

    def _unpay(self, unit: _Unit) -> None:
        """Release the memory that a unit without its queue counts for an address."""
        self._queues.memory.store(unit.payer, -QUEUE_BYTES)
        unit.payer = ""

    def _answer(self, unit: _Unit, refusal: Refusal) -> None:
        waiting, unit.waiting = unit.waiting, {}
        for ready in waiting:
            ready.errback(refusal)

    def _late(self, key: Key, ready: Deferred[None]) -> None:
        unit = self._units.get(key)
        if unit is not None and unit.waiting.pop(ready, None) is not None:
            ready.errback(Refusal(Reason.UNAVAILABLE, "the queue is not loaded yet"))

    def _defect(self, failure: Failure) -> None:
        self.log.failure("a defect in the ownership of queues", failure)
