"""The views of the registry: the providers and services of all wires."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from twisted.internet.interfaces import IReactorTime

from broker.core.interfaces import IRegistry
from broker.core.model import CheckState, Provider, Service
from broker.wires.views import AnyView, Column, Row, View

PROVIDER_COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("address", "Address that it registered from"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("services", "Services that it offers", "services"),
    Column("failing", "Services of it whose health check fails", "services"),
    Column("heard", "Time since its last heartbeat, load report or registration", "seconds"),
)

SERVICE_COLUMNS = (
    Column("service", "Name of the service"),
    Column("protocol", "Protocol of the service"),
    Column("hostport", "Address of the service"),
    Column("provider", "Id of the provider; 0 is the broker itself"),
    Column("label", "Label of the service"),
    Column("check", "State of its health check: untested, passing or failing; absent if it is not checked"),
    Column("reason", "Reason of that state"),
    Column("finds", "Place in finds of a service that fails: show, last or hide"),
    Column("secret", "True if a secret belongs to the service, which is not shown"),
)


def views(registry: IRegistry, clock: IReactorTime) -> list[AnyView]:
    """Return the views of the registry."""
    return [
        View(
            "broker providers",
            "Shows the providers of all wires, by their ids. A pattern selects labels, addresses or wires.",
            PROVIDER_COLUMNS,
            registry.providers,
            partial(_provider, registry, clock),
            lambda provider: (provider.label, provider.address, provider.wire),
        ),
        View(
            "broker services",
            "Shows the services of all wires. A pattern selects names.",
            SERVICE_COLUMNS,
            registry.services,
            partial(_service, registry),
            _names,
        ),
    ]


def _names(service: Service) -> Iterator[str]:
    yield service.name


def _provider(registry: IRegistry, clock: IReactorTime, provider: Provider) -> Row:
    checks = (registry.check_of(service) for service in provider.services)
    return {
        "provider": provider.id,
        "wire": provider.wire,
        "label": provider.label,
        "address": provider.address,
        "load": provider.load,
        "services": len(provider.services),
        "failing": sum(check is not None and check.state is CheckState.FAILING for check in checks),
        "heard": round(clock.seconds() - provider.heard, 1),
    }


def _service(registry: IRegistry, service: Service) -> Row:
    about: dict[str, object] = {
        "service": service.name,
        "protocol": service.protocol,
        "hostport": service.hostport,
        "provider": service.provider,
    }
    if service.label is not None:
        about["label"] = service.label
    check = registry.check_of(service)
    if check is not None:
        about |= {"check": check.state.value, "reason": check.reason}
        if check.state is CheckState.FAILING:
            about["finds"] = registry.policy_of(service).value
    about["secret"] = service.auth is not None
    return about
