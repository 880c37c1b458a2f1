"""The core of a daemon, which all wires share, built from the state in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import attrs
from twisted.logger import Logger

from broker.config import daemon_settings
from broker.core.cluster.cluster_interfaces import SINGLE, ILinks, IMembers, IQueueOwners
from broker.core.counters import Counters
from broker.core.damage import Damages
from broker.core.interfaces import InThread
from broker.core.launchers import Launchers
from broker.core.liveness import Leases
from broker.core.model import Launcher, Snapshot
from broker.core.recorder import Recorder
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.core.store import Store
from broker.core.topics import Topics
from broker.core.worker import TimedThread, Worker
from broker.net.child_processes import Programs
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Scheduler
from broker.wires.common.registry_topics import RegistryTopics

FILES_WITHIN = 1.0
"""Seconds for which a stop waits for files that are being read: they are small, and nothing of them is needed then."""

log = Logger()


@attrs.frozen(eq=False)
class Core:
    """The parts of the core. ``in_thread`` calls a function in the thread of the store, ``disk`` is that of the
    recorder, and ``files.run`` calls one in that of the files of operators: the configuration, users, the plan. These
    may be on a file system that does not answer.

    ``members``, ``owners`` and ``links`` are those of the cluster, or of single mode.
    """

    registry: Registry
    restored: Restored
    recorder: Recorder
    launchers: Launchers
    programs: Programs
    threads: Worker
    disk: TimedThread
    files: Worker
    topics: Topics
    leases: Leases
    scheduler: Scheduler
    complaints: Complaints
    in_thread: InThread
    damages: Damages
    members: IMembers = SINGLE
    owners: IQueueOwners = SINGLE
    links: ILinks = SINGLE

    def stop_threads(self) -> None:
        """Wait for the calls that the threads make, and end them. Blocks."""
        self.disk.stop()
        self.threads.stop()
        self.files.stop()


class ClusterMembership(Protocol):
    """The cluster of a core: `broker.app.cluster.Membership`."""

    @property
    def members(self) -> IMembers: ...

    @property
    def owners(self) -> IQueueOwners: ...

    @property
    def links(self) -> ILinks: ...

    def next_id(self) -> int: ...


def build(
    snapshot: Snapshot,
    store: Store,
    grace: float,
    table: list[Launcher],
    counters: Counters,
    reactor: Any,
    join: Callable[[Core], ClusterMembership] | None = None,
) -> Core:
    """Build the core from the remembered state. Raises `broker.core.database.StateError`.

    ``join`` returns the cluster for a core that is complete but for it; None in single mode.
    """
    threads = Worker(reactor, "store")
    disk = TimedThread(reactor, "recorder")
    in_thread = threads.run
    damages = Damages()
    damages.add(store.found())
    damages.include("state", store.verify, in_thread)
    # The registry, its restored services and the recorder refer to each other: the lambdas run after all are made.
    restored = Restored(snapshot.providers, grace, reactor, lambda ids: recorder.forget(ids))
    kind = Registry if join is None else _clustered()
    registry = kind(reactor, lambda: recorder.next_id() if cluster is None else cluster.next_id(), restored)
    cluster: ClusterMembership | None = None
    recorder = Recorder(
        registry, store, reactor, in_thread, disk, snapshot.next_provider, (s.identity for s in snapshot.sessions)
    )
    threads.start()
    files = Worker(reactor, "files", patience=FILES_WITHIN)
    files.start()
    programs = Programs(reactor, os.getpid() == 1)

    def remember(name: str, on: bool) -> None:
        in_thread(store.switch, name, on).addErrback(
            lambda failure: log.failure("the switch of {name} was not stored", failure, name=name)
        )

    launchers = Launchers(table, snapshot.launchers_on, programs.spawn, remember)
    leases = Leases(reactor)
    scheduler = Scheduler(reactor, leases.look, time.thread_time)
    topics = Topics(memory=scheduler.memory)
    RegistryTopics(registry, topics, leases)
    core = Core(
        registry=registry,
        restored=restored,
        recorder=recorder,
        launchers=launchers,
        programs=programs,
        threads=threads,
        disk=disk,
        files=files,
        topics=topics,
        leases=leases,
        scheduler=scheduler,
        complaints=Complaints(counters, reactor),
        in_thread=in_thread,
        damages=damages,
    )
    if join is None:
        return core
    cluster = join(core)
    return attrs.evolve(core, members=cluster.members, owners=cluster.owners, links=cluster.links)


def _clustered() -> type[Registry]:
    # Imported here: a single broker runs without it.
    from broker.core.cluster.cluster_registry import ClusterRegistry

    return ClusterRegistry


def launchers_of(config: daemon_settings.Launchers) -> list[Launcher]:
    """Return the launcher table of a configuration."""
    return [Launcher(each.name, each.script, each.initial, each.on) for each in config.table]
