"""Catalogue of services for the profile "registry": one *entry* for each provider, name and protocol.

The registry may have several services of the same provider, name and protocol; the entry is the last one offered. The
catalogue applies the changes of the registry in their order, so a name is found without a search through all services.
It takes some 600 bytes for each service.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from broker.core.model import Service

EntryKey = tuple[int, str, str]


def key_of(service: Service) -> EntryKey:
    """Return the key of the entry of a service."""
    return service.provider, service.name, service.protocol


@attrs.frozen
class EntryChange:
    """Effect of a change on an entry: what it was ``before`` (None: it is new), and is ``now`` (None: it was removed).

    Both are the same object if the change is invisible.
    """

    before: Service | None
    now: Service | None


class Catalogue:
    """The entries."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._names: dict[str, dict[int, dict[str, tuple[Service, ...]]]] = {}
        """By name, provider and protocol."""
        self._offered: dict[int, dict[str, None]] = {}
        """The names of the services of each provider."""
        for service in services:
            self.offered(service)

    # changes

    def offered(self, service: Service) -> EntryChange:
        """Apply the offer of a service."""
        same = self._same(service)
        protocols = self._names.setdefault(service.name, {}).setdefault(service.provider, {})
        self._offered.setdefault(service.provider, {})[service.name] = None
        protocols[service.protocol] = (*same, service)
        return EntryChange(same[-1] if same else None, service)

    def withdrawn(self, service: Service) -> EntryChange:
        """Apply the withdrawal of a service."""
        same = self._same(service)
        if not same:
            return EntryChange(None, None)
        left = tuple(each for each in same if each is not service)
        providers = self._names[service.name]
        protocols = providers[service.provider]
        if left:
            protocols[service.protocol] = left
            return EntryChange(same[-1], left[-1])
        del protocols[service.protocol]
        if not protocols:
            del providers[service.provider]
            names = self._offered[service.provider]
            del names[service.name]
            if not names:
                del self._offered[service.provider]
            if not providers:
                del self._names[service.name]
        return EntryChange(same[-1], None)

    def amended(self, service: Service) -> EntryChange:
        """Apply an amendment: it replaces the first service of its name, protocol and provider."""
        same = self._same(service)
        if not same:
            return EntryChange(None, None)
        changed = (service, *same[1:])
        self._names[service.name][service.provider][service.protocol] = changed
        return EntryChange(same[-1], changed[-1])

    def _same(self, service: Service) -> tuple[Service, ...]:
        return self._find(key_of(service))

    def _find(self, key: EntryKey) -> tuple[Service, ...]:
        provider, name, protocol = key
        return self._names.get(name, {}).get(provider, {}).get(protocol, ())

    # queries

    def entries(self, name: str | None = None) -> Iterator[Service]:
        """Return all entries, or those of a name."""
        for providers in self._names.values() if name is None else [self._names.get(name, {})]:
            for protocols in providers.values():
                for same in protocols.values():
                    yield same[-1]

    def entry(self, key: EntryKey) -> Service | None:
        """Return an entry, None where there is none."""
        same = self._find(key)
        return same[-1] if same else None

    def count(self, key: EntryKey) -> int:
        """Return the number of services that an entry stands for."""
        return len(self._find(key))

    def providers(self, name: str) -> Iterable[int]:
        """Return the providers of a service of that name."""
        return self._names.get(name, {}).keys()

    def names(self, provider: int) -> Collection[str]:
        """Return the names of the services that a provider offers."""
        return self._offered.get(provider, {}).keys()

    def offered_by(self, provider: int, name: str) -> int:
        """Return the number of services of that name that a provider offers, in all protocols."""
        return sum(map(len, self._names.get(name, {}).get(provider, {}).values()))

    def offers(self, provider: int, name: str) -> bool:
        """Return True if that provider offers a service of that name."""
        return provider in self._names.get(name, ())
