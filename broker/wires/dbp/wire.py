"""DBP as a wire of the broker."""

from __future__ import annotations

from broker.net.probes import MOST
from broker.wires.common.connection_counters import connection_counters
from broker.wires.counter import Counter
from broker.wires.dbp.config import Dbp
from broker.wires.dbp.open import open_dbp
from broker.wires.dbp.section import SECTION
from broker.wires.interface import Wire


def _descriptors(config: Dbp, every: int) -> int:
    """The file descriptors that questions to services may take: one connection each."""
    return min(MOST, every // 4)


COUNTERS = (
    *connection_counters("dbp"),
    Counter("dbp_requests", "Requests answered", "requests"),
    Counter("dbp_messages", "Messages ignored, from peers that sent too much that was wrong", "messages"),
    Counter("dbp_dropped", "Answers and notices dropped, by reason", "messages"),
    Counter("dbp_services", "Services registered and gone, by event", "services"),
    Counter("dbp_heartbeats", "Heartbeats of services, by transport", "heartbeats"),
    Counter("dbp_datagrams", "Datagrams, by what became of them", "datagrams"),
    Counter("dbp_unsent", "Datagrams that the system did not send, by error", "datagrams"),
    Counter("dbp_probes", "Questions to silent services, by outcome", "questions"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, open_dbp, COUNTERS, _descriptors)
"""The Core Catalog Service over ZeroMQ, with heartbeats by UDP."""
