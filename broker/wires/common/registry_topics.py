"""Publication of registry changes on the broker's own topics.

The registry is watched only while a topic has subscribers, and each change is encoded once. Subscribers may use any
wire with topics, which gives each of them the changes of the services that it may find (`readers`).
`broker.wires.common.registry_topics` has the formats.

Registry events: changes of the registry as JSON objects, which the broker publishes on topics of its own.

An event is an offer (``on`` true) or a withdrawal of a service, or a load. ``revision`` rises with every change of the
registry, also with changes that are not published on the same topic. No event contains credentials. The format is in
docs/protocols/mc0.md, "Watch the farm"; `broker.wires.common.registry_topics` publishes the events.

Rights to topics: the topics on which a peer may publish, and those to which it may subscribe.

Rules:
- The users file gives them, by the operations ``publish`` and ``subscribe`` and names of topics. Without a users file,
  every topic is allowed.
- The broker's own topics (``elkobroker.``) may be subscribed to as any other, by peers who may find any service: they
  have changes of the registry (`broker.access.rights`). No peer may publish on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from broker.access.rights import TOPIC, Grants, RegistryReading
from broker.core.interfaces import ILeases, IRegistry, ITopics, IWait
from broker.core.model import NO_DETAILS, OWN_PREFIX, Change, Kind, Load, PublishedHeaders, Service, is_own

SERVICE_TOPIC = b"elkobroker.services"
LOAD_TOPIC = b"elkobroker.load"
"""Topics of the events: offers and withdrawals on the first, loads on the second."""


class ServiceChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The offer or withdrawal of a service. ``hostport`` is its address, ``provider`` the number of its provider."""

    revision: int
    on: bool
    service: str
    hostport: str
    protocol: str
    provider: int
    label: str | None = None


class LoadChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A provider reported a load: any number from 0 upwards, in a measure that the farm's servers share.

    The details are those that it reported, see `broker.core.model.LoadDetails`.
    """

    revision: int
    provider: int
    label: str
    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


encode = msgspec.json.Encoder().encode
"""Encodes an event."""


S = TypeVar("S")


class RegistryTopics:
    """Publishes the changes of ``registry`` on ``topics``."""

    def __init__(self, registry: IRegistry, topics: ITopics, leases: ILeases) -> None:
        self._registry = registry
        self._topics = topics
        self._leases = leases
        self._watches: dict[bytes, IWait] = {}
        self._own(SERVICE_TOPIC, self._service_changed, Kind.OFFERED, Kind.WITHDRAWN)
        self._own(LOAD_TOPIC, self._load_changed, Kind.LOAD)

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
        notice = ServiceChange(
            revision=change.revision,
            on=change.kind is Kind.OFFERED,
            service=service.name,
            hostport=service.hostport,
            protocol=service.protocol,
            provider=service.provider,
            label=service.label,
        )
        self._publish(SERVICE_TOPIC, notice, (service,))

    def _load_changed(self, change: Change) -> None:
        load = change.subject
        assert isinstance(load, Load)
        details = load.details or NO_DETAILS
        notice = LoadChange(
            change.revision,
            load.provider,
            load.label,
            load.load,
            details.requests,
            details.errors,
            details.in_flight,
            details.latency_ms,
        )
        self._publish(LOAD_TOPIC, notice, self._registry.services_of(load.provider))

    def _publish(self, topic: bytes, notice: ServiceChange | LoadChange, about: Sequence[Service]) -> None:
        # A change may come from outside of a quantum, as the end of a provider's connection does. The lifetime clock
        # is read first, so that the deliveries are not dated back to the last quantum.
        self._leases.look()
        headers = PublishedHeaders()
        headers.about = about
        self._topics.publish(topic, headers, (encode(notice),))


def readers(
    subscribers: Collection[S], headers: Sequence[Any], reading: Callable[[S], RegistryReading]
) -> Collection[S]:
    """Return those subscribers that a published message is for. ``reading`` gives what each may read."""
    about = headers.about if isinstance(headers, PublishedHeaders) else None
    if about is None:
        return subscribers
    names = [service.name for service in about]
    return [each for each in subscribers if reading(each).shows_any(names)]


_OWN = OWN_PREFIX.encode()


class TopicRights:
    """Topics of one peer, by the grants of its user."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants
        self.reading = RegistryReading.of(grants)
        """The entries of the registry that the peer is shown on the broker's own topics."""

    def may_publish(self, topic: bytes) -> bool:
        """Return True if the peer may publish on that topic."""
        return not is_own(topic) and self._grants.may("publish", _text(topic), TOPIC)

    def may_subscribe(self, topic: bytes) -> bool:
        """Return True if the peer may subscribe to that topic."""
        if is_own(topic) and not self._grants.may_some("find"):
            return False
        return self._grants.may("subscribe", _text(topic), TOPIC)


class _Free(TopicRights):
    """Every topic, without a test of patterns: this is on the path of each PUT."""

    def may_publish(self, topic: bytes) -> bool:
        return not topic.startswith(_OWN)

    def may_subscribe(self, topic: bytes) -> bool:
        return True


def rights_of(grants: Grants) -> TopicRights:
    """Return the rights of a user with these grants."""
    return _Free(grants) if grants.unlimited else TopicRights(grants)


def _text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")
