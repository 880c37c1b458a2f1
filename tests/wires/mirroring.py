"""Registries of two brokers: what one of them offers, the other mirrors, as through etcd."""

from __future__ import annotations

from itertools import count

import attrs
from twisted.internet.task import Clock

from broker.core.cluster.cluster_interfaces import Key, Registration
from broker.core.cluster.cluster_registry import ClusterRegistry
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
        self._waiting: list[tuple[str, Key, str]] = []
        for name, registry in self.registries.items():
            registry.own_registrations = _Acts(self, name)

    def changed(self, name: str, key: Key, why: str) -> None:
        """The registration of a broker at a key has changed, or has ended if there is a reason."""
        self._waiting.append((name, key, why))
        if self.mirroring:
            self.clock.callLater(LATE, self.mirror)

    def mirror(self) -> None:
        """Mirror what has changed."""
        waiting, self._waiting = self._waiting, []
        for name, key, why in waiting:
            here, other = self.registries[name], self.registries["b" if name == "a" else "a"]
            own = here.own(key)
            if own is not None:
                provider = attrs.evolve(own.provider, broker=name)
                other.mirror([attrs.evolve(own, provider=provider)], superseded=[key])
                here.mirror(gone=[(key, "left")])
            else:
                other.mirror(gone=[(key, why)], counting=[key])


class _Acts:
    """`OwnRegistrations` of a broker."""

    def __init__(self, mirrors: Mirrors, name: str) -> None:
        self._mirrors = mirrors
        self._name = name

    def acted(self, key: Key) -> None:
        self._mirrors.changed(self._name, key, "")

    def forgotten(self, key: Key) -> None:
        self._mirrors.changed(self._name, key, "withdrawn")

    def none_remembered(self) -> None:
        pass

    def refreshed(self, key: Key) -> None:
        self._mirrors.changed(self._name, key, "")

    def restated(self, key: Key) -> None:
        self._mirrors.changed(self._name, key, "")

    def ended(self, last: Registration, why: str) -> Registration | None:
        self._mirrors.changed(self._name, last.key, why)
        return None
