"""MTL as a wire of the broker."""

from __future__ import annotations

from broker.wires.common.connection_counters import connection_counters
from broker.wires.counter import Counter
from broker.wires.interface import Wire
from broker.wires.mtl.open import open_mtl
from broker.wires.mtl.section import SECTION

COUNTERS = (
    *connection_counters("mtl"),
    *connection_counters("mtl-data"),
    Counter("mtl_requests", "Requests of the control flow answered", "requests"),
    Counter("mtl_sessions", "Control sessions, by event", "sessions"),
    Counter("mtl_logins", "SASL exchanges, by outcome", "exchanges"),
    Counter("mtl_leases", "Data leases that nobody used in time", "leases"),
    Counter("mtl_flows", "Data flows begun, by side, and ended, by reason", "flows"),
    Counter("mtl_contents", "Contents received and delivered", "Contents"),
    Counter("mtl_dropped", "Messages dropped, by reason", "messages"),
    Counter("mtl_ignored", "Commands ignored, by kind", "commands"),
    Counter("mtl_ill_formed", "Ill-formed messages, by fault", "messages"),
    Counter("mtl_queue", "Messages of work queues, by what became of them", "messages"),
    Counter("mtl_disk", "Writes of durable queues, by outcome", "writes"),
    Counter("mtl_registry", "Contents of the profile registry, by what became of them", "Contents"),
    Counter("mtl_services", "Requests of the profile service, by what became of them", "requests"),
    Counter("mtl_topics", "Contents of the profile topic, by what became of them", "Contents"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, open_mtl, COUNTERS)
"""The Message Transport Layer, RFC 11 of ZeroMQ."""
