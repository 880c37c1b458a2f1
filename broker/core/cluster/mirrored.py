"""A provider of another member in the registry, and the step in which several of them change."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from broker.core.cluster.endpoints import Endpoint, endpoint_of
from broker.core.model import Change, FailingService, LoadDetails, Service
from broker.core.registry import ProviderEntry


@attrs.define(eq=False)
class Step:
    """Changes that are made in one step, and announced at its end."""

    changes: list[Change] = attrs.field(factory=list)
    offered: list[Service] = attrs.field(factory=list)
    loads: list[ProviderEntry] = attrs.field(factory=list)


@attrs.define(eq=False)
class Mirrored:
    """A provider of another member: its services as its holder has them. Its `ProviderEntry` has the visible ones.

    ``failing`` are the reports of the holder on its services, by their places; ``judged`` is True while one is in force
    for a visible service.
    """

    entry: ProviderEntry
    services: list[Service]
    failing: dict[int, FailingService] = attrs.field(factory=dict)
    judged: bool = False

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of all its services."""
        return (endpoint_of(self.entry.wire, service) for service in self.services)


def set_load(entry: ProviderEntry, load: float, details: LoadDetails | None, step: Step) -> None:
    """Set the load of a mirrored provider, as a part of a step."""
    if entry.load != load or entry.details != details:
        entry.load, entry.details = load, details
        step.loads.append(entry)
