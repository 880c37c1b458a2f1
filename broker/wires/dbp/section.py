"""The section ``[dbp]`` of the configuration: its checks, summary and warnings, and the keys that a reload changes.

docs/configuration.md describes the keys; `broker.wires.dbp.validation` checks their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config import zmq_endpoint
from broker.config.endpoint import Endpoint
from broker.config.section import Binding, PortOption, Resolves, Section
from broker.wires.dbp.config import Dbp
from broker.wires.dbp.validation import dbp_place, dbp_problems, effective_dbp_beacon, effective_dbp_offer


def _bindings(dbp: Dbp) -> Iterator[Binding]:
    where = dbp_place(dbp)
    if not dbp.enabled or where is None:
        return
    yield Binding("dbp.endpoint", "dbp", where.stream)
    port = (where.port or 0) if dbp.udp_port is None else dbp.udp_port
    udp = Endpoint("tcp", (str(port),), {"interface": where.stream.interface})
    yield Binding("dbp.endpoint" if dbp.udp_port is None else "dbp.udp_port", "dbp", udp, datagrams=True)


def _summary(dbp: Dbp) -> Iterator[str]:
    if not dbp.enabled:
        yield "dbp: off"
        return
    where = zmq_endpoint.parse(dbp.endpoint)
    beacon = " ".join(f"{address}:{dbp.beacon_port}" for address in effective_dbp_beacon(dbp)) or "none"
    parts = (
        f"bound to tcp {where.where}",
        f"udp {where.port if dbp.udp_port is None else dbp.udp_port}",
        f"beacon {beacon}",
        f"offer {' '.join(effective_dbp_offer(dbp)) or 'nothing'}",
    )
    yield f"dbp: {', '.join(parts)}"


def _warnings(dbp: Dbp, resolves: Resolves) -> Iterator[str]:
    if not dbp.enabled:
        return
    where = zmq_endpoint.parse(dbp.endpoint)
    offer = effective_dbp_offer(dbp)
    if not where.loopback:
        yield f"dbp: open: any client that reaches {where.where} may find every service"
        if any(pattern.startswith("*") for pattern in offer):
            yield "dbp: open: any peer may register a service of any name, and receive the data of its clients"
        elif offer:
            yield "dbp: open: any peer may register what dbp.offer allows, and receive the data of its clients"
        if not dbp.check_address:
            yield "dbp.check_address: any peer may end any service, or keep a dead one registered"
    if not offer:
        why = "" if dbp.offer is not None else f"; by default, since {where.where} can be reached from elsewhere"
        yield f"dbp.offer: nothing may be registered{why}"


def _port(dbp: Dbp, port: int | None) -> Dbp:
    if port is None:
        return attrs.evolve(dbp, enabled=False)
    return attrs.evolve(dbp, enabled=True, endpoint=f"tcp://127.0.0.1:{port}", udp_port=None)


SECTION = Section(
    "dbp",
    Dbp,
    Dbp(),
    dbp_problems,
    _bindings,
    _summary,
    _warnings,
    reloadable=(
        "offer",
        "check_address",
        "interval",
        "least_interval",
        "most_interval",
        "liveness",
        "fall_back",
        "probe",
        "handshake",
        "stalled_after",
        "connections",
        "connections_per_address",
        "high_water",
        "max_message",
        "services",
    ),
    option=PortOption(
        "dbp-port", "Port of DBP on 127.0.0.1, TCP and UDP, or 'off'; 0 takes a free one [default: 5246]", _port
    ),
    example=(Path(__file__).with_name("example.toml")).read_text,
)
"""The section ``[dbp]``."""
