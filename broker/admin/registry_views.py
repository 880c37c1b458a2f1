"""The views of the registry: the providers, services and loads of all wires."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.access.registry_reading import RegistryReading
from broker.core.interfaces import IRegistry
from broker.core.model import BROKER, CheckState, Provider, Service
from broker.wires.views import AnyView, Column, Row, View

PROVIDER_COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("address", "Address that it registered from"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("services", "Services that it offers", "services"),
    Column("failing", "Services of it whose health check fails; absent if there are none", "services"),
    Column("doubtful", "Services of it that have missed a sign of life; absent if there are none", "services"),
    Column("heard", "Time since its last heartbeat, load report or registration", "seconds"),
    Column("age", "Time since its registration", "seconds"),
)

SERVICE_COLUMNS = (
    Column("service", "Name of the service"),
    Column("protocol", "Protocol of the service"),
    Column("hostport", "Address of the service"),
    Column("provider", "Id of the provider; 0 is the broker itself"),
    Column("label", "Label of the service"),
    Column("secret", "True if a secret belongs to the service, which is not shown"),
    Column("check", "Result of its health checks: passing, doubtful or failing; absent if it is not checked"),
    Column("reason", "Reason of that result"),
)

LOAD_COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("requests", "Requests that it completed between its last two reports", "requests"),
    Column("errors", "Requests of these that failed", "requests"),
    Column("in_flight", "Requests that it was handling at its last report", "requests"),
    Column("latency_ms", "Mean time for which it handled one of the requests", "milliseconds"),
)


HOLDER = Column("broker", "Broker of the cluster at which it is registered")


def views(registry: IRegistry, clock: IReactorTime, here: str = "") -> list[AnyView]:
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
            _names,
            tagged=True,
            shown=lambda reading, service: reading.shows(service.name),
        ),
        View(
            "broker loads",
            "Shows the last load report of each provider, with its requests if it reports them. A pattern selects "
            "labels or wires.",
            (*LOAD_COLUMNS, *holder),
            partial(present_providers, registry),
            partial(_load, here=here),
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


def _names(service: Service) -> Iterator[str]:
    yield service.name


def provider_row(registry: IRegistry, clock: IReactorTime, provider: Provider, here: str = "") -> Row:
    """Return the row of a provider. ``here`` is as in `views`."""
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
        "heard": round(now - provider.heard, 1),
        "age": round(now - provider.since, 1),
        **_holder(provider, here),
    }


def _holder(provider: Provider | None, here: str) -> dict[str, object]:
    return {} if not here else {"broker": here if provider is None else provider.broker or here}


def service_row(registry: IRegistry, service: Service, here: str = "") -> Row:
    """Return the row of a service, without its secret. ``here`` is as in `views`."""
    about: dict[str, object] = {
        "service": service.name,
        "protocol": service.protocol,
        "hostport": service.hostport,
        "provider": service.provider,
    }
    if service.label is not None:
        about["label"] = service.label
    about["secret"] = service.auth is not None
    check = registry.check_of(service)
    if check is not None and check.state is not CheckState.UNTESTED:
        about["check"] = check.state.value
        about["reason"] = check.reason
    if here:
        about |= _holder(registry.provider(service.provider), here)
    return about


def _load(provider: Provider, here: str) -> Row:
    row: dict[str, object] = {
        "provider": provider.id,
        "wire": provider.wire,
        "label": provider.label,
        "load": provider.load,
    }
    if provider.details is not None:
        row |= {name: value for name, value in attrs.asdict(provider.details).items() if value is not None}
    return {**row, **_holder(provider, here)}
