"""Documentation of the counters that only the member of a cluster has."""

from __future__ import annotations

from broker.cluster.links.counters import COUNTERS as LINKS
from broker.wires.counter import Counter

COUNTERS = (
    Counter("cluster.transactions", "Transactions of etcd that this broker made", "transactions"),
    Counter("cluster.operations", "Writes and deletions in these transactions", "operations"),
    Counter("cluster.refused", "Transactions that etcd refused for good", "transactions"),
    Counter("cluster.events", "Changes of keys received from etcd", "changes"),
    Counter("cluster.resyncs", "Times that all keys were read", "times"),
    Counter("cluster.resumed", "Times that the watch went on without reading all keys", "times"),
    Counter("cluster.sessions", "Connections to etcd from the join to a loss", "sessions"),
    Counter("cluster.lost-leases", "Leases that ended although this broker lived", "leases"),
    Counter("cluster.repairs", "Own entries written again, since another had changed or deleted them", "entries"),
    Counter("cluster.bad-values", "Values of etcd that are not of the layout, and were left out", "values"),
    Counter("cluster.compactions", "Compactions of etcd that this broker asked for", "compactions"),
    Counter("cluster.database_bytes", "Size of etcd's database, 0 while it is unknown", "bytes", gauge=True),
    *LINKS,
)
