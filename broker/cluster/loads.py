"""Loads of own providers, written to etcd in values of up to `LOADS_PER_KEY` providers.

Rules:
- Each provider with a load has a slot; the slots of one value are written together. Slots of providers that left are
  used again, so that the values stay full.
- A value that changed is written at most once in `interval` seconds: the newest loads win.
- Values are whole, so that a member that reads all of them has all loads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import Delete, Put
from broker.cluster.layout import LOADS_PER_KEY, Keys
from broker.cluster.mirror import Shared
from broker.cluster.publisher import Publisher, Unit
from broker.core.model import Change, Kind, LoadDetails


class OwnLoads:
    """Loads of the own providers of the member ``name``. ``mirrored`` returns whether an id is another member's."""

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        clock: IReactorTime,
        publisher: Publisher,
        keys: Keys,
        name: str,
        interval: float,
        lease: Callable[[], int],
        mirrored: Callable[[int], bool],
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._publisher = publisher
        self._keys = keys
        self._name = name
        self._interval = interval
        self._lease = lease
        self._mirrored = mirrored
        self._slots: dict[int, int] = {}
        """Slots of the providers with a load: at most as many as the registry has providers."""
        self._free: list[int] = []
        self._values: dict[int, layout.Loads] = {}
        """Loads by the number of their value."""
        self._changed: dict[int, None] = {}
        self._timer: IDelayedCall | None = None
        self._registry = registry
        self._watches = [
            registry.watch_loads(self._reported),
            registry.watch(self._joined, (Kind.JOINED,)),
            registry.watch(self._left, (Kind.LEFT,)),
        ]

    def reconcile(self) -> None:
        """Write all values that the table does not have as they are, and delete those that are not used."""
        there = {
            number: entry
            for (name, number), entry in self._shared.table.loads()
            if name == self._name and entry.lease == self._lease()
        }
        for number, loads in self._values.items():
            if number not in there or there[number].loads != loads:
                self._mark(number)
        for number in there:
            if number not in self._values:
                self._mark(number)

    def stop(self) -> None:
        """Watch the registry no more."""
        for watch in self._watches:
            watch.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _reported(self, id: int, load: float, details: LoadDetails | None) -> None:
        if self._mirrored(id):
            return
        slot = self._slots.get(id)
        if slot is None:
            slot = heapq.heappop(self._free) if self._free else len(self._slots)
            self._slots[id] = slot
        number = slot // LOADS_PER_KEY
        self._values.setdefault(number, {})[id] = (load, details)
        self._change(number)

    def _joined(self, change: Change) -> None:
        """A provider that comes back after it was superseded may have a load."""
        provider = None if self._mirrored(change.provider) else self._registry.provider(change.provider)
        if provider is not None and (provider.load or provider.details):
            self._reported(provider.id, provider.load, provider.details)

    def _left(self, change: Change) -> None:
        slot = self._slots.pop(change.provider, None)
        if slot is None:
            return
        heapq.heappush(self._free, slot)
        number = slot // LOADS_PER_KEY
        del self._values[number][change.provider]
        if not self._values[number]:
            del self._values[number]
        self._change(number)

    def _change(self, number: int) -> None:
        self._changed[number] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._interval, self._due)

    def _due(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, {}
        for number in changed:
            self._mark(number)

    def _mark(self, number: int) -> None:
        self._publisher.mark(("loads", number), lambda: self._build(number))

    def _build(self, number: int) -> Unit:
        key = self._keys.loads(self._name, number)
        loads = self._values.get(number)
        if loads is None:
            return Unit(Delete(key))
        return Unit(Put(key, layout.loads_value(loads), self._lease()))
