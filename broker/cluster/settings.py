"""Settings, memory and environment of a member of a cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from broker.cluster.etcd.etcd_interface import IEtcd
from broker.cluster.links.link_messages import LINK_COUNTERS
from broker.wires.tables import Counter


@attrs.frozen
class ClusterSettings:
    """Settings of a member.

    - ``name``: its name, unique in the cluster. ``farm``: the cluster's name, a part of all keys in etcd.
    - ``ttl``: seconds after which the entries of a dead member go.
    - ``gather``: seconds for which writes are gathered into one transaction: 0 writes each change by itself, and a
      second would delay every peer that waits for a service.
    - ``load_interval``: least seconds between two writes of loads, and of reasons of a service that fails already.
      Each write is kept by etcd until its compaction.
    - ``beat``: seconds between two beats, by which each member proves that its watch is alive.
    - ``link``, ``key``: endpoint and CURVE public key for links of other brokers; see
      `broker.core.cluster.cluster_interfaces.Member`.
    - ``version``: version of the program.
    - ``grace``: seconds for which entries from before a restart stay.
    """

    name: str
    farm: str = "default"
    ttl: int = 10
    gather: float = 0.03
    load_interval: float = 1.0
    beat: float = 1.0
    link: str = ""
    key: str = ""
    version: str = ""
    grace: float = 30.0


@attrs.frozen
class Memory:
    """State of a member that outlives restarts.

    ``instance`` and ``lease`` identify its entries in etcd; empty and 0 without any. Provider ids from ``next_id`` up
    to, not including, ``end_id`` belong to this member, as do those of ``spare``, a further block (first, end).
    ``epoch`` is the random number of etcd's data (the key ``meta``), ``revision`` the last revision seen there.
    """

    instance: str = ""
    lease: int = 0
    next_id: int = 0
    end_id: int = 0
    spare: tuple[int, int] = (0, 0)
    epoch: str = ""
    revision: int = 0


class ClusterMemory(Protocol):
    """Store of the `Memory`. ``save`` returns at once; writes are in the order of the calls."""

    def load(self) -> Memory:
        """Return what was saved last."""

    def save(self, memory: Memory) -> Deferred[None] | None:
        """Save, in the thread of the disk. Fires when the memory is durable, or could not be written; None if it is
        durable already."""

    def load_record(self) -> tuple[float, Mapping[str, str]] | None:
        """Return the age of the record of registrations in seconds, and their values by the names of their keys; None
        if nothing was recorded."""

    def save_record(self, changes: Mapping[str, str | None]) -> Deferred[None] | None:
        """Record values, or with None their ends. Fires, or fails, when that is done; None if it is done already."""


@attrs.frozen(eq=False)
class Environment:
    """Environment of a member. ``registry`` is an `IRegistry` and an `IMirror`; ``rng`` decides all that is left to
    chance, so that a simulation can repeat it."""

    etcd: IEtcd
    registry: Any
    clock: IReactorTime
    memory: ClusterMemory
    settings: ClusterSettings
    rng: random.Random


class ClusterFailed(Exception):
    """This broker cannot be, or remain, a member; the message is a sentence for operators. The daemon must stop.

    Reasons: another broker has the name; the layout in etcd is newer; the credentials are wrong at the start.
    """


# Documentation of the counters that only the member of a cluster has.

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
    *LINK_COUNTERS,
)
