"""Upkeep of etcd: compaction of its history, and a warning of a large database.

Rules:
- etcd keeps every write until it is compacted, and does not compact by itself unless it is configured to. The first
  member by name asks for it every `INTERVAL` seconds, up to the revision of the last time: so a watch that was
  interrupted for less than that continues.
- A database of more than half of etcd's default quota is logged, once until it is smaller again.
- Errors do no harm: the next attempt follows.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.cluster.etcd.interface import EtcdError, IEtcd

INTERVAL = 300.0
"""Seconds between two compactions: at 100 changes/s some 4 MB of history."""

HALF = 1_073_741_824
"""Half of etcd's default quota, in bytes."""


class Upkeep:
    """Upkeep by one member. ``revision`` returns the last revision that was read, ``first`` whether this member is the
    first by name, ``each`` is called at each interval."""

    log = Logger()

    def __init__(
        self,
        etcd: IEtcd,
        clock: IReactorTime,
        revision: Callable[[], int],
        first: Callable[[], bool],
        each: Callable[[], None],
    ) -> None:
        self._etcd = etcd
        self._clock = clock
        self._revision = revision
        self._first = first
        self._each = each
        self._before = 0
        self._timer: IDelayedCall | None = None
        self._large = False
        self.size = 0
        """Size of etcd's database in bytes, 0 if it is unknown."""
        self.compactions = 0

    def start(self) -> None:
        """Begin. No-op if it has begun."""
        if self._timer is None:
            self._run()

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _run(self) -> None:
        self._timer = self._clock.callLater(INTERVAL, self._run)
        self._each()
        Deferred.fromCoroutine(self._attend()).addErrback(
            lambda failure: self.log.failure("cluster: the upkeep of etcd failed", failure)
        )

    async def _attend(self) -> None:
        before, self._before = self._before, self._revision()
        try:
            status = await self._etcd.status()
            self.size = status.size
            if status.size >= HALF and not self._large:
                self.log.warn(
                    "cluster: the database of etcd has {size} MB, and etcd refuses all writes at its quota, by default "
                    "2,147 MB: compact and defragment it, or raise the quota",
                    size=status.size // 1_000_000,
                )
            self._large = status.size >= HALF
            if before > 0 and self._first():
                await self._etcd.compact(before)
                self.compactions += 1
        except EtcdError as error:
            self.log.info("cluster: the upkeep of etcd is tried again later: {why}", why=str(error))
