"""Views of the broker: registry, listeners, certificates, health checks, the cluster, counters and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.access.rights import RegistryReading
from broker.core.checks.check_rules import TargetInfo
from broker.core.cluster.cluster_interfaces import IMembers, IQueueOwners, MemberHealth, QueueClaim
from broker.core.hostports import hostport_remark
from broker.core.interfaces import IRegistry
from broker.core.model import BROKER, DESCRIPTIONS, CheckState, Listening, Provider, Service
from broker.core.plan import IPlan, Plan, PlannedService, Verdict
from broker.core.service_filter import read_filter
from broker.pem import EXPIRES_SOON
from broker.rest.messages import moment
from broker.wall_clock import wall
from broker.wires.tables import ID, AnyView, Column, Documentation, Row, View

# The views of the registry: the providers, services and loads of all wires.

PROVIDER_COLUMNS = (
    Column("provider", "Id of the provider", ID),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("address", "Address that it registered from"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("services", "Services that it offers", "services"),
    Column("failing", "Services of it whose health check fails; absent if there are none", "services"),
    Column("doubtful", "Services of it that have missed a sign of life; absent if there are none", "services"),
    Column("heard", "Time since its last heartbeat, load report or registration; absent at other brokers", "seconds"),
    Column("age", "Time since its registration; absent at other brokers", "seconds"),
)

SERVICE_COLUMNS = (
    Column("service", "Name of the service"),
    Column("protocol", "Protocol of the service"),
    Column("hostport", "Address of the service"),
    Column("provider", "Id of the provider; 0 is the broker itself", ID),
    *(Column(name, meaning) for name, meaning in DESCRIPTIONS.items()),
    Column("secret", "True if a secret belongs to the service, which is not shown"),
    Column("check", "Result of its health checks: passing, doubtful or failing; absent if it is not checked"),
    Column("reason", "Reason of that result"),
    Column("remark", "Reason for which its address does not serve every client; absent without one"),
)

LOAD_COLUMNS = (
    Column("provider", "Id of the provider", ID),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("requests", "Requests that it completed between its last two reports", "requests"),
    Column("errors", "Requests of these that failed", "requests"),
    Column("in_flight", "Requests that it was handling at its last report", "requests"),
    Column("latency_ms", "Mean time for which it handled one of the requests", "milliseconds"),
)


HOLDER = Column("broker", "Broker of the cluster at which it is registered")


def registry_views(registry: IRegistry, clock: IReactorTime, here: str = "") -> list[AnyView]:
    """Return the views of the registry. ``here`` is the name of this broker in its cluster; empty without one."""
    holder = (HOLDER,) if here else ()
    return [
        View(
            "broker providers",
            "Shows the providers of all wires, by their ids. A pattern selects labels, addresses or wires.",
            (*PROVIDER_COLUMNS, *holder),
            partial(present_providers, registry),
            partial(provider_row, registry, clock, here=here),
            lambda provider: (provider.label, provider.address, provider.wire),
            shown=shows_provider,
        ),
        View(
            "broker services",
            "Shows the services of all wires. A pattern selects names.",
            (*SERVICE_COLUMNS, *holder),
            partial(_services, registry),
            partial(service_row, registry, here=here),
            _service_names,
            tagged=True,
            shown=lambda reading, service: reading.shows(service.name),
            filter=read_filter,
        ),
        View(
            "broker loads",
            "Shows the last load report of each provider, with its requests if it reports them. A pattern selects "
            "labels or wires.",
            (*LOAD_COLUMNS, *holder),
            partial(present_providers, registry),
            partial(_load_row, here=here),
            lambda provider: (provider.label, provider.wire),
            tagged=True,
            shown=shows_provider,
        ),
    ]


def present_providers(registry: IRegistry) -> Iterator[Provider]:
    """Yield the present providers, without those that leave before their turn."""
    return (provider for id in registry.ids() if (provider := registry.provider(id)) is not None)


def _services(registry: IRegistry) -> Iterator[Service]:
    """Yield the services of the present providers, and of the broker itself, as `present_providers`."""
    return (service for id in chain((BROKER,), registry.ids()) for service in registry.services_of(id))


def shows_provider(reading: RegistryReading, provider: Provider) -> bool:
    """Return True if a provider is shown to a user with that reading."""
    return reading.shows_any(service.name for service in provider.services)


def _service_names(service: Service) -> Iterator[str]:
    yield service.name


def provider_row(registry: IRegistry, clock: IReactorTime, provider: Provider, here: str = "") -> Row:
    """Return the row of a provider. ``here`` is as in `registry_views`."""
    now = clock.seconds()
    checks = [check for service in provider.services if (check := registry.check_of(service)) is not None]
    failing = sum(check.state is CheckState.FAILING for check in checks)
    doubtful = sum(check.state is CheckState.DOUBTFUL for check in checks)
    return {
        "provider": provider.id,
        "wire": provider.wire,
        "label": provider.label,
        "address": provider.address,
        "load": provider.load,
        "services": len(provider.services),
        **({"failing": failing} if failing else {}),
        **({"doubtful": doubtful} if doubtful else {}),
        # Signs of life are not sent to other brokers.
        **({} if provider.broker else {"heard": round(now - provider.heard, 1), "age": round(now - provider.since, 1)}),
        **_holder(provider, here),
    }


def _holder(provider: Provider | None, here: str) -> dict[str, object]:
    return {} if not here else {"broker": here if provider is None else provider.broker or here}


def service_row(registry: IRegistry, service: Service, here: str = "") -> Row:
    """Return the row of a service, without its secret. ``here`` is as in `registry_views`."""
    about: dict[str, object] = {
        "service": service.name,
        "protocol": service.protocol,
        "hostport": service.hostport,
        "provider": service.provider,
    }
    about |= service.descriptions
    about["secret"] = service.auth is not None
    check = registry.check_of(service)
    if check is not None and check.state is not CheckState.UNTESTED:
        about["check"] = check.state.value
        about["reason"] = check.reason
    remark = hostport_remark(service.hostport) if service.provider != BROKER else ""
    if remark:
        about["remark"] = remark
    if here:
        about |= _holder(registry.provider(service.provider), here)
    return about


def _load_row(provider: Provider, here: str) -> Row:
    row: dict[str, object] = {
        "provider": provider.id,
        "wire": provider.wire,
        "label": provider.label,
        "load": provider.load,
    }
    if provider.details is not None:
        row |= {name: value for name, value in attrs.asdict(provider.details).items() if value is not None}
    return {**row, **_holder(provider, here)}


# The view of the daemon's listeners: the address of each, and the reason if one is not open.

LISTENER_COLUMNS = (
    Column("name", "Name of the listener"),
    Column("where", "Address that it is bound to, or is to be bound to"),
    Column("ready", "True if it is open"),
    Column("seconds", "Time for which it has been in this state", "seconds"),
    Column("reason", "Reason why it is not open"),
)


def listener_view(states: Callable[[], Sequence[Listening]], clock: IReactorTime) -> AnyView:
    """Return the view of all listeners."""
    return View(
        "broker listeners",
        "Shows the listeners of the daemon. A pattern selects names.",
        LISTENER_COLUMNS,
        states,
        partial(_listener_row, clock),
        lambda listening: (listening.name,),
    )


def _listener_row(clock: IReactorTime, listening: Listening) -> Row:
    about: dict[str, object] = {
        "name": listening.name,
        "where": listening.where,
        "ready": listening.ready,
        "seconds": round(clock.seconds() - listening.since, 1),
    }
    if listening.reason is not None:
        about["reason"] = listening.reason
    return about


# The view of TLS certificates of listeners, and warnings before they expire.

CHECK = 3_600.0
"""Seconds between checks of expiry."""

CERTIFICATE_COLUMNS = (
    Column("certificate", "File of the certificate"),
    Column("names", "Common name and DNS names"),
    Column("expires", "Time at which it expires, or the first one of its chain, in UTC"),
    Column("days", "Time until then; negative if it has expired", "days"),
    Column("clients", "True if clients must have a certificate"),
    Column("state", "valid, soon (within 14 days), or expired"),
)


class Certificate(Protocol):
    """The certificate of a listener; `broker.net.tls.Certificates` implements it."""

    path: str

    @property
    def expires(self) -> float:
        """The time in seconds since the epoch at which it expires."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its common name and DNS names."""

    @property
    def asks_clients(self) -> bool:
        """True if clients must have a certificate."""


