"""The service names of the registry in the form in which DNS compares them.

The registry distinguishes case and DNS does not: `ServiceNames` maps each folded name to the names and protocols that
are spelled so. It follows the registry's changes. Services from before a restart cause no changes: theirs are entered
at the start, and an entry of which the registry knows no service any more is removed when it is met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from broker.core.interfaces import IRegistry, IWait
from broker.core.model import OWN_PREFIX, Change, Kind, Service
from broker.wires.dns.codec.hosts import MAX_LABEL

MAX_KEYS = 64
"""Spellings and protocols of one folded name that a response considers: ordinary ones have one or two."""

MAX_SERVICES = 10_000
"""Services of one folded name that a response considers: some 0.5 ms at most. An ordinary name has a few hundred."""

MAX_DEPTH = 8
"""Labels of a name with dots whose parents exist: each level costs an entry."""

_Key = tuple[str, str]
"""A name and a protocol of the registry."""


class ServiceNames:
    """The names of all services, folded. ``remembered`` are services from before a restart."""

    def __init__(self, registry: IRegistry, remembered: Iterable[Service]) -> None:
        self._registry = registry
        self._keys: dict[bytes, dict[_Key, None]] = {}
        self._parents: Counter[bytes] = Counter()
        for service in chain(registry.services(), remembered):
            self._enter(service.name, service.protocol)
        self._watch: IWait = registry.watch(self._changed, (Kind.OFFERED, Kind.WITHDRAWN))

    def stop(self) -> None:
        """Follow the registry no longer."""
        self._watch.cancel()

    def services(self, folded: bytes) -> list[Service]:
        """Return the services of a folded name in every spelling and protocol, the live ones of each first, those with
        a secret left out."""
        found: list[Service] = []
        for name, protocol in list(islice(self._keys.get(folded, ()), MAX_KEYS)):
            services = self._registry.find(name, protocol, restored=True)
            if not services and not self._known(name, protocol):
                self._remove(name, protocol)
            found += [service for service in services[: MAX_SERVICES - len(found)] if service.auth is None]
        return found

    def is_parent(self, folded: bytes) -> bool:
        """Return True if a name with dots ends with this one: it exists in DNS, without records (RFC 8020)."""
        return folded in self._parents

    def __iter__(self) -> Iterator[tuple[bytes, str, str]]:
        """Iterate over folded names, with a name and a protocol of the registry each.

        Changes during the iteration are allowed: new names are left out.
        """
        return ((folded, *key) for folded in list(self._keys) for key in list(self._keys.get(folded, ())))

    def __len__(self) -> int:
        """Return the number of folded names."""
        return len(self._keys)

    def _changed(self, change: Change) -> None:
        service = change.subject
        if not isinstance(service, Service):
            return
        if change.kind is Kind.OFFERED:
            self._enter(service.name, service.protocol)
        elif not self._known(service.name, service.protocol):
            self._remove(service.name, service.protocol)

    def _known(self, name: str, protocol: str) -> bool:
        """Return True if the registry has a service of that name and protocol, hidden or restored ones included."""
        return bool(self._registry.services(name, protocol) or self._registry.find(name, protocol, restored=True))

    def _enter(self, name: str, protocol: str) -> None:
        folded = fold_name(name)
        if folded is None:
            return
        keys = self._keys.get(folded)
        if keys is None:
            keys = self._keys[folded] = {}
            self._parents.update(_parents(folded))
        keys[name, protocol] = None

    def _remove(self, name: str, protocol: str) -> None:
        folded = fold_name(name)
        keys = None if folded is None else self._keys.get(folded)
        if folded is None or keys is None or (name, protocol) not in keys:
            return
        del keys[name, protocol]
        if not keys:
            del self._keys[folded]
            for parent in _parents(folded):
                self._parents[parent] -= 1
                if not self._parents[parent]:
                    del self._parents[parent]


def fold_name(name: str) -> bytes | None:
    """Return the folded name, or None for one that is never answered: empty, or the broker's own by its prefix."""
    if not name or name.lower().startswith(OWN_PREFIX):
        return None
    return name.encode("utf-8", "surrogatepass").lower()


def _parents(folded: bytes) -> list[bytes]:
    labels = folded.split(b".")
    if len(labels) > MAX_DEPTH or not all(0 < len(label) <= MAX_LABEL for label in labels):
        return []
    return [b".".join(labels[number:]) for number in range(1, len(labels))]
