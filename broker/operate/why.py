"""Endpoints of single names and providers: what they are, and the reason why each entry is in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import attrs
from msgspec import Meta
from twisted.internet.interfaces import IReactorTime

from broker.access.principal import forbidden
from broker.access.rights import RegistryReading
from broker.core.errors import Reason
from broker.core.interfaces import IRegistry
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import BROKER, CheckState, Kind, Policy, Provider, Service
from broker.operate.broker_tables import provider_row, service_row, shows_provider
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, array, members, moment, streamed
from broker.rest.problem import Problem
from broker.wall_clock import wall

Left = Callable[[Provider], float | None]
"""Seconds until a provider ends without a further sign of life; None without a lease at this broker."""

PIECE = 100
"""Entries of one piece: some 5 µs each."""

MAX_ENTRIES = 10_000
"""Entries that are explained of one name: more than an operator reads."""


SEARCHED = 2_000
"""Ends of services that are searched for that of a name without any: under a millisecond."""


@attrs.frozen
class Entry:
    """One entry of a name, with sentences: ``alive_by``, what keeps it; ``ends``, when it would end.

    ``left`` are the seconds until its lease at this broker ends without a further sign of life, null without a lease.
    ``since`` is the time of the provider's registration, null for one at another broker, as ``heard`` is, and for an
    entry from before a restart, which ``restored`` marks. ``check`` is the result of the health checks. ``broker`` is
    the broker of a cluster at which the provider is registered, empty without a cluster.
    """

    service: str
    protocol: str
    hostport: str
    wire: str
    provider: int
    label: str
    address: str
    since: str | None
    heard: Annotated[float, Meta(description="seconds since the last sign of life")] | None
    left: Annotated[float, Meta(description="seconds to the end of its lease")] | None
    restored: bool
    alive_by: str
    ends: str
    check: str
    broker: str


@attrs.frozen
class Why:
    """All entries of a name, live ones before restored ones."""

    name: str
    entries: list[Entry]


@attrs.frozen
class ProviderAbout:
    """One provider: its row, its services as rows and as explained entries, and its loads of the last hour.

    ``loads`` has one load for each ``step`` seconds, the newest last, null where there is none.
    """

    provider: dict[str, Any]
    step: int
    loads: list[float | None]
    services: list[dict[str, Any]]
    why: list[Entry]


class Explainer:
    """Explanations of entries of ``registry``, whose times are on ``clock``.

    ``left`` returns the rest of a provider's lease. ``here`` is the name of this broker in its cluster, empty without
    one.
    """

    def __init__(self, registry: IRegistry, clock: IReactorTime, left: Left, here: str) -> None:
        self._left = left
        self._here = here
        self._registry = registry
        self._clock = clock

    def entries(self, name: str) -> Iterator[list[Entry]]:
        """Yield the entries of a name in pieces."""
        left = islice(self._registry.services_named(name), MAX_ENTRIES)
        while some := list(islice(left, PIECE)):
            yield [self.explain(service, self._registry.provider(service.provider)) for service in some]

    def of(self, provider: Provider) -> Iterator[list[Entry]]:
        """Yield the entries of a provider in pieces."""
        for begin in range(0, len(provider.services), PIECE):
            yield [self.explain(service, provider) for service in provider.services[begin : begin + PIECE]]

    def explain(self, service: Service, provider: Provider | None) -> Entry:
        """Return the explanation of one entry. ``provider`` is None if it has left."""
        gone = service.restored or provider is None
        own = None if gone or provider is None or provider.broker else provider
        heard = None if own is None else round(self._clock.seconds() - own.heard, 1)
        left = None if gone or provider is None or service.interval is None else self._left(provider)
        alive_by, ends = self._reasons(service, provider, heard, left)
        known = self._registry.remembered_provider(service.provider) if provider is None else provider
        since = None
        if own is not None and own.since:
            since = moment(wall(self._clock) - self._clock.seconds() + own.since)
        return Entry(
            service=service.name,
            protocol=service.protocol,
            hostport=service.hostport,
            wire="" if provider is None else provider.wire,
            provider=service.provider,
            label=service.label or ("" if known is None else known.label),
            address="" if provider is None else provider.address,
            since=since,
            heard=heard,
            left=None if left is None else round(left, 1),
            restored=service.restored,
            alive_by=alive_by,
            ends=ends,
            check=self._check(service),
            broker=("" if known is None else known.broker) or self._here,
        )

    def _check(self, service: Service) -> str:
        check = self._registry.check_of(service)
        if check is None:
            return "not checked"
        if check.state is CheckState.UNTESTED:
            return f"untested: {check.reason}"
        policy = self._registry.policy_of(service)
        shown = {Policy.SHOW: "", Policy.LAST: "; it comes last in finds", Policy.HIDE: "; it is left out of finds"}
        return f"{check.state.value} for {self._clock.seconds() - check.since:.0f} s: {check.reason}{shown[policy]}"

    def _reasons(
        self, service: Service, provider: Provider | None, heard: float | None, left: float | None
    ) -> tuple[str, str]:
        if service.restored or provider is None:
            return (
                "the record from before the restart: its provider has not returned",
                "when its provider returns, or at the end of the grace period",
            )
        if provider.broker:
            return (
                f"the lease of the broker {provider.broker}, at which it is registered",
                f"when it ends at {provider.broker}, or when the lease of that broker ends",
            )
        if service.provider == BROKER:
            return "a listener of the broker itself", "when the listener closes"
        if service.interval is not None:
            return (
                f"signs of life, agreed at least every {service.interval:g} s; the last one was {heard:g} s ago",
                "when it is silent for longer than its wire allows, or when it is withdrawn"
                if left is None
                else f"in {left:.1f} s without another sign of life, or when it is withdrawn",
            )
        if service.lasting:
            return (
                "its registration, which has no heartbeats and outlasts restarts of the broker",
                "when it is withdrawn, or when probes of its address fail if these are configured",
            )
        where = f" from {provider.address}" if provider.address else ""
        return (
            f"the connection{where} on {provider.wire}; the last sign of life was {heard:g} s ago",
            "when that connection ends, or when it is withdrawn",
        )


def endpoints(
    registry: IRegistry, clock: IReactorTime, history: LoadHistory, left: Left, here: str = ""
) -> list[Endpoint]:
    """Return the endpoints of names and providers; see `Explainer`."""
    explainer = Explainer(registry, clock, left, here)

    def why(call: Call) -> Response:
        name = call.path["name"]
        if not RegistryReading.of(call.grants).shows(name):
            raise forbidden(call.principal, "find", name)
        if not registry.protocols(name, restored=True):
            raise Problem(404, f"there is no service {name[:80]!r}{_ended(registry, name)}", Reason.NO_SUCH_SERVICE)
        return streamed(_object({"name": name}, "entries", explainer.entries(name)))

    def provider(call: Call) -> Response:
        found = registry.provider(_number(call.path["provider"]))
        reading = RegistryReading.of(call.grants)
        if found is None or not shows_provider(reading, found):
            raise Problem(404, "there is no such provider: ids are not used again", Reason.UNKNOWN_TARGET)
        row = provider_row(registry, clock, found, here)
        if not reading.every:
            found = attrs.evolve(found, services=tuple(each for each in found.services if reading.shows(each.name)))
        about = {"provider": row, "step": STEP, "loads": history.of(found.id)}
        return streamed(_provider(about, found, registry, explainer))

    return [
        Endpoint(
            "GET",
            "/v1/why/{name}",
            "explain_service",
            "Explains each entry of a service name: what registered it, what keeps it, and what would end it.",
            why,
            answer=Why,
        ),
        Endpoint(
            "GET",
            "/v1/providers/{provider}",
            "get_provider",
            "Describes one provider with its services and its loads of the last hour.",
            provider,
            answer=ProviderAbout,
        ),
    ]


ENDS = {
    "withdrawn": "it was withdrawn",
    "left": "its connection ended",
    "expired": "it was silent for too long",
}
"""Reasons of the ends of services, as sentences."""


def _ended(registry: IRegistry, name: str) -> str:
    """Return the end of the last instance of a name, by the recent events; empty if they have none."""
    for change in reversed(registry.recent((Kind.WITHDRAWN,), SEARCHED)):
        service = change.subject
        if isinstance(service, Service) and service.name == name:
            why = ENDS.get(change.why, change.why)
            return (
                f" now: the last one, {service.hostport} of provider {service.provider}, ended at {moment(change.at)}, "
                f"since {why}"
            )
    return ""


def _provider(
    about: dict[str, object], provider: Provider, registry: IRegistry, explainer: Explainer
) -> Iterator[bytes]:
    yield b"{" + members(about) + b',"services":'
    services = provider.services
    yield from array(
        [service_row(registry, each) for each in services[n : n + PIECE]] for n in range(0, len(services), PIECE)
    )
    yield b',"why":'
    yield from array(explainer.of(provider))
    yield b"}"


def _object(about: dict[str, object], name: str, rows: Iterator[Sequence[object]]) -> Iterator[bytes]:
    yield b"{" + members(about) + b',"' + name.encode() + b'":'
    yield from array(rows)
    yield b"}"


def _number(text: str) -> int:
    """Return the id in a path; -1, which no provider has, for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
