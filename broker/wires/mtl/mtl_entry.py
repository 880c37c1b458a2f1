"""MTL as a wire of the broker."""

from __future__ import annotations

from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.mtl.mtl_settings import SECTION, Mtl
from broker.wires.tables import Counter, connection_counters


def _open(config: Mtl, context: WireContext) -> OpenWire:
    from broker.wires.mtl.mtl_wire import open_mtl

    return open_mtl(config, context)


COUNTERS = (
    *connection_counters("mtl"),
    *connection_counters("mtl-data"),
    # A name with a dot comes before its family: gauges, and members with a unit of their own.
    Counter("mtl_requests", "Requests of the control flow answered", "requests"),
    Counter("mtl_sessions", "Control sessions, by event", "sessions"),
    Counter("mtl_logins", "SASL exchanges, by outcome", "exchanges"),
    Counter("mtl_leases", "Data leases that were not used in time", "leases"),
    Counter("mtl_flows", "Data flows begun, by side, and ended, by reason", "flows"),
    Counter("mtl_contents", "Contents received and delivered", "Contents"),
    Counter("mtl_dropped", "Messages dropped, by reason", "messages"),
    Counter("mtl_ignored", "Commands ignored, by kind", "commands"),
    Counter("mtl_ill_formed", "Ill-formed messages, by fault", "messages"),
    Counter("mtl_queue", "Messages of work queues, by outcome", "messages"),
    Counter("mtl_disk.batches", "Transactions of durable queues begun", "transactions"),
    Counter("mtl_disk.kept", "Messages of durable queues written to the disk", "messages"),
    Counter("mtl_disk.not_kept", "Messages of durable queues refused because the disk failed", "messages"),
    Counter("mtl_disk.failures", "Failures of the disk since its last success", "failures", gauge=True),
    Counter("mtl_owned.queues", "Queues that belong to this broker of a cluster", "queues", gauge=True),
    Counter("mtl_owned.taken", "Queues that this broker has taken", "queues"),
    Counter("mtl_owned.given_up", "Queues that this broker gave up to another one", "queues"),
    Counter("mtl_registry", "Contents and Summons of the profile registry refused, by reason", "Contents"),
    Counter("mtl_registry.told", "Contents sent to readers of the profile registry", "Contents"),
    Counter("mtl_registry.summoned", "Resources of the profile registry that readers have summoned", "resources", True),
    Counter("mtl_services", "Requests and replies of the profile service refused or lost, by reason", "messages"),
    Counter("mtl_services.requests", "Requests of the profile service accepted", "requests"),
    Counter("mtl_services.replies", "Replies of the profile service accepted", "replies"),
    Counter("mtl_services.open", "Requests that wait, or that a worker has not confirmed", "requests", gauge=True),
    Counter("mtl_services.waiting", "Requests that wait for a worker", "requests", gauge=True),
    Counter("mtl_services.kept-bytes", "Size of stored requests and replies", "bytes", gauge=True),
    Counter("mtl_topics", "Contents and Summons of the profile topic refused, by reason", "Contents"),
    Counter("mtl_topics.published", "Contents that writers published to topics", "Contents"),
    Counter("mtl_topics.retained", "Topics with a retained last value", "topics", gauge=True),
    Counter("mtl_topics.retained-bytes", "Size of all retained values", "bytes", gauge=True),
    Counter("mtl_topics.evicted", "Last values that no publisher had retained, removed for others", "values"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Message Transport Layer, RFC 11 of ZeroMQ."""
