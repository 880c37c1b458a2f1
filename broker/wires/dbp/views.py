"""View of DBP for operators: its services, their heartbeat contracts and signs of life."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from broker.core.interfaces import ILeases
from broker.wires.dbp.sessions.addresses import hostport
from broker.wires.dbp.sessions.catalogue import Catalogue
from broker.wires.dbp.sessions.service_state import ServiceEntry
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("service", "Name of the service"),
    Column("provider", "Id of the service in the registry"),
    Column("hostport", "Address of the service"),
    Column("address", "Address from which it was registered"),
    Column("contract", "True if the service is under a heartbeat contract"),
    Column("interval", "Time between heartbeats", "seconds"),
    Column("liveness", "Intervals of silence after which the service expires"),
    Column("heard", "Time since the last sign of life", "seconds"),
    Column("udp", "Source of its last datagram"),
    Column("connected", "True while it has a connection to the ROUTER"),
    Column("unanswered", "Consecutive probes without an answer"),
    Column("unprobed", "Reason for which it is not probed"),
)


def views(catalogue: Catalogue, leases: ILeases) -> Sequence[AnyView]:
    """Return the views of the wire."""
    return [
        View(
            "dbp services",
            "Shows the services registered by DBP, the oldest first. A pattern selects names.",
            COLUMNS,
            lambda: list(catalogue),
            partial(_service, leases),
            lambda entry: (entry.name,),
            title="DBP services",
            shown=lambda reading, entry: reading.shows(entry.name),
        )
    ]


def _service(leases: ILeases, entry: ServiceEntry) -> Row:
    about: dict[str, object] = {
        "service": entry.name,
        "provider": entry.provider,
        "hostport": hostport(entry.details, entry.address),
        "address": entry.address,
        "contract": entry.contract,
    }
    if entry.contract:
        heard = round(leases.moment() - entry.heard, 2)
        about |= {"interval": entry.interval, "liveness": entry.liveness, "heard": heard}
    if entry.source is not None:
        about["udp"] = f"{entry.source[0]}:{entry.source[1]}"
    about["connected"] = entry.connection is not None
    if entry.failures:
        about["unanswered"] = entry.failures
    if entry.unprobed:
        about["unprobed"] = entry.unprobed
    return about