Certificates = Callable[[], Iterable[Certificate]]
"""Returns the certificates of the open listeners."""


def certificate_state(certificate: Certificate, now: float) -> str:
    """Return "valid", "soon" or "expired"."""
    if certificate.expires <= now:
        return "expired"
    return "soon" if certificate.expires <= now + EXPIRES_SOON else "valid"


def certificate_view(shown: Certificates, clock: IReactorTime) -> AnyView:
    """Return the view of all certificates."""
    return View(
        "broker certificates",
        "Shows the TLS certificates of the listeners. A pattern selects files and names.",
        CERTIFICATE_COLUMNS,
        shown,
        partial(_certificate_row, clock),
        lambda each: (each.path, *each.names),
    )


def _certificate_row(clock: IReactorTime, certificate: Certificate) -> Row:
    now = wall(clock)
    return {
        "certificate": certificate.path,
        "names": " ".join(certificate.names),
        "expires": datetime.fromtimestamp(certificate.expires, UTC).isoformat(),
        "days": round((certificate.expires - now) / 86_400, 1),
        "clients": certificate.asks_clients,
        "state": certificate_state(certificate, now),
    }


class CertificateWatch:
    """Warnings in the log: one for each certificate that expires soon, and one that has expired."""

    log = Logger()

    def __init__(self, shown: Certificates, clock: IReactorTime) -> None:
        self._shown = shown
        self._clock = clock
        self._warned: set[tuple[str, float, str]] = set()
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Check now, and every `CHECK` seconds."""
        self.check()
        self._timer = self._clock.callLater(CHECK, self.start)

    def stop(self) -> None:
        """Stop the checks."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None

    def check(self) -> Sequence[str]:
        """Log warnings that are due. Returns them."""
        now = wall(self._clock)
        found = []
        for each in self._shown():
            key = (each.path, each.expires, certificate_state(each, now))
            if key[2] == "valid" or key in self._warned:
                continue
            self._warned.add(key)
            days = (each.expires - now) / 86_400
            text = "has expired" if days <= 0 else f"expires in {days:.1f} days"
            self.log.warn("the certificate {path} {text}", path=each.path, text=text)
            found.append(f"{each.path} {text}")
        return found


