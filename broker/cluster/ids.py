"""Provider ids of a member, unique in the farm and never used again.

Rules:
- The key ``ids`` has the first unassigned id. A member takes blocks of `BLOCK` ids from there, by a
  transaction that compares the key's revision. It has one in use and a spare, so that providers can register while etcd
  is away.
- A transaction with an unknown result wastes a block.
- If the key is missing, or lower than ids that are known (etcd's data were lost or replaced), it is set `MARGIN` above
  all of them: other members may have taken blocks that this one does not know. Without any known ids it begins at a
  random block, since a farm whose etcd and one of whose brokers lost their data may have providers even so.
- The blocks of the memory are for a start while etcd is away. As soon as the first block of a run is taken, they are
  discarded unless they are in use: a state directory that was restored from a copy has ids that were issued since.
- Ids are issued below a mark that the memory has. After a kill they go on from the mark: those between are wasted.
  Once the mark is at the end of the block, the memory has the spare without its first `RESERVE` ids, so that these can
  be issued while the change of the block is being written.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Compare, EtcdError, Get, IEtcd, Put
from broker.cluster.layout import Foreign, IdsValue, Keys
from broker.cluster.settings import Memory
from broker.core.errors import Reason, Refusal

BLOCK = 65_536
"""Ids in a block: more than register in an outage, even if all of a large farm's providers come back several times."""

BEGINNINGS = 16_384
"""Number of blocks of which the first of a new farm is one, not the lowest: ids below `BLOCK` may have been issued by
its brokers while they were single. Half of the range of ids that Java's ``int`` has remains."""

MARGIN = 64 * BLOCK
"""Distance from known ids, as ids are 16 digits long: some dozens of members each with two blocks that are unknown."""

RESERVE = 4_096
"""Ids between the mark in the memory and the next id, more than are issued during one write to the disk."""

CONTENTION = 0.05
"""Seconds, at most, between two attempts to take a block while other members take theirs."""


