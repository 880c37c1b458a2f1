"""Views of HTTP for operators: the connections, and the registered instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from broker.wires.http.sessions.instances import Instance, Instances
from broker.wires.views import AnyView, Column, Row, View


class HttpConnection(Protocol):
    """A connection, as it is shown."""

    address: str
    requests_served: int

    @property
    def state(self) -> str:
        """Its state."""


def views(connections: Iterable[HttpConnection], instances: Instances) -> Sequence[AnyView]:
    """Return the views."""

    def instance(each: Instance) -> Row:
        return {
            "service": each.name,
            "instance": each.instance,
            "provider": each.provider,
            "hostport": each.offer.hostport,
            "owner": each.owner.name,
            "address": each.principal.address,
            "ttl": each.offer.ttl,
            "left": round(instances.left(each), 2),
        }

    return [
        View(
            name="http connections",
            help="Shows the open connections of HTTP. A pattern selects addresses.",
            columns=(
                Column("address", "Address of the client"),
                Column("state", "State: idle, reading, answering, waiting, stream or websocket"),
                Column("requests", "Requests so far", "requests"),
            ),
            items=lambda: sorted(connections, key=lambda each: each.address),
            row=lambda each: {"address": each.address, "state": each.state, "requests": each.requests_served},
            keys=lambda each: (each.address,),
            title="HTTP connections",
        ),
        View(
            name="http instances",
            help="Shows the instances registered by HTTP, the oldest first. A pattern selects services and instances.",
            columns=(
                Column("service", "Name of the service"),
                Column("instance", "Name of the instance"),
                Column("provider", "Id of the instance in the registry"),
                Column("hostport", "Address of the service"),
                Column("owner", "User or address that registered it"),
                Column("address", "Address from which it was registered"),
                Column("ttl", "Time to live without a renewal", "seconds"),
                Column("left", "Time to its end without a renewal", "seconds"),
            ),
            items=lambda: instances,
            row=instance,
            keys=lambda each: (each.name, each.instance),
            title="HTTP instances",
            shown=lambda reading, each: reading.shows(each.name),
        ),
    ]
