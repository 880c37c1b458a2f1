"""Publication of registry changes on the broker's own topics.

The registry is watched only while a topic has subscribers, and each change is encoded once. Subscribers may use any
wire with topics, which gives each of them the changes of the services that it may find (`readers`).
`broker.wires.common.registry_events` has the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from broker.access.registry_reading import RegistryReading
from broker.core.interfaces import ILeases, IRegistry, ITopics, IWait
from broker.core.model import NO_DETAILS, Change, Kind, Load, PublishedHeaders, Service
from broker.wires.common import registry_events

S = TypeVar("S")


class RegistryTopics:
    """Publishes the changes of ``registry`` on ``topics``."""

    def __init__(self, registry: IRegistry, topics: ITopics, leases: ILeases) -> None:
        self._registry = registry
        self._topics = topics
        self._leases = leases
        self._watches: dict[bytes, IWait] = {}
        self._own(registry_events.SERVICES, self._service_changed, Kind.OFFERED, Kind.WITHDRAWN)
        self._own(registry_events.LOAD, self._load_changed, Kind.LOAD)

    def _own(self, topic: bytes, changed: Callable[[Change], None], *kinds: Kind) -> None:
        def wanted(on: bool) -> None:
            if on:
                self._watches[topic] = self._registry.watch(changed, kinds)
            else:
                self._watches.pop(topic).cancel()

        self._topics.own(topic, wanted)

    def _service_changed(self, change: Change) -> None:
        service = change.subject
        assert isinstance(service, Service)
        notice = registry_events.ServiceChange(
            revision=change.revision,
            on=change.kind is Kind.OFFERED,
            service=service.name,
            hostport=service.hostport,
            protocol=service.protocol,
            provider=service.provider,
            label=service.label,
        )
        self._publish(registry_events.SERVICES, notice, (service,))

    def _load_changed(self, change: Change) -> None:
        load = change.subject
        assert isinstance(load, Load)
        told = load.details or NO_DETAILS
        notice = registry_events.LoadChange(
            change.revision,
            load.provider,
            load.label,
            load.load,
            told.requests,
            told.errors,
            told.in_flight,
            told.latency_ms,
        )
        self._publish(registry_events.LOAD, notice, self._registry.services_of(load.provider))

    def _publish(
        self, topic: bytes, notice: registry_events.ServiceChange | registry_events.LoadChange, about: Sequence[Service]
    ) -> None:
        # A change may come from outside of a quantum, as the end of a provider's connection does. The lifetime clock
        # is read first, so that the deliveries are not dated back to the last quantum.
        self._leases.look()
        headers = PublishedHeaders()
        headers.about = about
        self._topics.publish(topic, headers, (registry_events.encode(notice),))


def readers(
    subscribers: Collection[S], headers: Sequence[Any], reading: Callable[[S], RegistryReading]
) -> Collection[S]:
    """Return those subscribers that a published message is for. ``reading`` gives what each may read."""
    about = headers.about if isinstance(headers, PublishedHeaders) else None
    if about is None:
        return subscribers
    names = [service.name for service in about]
    return [each for each in subscribers if reading(each).shows_any(names)]
