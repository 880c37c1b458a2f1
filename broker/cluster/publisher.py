"""Publisher: writes this member's own changes to etcd.

Rules:
- A change *marks* a name with a function that builds its newest value. Marks are gathered for `gather` seconds, then
  built and written; a name that is marked again in the meantime is written once.
- One transaction at a time, of at most `MAX_BATCH` units and `MAX_BYTES`. It is built as background work
  (`broker.core.turns`); a name that is marked again meanwhile is written once more.
- Every transaction compares the revision of the member's key: that is the fence. Every value is put under its lease.
- The key goes with its lease, and each session writes it again. So nothing is written after the end of the lease, and a
  transaction whose result was unknown does not take effect after its repetition, which has newer values.
- A transaction that failed, or whose result is unknown, is repeated with values that are built again: values are whole,
  so a repetition does no harm.
- A unit may have a condition of its own, which decides about it alone: it is a transaction within the transaction. A
  name whose condition did not hold, though the table says so, is *repeated* after `WRITE_RETRY`; until then it counts
  as one that is still to be written.
- If etcd has no space, deletions go on, and the rest is tried again every `SPACE_RETRY` seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster.etcd.etcd_interface import (
    BadRequest,
    Compare,
    Delete,
    EtcdError,
    Get,
    IEtcd,
    LeaseGone,
    Nested,
    NoSpace,
    Operation,
    Put,
    TxnResult,
)
from broker.cluster.settings import REFUSED_RETRY, SPACE_RETRY, WRITE_RETRY
from broker.core.turns import Turns

MAX_BATCH = 100
"""Limit of the units of a transaction: a write costs forty times less in one of 100 than alone, and etcd permits
128, of which 120 nested ones have been tried."""

MAX_BYTES = 1_000_000
"""Limit of the values of a transaction, in bytes: etcd permits 1.5 MiB for a request, in which base64 takes a third
more."""

STEP = 10
"""Units that are built in one step: a millisecond, of which the values of registrations take most."""

OUT_OF_TOUCH = 4.0
"""Seconds without an answer of etcd after which a member counts as out of touch: as many as prove that a watch is
dead. A slow disk delays etcd for some tenths of a second."""

Build = Callable[[], "Unit | None"]
"""Builds the newest unit of a name; None if there is nothing to write."""


@attrs.frozen
class Unit:
    """Write or deletion of a key, if ``condition`` holds. ``done`` is called after the transaction with its revision,
    and with True if the condition held."""

    operation: Put | Delete
    condition: Compare | None = None
    done: Callable[[int, bool], None] | None = None

    @property
    def size(self) -> int:
        """Bytes of the value and the key."""
        each = self.operation
        return len(each.value) + len(each.key) if isinstance(each, Put) else 64

    @property
    def deletes(self) -> bool:
        """True if nothing is put."""
        return isinstance(self.operation, Delete)


class Publisher:
    """Publisher of a member whose key is ``name_key``.

    ``trouble`` is called with the error of a failed transaction; the publisher then pauses until `resume`. ``fenced``
    is called if the member's key is not under the lease any more; it pauses too. ``filled`` is called when etcd refuses
    a write for want of space, ``late`` after a transaction that took `OUT_OF_TOUCH` seconds or more.
    """

    log = Logger()

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        turns: Turns,
        name_key: bytes,
        gather: float,
        trouble: Callable[[EtcdError], None],
        fenced: Callable[[], None],
        filled: Callable[[], None] = lambda: None,
        late: Callable[[], None] = lambda: None,
    ) -> None:
        self._etcd = etcd
        self._clock = clock
        self._turns = turns
        self._name_key = name_key
        self._gather = gather
        self._trouble = trouble
        self._fenced = fenced
        self._filled = filled
        self._late = late
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._marks: OrderedDict[Hashable, Build] = OrderedDict()
        """The marks that are still to be written, the oldest first. Bounded by the tables that mark: own providers,
        loads, claims."""
        self._lease = 0
        self._revision = 0
        """Revision of the member's key."""
        self._timer: IDelayedCall | None = None
        self._writing = False
        self._sent: dict[Hashable, Build] = {}
        """The marks that the present transaction writes."""
        self._repeats: dict[Hashable, Build] = {}
        """The names that are to be marked again."""
        self._repeat_timer: IDelayedCall | None = None
        self._building: Deferred[None] | None = None
        self._kept: dict[Hashable, Build] = {}
        """Marks that wait for space, while a transaction is built."""
        self._space_timer: IDelayedCall | None = None
        self.full = False
        """True while etcd has no space."""
        self._most = MAX_BATCH
        self._run = 0
        """Number of the present run: results of transactions of earlier ones do not count."""
        self._idle: list[Deferred[None]] = []
        self.transactions = 0
        self.operations = 0
        self.written = 0
        """Revision of the last transaction that succeeded."""
        self.refused = 0
        """Units that etcd refused as invalid."""

    @property
    def pending(self) -> int:
        """Number of names that are still to be written, those of the present transaction among them."""
        return len(self._marks) + len(self._repeats) + len(self._sent)

    def mark(self, name: Hashable, build: Build, last: bool = False) -> None:
        """Write a name soon. With ``last`` it is written after all that is marked now, otherwise as soon as it would
        have been if it is marked already."""
        if last:
            self._marks.pop(name, None)
        self._repeats.pop(name, None)
        self._marks[name] = build
        self._schedule()

    def repeat(self, name: Hashable, build: Build) -> None:
        """Mark a name after `WRITE_RETRY` seconds, unless it is marked before."""
        self._repeats[name] = build
        if self._repeat_timer is None:
            self._repeat_timer = self._clock.callLater(WRITE_RETRY, self._repeat)

    def resume(self, lease: int, revision: int) -> None:
        """Write from now on, after `pause`, under a lease. ``revision`` is that of the member's key."""
        self._lease, self._revision = lease, revision
        self._schedule()

    def pause(self) -> None:
        """Write no more until `resume`. Marks are kept, and what is being written is written again."""
        self._lease = 0
        self._run += 1
        self._stop_timers()
        if self._building is not None:
            self._building.cancel()
            self._end_build()
        self._writing = False
        self._again({**self._sent, **self._repeats})
        self._repeats = {}
        self._settle()

    def no_space(self, why: str) -> None:
        """Etcd has refused a write, of this publisher or of another part, for want of space."""
        if not self.full:
            self.log.warn("cluster: etcd has no space, only deletions are written: {why}", why=why)
        self.full = True
        self._settle()
        self._filled()

    def idle(self) -> Deferred[None]:
        """Fires when all marks are written, or when the publisher pauses or has no space."""
        found: Deferred[None] = Deferred()
        self._idle.append(found)
        self._settle()
        return found

    # internal

    def _schedule(self) -> None:
        if self._lease and not self._writing and self._timer is None and self._marks:
            self._timer = self._clock.callLater(self._gather, self._due)

    def _due(self) -> None:
        self._timer = None
        self._write()

    def _write(self) -> None:
        """Write one transaction of the oldest marks."""
        if not self._lease or self._writing:
            return
        units: list[Unit] = []
        self._writing, self._sent = True, {}
        self._building = building = self._turns.run(self._build(self._sent, units))
        building.addCallbacks(self._built, self._unbuilt, (self._sent, units)).addErrback(self._defect)

    def _build(self, names: dict[Hashable, Build], units: list[Unit]) -> Iterator[None]:
        """Take the oldest marks, as many as a transaction writes, and build their units, in steps."""
        size = taken = 0
        while self._marks and len(units) < self._most and size < MAX_BYTES:
            taken += 1
            if not taken % STEP:
                yield
            if not self._marks:
                return  # they were discarded meanwhile
            name, build = self._marks.popitem(last=False)
            unit = build()
            if unit is None:
                continue
            if self._space_timer is not None and not unit.deletes:
                self._kept[name] = build
                continue
            if units and size + unit.size > MAX_BYTES:
                self._marks[name] = build
                self._marks.move_to_end(name, last=False)
                break
            names[name] = build
            units.append(unit)
            size += unit.size

    def _built(self, _: None, names: dict[Hashable, Build], units: list[Unit]) -> None:
        self._end_build()
        if units:
            self._send(names, units)
        elif self._space_timer is None:
            self._schedule()
        self._settle()

    def _unbuilt(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._end_build()
            self._again(self._sent)
            self._defect(failure)

    def _end_build(self) -> None:
        self._building, self._writing = None, False
        kept, self._kept = self._kept, {}
        self._marks.update({name: build for name, build in kept.items() if name not in self._marks})

    def _send(self, names: dict[Hashable, Build], units: list[Unit]) -> None:
        # The write of that revision was under the lease, so that no comparison of the lease is needed.
        fence = Compare("MOD", self._name_key, self._revision)
        success: list[Operation] = [
            unit.operation if unit.condition is None else Nested(unit.condition, unit.operation) for unit in units
        ]
        run, sent_at = self._run, self._clock.seconds()
        self._writing, self._sent = True, names
        self.transactions += 1
        self.operations += len(success)

        def written(result: TxnResult) -> None:
            if run != self._run:
                return
            self._writing, self._sent = False, {}
            if not result.succeeded:
                self._again(names)
                self._refence(result)
                return
            self._most = MAX_BATCH
            self.written = result.revision
            if any(unit.operation.key == self._name_key for unit in units):
                self._revision = result.revision
            if self.full and not all(unit.deletes for unit in units):
                self.full = False
                self.log.info("cluster: etcd has space again")
            nested = iter(result.nested)
            for unit in units:
                held = unit.condition is None or next(nested, False)
                if unit.done is not None:
                    unit.done(result.revision, held)
            if self._clock.seconds() - sent_at >= OUT_OF_TOUCH:
                self._late()
            self._next()

        def failed(failure: Failure) -> None:
            if run != self._run:
                return
            self._writing = False
            self._again(names)
            self._failed(failure, names)

        sent = self._etcd.txn([fence], success, [Get(self._name_key)])
        sent.addCallbacks(written, failed).addErrback(self._defect)

    def _refence(self, result: TxnResult) -> None:
        """Take the present revision of the member's key, if that is still under the lease."""
        holder = result.found[0][0] if result.found and result.found[0] else None
        if holder is None or holder.lease != self._lease:
            self.pause()
            self._fenced()
            return
        self._revision = holder.mod_revision
        self._schedule()

    def _failed(self, failure: Failure, names: dict[Hashable, Build]) -> None:
        error = failure.value
        if isinstance(error, NoSpace):
            self._space_timer = self._clock.callLater(SPACE_RETRY, self._space)
            # Deletions free nothing by themselves, but what is gone must not be found.
            self._schedule()
            self.no_space(str(error))
        elif isinstance(error, LeaseGone):
            self.pause()
            self._fenced()
        elif isinstance(error, BadRequest):
            self._bad(error, names)
        elif isinstance(error, EtcdError):
            self.pause()
            self._trouble(error)
        else:
            failure.raiseException()

    def _bad(self, error: BadRequest, names: dict[Hashable, Build]) -> None:
        """Halve the transactions; a single name that etcd refuses is set aside for a while."""
        if len(names) > 1:
            self._most = max(1, min(self._most, len(names)) // 2)
        else:
            self.refused += 1
            for name, build in names.items():
                self._marks.pop(name, None)
                self.log.warn("cluster: etcd refuses {name}: {why}", name=str(name), why=str(error))
                self._clock.callLater(REFUSED_RETRY, self.mark, name, build)
        self._schedule()

    def _repeat(self) -> None:
        self._repeat_timer = None
        for name, build in list(self._repeats.items()):
            self.mark(name, build)

    def _space(self) -> None:
        self._space_timer = None
        self._write()

    def _next(self) -> None:
        """Go on after a transaction: at once if a whole one is waiting, otherwise after gathering."""
        if len(self._marks) >= self._most and self._space_timer is None:
            self._write()
        else:
            # Without space too: deletions may be among the marks. A build of none is not followed by another one.
            self._schedule()
        self._settle()

    def _again(self, names: dict[Hashable, Build]) -> None:
        self._sent = {}
        for name, build in reversed(names.items()):
            self._marks[name] = build
            self._marks.move_to_end(name, last=False)

    def _settle(self) -> None:
        if self._idle and (not self._lease or self.full or not (self._marks or self._repeats or self._writing)):
            idle, self._idle = self._idle, []
            for each in idle:
                each.callback(None)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._space_timer, self._repeat_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._space_timer = self._repeat_timer = None

    def _defect(self, failure: Failure) -> None:
        self.log.failure("cluster: a transaction could not be processed", failure)
        self._schedule()
