"""Registries of two brokers: what one of them offers, the other mirrors, as through etcd."""

from __future__ import annotations

from itertools import count

import attrs
from twisted.internet.task import Clock

from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.model import BROKER, Change, Kind
from broker.core.registered_services import Restored

LATE = 0.02
"""Seconds until a change is mirrored."""


class Mirrors:
    """The exchange between the registries of brokers "a" and "b"; while not ``mirroring``, by `mirror` only."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.registries = {
            name: ClusterRegistry(clock, count(1 + 1000 * number).__next__, Restored((), 1.0, clock, lambda ids: None))
            for number, name in enumerate(("a", "b"))
        }
        self.mirroring = True
        self._waiting: list[tuple[str, int, str, list[int]]] = []
        for name, registry in self.registries.items():

            def changed(change: Change, name: str = name) -> None:
                self._changed(name, change)

            registry.watch(changed, (Kind.OFFERED, Kind.AMENDED, Kind.WITHDRAWN), own=True)

    def _changed(self, name: str, change: Change) -> None:
        if change.provider == BROKER:
            return
        self._waiting.append((name, change.provider, change.why, _replaced(self.registries[name], change.provider)))
        if self.mirroring:
            self.clock.callLater(LATE, self.mirror)

    def mirror(self) -> None:
        """Mirror what has changed."""
        waiting, self._waiting = self._waiting, []
        for name, id, why, replaced in waiting:
            here, other = self.registries[name], self.registries["b" if name == "a" else "a"]
            provider = here.provider(id) if here.holder(id) == "" else None
            if provider is not None and provider.services:
                other.mirror([attrs.evolve(provider, broker=name)], (), dict.fromkeys(replaced, id))
                here.mirror((), [(old, "left") for old in replaced])
            else:
                other.mirror((), [(id, why)])


def _replaced(registry: ClusterRegistry, id: int) -> list[int]:
    """Return the providers of the other broker with all their services at the places of a provider."""
    places = _places(registry, id)
    return [old for old in registry.mirrored() if places.issuperset(_places(registry, old))]


def _places(registry: ClusterRegistry, id: int) -> set[tuple[str, str, str, str]]:
    provider = registry.provider(id)
    if provider is None:
        return set()
    return {(provider.wire, each.name, each.protocol, each.hostport) for each in provider.services}
