"""The core of a daemon, which all wires share, built from the state in the store.

The wiring of the metrics journal: its directory, its thread, and its feed from the registry.

Start: the directory is locked, then the registry is watched, before any peer can offer services. Stop: the journal ends
before connections are closed, since peers disconnected by the stop have not left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from broker.access.logins import KNOWN_LOGINS as KNOWN
from broker.access.logins import KnownLogins, Logins, RequestLimits
from broker.access.passwords import CHECKS
from broker.access.rights import AnonymousAccess
from broker.access.users_access import UsersAccess
from broker.blocking import blocking
from broker.config import daemon_settings, journal_settings
from broker.config.daemon_settings import Access as Config
from broker.config.daemon_settings import opened
from broker.core.damage import Damage, Damages, left_aside, set_aside
from broker.core.interfaces import IRegistry
from broker.core.liveness import Leases
from broker.core.model import Launcher, Snapshot
from broker.core.rates import Rates
from broker.core.recorder import Recorder
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.store import Store
from broker.core.topics import Topics
from broker.core.turns import Turns
from broker.core.worker import TimedThread, Worker
from broker.export.journal import Journal
from broker.export.journal_feed import FullLoads, JournalFeed
from broker.export.journal_records import boot_name
from broker.export.segments import OWN_DIRECTORIES, JournalLimits, Segments
from broker.net.child_processes import Launchers, Programs
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.operate.audit import FILE, AuditLog
from broker.wall_clock import wall
from broker.wires.common.registry_topics import RegistryTopics
from broker.wires.interface import ClusterParts, CoreParts

if TYPE_CHECKING:
    from broker.app.cluster_parts import Membership

FILES_WITHIN = 1.0
"""Seconds for which a stop waits for files that are being read: they are small, and nothing of them is needed then."""

log = Logger()


@attrs.frozen(eq=False, kw_only=True)
class Core(CoreParts):
    """The parts of the core. ``disk`` is the thread of the recorder, and ``files.run`` calls a function in that of the
    files of operators: the configuration, users, the plan. These may be on a file system that does not answer.

    ``cluster`` is that of the daemon, or single mode.
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
    turns: Turns
    refusal_log: RefusalLog
    cluster: ClusterParts = attrs.field(factory=ClusterParts)

    def stop_threads(self) -> None:
        """Wait for the calls that the threads make, and end them. Blocks."""
        self.disk.stop()
        self.threads.stop()
        self.files.stop()


def build(
    snapshot: Snapshot,
    store: Store,
    grace: float,
    table: list[Launcher],
    counters: Counters,
    reactor: Any,
    join: Callable[[Core], Membership] | None = None,
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
    leases = Leases(reactor)
    turns = Turns(reactor)
    scheduler = Scheduler(reactor, leases.look, time.thread_time, background=turns)
    registry = kind(
        reactor, lambda: recorder.next_id() if cluster is None else cluster.next_id(), restored, scheduler.memory
    )
    cluster: Membership | None = None
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
        turns=turns,
        refusal_log=RefusalLog(counters, reactor),
        in_thread=in_thread,
        damages=damages,
    )
    if join is None:
        return core
    cluster = join(core)
    return attrs.evolve(core, cluster=cluster.of_wires())


def _clustered() -> type[Registry]:
    # Imported here: a single broker runs without it.
    from broker.core.cluster.cluster_registry import ClusterRegistry

    return ClusterRegistry


def launchers_of(config: daemon_settings.Launchers) -> list[Launcher]:
    """Return the launcher table of a configuration."""
    return [Launcher(each.name, each.script, each.initial, each.on) for each in config.table]


DIRECTORY = "journal"
"""The default directory, below the state directory."""

SALT = 4
"""Random bytes in the name of a start."""


