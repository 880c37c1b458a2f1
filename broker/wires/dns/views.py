"""The views of DNS: the names that it answers, and its connections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.core.interfaces import IRegistry
from broker.wires.dns.zone.hostports import place
from broker.wires.dns.zone.names import ServiceNames
from broker.wires.views import AnyView, Column, Row, View


class DnsConnection(Protocol):
    """A connection, as it is shown."""

    @property
    def address(self) -> str:
        """The address of the client."""

    @property
    def queries(self) -> int:
        """Queries so far."""


def views(names: ServiceNames, registry: IRegistry, connections: Iterable[DnsConnection]) -> Sequence[AnyView]:
    """Return the views."""

    def name(entry: tuple[bytes, str, str]) -> Row:
        folded, name, protocol = entry
        services = registry.find(name, protocol, restored=True)
        open_ones = [service for service in services if service.auth is None]
        places = [place(service.hostport) for service in open_ones]
        return {
            "name": folded.decode("utf-8", "replace"),
            "service": name,
            "protocol": protocol,
            "answered": len(open_ones),
            "secret": len(services) - len(open_ones),
            "textual": sum(where is None or where.port is None for where in places),
        }

    return [
        View(
            name="dns names",
            help="Shows the names of services, and what DNS answers of them. A pattern selects names.",
            columns=(
                Column("name", "The name as it is compared, without case"),
                Column("service", "The name in the registry"),
                Column("protocol", "Its protocol"),
                Column("answered", "Services that are answered", "services"),
                Column("secret", "Services that are left out, since they have a secret", "services"),
                Column("textual", "Those of them without SRV: they have no port, or no host", "services"),
            ),
            items=lambda: names,
            row=name,
            keys=lambda entry: (entry[0].decode("utf-8", "replace"), entry[1]),
            title="DNS names",
            shown=lambda reading, entry: reading.shows(entry[1]),
        ),
        View(
            name="dns connections",
            help="Shows the open connections of DNS over TCP. A pattern selects addresses.",
            columns=(
                Column("address", "The address of the client"),
                Column("queries", "Queries so far", "queries"),
            ),
            items=lambda: sorted(connections, key=lambda each: each.address),
            row=lambda each: {"address": each.address, "queries": each.queries},
            keys=lambda each: (each.address,),
            title="DNS connections",
        ),
    ]