# The view of health checks.

CHECK_COLUMNS = (
    Column("kind", "Kind of the check: ping, tcp or http"),
    Column("subjects", "Names of the checked services, the first three, or the label of a Context Server"),
    Column("services", "Services, or Context Servers, that the check decides about", "services"),
    Column("wire", "Wire of a ping"),
    Column("peer", "Number of the pinged peer on that wire: the id of a provider, or of a connection of the director"),
    Column("hostport", "Address of a connection or request"),
    Column("state", "untested, passing, doubtful or failing"),
    Column("reason", "Reason of the state: the outcome that led to it"),
    Column("since", "Time since the state began", "seconds"),
    Column("streak", "Outcomes in a row that contradict the state", "checks"),
    Column("interval", "Time between two checks", "seconds"),
    Column("policy", "Place of failing services in finds: show, last or hide"),
)


def checks_view(targets: Callable[[], Iterable[TargetInfo]], clock: IReactorTime) -> AnyView:
    """Return the view of all health checks."""
    return View(
        "broker checks",
        "Shows the health checks, the oldest first. A pattern selects services, addresses, states or wires.",
        CHECK_COLUMNS,
        targets,
        partial(_check_row, clock),
        lambda info: (*info.subjects, info.question.hostport, info.check.state.value, info.question.wire),
        shown=lambda reading, info: all(map(reading.shows, info.subjects)),
    )


