"""Endpoints of the services in a cluster: where own providers offer services, and where mirrored ones do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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
