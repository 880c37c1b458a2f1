"""Settings, memory, environment and pauses of a member of a cluster."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from broker.backoff import Backoff
from broker.cluster.etcd.etcd_interface import IEtcd
from broker.cluster.links.link_messages import LINK_COUNTERS
from broker.core.turns import Turns
from broker.wires.tables import Counter


@attrs.frozen
class ClusterSettings:
    """Settings of a member. The daemon sets all but the intervals from its configuration (section ``cluster``); the
    defaults serve tests.

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
    - ``adopts``: a broker that ran alone, for whose listeners a member waits at its first start, empty without one.
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
    adopts: str = ""


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
    turns: Turns = attrs.field(default=attrs.Factory(lambda self: Turns(self.clock), takes_self=True))


class ClusterFailed(Exception):
    """This broker cannot be, or remain, a member; the message is a sentence for operators. The daemon must stop.

    Reasons: another broker has the name; the layout in etcd is newer; the credentials are wrong at the start.
    """


# Documentation of the counters that only the member of a cluster has.

COUNTERS = (
    Counter("cluster.transactions", "Transactions of etcd", "transactions"),
    Counter("cluster.operations", "Writes and deletions in transactions of etcd", "operations"),
    Counter("cluster.refused", "Transactions that etcd refused for good", "transactions"),
    Counter("cluster.events", "Changes received from etcd", "changes"),
    Counter("cluster.resyncs", "Times that all keys of etcd were read", "times"),
    Counter("cluster.resumed", "Times that the watch of etcd went on without reading all keys", "times"),
    Counter("cluster.sessions", "Connections to etcd from the join to a loss", "sessions"),
    Counter("cluster.lost-leases", "Leases that ended although this broker lived", "leases"),
    Counter("cluster.repairs", "Own entries written again after a foreign change", "entries"),
    Counter("cluster.bad-values", "Values of etcd that are not of the layout", "values"),
    Counter("cluster.compactions", "Compactions of etcd asked for", "compactions"),
    Counter("cluster.database_bytes", "Size of etcd's database, 0 while it is unknown", "bytes", gauge=True),
    Counter("cluster.left-out", "Services of other brokers beyond `broker.services`", "services", gauge=True),
    *LINK_COUNTERS,
)


# Pauses before a member repeats an operation on etcd, in seconds: in one place, since they depend on each other.

SESSION_RETRY = Backoff(first=0.1, most=2.0, factor=2.0, jitter=0.5)
"""Pause before another session. A recovering etcd gives one TTL to come back in, so it stays short."""

DENIED_RETRY = Backoff(first=2.0, most=30.0, factor=2.0, jitter=0.2)
"""Pause after refused credentials: an operator has to act, and each attempt costs etcd a tenth of a second."""

SESSION_STABLE = 10.0
"""Seconds after which a session counts as a success, and the pauses are short again."""

KEEPALIVE_RETRY = 0.5
"""Seconds after which a failed keepalive is repeated."""

SPACE_RETRY = 5.0
"""Seconds between attempts to write while etcd has no space. An operator has to act, so there is no hurry."""

REFUSED_RETRY = 60.0
"""Seconds after which a unit that etcd refuses as invalid is tried again: only its next value is likely to help."""

WRITE_RETRY = 0.1
"""Seconds after which a write is repeated whose condition did not hold, though the table says so: the event that
explains it takes some milliseconds."""

SILENCE = 4.0
"""Seconds after which a beat that has been written must have arrived. A slow disk delays etcd for some tenths of a
second; a failover must leave time within the TTL."""

WATCH_SILENT = Backoff(first=SILENCE, most=60.0, factor=2.0, jitter=0.2)
"""Pause in seconds without an event until a watch is replaced. The first is that of a missing beat; a watch in a minute
is no load of etcd, and an alarm lasts until an operator acts."""

WATCH_ENDED = Backoff(first=0.1, most=5.0, factor=2.0, jitter=0.5)
"""Pause in seconds after the end of a watch, for watches that end one after the other without an event."""