class Ids:
    """Ids of a member whose key is ``name_key``. ``known`` returns the first id above all that are known."""

    log = Logger()

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        rng: random.Random,
        keys: Keys,
        name_key: bytes,
        memory: Memory,
        remember: Callable[[int, int, tuple[int, int]], Any],
        known: Callable[[], int],
    ) -> None:
        self._etcd = etcd
        self._clock = clock
        self._rng = rng
        self._keys = keys
        self._name_key = name_key
        self._remember = remember
        self._known = known
        self._next, self._end = memory.next_id, max(memory.next_id, memory.end_id)
        self._spare = memory.spare if memory.spare[1] > memory.spare[0] else (0, 0)
        self._mark = self._next
        """Ids below this one may be issued."""
        self._stopped = False
        self._low: Callable[[], None] | None = None
        self._used = False
        self._remembered = self.in_hand > 0
        """True until this run takes a block: those in hand are from before the start."""
        self._floor = 0
        """First id above all blocks that were discarded."""

    @property
    def in_hand(self) -> int:
        """Number of ids that can be issued without etcd."""
        return self._end - self._next + self._spare[1] - self._spare[0]

    @property
    def highest(self) -> int:
        """First id above all of this member."""
        return max(self._next, self._end, self._spare[1], self._floor)

    @property
    def complete(self) -> bool:
        """True if there is a spare block, and this run has taken one."""
        return not self._remembered and self._spare[1] > self._spare[0] and self._end > self._next

    @property
    def ready(self) -> bool:
        """True if there are ids in hand that this run has taken."""
        return not self._remembered and self.in_hand > 0

    def on_low(self, low: Callable[[], None]) -> None:
        """Call ``low`` when the spare block comes into use."""
        self._low = low

    def discard(self) -> None:
        """Forget the blocks that were not used in this run: others may have them too, or this broker had."""
        self._floor = self.highest
        self._spare = (0, 0)
        if not self._used:
            self._next = self._end = self._mark = 0

    def initial(self) -> int:
        """Return the value of ``ids`` for data of etcd without one."""
        known = self._known()
        if known > 0:
            return _raised(known)
        return self._rng.randrange(1, BEGINNINGS) * BLOCK

    def next_id(self) -> int:
        """Return an id. Raises `Refusal` UNAVAILABLE if none is in hand."""
        if self._next >= self._end:
            self._change_block()
        if self._next >= self._end:
            raise Refusal(
                Reason.UNAVAILABLE, "this broker has no provider ids, which it gets from etcd, and cannot reach it"
            )
        id = self._next
        self._next += 1
        self._used = True
        if self._mark - self._next < RESERVE // 2 and self._mark < self._end:
            self._reserve()
        return id

    def prepare(self) -> Deferred[None]:
        """Raise the mark before the first id is issued. Fires when the memory has it, or could not be written."""
        return self._reserve()

    async def fill(self, lease: int) -> None:
        """Take blocks from etcd until there is a spare one. Fails as `IEtcd` does; ends without one if the lease is
        lost."""
        while not self._stopped and not self.complete:
            block = await self._take(lease)
            if block is None:
                return
            if self._remembered:
                self._remembered = False
                self.discard()
            if self._next >= self._end and self._spare[1] == self._spare[0]:
                self._next, self._end = block
                self._mark = self._next
            elif self._spare[1] == self._spare[0]:
                self._spare = block
            await self._reserve()

    def stop(self) -> None:
        """Store the exact next id, so that none is wasted."""
        self._stopped = True
        self._mark = self._next
        self._remember(self._next, self._end, self._spare)

    # internal

    def _change_block(self) -> None:
        if self._spare[1] > self._spare[0]:
            (self._next, self._end), self._spare = self._spare, (0, 0)
            self._mark = self._next
            self._reserve()
            if self._low is not None:
                self._low()

    def _reserve(self) -> Deferred[None]:
        self._mark = min(self._end, self._next + RESERVE)
        first, end = self._spare
        if self._mark == self._end and end > first:
            first = min(end, first + RESERVE)
        return maybeDeferred(self._remember, self._mark, self._end, (first, end))

    async def _take(self, lease: int) -> tuple[int, int] | None:
        tries = 0
        while not self._stopped:
            tries += 1
            found = await self._etcd.range(self._keys.ids)
            present = found.keys[0] if found.keys else None
            first = 0
            if present is not None:
                try:
                    first = layout.decode(present.value, IdsValue).next
                except Foreign as error:
                    self.log.warn("cluster: the key of provider ids is repaired: {why}", why=str(error))
            if first == 0:
                first = self.initial()
            elif first < self._known():
                first = _raised(self._known())
            fence = Compare("LEASE", self._name_key, lease)
            same = Compare("MOD", self._keys.ids, 0 if present is None else present.mod_revision)
            put = Put(self._keys.ids, layout.encode(IdsValue(first + BLOCK)), 0)
            result = await self._etcd.txn([fence, same], [put], [Get(self._name_key)])
            if result.succeeded:
                return first, first + BLOCK
            if not result.found or not result.found[0] or result.found[0][0].lease != lease:
                return None
            await deferLater(self._clock, self._rng.random() * CONTENTION * min(tries, 8))
        return None


def _raised(known: int) -> int:
    """Return the first id of a block that is `MARGIN` above known ids."""
    return -(-known // BLOCK) * BLOCK + MARGIN


# Supply of provider ids: blocks are taken from etcd before a session needs them, and whenever one comes into use.


class IdPrefetch:
    """Supply of ``ids``. ``lease`` returns the present lease, ``going`` whether the membership has not ended."""

    log = Logger()

    def __init__(self, ids: Ids, lease: Callable[[], int], going: Callable[[], bool]) -> None:
        self._ids = ids
        self._lease = lease
        self._going = going
        self._filling = False
        ids.on_low(self.refill)

    def refill(self) -> None:
        """Take blocks in the background, unless that is under way."""
        if not self._filling and self._going():
            Deferred.fromCoroutine(self.fill(wait=False)).addErrback(self._unfilled)

    async def fill(self, wait: bool) -> None:
        """Take blocks of ids. Without ``wait`` it goes on in the background, and a failure is no matter yet."""
        if self._filling or self._ids.complete or not self._lease():
            return
        self._filling = True
        try:
            if wait:
                await self._ids.fill(self._lease())
        finally:
            self._filling = False
        if not wait:
            self._filling = True
            Deferred.fromCoroutine(self._ids.fill(self._lease())).addErrback(self._unfilled).addBoth(self._filled)

    # internal

    def _filled(self, _: object) -> None:
        self._filling = False

    def _unfilled(self, failure: Failure) -> None:
        if failure.check(EtcdError, CancelledError) is None:
            self.log.failure("cluster: a block of provider ids could not be taken", failure)
