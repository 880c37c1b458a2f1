"""The view of the catalogue: one row for each name of a service, with the numbers of its instances by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from broker.core.interfaces import IRegistry
from broker.core.model import CheckState, Service
from broker.core.plan import Plan
from broker.core.service_filter import read_filter
from broker.wires.tables import AnyView, Column, Row, View

STATES = {
    "passing": "Instances whose health check passes",
    "doubtful": "Instances that have missed a sign of life",
    "failing": "Instances whose health check fails",
    "untested": "Instances without a check, or without a result of it so far",
    "restored": "Instances known from before a restart, whose providers have not returned yet",
}
"""States of instances with their meaning. Each instance is in one, so that their numbers add up to all."""

COLUMNS = (
    Column("service", "Name of the service"),
    Column("instances", "Services of that name", "services"),
    *(Column(name, f"{meaning}; absent if there are none", "services") for name, meaning in STATES.items()),
    Column("wires", "Wires on which its providers registered"),
    Column("protocols", "Protocols of its instances"),
    Column("zones", "Zones of its instances; absent if none has one"),
    Column("load", "Sum of the loads that its providers reported last"),
    Column("lowest", "Lowest of these loads"),
    Column("highest", "Highest of these loads"),
    Column("requests", "Requests a second by the last reports of its providers at this broker; absent without any"),
    Column("errors", "Requests a second of these that failed"),
    Column("verdict", "State of the service in the capacity plan; absent without one"),
)


def catalog_view(registry: IRegistry, plan: Callable[[], Plan | None]) -> AnyView:
    """Return the view of all names, in their order. ``plan`` returns the current capacity plan."""
    return View(
        "broker catalog",
        "Shows the names of services, each with its instances by the state of their checks. A pattern selects names.",
        COLUMNS,
        # Sorted here, so that a page of the first names needs no rows of the others.
        lambda: sorted(registry.names(restored=True)),
        partial(catalog_row, registry, plan),
        lambda name: (name,),
        shown=lambda reading, name: reading.shows(name),
        filter=partial(_any_instance, registry),
    )


def _any_instance(registry: IRegistry, text: str) -> Callable[[str], bool]:
    """Return the condition that a filter applies to an instance of a name."""
    chosen = read_filter(text)
    return lambda name: any(map(chosen, registry.services_named(name)))


def catalog_row(registry: IRegistry, plan: Callable[[], Plan | None], name: str) -> Row:
    """Return the row of a name. An instance is a service; a provider with two of the name counts once for the loads."""
    protocols = registry.protocols(name, restored=True)
    live = [service for protocol in protocols for service in registry.services(name, protocol)]
    gone = [each for protocol in protocols for each in registry.find(name, protocol, restored=True) if each.restored]
    states = Counter(_state(registry, service) for service in live)
    states["restored"] = len(gone)
    providers = {service.provider for service in live}
    wires = {found[0] for id in providers if (found := registry.wire_and_label(id)) is not None}
    loads = [load for id in providers if (load := registry.load_of(id)) is not None]
    zones = {service.zone for service in (*live, *gone) if service.zone is not None}
    current = plan()
    planned = None if current is None else current.services.get(name)
    row: dict[str, object] = {"service": name, "instances": len(live) + len(gone)}
    row |= {state: states[state] for state in STATES if states[state]}
    row |= {"wires": " ".join(sorted(wires)), "protocols": " ".join(protocols)}
    if zones:
        row["zones"] = " ".join(sorted(zones))
    if loads:
        row |= {"load": sum(loads), "lowest": min(loads), "highest": max(loads)}
    rates = [rates for id in providers if (rates := registry.rates_of(id)) is not None]
    if rates:
        row |= {
            "requests": round(sum(each[0] for each in rates), 3),
            "errors": round(sum(each[1] for each in rates), 3),
        }
    if planned is not None:
        row["verdict"] = planned.verdict.value
    return row


def _state(registry: IRegistry, service: Service) -> str:
    check = registry.check_of(service)
    return CheckState.UNTESTED.value if check is None else check.state.value
