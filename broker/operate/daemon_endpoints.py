"""Endpoints of the daemon itself: its health and its state, the user of a request, and the document of the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import attrs
from msgspec import Meta
from twisted.internet.defer import Deferred

from broker.access.principal import OPERATIONS, Access
from broker.core.cluster.cluster_interfaces import IMembers
from broker.core.interfaces import IRegistry
from broker.core.model import NotReady
from broker.rest import openapi
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, answer
from broker.rest.sites import OtherBrokers

Reasons = Callable[[], Sequence[NotReady]]
"""Returns what is not ready, each with its reason; nothing if the daemon is ready."""


@attrs.frozen
class Health:
    """The answer of a process whose event loop runs."""

    status: str = "ok"


@attrs.frozen
class Obstacle:
    """A part that is not ready, and the reason."""

    what: str
    reason: str


@attrs.frozen
class Readiness:
    """The readiness of the daemon: it is ready if there are no reasons against it.

    ``degraded`` has reasons for which it serves with less than everything, such as an etcd that cannot be reached.
    """

    ready: bool
    reasons: list[Obstacle]
    degraded: list[Obstacle]


@attrs.frozen
class RegistrySize:
    """The size and the version of the registry; revisions of one epoch can be compared."""

    epoch: int
    revision: int
    providers: int
    services: int
    waits: int


@attrs.frozen
class Status:
    """The state of the daemon.

    ``started`` is a time by RFC 3339. ``store`` and ``journal`` have the writes that failed in a row (0 is good) and
    those that are pending; ``journal`` is absent without one. ``member`` is the name of this broker in its cluster,
    absent without one.
    """

    version: str
    started: str
    uptime: Annotated[float, Meta(description="seconds")]
    listeners: list[dict[str, Any]]
    registry: dict[str, Any]
    store: dict[str, Any]
    journal: dict[str, Any] | None = None
    member: str | None = None


@attrs.frozen
class Machine:
    """Resources of the machine for the process of the broker; those that cannot be read are absent.

    ``descriptors`` are those that it may open, ``open`` those that are open. ``somaxconn`` is the kernel's limit of
    connections that wait to be accepted. ``disk`` is the state directory, ``free`` the bytes that are free there.
    """

    descriptors: int
    open: int | None
    somaxconn: int | None
    disk: str
    free: int | None


def machine_endpoints(machine: Callable[[], Deferred[Machine]]) -> list[Endpoint]:
    """Return the endpoint. ``machine`` may fail with a `broker.core.errors.Refusal`."""
    return [
        Endpoint(
            "GET",
            "/v1/machine",
            "get_machine",
            "Describes descriptors, disk and limits of the machine of the broker.",
            lambda call: machine().addCallback(answer),
            answer=Machine,
            tag="health",
        )
    ]


def health_endpoints(
    ready: Reasons,
    degraded: Reasons,
    status: Callable[[], Mapping[str, object]],
    registry: IRegistry,
    sizes: Callable[[], Mapping[str, int]],
) -> list[Endpoint]:
    """Return the endpoints of health and state. ``sizes`` returns the sizes of the registry."""

    def health(call: Call) -> Response:
        return answer(Health())

    def readiness(call: Call) -> Response:
        reasons = [Obstacle(each.what, each.reason) for each in ready()]
        less = [Obstacle(each.what, each.reason) for each in degraded()]
        return answer(Readiness(not reasons, reasons, less), 503 if reasons else 200)

    def state(call: Call) -> Response:
        return answer(status())

    def journal(call: Call) -> Response:
        found = status().get("journal")
        return answer({"enabled": found is not None, **(found if isinstance(found, Mapping) else {})})

    def registry_size(call: Call) -> Response:
        return answer({"epoch": registry.epoch, "revision": registry.revision, **sizes()})

    return [
        Endpoint(
            "GET",
            "/healthz",
            "get_health",
            "Answers while the loop of the process turns.",
            health,
            answer=Health,
            operation=None,
            tag="health",
        ),
        Endpoint(
            "GET",
            "/readyz",
            "get_readiness",
            "Returns the readiness, with the reasons against it. A degraded broker is ready, with its reasons.",
            readiness,
            answer=Readiness,
            operation=None,
            tag="health",
            statuses={503: "something is not ready"},
        ),
        Endpoint("GET", "/v1/status", "get_status", "Describes the state of the daemon.", state, answer=Status),
        Endpoint(
            "GET",
            "/v1/registry",
            "get_registry",
            "Returns the version of the registry and its sizes.",
            registry_size,
            answer=RegistrySize,
        ),
        Endpoint(
            "GET",
            "/v1/journal",
            "get_journal",
            "Describes the metrics journal.",
            journal,
            answer=dict[str, Any],
        ),
    ]


# The endpoint with the user of a request, and the document of the API.

TITLE = "elkobroker"

ABOUT = """The operators' interface of elkobroker: the registry of services behind all its wires, their sessions, topics
and queues, metrics, events as they happen, and actions. Lists have `pattern`, `where`, `sort`, `offset` and `limit`;
errors are problem details (RFC 9457)."""


@attrs.frozen
class WhoAmI:
    """The user of the request: its name (empty for the anonymous one), the means by which it is known, and the
    operations that it may do. ``users`` is true if a users file is configured. ``servers`` are the URLs of the HTTP
    listeners of all brokers of the cluster that other machines reach, this one first; empty without a cluster."""

    name: str
    method: str
    operations: list[str]
    users: bool
    servers: list[str]


def identity_endpoints(
    access: Access, listener: str, version: str, all: Callable[[], Sequence[Endpoint]], members: IMembers
) -> list[Endpoint]:
    """Return the endpoints. ``listener`` is the title that rights name, ``all`` returns all endpoints."""

    servers = OtherBrokers(members, listener).urls

    def whoami(call: Call) -> Response:
        user = call.principal
        operations = [operation for operation in OPERATIONS if access.allows(user, listener, operation)]
        return answer(WhoAmI(user.name, user.method.value, operations, access.users, servers(call.request.secure)))

    def document(call: Call) -> Response:
        return answer(openapi.document(all(), TITLE, version, ABOUT))

    return [
        Endpoint(
            "GET",
            "/v1/whoami",
            "get_user",
            "Returns the user of the request, and its rights.",
            whoami,
            answer=WhoAmI,
            operation=None,
            tag="access",
        ),
        Endpoint(
            "GET",
            "/openapi.json",
            "get_document",
            "Returns this document.",
            document,
            answer=dict[str, Any],
            operation=None,
            tag="access",
        ),
    ]
