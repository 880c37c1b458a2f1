"""DBP as a wire of the broker."""

from __future__ import annotations

from broker.wires.dbp.dbp_settings import SECTION, Dbp
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters, datagram_counters


def _open(config: Dbp, context: WireContext) -> OpenWire:
    from broker.wires.dbp.dbp_wire import open_dbp

    return open_dbp(config, context)


def _descriptors(config: Dbp, every: int) -> int:
    """Return the file descriptors that probes of services may use, one each: at most a quarter of ``every``."""
    from broker.net.probes import MOST

    return min(MOST, every // 4)


COUNTERS = (
    *connection_counters("dbp"),
    Counter("dbp_requests", "Info requests", "requests"),
    Counter("dbp_dropped", "Messages: full, pong, gone", "messages"),
    Counter(
        "dbp_services",
        "Services: registered; ends: disconnected, expired (silence), replaced (the name was registered again), "
        "drained, withdrawn by an operator, moved to another broker of the cluster, revoked (anonymous lost the right "
        "to offer the name)",
        "services",
    ),
    Counter("dbp_heartbeats", "Accepted heartbeats by UDP", "heartbeats"),
    Counter(
        "dbp_forwarded",
        "Heartbeats and DISCONNECTs of services that another broker of the cluster holds: sent to it, received by it, "
        "limited (beyond the rate of one service), unsent (no link), unknown",
        "messages",
    ),
    *datagram_counters("dbp"),
    Counter(
        "dbp_probes",
        "Probes asked; results: answered, unanswered, put_off (the time was over before the probe could be sent)",
        "probes",
    ),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS, _descriptors)
"""The Core Catalog Service over ZeroMQ, with heartbeats by UDP."""
