"""Registries of two brokers: what one of them offers, the other shows as a provider of the first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import attrs
from twisted.internet.task import Clock

from broker.core.model import BROKER, Change, Kind, Provider, Rights, Service
from broker.core.registry import Registry
from broker.core.restored_services import Restored


class MirroringRegistry(Registry):
    """A registry that shows providers of another broker."""

    def __init__(self, clock: Clock, first: int) -> None:
        super().__init__(clock, count(first).__next__, Restored((), 1.0, clock, lambda ids: None))
        self.holders: dict[int, str] = {}

    def provider(self, provider: int) -> Provider | None:
        found = super().provider(provider)
        return found and attrs.evolve(found, broker=self.holders.get(provider, ""))


class Mirrors:
    """The exchange between the registries of brokers "a" and "b", after a moment, or while not ``mirroring`` on
    `mirror` only."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.registries: Mapping[str, MirroringRegistry] = {
            name: MirroringRegistry(clock, 1 + 1000 * number) for number, name in enumerate(("a", "b"))
        }
        self.mirroring = True
        self._waiting: list[tuple[str, Change, Provider | None]] = []
        self._ids: dict[tuple[str, int], int] = {}
        for name, registry in self.registries.items():

            def changed(change: Change, name: str = name) -> None:
                self._changed(name, change)

            registry.watch(changed, (Kind.OFFERED, Kind.WITHDRAWN))

    def _changed(self, name: str, change: Change) -> None:
        registry = self.registries[name]
        if change.provider != BROKER and change.provider not in registry.holders:
            self._waiting.append((name, change, registry.provider(change.provider)))
            if self.mirroring:
                self.clock.callLater(0.02, self.mirror)

    def mirror(self) -> None:
        """Mirror what has changed."""
        waiting, self._waiting = self._waiting, []
        for name, change, provider in waiting:
            registry = self.registries["b" if name == "a" else "a"]
            service = change.subject
            assert isinstance(service, Service)
            if change.kind is Kind.OFFERED and provider is not None:
                id = self._ids[name, change.provider] = registry.join(provider.label, provider.wire, provider.address)
                registry.holders[id] = name
                registry.offer([attrs.evolve(service, provider=id)], Rights())
            elif change.kind is Kind.WITHDRAWN and (name, change.provider) in self._ids:
                registry.leave(self._ids.pop((name, change.provider)), change.why)