@attrs.define
class JournalWriter:
    """The running journal. ``where`` is its directory."""

    where: str
    segments: Segments
    journal: Journal
    feed: JournalFeed
    threads: Worker

    def use(self, config: journal_settings.Journal) -> None:
        """Apply the keys that a reload may change."""
        self.feed.use(_full_loads(config))
        self.segments.limits = _limits(config)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the journal."""
        return {**self.journal.counts(), **self.feed.counts()}

    def abandon(self) -> None:
        """Release everything without the reactor: the start failed, and nothing was written."""
        self.feed.stop()
        self.threads.stop()
        self.segments.close()

    def stop(self) -> Deferred[None]:
        """Write all pending records, and end. Fires when that is done."""

        def ended(_: object) -> None:
            self.threads.stop()

        self.feed.stop()
        return self.journal.stop().addCallback(ended)


@blocking
def open_journal(
    config: journal_settings.Journal, state: str, registry: IRegistry, reactor: Any, host: str, damages: Damages
) -> JournalWriter:
    """Open the journal. ``host`` is its name unless the configuration has one.

    If it raises OSError, no thread or file stays open. A file in the place of one of its directories is set aside,
    and reported to ``damages``.
    """
    where = os.path.join(state, DIRECTORY) if config.directory is None else config.directory
    damages.add(left_aside(where))
    for directory in (where, *(os.path.join(where, name) for name in OWN_DIRECTORIES)):
        # Not a broken link: the disk that it leads to may be missing.
        if os.path.isfile(directory):
            path = set_aside(directory, wall(reactor))
            damages.add(
                [Damage(directory, f"it was no directory. It is kept as {path}, and a new one is made", files=1)]
            )
    name = config.effective_name(host)
    boot = boot_name(wall(reactor), os.urandom(SALT))
    # A thread of its own: sealing a segment takes seconds, for which the store must not wait.
    threads = Worker(reactor, "journal")
    segments = Segments(where, name, boot, _limits(config))
    journal = Journal(reactor, threads.run, segments)
    threads.start()
    try:
        journal.start()
    except OSError:
        threads.stop()
        raise
    feed = JournalFeed(registry, journal.put, journal.now, _full_loads(config))
    journal.before_flush = feed.catch_up
    return JournalWriter(where, segments, journal, feed, threads)


def _limits(config: journal_settings.Journal) -> JournalLimits:
    return JournalLimits(
        segment_bytes=config.segment_bytes,
        segment_seconds=config.segment_seconds,
        keep_seconds=config.keep_seconds,
        keep_bytes=config.keep_bytes,
    )


def _full_loads(config: journal_settings.Journal) -> FullLoads:
    return FullLoads([(each.services, each.load) for each in config.full_load])


# Users and rights of the daemon: the access that all listeners share, and the threads of its password checks.

AUDIT_FILES = 10
"""Rotated audit logs that are kept: 160 MiB with the default size."""

_log = Logger()


@attrs.frozen(eq=False)
class OpenAccess:
    """The access while the daemon runs."""

    access: AnonymousAccess | UsersAccess
    logins: Logins
    audit: AuditLog
    threads: Worker
    known: KnownLogins
    state: str
    """The state directory, which has the audit log by default."""

    def reload(self, config: Config) -> None:
        """Read the users file now, the same or another one. A bad one changes nothing, and is reported as a problem."""
        self.audit.use(_audit_path(config, self.state), config.audit_bytes, AUDIT_FILES)
        self.logins.requests.use(config.requests_per_address, config.requests_per_user, config.requests_burst)
        if isinstance(self.access, UsersAccess) and config.file is not None:
            self.access.use(config.file)

    def stop(self) -> None:
        """Stop watching the file and the threads. Blocks while a password check runs, some 30 ms."""
        if isinstance(self.access, UsersAccess):
            self.access.stop()
        self.known.stop()
        self.threads.stop()


def open_access(
    config: Config,
    state: str,
    read: Callable[..., Deferred[Any]],
    write: Callable[..., Deferred[Any]],
    counters: Counters,
    reactor: Any,
) -> OpenAccess:
    """Read the users file, if there is one. Raises `broker.access.users_file.BadUsers` with nothing left open.

    ``read`` and ``write`` call functions in the threads that read the users file and write the state directory.
    """
    threads = Worker(reactor, "passwords", CHECKS)
    requests = RequestLimits(Rates(reactor.seconds), Rates(reactor.seconds))
    requests.use(config.requests_per_address, config.requests_per_user, config.requests_burst)
    logins = Logins.open(reactor.seconds, threads.run, requests, partial(reactor.callLater, 0))
    access: AnonymousAccess | UsersAccess = AnonymousAccess()
    if config.file is not None:
        access = UsersAccess(config.file, reactor, read, logins, counters.count)
        if where := opened(access.directory):
            _log.warn("{path} lets every peer do everything at the listeners {where}", path=config.file, where=where)
    known = KnownLogins(os.path.join(state, KNOWN), logins.gate, reactor, write)
    audit = AuditLog(_audit_path(config, state), config.audit_bytes, AUDIT_FILES, reactor, write)
    counters.include(audit.counts)
    # Started last: a thread pool that is left running keeps the process alive.
    threads.start()
    return OpenAccess(access, logins, audit, threads, known, state)


def _audit_path(config: Config, state: str) -> str:
    return os.path.join(state, FILE) if config.audit is None else config.audit
