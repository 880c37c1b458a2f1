"""Endpoints of the services in a cluster: where own providers offer services, and where mirrored ones do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from broker.core.model import Service

Endpoint = tuple[str, str, str, str]
"""Wire, name, protocol and host:port."""


def endpoint_of(wire: str, service: Service) -> Endpoint:
    """Return the endpoint of a service of a provider on a wire."""
    return wire, service.name, service.protocol, service.hostport


class Endpoints:
    """The endpoints. Bounded by the services of the registry and of the mirrored providers."""

    def __init__(self) -> None:
        self.own: Counter[Endpoint] = Counter()
        """The number of own services at each endpoint."""
        self._mirrored: dict[Endpoint, dict[int, None]] = {}
        """The mirrored providers at each endpoint."""

    def take(self, endpoints: Iterable[Endpoint]) -> None:
        """Own services are at these endpoints, one at each."""
        self.own.update(endpoints)

    def vacate(self, endpoints: Iterable[Endpoint]) -> None:
        """Own services have left these endpoints."""
        for endpoint in endpoints:
            self.own[endpoint] -= 1
            if not self.own[endpoint]:
                del self.own[endpoint]

    def mirrored_at(self, endpoints: Iterable[Endpoint]) -> dict[int, None]:
        """Return the mirrored providers at any of these endpoints, in order."""
        return dict.fromkeys(id for endpoint in endpoints for id in self._mirrored.get(endpoint, ()))

    def put(self, provider: int, endpoints: Iterable[Endpoint]) -> None:
        """A mirrored provider has services at these endpoints."""
        for endpoint in endpoints:
            self._mirrored.setdefault(endpoint, {})[provider] = None

    def remove(self, provider: int, endpoints: Iterable[Endpoint]) -> None:
        """A mirrored provider has no services at these endpoints any more."""
        for endpoint in endpoints:
            ids = self._mirrored.get(endpoint)
            if ids is not None:
                ids.pop(provider, None)
                if not ids:
                    del self._mirrored[endpoint]


# Difference between two lists of services of one provider.


def differences(
    old: Sequence[Service], new: Sequence[Service]
) -> tuple[list[Service], list[Service], list[tuple[Service, Service]], list[Service]]:
    """Compare the present services of a provider with the wanted ones.

    Returns the wanted list, in the order of ``new``, with each equal service as the present object; those
    of it that are to be offered, pairs of an old and a new service that differ as `IRegistry.amend` permits, and the
    old ones to be withdrawn. Services that are kept stay in their order: one that has moved before another is withdrawn
    and offered.
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, service in enumerate(old):
        places.setdefault((service.name, service.protocol), []).append(place)
    used: set[int] = set()
    # The place of the last kept service of each name and protocol: only their order is visible to finds.
    last: dict[tuple[str, str], int] = {}
    kept: list[Service] = []
    offered: list[Service] = []
    amended: list[tuple[Service, Service]] = []
    for service in new:
        key = (service.name, service.protocol)
        after = [place for place in places.get(key, ()) if place > last.get(key, -1)]
        same = next((place for place in after if old[place] == service), None)
        if same is None:
            same = next((place for place in after if _amendable(old[place], service)), None)
            if same is not None:
                # Another object than the one that was passed: it may be registered already.
                changed = attrs.evolve(service)
                amended.append((old[same], changed))
                kept.append(changed)
        else:
            kept.append(old[same])
        if same is None:
            added = attrs.evolve(service)
            offered.append(added)
            kept.append(added)
            continue
        used.add(same)
        last[key] = same
    withdrawn = [service for place, service in enumerate(old) if place not in used]
    return kept, offered, amended, withdrawn


def _amendable(old: Service, new: Service) -> bool:
    return attrs.evolve(old, info=new.info, lasting=new.lasting, interval=new.interval) == new


# Own providers of a member with their successors at other members.


class Successors:
    """The successor of each superseded provider. Bounded by the own providers."""

    def __init__(self) -> None:
        self._successors: dict[int, int] = {}
        self._followed: dict[int, dict[int, None]] = {}
        """The superseded providers of each successor."""

    def of(self, successor: int) -> Sequence[int]:
        """Return the own providers that a successor supersedes."""
        return tuple(self._followed.get(successor, ()))

    def follow(self, own: Iterable[int], successor: int) -> None:
        """Set the successor of own providers."""
        for each in own:
            self.unfollow(each)
            self._successors[each] = successor
            self._followed.setdefault(successor, {})[each] = None

    def unfollow(self, own: int) -> None:
        """An own provider has no successor any more. No-op without one."""
        successor = self._successors.pop(own, None)
        if successor is not None:
            followed = self._followed[successor]
            del followed[own]
            if not followed:
                del self._followed[successor]
