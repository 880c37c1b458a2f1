"""Profile "registry" of the fake broker: snapshots, changes, offers and loads."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import msgspec

from broker.client.testing.profile import Profile, Refusal
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.data import Content

if TYPE_CHECKING:
    from broker.client.testing.connection import ReaderFlow, WriterFlow

SERVICES, SERVICE, LOADS, LOAD = "services", "service/", "load", "load/"
"""Resources: two names, and the prefixes of two kinds of names."""

LABEL = "mtl"
"""Label of a provider that gives none."""


class ServiceBody(msgspec.Struct):
    """The descriptor of an offer."""

    service: str
    hostport: str
    protocol: str = "tcp"
    label: str | None = None
    auth: Any = None


class LoadBody(msgspec.Struct, frozen=True):
    """A report of a load, with optional details."""

    load: float
    requests: int | None = None
    errors: int | None = None
    in_flight: int | None = None
    latency_ms: float | None = None


@attrs.define(eq=False)
class Provider:
    """A provider and its services, by name."""

    id: int
    label: str
    report: LoadBody = attrs.field(factory=lambda: LoadBody(0.0))
    services: dict[str, ServiceBody] = attrs.field(factory=dict)


class Registry(Profile):
    """The profile. The profile "service" registers its workers here too."""

    modes: ClassVar[dict[str, tuple[str, ...]]] = {"reader": ("none",), "writer": ("none", "full")}

    def __init__(self) -> None:
        self._providers: dict[int, Provider] = {}
        self._count = 0
        self._revision = 0
        self._readers: dict[str, dict[ReaderFlow, None]] = {}
        self._writers: dict[WriterFlow, Provider] = {}

    # providers

    def join(self, label: str) -> Provider:
        """Add a provider. Ids are never reused."""
        self._count += 1
        provider = self._providers[self._count] = Provider(self._count, label)
        self._revision += 1
        self._send_load(LOADS, "load", provider)
        return provider

    def offer(self, provider: Provider, service: ServiceBody) -> None:
        """Offer a service, in place of the provider's service of the same name."""
        if provider.services.get(service.service) == service:
            return
        self.withdraw(provider, service.service)
        provider.services[service.service] = service
        self._revision += 1
        self._send_service("up", provider, service)
        self._send_load(LOAD + service.service, "load", provider)

    def withdraw(self, provider: Provider, name: str) -> None:
        """Withdraw a service. No-op if it is not offered."""
        service = provider.services.pop(name, None)
        if service is not None:
            self._revision += 1
            self._send_service("down", provider, service)
            self._send_load(LOAD + name, "down", provider)

    def report(self, provider: Provider, report: LoadBody) -> None:
        """Set the load of a provider."""
        provider.report = report
        self._revision += 1
        for resource in (LOADS, *(LOAD + name for name in provider.services)):
            self._send_load(resource, "load", provider)

    def leave(self, provider: Provider) -> None:
        """Remove a provider with its services."""
        for name in list(provider.services):
            self.withdraw(provider, name)
        if self._providers.pop(provider.id, None) is not None:
            self._revision += 1
            self._send_load(LOADS, "down", provider)

    # the profile

    def check(self, side: str, resource: str) -> None:
        """Check the name of a resource."""
        named = any(resource.startswith(prefix) and resource != prefix for prefix in (SERVICE, LOAD))
        if not named and resource not in (SERVICES, LOADS):
            raise Refusal(400, "there is no such resource: services, service/NAME, load, load/NAME")
        if side == "writer" and (resource == SERVICES or resource.startswith(LOAD)):
            raise Refusal(400, "a writer has the resources service/NAME and load")

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Send a snapshot, then changes."""
        for provider, service in self._snapshot(resource):
            if service is None:
                reader.give(resource, *self._load(provider, "snapshot"))
            else:
                reader.give(resource, *self._service(provider, service, "snapshot"))
        reader.give(resource, table.encode({"event": "synced", "revision": self._revision}), b"")
        self._readers.setdefault(resource, {})[reader] = None

    def dismiss(self, reader: ReaderFlow, resource: str) -> None:
        """Stop the changes."""
        self._readers.get(resource, {}).pop(reader, None)

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Handle an offer, a withdrawal or a load."""
        provider = self._writers.get(writer)
        try:
            if resource == LOADS:
                report = read_load(content.body)
                self.report(provider or self._joined(writer, ""), report)
            else:
                self._offered(writer, provider, resource.removeprefix(SERVICE), content)
        except Refusal:
            writer.reject(content.sequence)
        else:
            writer.confirm(content.sequence)

    def left(self, flow: Any) -> None:
        """Withdraw the offers of a writer, or end the views of a reader."""
        provider = self._writers.pop(flow, None)
        if provider is not None:
            self.leave(provider)
        for readers in self._readers.values():
            readers.pop(flow, None)

    def reset(self) -> None:
        """Forget all providers and readers."""
        self._providers.clear()
        self._readers.clear()
        self._writers.clear()

    def _offered(self, writer: WriterFlow, provider: Provider | None, name: str, content: Content) -> None:
        kind = table.members(content.table, "type").get("type")
        if kind == "withdraw":
            if provider is not None:
                self.withdraw(provider, name)
            return
        if kind != "offer":
            raise Refusal(400, "the type is neither offer nor withdraw")
        try:
            service = msgspec.json.decode(content.body, type=ServiceBody)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise Refusal(400, "the body is no descriptor of a service") from None
        if service.service != name or not service.hostport or service.auth is not None:
            raise Refusal(400, "the descriptor has another name, no hostport, or a password")
        self.offer(provider or self._joined(writer, service.label or ""), service)

    def _joined(self, writer: WriterFlow, label: str) -> Provider:
        provider = self._writers[writer] = self.join(label or writer.grant.user or LABEL)
        return provider

    # output

    def _snapshot(self, resource: str) -> Iterator[tuple[Provider, ServiceBody | None]]:
        name = resource.partition("/")[2]
        for provider in list(self._providers.values()):
            if resource == LOADS or (resource.startswith(LOAD) and name in provider.services):
                yield provider, None
            elif resource == SERVICES or resource.startswith(SERVICE):
                for service in provider.services.values():
                    if resource == SERVICES or service.service == name:
                        yield provider, service

    def _send_service(self, event: str, provider: Provider, service: ServiceBody) -> None:
        content = self._service(provider, service, event)
        for resource in (SERVICES, SERVICE + service.service):
            for reader in self._readers.get(resource, ()):
                reader.give(resource, *content)

    def _send_load(self, resource: str, event: str, provider: Provider) -> None:
        content = self._load(provider, event)
        for reader in self._readers.get(resource, ()):
            reader.give(resource, *content)

    def _service(self, provider: Provider, service: ServiceBody, event: str) -> tuple[bytes, bytes]:
        body = {
            "type": "servicedesc",
            "service": service.service,
            "hostport": service.hostport,
            "protocol": service.protocol,
            **({} if service.label is None else {"label": service.label}),
            "provider": provider.id,
        }
        return self._properties(event, provider, service=service.service), msgspec.json.encode(body)

    def _load(self, provider: Provider, event: str) -> tuple[bytes, bytes]:
        told = {name: value for name, value in msgspec.structs.asdict(provider.report).items() if value is not None}
        body = {"type": "loaddesc", "label": provider.label, "provider": provider.id, **told}
        return self._properties(event, provider), b"" if event == "down" else msgspec.json.encode(body)

    def _properties(self, event: str, provider: Provider, **more: table.Value) -> bytes:
        return table.encode({"event": event, "revision": self._revision, "provider": provider.id, **more})


def read_load(body: bytes) -> LoadBody:
    """Return a report of a load. Raises `Refusal`."""
    try:
        report = msgspec.json.decode(body, type=LoadBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Refusal(400, "the body is no report of a load") from None
    for value in msgspec.structs.astuple(report):
        if value is not None and not (isfinite(value) and value >= 0):
            raise Refusal(400, "a load and its details are finite numbers, not negative")
    return report