def _check_row(clock: IReactorTime, info: TargetInfo) -> Row:
    question = info.question
    row: dict[str, object] = {"kind": question.rule.kind.value, "subjects": list(info.subjects), "services": info.count}
    if question.wire:
        row |= {"wire": question.wire, "peer": question.number}
    else:
        row["hostport"] = question.hostport
    return row | {
        "state": info.check.state.value,
        "reason": info.check.reason,
        "since": round(clock.seconds() - info.check.since, 1),
        "streak": info.streak,
        "interval": question.rule.interval,
        "policy": info.policy.value,
    }


# The views of the cluster: its members, and the owners of durable queues. The links have a view of their own.

MEMBER_COLUMNS = (
    Column("member", "Name of the broker"),
    Column("here", "True for the broker that answers"),
    Column("linked", "True if a link to it is open, by which topics travel"),
    Column("draining", "True while it sends its peers away"),
    Column("lag_ms", "Time from a write to etcd until the broker sees it, as it measures it itself", "milliseconds"),
    Column("providers", "Providers that are registered there", "providers"),
    Column("services", "Services of these", "services"),
    Column("version", "Version of the broker"),
    Column("link", "Endpoint for links"),
    Column("listeners", "Endpoints for peers, with the titles of the listeners"),
    Column("instance", "Random text, another one after each start with a new lease"),
)

CLAIM_COLUMNS = (
    Column("queue", "Name of the queue"),
    Column("space", "Space of names: the host of the queue"),
    Column("owner", "Name of the broker that owns the queue"),
    Column("endpoint", "Endpoint of the owner for clients"),
)

Claim = tuple[str, str, QueueClaim]


def cluster_views(members: IMembers, owners: IQueueOwners) -> list[AnyView]:
    """Return the views; none in single mode."""
    if not members.clustered:
        return []
    return [
        View(
            "cluster members",
            "Shows the brokers of the cluster. A pattern selects names.",
            MEMBER_COLUMNS,
            members.health,
            member_row,
            lambda each: (each.member.name,),
        ),
        View(
            "cluster claims",
            "Shows the owners of durable queues. A pattern selects queues or owners.",
            CLAIM_COLUMNS,
            owners.claims,
            _claim_row,
            _claim_keys,
        ),
    ]


def member_row(health: MemberHealth) -> Row:
    """Return the row of a member."""
    member = health.member
    return {
        "member": member.name,
        "here": health.here,
        "linked": health.linked,
        "draining": member.draining,
        **({} if health.lag is None else {"lag_ms": round(health.lag * 1_000, 1)}),
        "providers": health.providers,
        "services": health.services,
        "version": member.version,
        **({"link": member.link} if member.link else {}),
        "listeners": [f"{title} {endpoint}" for title, endpoint in member.listeners.items()],
        "instance": member.instance,
    }


def _claim_row(claim: Claim) -> Row:
    space, name, owner = claim
    row = {"queue": name, "space": space, "owner": owner.owner}
    return {**row, "endpoint": owner.endpoint} if owner.endpoint else row


def _claim_keys(claim: Claim) -> Iterable[str]:
    _, name, owner = claim
    return (name, owner.owner)


# The view of all counters.

COUNTER_COLUMNS = (
    Column("name", "Name of the counter"),
    Column("value", "Count since the start, or the present number"),
    Column("unit", "Unit of the value"),
    Column("now", "True for a present number; other counters only grow"),
    Column("help", "Meaning of the counter"),
)


def counter_view(counts: Callable[[], Mapping[str, int]], documentation: Documentation) -> AnyView:
    """Return the view of the counters that were counted so far."""

    def row(item: tuple[str, int]) -> Row:
        name, value = item
        about = documentation.of(name)
        if about is None:
            return {"name": name, "value": value}
        return {"name": name, "value": value, "unit": about.unit, "now": about.gauge, "help": about.help}

    return View(
        "broker counters",
        "Shows what was counted. A pattern selects names.",
        COUNTER_COLUMNS,
        lambda: sorted(counts().items()),
        row,
        lambda item: (item[0],),
    )


# The view of the capacity plan: the verdict on each service, the worst first.

