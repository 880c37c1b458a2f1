"""The views of the registry: the providers and services of all wires."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.core.interfaces import IRegistry
from broker.core.model import Load, Provider, Service
from broker.wires.views import AnyView, Column, Row, View

PROVIDER_COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("wire", "Wire on which it registered"),
    Column("label", "Label that it gave"),
    Column("address", "Address that it registered from"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("services", "Services that it offers", "services"),
    Column("heard", "Time since its last heartbeat, load report or registration", "seconds"),
)

SERVICE_COLUMNS = (
    Column("service", "Name of the service"),
    Column("protocol", "Protocol of the service"),
    Column("hostport", "Address of the service"),
    Column("provider", "Id of the provider; 0 is the broker itself"),
    Column("label", "Label of the service"),
    Column("secret", "True if a secret belongs to the service, which is not shown"),
)

LOAD_COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("label", "Label of the provider"),
    Column("load", "Load that it reported last, 0 before the first report"),
    Column("requests", "Requests that it completed between its last two reports", "requests"),
    Column("errors", "Requests of these that failed", "requests"),
    Column("in_flight", "Requests that it was handling at its last report", "requests"),
    Column("latency_ms", "Mean time for which it handled one of the requests", "milliseconds"),
)


def views(registry: IRegistry, clock: IReactorTime) -> list[AnyView]:
    """Return the views of the registry."""
    return [
        View(
            "broker providers",
            "Shows the providers of all wires, by their ids. A pattern selects labels, addresses or wires.",
            PROVIDER_COLUMNS,
            registry.providers,
            partial(_provider, clock),
            lambda provider: (provider.label, provider.address, provider.wire),
        ),
        View(
            "broker loads",
            "Shows the last load report of each provider, with its requests if it reports them, by the ids of the "
            "providers. A pattern selects labels.",
            LOAD_COLUMNS,
            registry.loads,
            _load,
            lambda load: (load.label,),
        ),
        View(
            "broker services",
            "Shows the services of all wires. A pattern selects names.",
            SERVICE_COLUMNS,
            registry.services,
            _service,
            _names,
        ),
    ]


def _names(service: Service) -> Iterator[str]:
    yield service.name


def _provider(clock: IReactorTime, provider: Provider) -> Row:
    return {
        "provider": provider.id,
        "wire": provider.wire,
        "label": provider.label,
        "address": provider.address,
        "load": provider.load,
        "services": len(provider.services),
        "heard": round(clock.seconds() - provider.heard, 1),
    }


def _load(load: Load) -> Row:
    row: dict[str, object] = {"provider": load.provider, "label": load.label, "load": load.load}
    if load.details is not None:
        row |= {name: value for name, value in attrs.asdict(load.details).items() if value is not None}
    return row


def _service(service: Service) -> Row:
    about: dict[str, object] = {
        "service": service.name,
        "protocol": service.protocol,
        "hostport": service.hostport,
        "provider": service.provider,
    }
    if service.label is not None:
        about["label"] = service.label
    about["secret"] = service.auth is not None
    return about
