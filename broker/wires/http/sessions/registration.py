"""Endpoints of registration: register, renew with a load, withdraw."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta
from twisted.internet.interfaces import IReactorTime

from broker.core.cluster.cluster_interfaces import SINGLE, IMembers
from broker.core.hostports import remarks_for
from broker.core.model import DESCRIPTIONS, MAX_COUNT, MAX_LABELS, LoadDetails, description, load_details
from broker.rest.http_endpoint import Answer, Call, Endpoint, path_of
from broker.rest.messages import Response
from broker.wall_clock import wall
from broker.wires.http.sessions.instances import Instance, Instances, Offer

LEAST_TTL, MOST_TTL = 1.0, 86_400.0
"""Bounds of a TTL in seconds. A renewal takes a request; after a day without one, nothing is alive."""

Ttl = Annotated[float, Meta(ge=LEAST_TTL, le=MOST_TTL, description="seconds without a renewal after which it expires")]
Load = Annotated[float, Meta(ge=0, description="load, in the measure that the farm's servers share; usually 0 to 1")]


@attrs.frozen(kw_only=True)
class Report:
    """A load report; all members are optional. The counts are those since the report before."""

    load: Load | None = None
    requests: (
        Annotated[int, Meta(ge=0, le=MAX_COUNT, description="requests completed since the report before")] | None
    ) = None
    errors: Annotated[int, Meta(ge=0, le=MAX_COUNT, description="those of them that failed")] | None = None
    in_flight: Annotated[int, Meta(ge=0, le=MAX_COUNT, description="requests being handled now")] | None = None
    latency_ms: (
        Annotated[float, Meta(ge=0, le=MAX_COUNT, description="mean time of a request in milliseconds")] | None
    ) = None

    @property
    def details(self) -> LoadDetails | None:
        """Return the details, None without any."""
        return load_details(self.requests, self.errors, self.in_flight, self.latency_ms)


@attrs.frozen(kw_only=True)
class Registration(Report):
    """An instance of a service."""

    hostport: Annotated[str, Meta(min_length=1, description="the endpoint of the service: host:port")]
    protocol: Annotated[str, Meta(min_length=1, description="its protocol")] = "tcp"
    label: Annotated[str, Meta(description="a name of the provider, for people")] | None = None
    zone: Annotated[str, Meta(description="the zone in which it runs: a data centre, a region, a rack")] | None = None
    tags: Annotated[tuple[str, ...], Meta(max_length=MAX_LABELS, description="tags of the service")] | None = None
    meta: Annotated[dict[str, str], Meta(max_length=MAX_LABELS, description="further texts, by their names")] | None = (
        None
    )
    ttl: Ttl = 30.0
    info: Annotated[dict[str, Any], Meta(description="further data, kept unchanged")] | None = None


@attrs.frozen
class RegistrationQuery:
    """The query of a registration."""

    consistent: Annotated[bool, Meta(description="answer once it is written for the other brokers")] = False


@attrs.frozen(kw_only=True)
class Renewal(Report):
    """A renewal, with a load report or without."""


@attrs.frozen
class Renewed:
    """A renewed instance. ``expires`` is the time without a renewal, RFC 3339 in UTC."""

    provider: int
    ttl: float
    expires: str


class Registered(msgspec.Struct, frozen=True, omit_defaults=True):
    """A registered instance. ``owner_token`` permits its requests from another address, by the header Owner-Token.
    ``revision``, in a cluster and with ``consistent``: a find with it as ``after`` has the instance, at any broker.
    ``warnings`` are remarks on its address, such as one that clients on other hosts do not reach."""

    provider: int
    ttl: float
    expires: str
    owner_token: str
    revision: str | None = None
    warnings: list[str] = []


OWNER_TOKEN = {
    "Owner-Token": "The owner token of the instance, from the answer to its registration. A request of another owner "
    "needs it, such as one from another address."
}
"""The header of requests about an instance."""


class RegistrationEndpoints:
    """The endpoints, over the table of instances."""

    def __init__(self, instances: Instances, clock: IReactorTime, members: IMembers = SINGLE) -> None:
        self._instances = instances
        self._members = members
        self._clock = clock
        self._renew = Endpoint(
            "POST",
            "/v1/services/{name}/{instance}/renew",
            "renewService",
            "Renew a registration, and report a load",
            self.renew,
            body=Renewal,
            answer=Renewed,
            headers=OWNER_TOKEN,
            operation="offer",
            writes=True,
            tag="services",
            statuses={404: "the instance is unknown, or has expired", 409: "the instance has another owner"},
        )
        self._put = Endpoint(
            "PUT",
            "/v1/services/{name}/{instance}",
            "registerService",
            "Register an instance of a service, or replace and renew it",
            self.register,
            RegistrationQuery,
            body=Registration,
            answer=Registered,
            headers=OWNER_TOKEN,
            operation="offer",
            writes=True,
            tag="services",
            statuses={201: "registered", 409: "the instance has another owner", 429: "a limit is reached"},
        )
        self._delete = Endpoint(
            "DELETE",
            "/v1/services/{name}/{instance}",
            "withdrawService",
            "Withdraw an instance of a service",
            self.withdraw,
            headers=OWNER_TOKEN,
            operation="offer",
            writes=True,
            tag="services",
            status=204,
            statuses={
                404: "the instance is unknown, or has expired",
                409: "the instance has another owner",
                421: "the instance is at another broker",
            },
        )

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return [self._put, self._renew, self._delete]

    def register(self, call: Call) -> Answer:
        """Register, replace or renew an instance."""
        body: Registration = call.body
        info = None if body.info is None else msgspec.json.encode(body.info).decode()
        texts = {name: description(name, getattr(body, name)) for name in DESCRIPTIONS}
        offer = Offer(body.hostport, body.protocol, texts, info, body.ttl)
        name, instance = call.path["name"], call.path["instance"]
        made, new = self._instances.put(name, instance, call.principal, offer, _token(call))
        self._instances.report(made, body.load, body.details)
        here = path_of(self._put, name=name, instance=instance)
        warnings = remarks_for([body.hostport])
        headers = [("Location", here)] if new else []

        def answer(revision: str) -> Response:
            about = Registered(*self._terms(made), made.token, revision or None, warnings)
            body = msgspec.json.encode(about, order="sorted")
            return Response(201 if new else 200, body, headers=headers)

        return self._members.written().addCallback(answer) if call.query.consistent else answer("")

    def renew(self, call: Call) -> Response:
        """Renew an instance."""
        body: Renewal = call.body
        known = self._instances.renew(call.path["name"], call.path["instance"], call.principal, _token(call))
        self._instances.report(known, body.load, body.details)
        return Response(200, msgspec.json.encode(Renewed(*self._terms(known))))

    def withdraw(self, call: Call) -> Response:
        """Withdraw an instance."""
        self._instances.withdraw(call.path["name"], call.path["instance"], call.principal, _token(call))
        return Response(204)

    def _terms(self, known: Instance) -> tuple[int, float, str]:
        ends = datetime.fromtimestamp(wall(self._clock) + self._instances.left(known), UTC)
        return known.provider, known.offer.ttl, ends.isoformat(timespec="seconds")


def _token(call: Call) -> str:
    """Return the owner token of a request, empty without one."""
    return call.request.headers.get("owner-token", "").strip()
