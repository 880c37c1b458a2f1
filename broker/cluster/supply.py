"""Supply of provider ids: blocks are taken from etcd before a session needs them, and whenever one comes into use."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.cluster.etcd.interface import EtcdError
from broker.cluster.ids import Ids


class Supply:
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
