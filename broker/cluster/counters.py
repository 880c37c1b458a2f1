"""Counters of the membership of a cluster."""

from __future__ import annotations

from broker.wires.counter import Counter

COUNTERS = (
    Counter("cluster.transactions", "Transactions of etcd with changes of this broker", "transactions"),
    Counter("cluster.operations", "Keys put or deleted by these transactions", "operations"),
    Counter("cluster.refused", "Changes that etcd refused as invalid", "changes"),
    Counter("cluster.events", "Changes of keys received from etcd", "events"),
    Counter("cluster.resyncs", "Times that all keys were read", "reads"),
    Counter("cluster.resumed", "Times that an ended watch continued at the next revision", "watches"),
    Counter("cluster.sessions", "Times that this broker became a member, or was one again", "sessions"),
    Counter("cluster.lost_leases", "Leases of this broker that ended although it ran", "leases"),
    Counter("cluster.repairs", "Own keys written again, because they had vanished", "keys"),
    Counter("cluster.bad_values", "Values in etcd that were left out, because they are not of the layout", "values"),
    Counter("cluster.compactions", "Compactions of etcd's history by this broker", "compactions"),
    Counter("cluster.database_bytes", "Size of etcd's database, 0 while it is unknown", "bytes", gauge=True),
)