PLAN = "/plan"
"""Path of the files of the plan on the HTTP listener: `broker.operate.plan_endpoints` serves some of them."""

REPORT = f"{PLAN}/report.html"
"""Path of the report there."""

PLAN_COLUMNS = (
    Column("name", "Name of the service"),
    Column("verdict", f"State of the service: {', '.join(verdict.value for verdict in Verdict)}"),
    Column("days_until_short", "Time until there are too few providers, 0 if there are too few already", "days"),
    Column("short_at", "Time from which there are too few providers"),
    Column("add", "Providers that are missing in the horizon", "providers"),
    Column("free", "Providers that may go", "providers"),
    Column("has", "Providers at the time of the plan", "providers"),
    Column("need_now", "Providers needed for the bound of the hour that begins then, by the policy", "providers"),
    Column("need", "Providers needed for the bound of the horizon, by the policy", "providers"),
    Column("missed", "Past moments at which the bound behind the need was exceeded", "moments"),
    Column("trials", "Past moments at which the bound was tried", "moments"),
    Column("miss_at_most", "Highest rate of misses that this leaves possible, with 95 % confidence; a share"),
    Column("note", "Remark of the plan"),
    Column("report", "Path of the section or page on the service in the jobs' report, on the HTTP listener"),
    Column("age", "Age of the plan: time since the moment for which it was made", "seconds"),
)


def plan_view(plan: IPlan, clock: IReactorTime) -> AnyView:
    """Return the view of a plan."""

    def items() -> Iterable[tuple[Plan, PlannedService]]:
        current = plan.current()
        return () if current is None else [(current, service) for service in current.services.values()]

    return View(
        "broker plan",
        "Shows the verdict of the capacity plan on each service, the worst first. A pattern selects names.",
        PLAN_COLUMNS,
        items,
        partial(_plan_row, clock),
        lambda item: (item[1].name,),
        shown=lambda reading, item: reading.shows(item[1].name),
    )


def _plan_row(clock: IReactorTime, item: tuple[Plan, PlannedService]) -> Row:
    plan, service = item
    now = wall(clock)
    days = service.days_until_short(now)
    row: dict[str, object | None] = {
        "name": service.name,
        "verdict": service.verdict.value,
        "days_until_short": None if days is None else round(days, 2),
        "short_at": None if service.short_at is None else moment(service.short_at),
        "add": service.add,
        "free": service.free or None,
        "has": service.has,
        "need_now": service.need_now,
        "need": service.need,
        "missed": service.missed,
        "trials": service.trials,
        "miss_at_most": service.miss_at_most,
        "note": service.note or None,
        "report": f"{PLAN}/{service.report}" if service.report else REPORT,
        "age": round(now - plan.made),
    }
    return {name: value for name, value in row.items() if value is not None}


# The view of the bridges to other sites.

BRIDGE_COLUMNS = (
    Column("name", "Name of the other site"),
    Column("state", "up; waiting or connecting where this broker connects, else expected"),
    Column("since", "Time in that state", "seconds"),
    Column("address", "Endpoint of the other broker, or the address that it connected from"),
    Column("services_out", "Services of this broker that the other one has", "services"),
    Column("services_in", "Services received", "services"),
    Column("lost", "Services of these that are doubtful since the link ended", "services"),
    Column("refused", "Services that were not taken: no right, a limit, a loop", "services"),
    Column("messages_out", "Messages of topics sent", "messages"),
    Column("messages_in", "Messages of topics received", "messages"),
    Column("dropped", "Messages not sent or not published: the rate, rights, a full link", "messages"),
    Column("error", "Last reason for a service not taken, or for the end of the link; absent without one"),
)


def bridges_view(rows: Callable[[], Iterable[Row]]) -> AnyView:
    """Return the view of the bridges, whose rows are made elsewhere."""
    return View(
        "broker bridges",
        "Shows the bridges to brokers of other sites. A pattern selects names.",
        BRIDGE_COLUMNS,
        rows,
        lambda row: row,
        lambda row: (str(row["name"]),),
        naming=("error",),
    )
