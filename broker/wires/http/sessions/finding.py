"""Endpoints of finding: services of a name, with ``wait`` and ``near``, and Prometheus' HTTP service discovery.

Rules:
- Live services come in the order of their offers; those from before a restart are shown while no live one
  has replaced them. With ``near=load``, the least loaded provider comes first, with ``near=zone`` those in the
  zone of the client. A service whose health check fails comes last or not at all, by the policy of its check.
- ``filter`` is in the language of `broker.core.service_filter`.
- With ``wait``, an empty result is awaited: a service that is offered answers; 404 at the deadline.
- A service's secret is shown by the rule of all wires (`broker.access.principal.sees_secrets`).
- The discovery is rendered in pieces. It has services from before a restart, too. It leaves out those of the broker
  itself, those with a secret, those whose address is no host:port, and names that the user may not find.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import chain, islice
from operator import attrgetter
from typing import Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.internet.interfaces import IReactorTime

from broker.access.principal import Access, Principal, sees_secrets
from broker.core.cluster.cluster_interfaces import SINGLE, IMembers
from broker.core.errors import Reason
from broker.core.interfaces import IRegistry
from broker.core.model import BROKER, MAX_TEXT, Check, Service
from broker.core.service_filter import MAX_LENGTH, read_filter
from broker.rest.dispatch import LISTENER
from broker.rest.http_endpoint import Answer, Call, Endpoint
from broker.rest.messages import Response
from broker.rest.problem import Problem
from broker.wall_clock import wall

MAX_WAIT = 300.0
"""Seconds of the longest wait: proxies close quieter connections."""

PIECE = 100
"""Services in one piece of the discovery: half a millisecond."""

_NO_LABEL = re.compile(r"[^A-Za-z0-9_]")
_AUTH = attrgetter("auth")
_HOSTPORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}")


@attrs.frozen
class FindQuery:
    """Which services to find."""

    protocol: Annotated[str, Meta(description="only services of this protocol")] | None = None
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT, description="seconds to wait for a service if there is none")] = 0.0
    near: Annotated[Literal["load", "zone"] | None, Meta(description="first the least loaded, or those in `zone`")] = (
        None
    )
    zone: Annotated[str, Meta(max_length=MAX_TEXT, description="the zone of the client, for `near=zone`")] = ""
    filter: Annotated[str, Meta(max_length=MAX_LENGTH, description='only such services: `zone=b and "v2" in tags`')] = (
        ""
    )
    limit: Annotated[int, Meta(ge=1, le=1_000, description="services at most")] = 100
    consistent: Annotated[bool, Meta(description="all that other brokers of the cluster have written before")] = False
    after: Annotated[str, Meta(max_length=100, description="all up to that `revision` of a consistent PUT")] = ""


@attrs.frozen
class FoundCheck:
    """The result of the health checks of a service. ``since`` is the time, RFC 3339 in UTC."""

    state: Literal["untested", "passing", "doubtful", "failing"]
    reason: str
    since: str


@attrs.frozen
class FoundService:
    """A service. ``load`` is that of its provider; ``restored``: it is known from before a restart only;
    ``check`` is absent for a service that is not checked."""

    hostport: str
    protocol: str
    provider: int
    label: str | None = None
    load: float | None = None
    restored: bool = False
    check: FoundCheck | None = None
    info: dict[str, Any] | None = None
    auth: dict[str, str] | None = None
    zone: str | None = None
    tags: list[str] | None = None
    meta: dict[str, str] | None = None


@attrs.frozen
class Found:
    """The services of a name."""

    name: str
    services: list[FoundService]


@attrs.frozen
class DiscoveryQuery:
    """Which services Prometheus discovers."""

    pattern: Annotated[str, Meta(description="shell pattern of service names")] = "*"
    protocol: Annotated[str, Meta(description="only services of this protocol")] | None = None


@attrs.frozen
class Target:
    """A target of Prometheus."""

    targets: list[str]
    labels: dict[str, str]


class FindingEndpoints:
    """The endpoints, over the registry."""

    def __init__(self, registry: IRegistry, access: Access, clock: IReactorTime, members: IMembers = SINGLE) -> None:
        self._registry = registry
        self._members = members
        self._access = access
        self._clock = clock
        self._endpoints = [
            Endpoint(
                "GET",
                "/v1/services/{name}",
                "findService",
                "Find the services of a name, or wait for one",
                self.find,
                FindQuery,
                answer=Found,
                operation="find",
                tag="services",
                statuses={404: "no service was offered within `wait`"},
            ),
            Endpoint(
                "GET",
                "/v1/discovery/prometheus",
                "discoverForPrometheus",
                "List the services in the format of Prometheus' HTTP service discovery",
                self.discover,
                DiscoveryQuery,
                answer=list[Target],
                operation="find",
                by_name=True,
                tag="services",
            ),
        ]

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return self._endpoints

    def find(self, call: Call) -> Answer:
        """Find services."""
        query: FindQuery = call.query
        if query.near == "zone" and not query.zone:
            raise Problem(400, "near=zone needs zone, that of the client")
        if query.filter:
            read_filter(query.filter)
        if query.consistent or query.after:
            return self._members.caught_up(query.after).addCallback(lambda _: self._find(call))
        return self._find(call)

    def discover(self, call: Call) -> Response:
        """List targets."""
        return Response(body=self._targets(call.principal, call.query))

    # inside

    def _find(self, call: Call) -> Answer:
        found = self._services(call.path["name"], call.query)
        if not found and call.query.wait:
            return self._wait(call)
        return self._answer(call, found)

    @inlineCallbacks
    def _wait(self, call: Call) -> Generator[Deferred[Any], Any, Response]:
        name = call.path["name"]
        end = self._clock.seconds() + call.query.wait
        while True:
            left = end - self._clock.seconds()
            if left <= 0:
                raise Problem(404, f"no {name!r} of that protocol was offered", Reason.NO_SUCH_SERVICE)
            yield self._registry.wait(name, left)
            found = self._services(name, call.query)
            if found:
                return self._answer(call, found)

    def _services(self, name: str, query: FindQuery) -> Sequence[Service]:
        found = self._named(name, query.protocol)
        return list(filter(read_filter(query.filter), found)) if query.filter else found

    def _named(self, name: str, protocol: str | None) -> Sequence[Service]:
        if protocol is not None:
            return self._registry.find(name, protocol, restored=True)
        protocols = self._registry.protocols(name, restored=True)
        if len(protocols) == 1:
            return self._registry.find(name, protocols[0], restored=True)
        found = [service for each in protocols for service in self._registry.find(name, each, restored=True)]
        # As in a find of one protocol: services with a failing check come last among the live ones.
        live = self._registry.by_check([service for service in found if not service.restored])
        return [*live, *(service for service in found if service.restored)]

    def _answer(self, call: Call, services: Sequence[Service]) -> Response:
        query: FindQuery = call.query
        load_of = self._registry.load_of
        loads = {service.provider: None if service.restored else load_of(service.provider) for service in services}
        if query.near == "load":
            services = sorted(services, key=lambda service: (service.restored, loads[service.provider] or 0.0))
            services = self._registry.by_check(services)
        elif query.near == "zone":
            services = sorted(services, key=lambda service: (service.restored, service.zone != query.zone))
            services = self._registry.by_check(services)
        secrets = any(map(_AUTH, services))
        trusted = secrets and sees_secrets(self._access, call.principal, call.request.local)
        # States of checks have the time of the clock, which a step of the time of day does not move.
        step = wall(self._clock) - self._clock.seconds()
        rows = [
            _row(service, loads[service.provider], self._registry.check_of(service), trusted, step)
            for service in services[: query.limit]
        ]
        return Response(body=msgspec.json.encode({"name": call.path["name"], "services": rows}))

    def _targets(self, principal: Principal, query: DiscoveryQuery) -> Iterator[bytes]:
        first = True
        yield b"["
        # By name: a copy of all services would take a turn of 20 ms and more where there are many.
        services = chain.from_iterable(map(self._registry.services_named, self._registry.names(restored=True)))
        while piece := list(islice(services, PIECE)):
            lines = [
                msgspec.json.encode(_target(service))
                for service in piece
                if self._discovered(service, principal, query)
            ]
            if lines:
                yield (b"" if first else b",\n") + b",\n".join(lines)
                first = False
            else:
                yield b""
        yield b"]\n"

    def _discovered(self, service: Service, principal: Principal, query: DiscoveryQuery) -> bool:
        return (
            service.provider != BROKER
            and service.auth is None
            and (query.protocol is None or service.protocol == query.protocol)
            and (query.pattern == "*" or fnmatchcase(service.name, query.pattern))
            and _HOSTPORT.fullmatch(service.hostport) is not None
            and self._access.allows(principal, LISTENER, "find", service.name)
        )


def _row(service: Service, load: float | None, check: Check | None, trusted: bool, step: float) -> dict[str, object]:
    row: dict[str, object] = {
        "hostport": service.hostport,
        "protocol": service.protocol,
        "provider": service.provider,
        "label": service.label,
        "load": load,
        "restored": service.restored,
    }
    row |= service.descriptions
    if check is not None:
        since = datetime.fromtimestamp(check.since + step, UTC).isoformat(timespec="seconds")
        row["check"] = {"state": check.state, "reason": check.reason, "since": since}
    if service.info is not None:
        row["info"] = msgspec.Raw(service.info.encode())
    if service.auth is not None:
        shown = {"mode": service.auth.mode, "code": service.auth.code, "id": service.auth.id}
        row["auth"] = {key: each for key, each in shown.items() if each is not None and (trusted or key == "mode")}
    return row


def _target(service: Service) -> Target:
    labels = {
        "__meta_elkobroker_service": service.name,
        "__meta_elkobroker_protocol": service.protocol,
        "__meta_elkobroker_provider": str(service.provider),
    }
    for name, value in service.descriptions.items():
        if isinstance(value, str):
            labels[f"__meta_elkobroker_{name}"] = value
    if service.tags:
        # As Consul's: a comma on both sides of each, so that one expression matches any of them.
        labels["__meta_elkobroker_tags"] = f",{','.join(service.tags)},"
    for name, text in (service.meta or {}).items():
        labels[f"__meta_elkobroker_meta_{_NO_LABEL.sub('_', name)}"] = text
    return Target([service.hostport], labels)
