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
    Counter("mtl_requests", "Requests of the control flow", "requests"),
    Counter("mtl_sessions", "Sessions: begun, ended", "sessions"),
    Counter("mtl_logins", "Logins: done, and the reasons of failed ones", "exchanges"),
    Counter("mtl_leases", "Data leases that were not used in time", "leases"),
    Counter(
        "mtl_flows",
        "Data flows begun: reader, writer; ends: closed (with the connection), dead (silence), slow (too many Contents"
        " missed), stuck, unread (too many answers wait), revoked and others",
        "flows",
    ),
    Counter("mtl_contents", "Contents: received, delivered", "Contents"),
    Counter(
        "mtl_dropped",
        "Messages: full, gone, answer, behind (requests beyond those that may wait behind a login)",
        "messages",
    ),
    Counter("mtl_ignored", "Data commands without a meaning in the present state", "commands"),
    Counter(
        "mtl_ill_formed",
        "Messages dropped without an answer, by fault (broker/wires/mtl/codec/field_table.py)",
        "messages",
    ),
    Counter("mtl_queue", "Messages of queues: put, delivered, settled, returned and others", "messages"),
    Counter("mtl_disk.batches", "Transactions of durable queues", "transactions"),
    Counter("mtl_disk.kept", "Stored messages of durable queues", "messages"),
    Counter("mtl_disk.not_kept", "Messages of durable queues that were not stored", "messages"),
    Counter("mtl_disk.failures", "Writes of durable queues that failed in a row", "failures", gauge=True),
    Counter(
        "mtl_owned.queues",
        "Queues that belong to this broker, in a cluster or with a PostgreSQL store",
        "queues",
        gauge=True,
    ),
    Counter("mtl_owned.taken", "Queues taken", "queues"),
    Counter("mtl_owned.given_up", "Queues given up to another broker", "queues"),
    Counter("mtl_registry", "Refused Contents and Summons of the profile registry", "Contents"),
    Counter("mtl_registry.told", "Events sent to readers of the registry", "Contents"),
    Counter("mtl_registry.summoned", "Resources that readers of the registry watch", "resources", True),
    Counter("mtl_services", "Error replies (error-CODE); replies whose caller is gone (lost)", "messages"),
    Counter("mtl_services.requests", "Accepted requests of the profile service", "requests"),
    Counter("mtl_services.replies", "Accepted replies of the profile service", "replies"),
    Counter("mtl_services.open", "Unconfirmed requests of the profile service", "requests", gauge=True),
    Counter("mtl_services.waiting", "Unconfirmed requests that wait for a worker", "requests", gauge=True),
    Counter("mtl_services.kept-bytes", "Size of stored requests and replies", "bytes", gauge=True),
    Counter("mtl_topics", "Refused Contents and Summons of the profile topic", "Contents"),
    Counter("mtl_topics.published", "Contents on topics", "Contents"),
    Counter("mtl_topics.retained", "Last values that topics keep", "topics", gauge=True),
    Counter("mtl_topics.retained-bytes", "Size of last values that topics keep", "bytes", gauge=True),
    Counter("mtl_topics.evicted", "Last values that no publisher had retained, removed for others", "values"),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Message Transport Layer, RFC 11 of ZeroMQ."""
