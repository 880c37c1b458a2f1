"""DBP as a wire of the broker."""

from __future__ import annotations

from broker.wires.dbp.dbp_settings import SECTION, Dbp
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters


def _open(config: Dbp, context: WireContext) -> OpenWire:
    from broker.wires.dbp.dbp_wire import open_dbp

    return open_dbp(config, context)


def _descriptors(config: Dbp, every: int) -> int:
    """Return the file descriptors that probes of services may use, one each: at most a quarter of ``every``."""
    from broker.net.probes import MOST

    return min(MOST, every // 4)


COUNTERS = (
    *connection_counters("dbp"),
    Counter("dbp_requests", "Requests answered", "requests"),
    Counter("dbp_dropped", "Answers and notices dropped, by reason", "messages"),
    Counter("dbp_services", "Services registered and removed, by event", "services"),
    Counter("dbp_heartbeats", "Heartbeats of services, by transport", "heartbeats"),
    Counter("dbp_forwarded", "Messages of services at other brokers of the cluster, by outcome", "messages"),
    Counter("dbp_datagrams", "Datagrams, by outcome", "datagrams"),
    Counter("dbp_unsent", "Datagrams that the system did not send, by error", "datagrams"),
    Counter("dbp_probes", "Probes of silent services, by outcome", "probes"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS, _descriptors)
"""The Core Catalog Service over ZeroMQ, with heartbeats by UDP."""
