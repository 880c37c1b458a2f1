"""The daemon: its parts, and the order in which they start and stop.

Start: state directory, core, wires with their restored state, listeners, launchers. Stop: listeners (so that no
connection is accepted and dropped), the last records of the store and the journal (so that the peers now connected are
remembered as present), connections.

A member of a cluster joins it after the core is built, and makes its wires once it has joined: no peer is served before
the name and the provider ids are this broker's. It leaves the cluster before its connections are closed, so that its
entries stay there as in the store.

The file is longer than others: the order of start and stop concerns all parts, and is readable only in one place.
"""

from __future__ import annotations

import gc
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service as TwistedService
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, maybeDeferred, succeed
from twisted.logger import Logger

from broker import blocking
from broker.access.logins import MAX_ENTRIES
from broker.access.users_file import BadUsers
from broker.app import process as descriptors
from broker.app import readiness
from broker.app.api import OperatorsApi, Sources
from broker.app.console_parts import ConsoleListener
from broker.app.core_parts import Core, JournalWriter, OpenAccess, build, launchers_of, open_access, open_journal
from broker.app.health_checks import HealthChecks
from broker.app.notifications import EventReports
from broker.app.operations import Operations
from broker.app.process import COUNTERS, LoopLag, status, version
from broker.app.process_start import HeapTrim, fail_at_exit, handle_signals, stop_once
from broker.app.readiness import Readiness
from broker.app.reloading import Reloader
from broker.app.wires import RunningWires
from broker.config import journal_settings
from broker.config.load import Config
from broker.core.database import StateError, StateFull
from broker.core.drain import Draining
from broker.core.memory_budget import MemoryLimits
from broker.core.model import NotReady, Snapshot
from broker.core.plan import PlanFile
from broker.core.recorder import ValueRecorder
from broker.core.store import Store
from broker.core.worker import log_defect
from broker.export.plan_document import parse
from broker.logs.log_lines import LogControl
from broker.net.admission import ConnectionFactory
from broker.net.listeners import CannotListen, ListenerRetries
from broker.net.refusal_log import Counters
from broker.net.sdnotify import SystemdNotifier
from broker.net.tls import Certificates
from broker.net.traces import Traces
from broker.operate import page_files
from broker.operate.action_endpoints import Actions
from broker.operate.broker_tables import (
    CertificateWatch,
    bridges_view,
    certificate_view,
    checks_view,
    cluster_views,
    counter_view,
    listener_view,
    plan_view,
    registry_views,
)
from broker.operate.catalog import catalog_view
from broker.operate.collected_log import FILE as COLLECTED
from broker.operate.collected_log import CollectedLog
from broker.operate.console import Shown
from broker.rest.http_endpoint import Routes
from broker.wall_clock import wall
from broker.wires.interface import NetworkParts, WireContext
from broker.wires.tables import Documentation

if TYPE_CHECKING:
    from broker.app.cluster_parts import Membership
    from broker.bridge.bridges import Bridges

COLLECT_AFTER = (1_000, 4, 100_000)
"""Thresholds of the garbage collector, which takes 200 to 400 ns for each object. The first is in allocations less
deallocations since the last collection, and those of old objects count: while 1,000 connections are replaced all the
time, the first generation has 25 times as many objects as the threshold, and its collection took up to 34 ms with
5,000, that of the second 98. Closed connections leave no cycles, and a full collection stalls the reactor for 200 ms
with 50,000 waiting finds: so it only runs after very much garbage."""


class StartFailed(Exception):
    """The daemon cannot start; the message gives the reason. Nothing is left running."""


class Daemon(TwistedService):
    """The daemon as a Twisted service. ``retries`` has the state of all its listeners.

    ``config`` is the configuration, ``state`` the state directory, ``logs`` controls the log. ``read_config`` reads the
    configuration again for a reload (raising `BadConfig`); None without a file. ``failing`` is called before a
    `StartFailed` is raised; ``exit`` ends the process at once. Nothing is opened before `startService`: twistd may fork
    in between.
    """

    log = Logger()

    def __init__(
        self,
        config: Config,
        reactor: Any,
        state: str,
        logs: LogControl,
        notifier: SystemdNotifier,
        read_config: Callable[[], Config] | None = None,
        failing: Callable[[], object] = lambda: None,
        exit: Callable[[int], object] = os._exit,
    ) -> None:
        self._config = config
        self._reactor = reactor
        self._state = state
        self._store = Store(state)
        self._logs = logs
        self._notifier = notifier
        self._failing = failing
        self._exit = exit
        self.counters = Counters()
        self.retries = ListenerRetries(reactor, self._listeners_changed)
        self._own: list[str] = []
        """Addresses of the listeners, empty until they are asked for."""
        self.console: ConsoleListener | None = None
        self.routes = Routes()
        """The HTTP endpoints of the daemon and of all wires."""
        self.wires = RunningWires(self.counters, self.routes)
        self.journal: JournalWriter | None = None
        self.lag = LoopLag(reactor, time.monotonic)
        self.heap = HeapTrim(
            reactor,
            lambda: self.core.scheduler.memory.fallen(),
            lambda: self.core.scheduler.memory.released,
            lambda: self.core.turns,
        )
        self.draining = Draining(
            reactor, self._send_away, self._take_back, self.wires.remaining, self._describe_to_cluster
        )
        self.readiness = Readiness()
        self.readiness.add(self._troubles)
        self.readiness.add_degrading(lambda: readiness.crowded(self._listener_rows()))
        self.membership: Membership | None = None
        self.bridges: Bridges | None = None
        self._documentation = COUNTERS
        self._expiries = CertificateWatch(self._certificates, reactor)
        self.traces = Traces(reactor, self._connection_factories, self.wires.udp_sockets)
        self.operations = Operations(
            Reloader(
                lambda: self._config,
                read_config,
                self._certificates,
                self._apply,
                lambda *call: self.core.files.run(*call),
            ),
            self.draining,
            self.readiness,
            self.wires,
            lambda: self.core.registry,
            lambda: self.core.launchers,
            lambda: self.core.topics,
            logs,
            self.traces,
            notifier,
            self._shut_down,
            lambda: self._ending,
            self._reloaded,
        )
        self._ending = False
        self._serving = False
        self._started = reactor.seconds()

    # the service

    def startService(self) -> None:
        """Start, or raise `StartFailed` with nothing left running.

        The start fails over the first Elko listener, and where no listener at all can be opened; others may be opened
        later (`broker.net.listeners`), unless ``broker.strict_listeners`` is set.
        """
        super().startService()  # type: ignore[no-untyped-call]
        # Before everything else: signals end a process without a handler. The reload runs once the reactor does.
        handle_signals(self._reactor, self._hang_up, self._logs.reopen)
        try:
            self._start()
        except StartFailed as error:
            self.log.critical("elkobroker cannot start: {error}", error=str(error))
            self._failing()
            raise

    def _start(self) -> None:
        # From files, and kept: requests find them there.
        version()
        page_files.endpoints()
        self._started = self._reactor.seconds()
        most = descriptors.raise_limit()
        self._pool = descriptors.pool(self._config, most)
        self.log.info(
            "all listeners together take {room} connections: the system allows {most} file descriptors",
            room=self._pool.size,
            most=most,
        )
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        snapshot = self._open_store()
        try:
            self.core = build(
                snapshot,
                self._store,
                self._config.broker.grace,
                launchers_of(self._config.launchers),
                self.counters,
                self._reactor,
                partial(self._membership, snapshot) if self._config.cluster.enabled else None,
            )
        except (StateError, CannotListen, OSError, ValueError) as error:
            self._store.close(snapshot.next_provider)
            raise StartFailed(str(error)) from None
        self._collected = CollectedLog(os.path.join(self._state, COLLECTED), self._reactor, self.core.in_thread)
        self.counters.include(self._collected.counts)
        self._use_limits(self._config)
        self._values = ValueRecorder(self._store, self._reactor, self.core.disk)
        last = self.core.topics.last_values if self._config.broker.store_last_values else None
        self._values.restore(snapshot.last_values, last)
        self.checks = HealthChecks(
            self._config.checks,
            self.core.registry,
            self.core.leases,
            self._reactor,
            self.core.turns,
            self.wires.pinger,
            self._own_addresses,
            self.counters,
        )
        self._open_access(snapshot)
        self.plan = PlanFile(self._config.plan.file, self._reactor, self.core.files.run, parse)
        self.counters.include(self.plan.counts)
        self.counters.include(self._logs.counts)
        self._reactor.callWhenRunning(stop_once, self._reactor, self._begin_to_end)
        if self.membership is not None:
            self._reactor.callWhenRunning(self._join, snapshot)
            return
        try:
            self._serve(snapshot)
        except StartFailed:
            self._undo_start(snapshot)
            raise

    @inlineCallbacks
    def _join(self, snapshot: Snapshot) -> Any:
        """Serve once this broker has joined its cluster."""
        assert self.membership is not None
        joined = yield self.membership.join()
        if not joined or self._ending:
            return
        try:
            self._serve(snapshot)
        except StartFailed as error:
            self._give_up(f"elkobroker cannot start: {error}")
        except Exception:
            self.log.failure("a defect at the start")
            self._give_up("elkobroker cannot start")

    def _serve(self, snapshot: Snapshot) -> None:
        """Make the wires, and open the listeners. Raises `StartFailed` with some of them open."""
        name = self._config.broker.service or self._host()
        self._events = EventReports(
            name,
            self.core,
            self.plan,
            self._reactor,
            self.retries.states,
            self._unwritten,
            self._full,
            tuple if self.membership is None else self.membership.degradations,
        )
        self._listen(snapshot)
        self.counters.include(self._counts)
        scheduler = self.core.scheduler
        self._logs.follow(lambda: scheduler.conversation, lambda: scheduler.request_id)
        self.counters.include(self.core.damages.counts)
        self.readiness.add_degrading(self.core.damages.degradations, lambda: self.wires.shortcomings())
        self.counters.include(self.checks.schedule.counts)
        self.counters.include(self.api.counts)
        self.counters.include(self._events.notifications.counts)
        self._events.start(self._config.notify)
        self.api.start()
        self._serving = True
        if self.membership is not None:
            self.membership.open_links()
        if self.bridges is not None:
            self.bridges.start()
        self._listeners_changed()
        self.core.launchers.start_all(self._config.launchers.start)
        self._reactor.callWhenRunning(self._expiries.start)
        self._reactor.callWhenRunning(self.lag.start)
        self._reactor.callWhenRunning(self.heap.start)
        self._reactor.callWhenRunning(self._notifier.start, self._reactor)
        self._reactor.callWhenRunning(blocking.serve, log_defect)

    @inlineCallbacks
    def stopService(self) -> Any:
        """Stop in good order. Fires when all is closed."""
        self._ending = True
        yield maybeDeferred(super().stopService)
        self._notifier.stopping()
        self.retries.stop()
        self.checks.stop()
        self.lag.stop()
        self.heap.stop()
        self.draining.stop()
        self.traces.stop()
        if self._serving:
            self._events.stop()
            self.api.stop()
        self._expiries.stop()
        console = [] if self.console is None else [self.console]
        yield DeferredList([self.wires.stop_listening(), *(each.stop_listening() for each in console)])
        if self.bridges is not None:
            yield self.bridges.stop()
        self.plan.stop()
        # Connections are closed after the last records, so that their peers are remembered as present.
        self.core.restored.stop()
        if self.membership is not None:
            # Before the recorder, which closes the store: the membership writes its last memory there.
            yield self.membership.stop()
        yield self._values.stop()
        yield self.core.recorder.stop()
        yield self._close_journal()
        yield DeferredList([self.wires.close(), *(each.close() for each in console)])
        yield self._access.audit.stop()
        yield self._collected.stop()
        blocking.ended()
        self._access.stop()
        self.core.programs.stop()
        self.core.stop_threads()
        self.log.info("stopped")

    # orders of administrators

    def _reloaded(self) -> None:
        """Check the certificates that were read, and try listeners that are not open."""
        self._expiries.check()
        self.retries.retry()

    def _shut_down(self, kill: bool) -> None:
        """End the process: by an orderly stop, or at once."""
        if kill:
            self.log.warn("killed by an administrator")
            self._exit(0)
        elif self._begin_to_end():
            self.log.info("shut down by an administrator")
            self._reactor.callLater(0, self._reactor.stop)

    def _give_up(self, sentence: str) -> None:
        """End the process in order, with an exit status of 1."""
        self.log.critical("{sentence}", sentence=sentence)
        self._failing()
        fail_at_exit()
        if self._begin_to_end():
            self._reactor.stop()

    def _hang_up(self) -> None:
        """Handle SIGHUP."""
        if self._serving:
            self.operations.reload()
        else:
            self.log.info("the configuration is not read again: this broker joins its cluster")

    def _host(self) -> str:
        """Return the name of this broker for operators: that in the cluster, or else the host's."""
        host = socket.gethostname()
        return self._config.cluster.effective_name(host) if self._config.cluster.enabled else host

    def _membership(self, snapshot: Snapshot, core: Core) -> Membership:
        """Make the membership in the cluster. Raises CannotListen, OSError or ValueError."""
        # Imported here: a single broker runs without what the cluster needs.
        from broker.app.cluster_parts import COUNTERS as OF_MEMBERS
        from broker.app.cluster_parts import Membership

        self._documentation = Documentation([*COUNTERS, *OF_MEMBERS])
        config = self._config
        self.membership = Membership(
            config.cluster,
            self._state,
            core,
            self._store,
            snapshot,
            self.counters,
            self._reactor,
            self._notifier,
            self._give_up,
        )
        self.readiness.add(self.membership.obstacles)
        self.readiness.add_degrading(self.membership.degradations)
        return self.membership

    def _send_away(self) -> None:
        """Begin a drain: send the peers of all wires away."""
        self.checks.silence.draining = True
        self.wires.drain()

    def _take_back(self) -> None:
        """End a drain: accept peers again."""
        self.wires.undrain()
        self.checks.silence.draining = False

    def _describe_to_cluster(self) -> None:
        """Publish the listeners and the drain to the other members."""
        if self.membership is not None and self._serving:
            self.membership.describe(self.retries.states(), self.draining.state != "off")

    def _troubles(self) -> Iterator[NotReady]:
        """Yield all reasons for which the daemon is not ready."""
        yield from readiness.listeners(self.retries.states)
        yield from self._unwritten()
        yield from readiness.loop(self.lag.recent)
        yield from readiness.certificates(
            ((each.path, each.expires) for each in self._certificates()), wall(self._reactor)
        )
        yield from readiness.written("users file", "; ".join(self._access.access.problems))
        yield from readiness.draining(self.draining.state)
        yield from readiness.refusing(self._listener_rows())

    def _unwritten(self) -> Iterator[NotReady]:
        """Yield the stores that cannot be written."""
        yield from readiness.written("store", self.core.recorder.trouble)
        yield from readiness.written("last values", self._values.trouble)
        if self.journal is not None:
            yield from readiness.written("journal", self.journal.journal.trouble)
        yield from readiness.written("audit log", self._access.audit.failure)
        yield from readiness.written("collected log", self._collected.failure)
        yield from self.wires.degradations()

    def _full(self) -> Iterator[NotReady]:
        """Yield the listeners without a free place."""
        rows = list(self._listener_rows())
        yield from readiness.refusing(rows)
        yield from readiness.crowded(rows)

    def _certificates(self) -> list[Certificates]:
        """Return the certificates of all open listeners."""
        return [*self.wires.certificates(), *([] if self.console is None else self.console.certificates())]

    def _begin_to_end(self) -> bool:
        """Begin the end of the process. Returns True for the first call: the reactor stops once."""
        first, self._ending = not self._ending, True
        return first

    # building

    def _open_store(self) -> Snapshot:
        """Open the store, or only read it if its disk is full: the recorder reports that, and opens it later."""
        try:
            try:
                return self._store.open()
            except StateFull:
                return self._store.look()
        except StateError as error:
            raise StartFailed(str(error)) from None

    def _connection_factories(self) -> Iterator[ConnectionFactory]:
        yield from self.wires.connection_factories()
        if self.console is not None:
            yield self.console.connection_factory()

    def _open_access(self, snapshot: Snapshot) -> None:
        """Read the users file. Raises `StartFailed` with the core closed."""
        try:
            self._access: OpenAccess = open_access(
                self._config.access,
                self._state,
                self.core.files.run,
                self.core.in_thread,
                self.counters,
                self._reactor,
            )
        except BadUsers as error:
            if self.membership is not None:
                self.membership.abandon()
            self.core.restored.stop()
            self.core.stop_threads()
            self._store.close(snapshot.next_provider)
            raise StartFailed(f"access.file: {error}") from None

    def _listen(self, snapshot: Snapshot) -> None:
        if self._config.journal.enabled:
            self._open_journal(self._config.journal)
        config, retries = self._config, self.retries
        self.api = OperatorsApi(self._sources())
        self.routes.add([*page_files.endpoints(), *self.api.endpoints])
        try:
            self.wires.add(retries, config, self._context(snapshot))
            if config.bridges.enabled:
                self.bridges = self._make_bridges()
            if config.console.enabled:
                self.console = ConsoleListener(
                    config.console, self.core, self._reactor, self.wires.dialects, self._shown, self._access, self._pool
                )
                retries.add("console", self.console.where, self.console.bind)
            retries.open(config.broker.strict_listeners)
        except (CannotListen, OSError) as error:
            raise StartFailed(str(error)) from None

    def _make_bridges(self) -> Bridges:
        """Make the bridges. Raises OSError."""
        # Imported here: a broker without bridges runs without what they need.
        from broker.app.bridge_parts import COUNTERS as OF_BRIDGES
        from broker.app.bridge_parts import make_bridges

        self._documentation = Documentation([*self._documentation, *OF_BRIDGES])
        bridges = make_bridges(
            self._config.bridges, self.core, self._access.access, self.counters, self.retries, self._reactor
        )
        self.readiness.add_degrading(bridges.degradations)
        return bridges

    def _context(self, snapshot: Snapshot) -> WireContext:
        core = self.core
        return WireContext(
            broker=self._config.broker,
            state=self._state,
            known=snapshot,
            core=core,
            network=NetworkParts(self._reactor, self._pool, core.scheduler, core.refusal_log),
            cluster=core.cluster,
            checks=self.checks,
            accounts=self._access,
            control=self.operations,
            offer_own=self._offer_own,
            forget=self.retries.remove,
            routes=self.routes,
        )

    def _listeners_changed(self) -> None:
        """Handle a change of a listener's state: register the open ones as services, report the others to systemd."""
        self._offer_own()
        self._describe_to_cluster()
        if self.running:
            self._reactor.callWhenRunning(self._events.listeners_changed)
        missing = [each for each in self.retries.states() if not each.ready]
        self._notifier.status("; ".join(["serving", *(f"{each.name} is not ready: {each.reason}" for each in missing)]))

    def _open_journal(self, config: journal_settings.Journal) -> None:
        try:
            self.journal = open_journal(
                config, self._state, self.core.registry, self._reactor, self._host(), self.core.damages
            )
        except OSError as error:
            raise StartFailed(f"journal: {error}") from None
        self.counters.include(self.journal.counts)
        self.log.info("metrics journal in {where}", where=self.journal.where)

    def _close_journal(self) -> Deferred[None]:
        journal, self.journal = self.journal, None
        return succeed(None) if journal is None else journal.stop()

    def _shown(self) -> Shown:
        """Return the state that operators see."""
        own = [
            listener_view(self.retries.states, self._reactor),
            *registry_views(self.core.registry, self._reactor, self.core.cluster.members.name),
            catalog_view(self.core.registry, self.plan.current),
            *cluster_views(self.core.cluster.members, self.core.cluster.owners),
            *([] if self.membership is None else self.membership.views()),
            checks_view(self.checks.schedule.targets, self._reactor),
            counter_view(self.counters.all, self._documentation),
            certificate_view(self._certificates, self._reactor),
            plan_view(self.plan, self._reactor),
            self._events.notifications.view(),
            bridges_view(tuple if self.bridges is None else self.bridges.rows),
        ]
        return Shown(
            self.counters.all,
            self._status,
            version(),
            {**{each.name: each for each in own}, **self.wires.views()},
            documentation=self._documentation,
            actions=Actions(self.operations, self._access.audit, "console"),
            later=partial(self._reactor.callLater, 0),
        )

    def _sources(self) -> Sources:
        """Return the parts that the HTTP API shows and controls."""
        return Sources(
            core=self.core,
            farm=self._config.cluster.farm,
            state=self._state,
            clock=self._reactor,
            started=self._started,
            shown=self._shown,
            left=self.wires.left,
            listeners=self.retries.states,
            ready=self.readiness.reasons,
            degraded=self.readiness.degraded,
            control=self.operations,
            plan=self.plan,
            access=self._access.access,
            audit=self._access.audit,
            collected=self._collected,
            lag=self.lag.measured,
            endpoints=lambda: self.routes.endpoints,
            certificates=self._certificates,
        )

    def _status(self) -> dict[str, object]:
        return status(self.core, self.journal, self.plan, self._started, self._reactor.seconds(), self._listener_rows())

    def _listener_rows(self) -> Iterator[Mapping[str, object]]:
        yield from self.wires.listener_rows()
        if self.console is not None:
            yield from self.console.listener_rows()
        if self.bridges is not None and (place := self.bridges.links.place()) is not None:
            yield place
        for missing in self.retries.states():
            if not missing.ready:
                yield {"name": missing.name, "address": missing.where, "ready": False, "reason": missing.reason}

    def _own_addresses(self) -> Sequence[str]:
        """Return the addresses of all listeners, collected again after `_offer_own` only: each check of a service, and
        each probe, asks for them."""
        if not self._own:
            self._own = [str(row["address"]) for row in self._listener_rows()]
            if self.membership is not None:
                self._own.append(self.membership.listens)
        return self._own

    def _counts(self) -> dict[str, int]:
        """Return gauges of the registry, and the account of memory."""
        memory = self.core.scheduler.memory
        queued, room = (0, 0) if self.journal is None else self.journal.journal.queued
        return {
            **{f"registry.{name}": size for name, size in self.core.registry.sizes().items()},
            **{f"memory.{share.value}": size for share, size in memory.shares().items()},
            **{f"memory_evicted.{share.value}": count for share, count in memory.evicted.items()},
            "memory_entries.logins": self._access.logins.gate.entries,
            "memory_entries.logins_bound": MAX_ENTRIES,
            "memory_entries.journal": queued,
            "memory_entries.journal_bound": room,
            "memory_full.refused": memory.refused,
            "memory_full.stored": memory.denied,
        }

    def _offer_own(self) -> None:
        """Register the open listeners as services. Called after each change of them, also when one closes for good."""
        self._own = []
        self.core.registry.offer_own(list(self.wires.services()))

    # undoing a start, and reloading

    def _undo_start(self, snapshot: Snapshot) -> None:
        self.retries.stop()
        self.checks.stop()
        self.plan.stop()
        if self.console is not None:
            self.console.stop_listening()
        if self.bridges is not None:
            self.bridges.abandon()
        self.wires.abandon()
        if self.journal is not None:
            self.journal.abandon()
            self.journal = None
        self._access.stop()
        self.core.restored.stop()
        self.core.stop_threads()
        self._store.close(snapshot.next_provider)

    def _apply(self, config: Config) -> None:
        if self._ending:
            return
        self.checks.use(config.checks)
        self.wires.reload(config)
        if self.journal is not None:
            self.journal.use(config.journal)
        self.core.launchers.replace(launchers_of(config.launchers))
        self._access.reload(config.access)
        self.plan.use(config.plan.file)
        self._logs.use(config.log.format, config.log.level, {each.name: each.level for each in config.log.levels})
        self._logs.limit(config.log.file_bytes, config.log.files)
        self._events.use(config.notify)
        self.core.restored.last(config.broker.grace)
        self._use_limits(config)
        self._config = config
        self._offer_own()

    def _use_limits(self, config: Config) -> None:
        """Use the limits of memory and services of a configuration, and its trusted proxies."""
        scheduler, broker = self.core.scheduler, config.broker
        self.core.registry.most_services = broker.services
        self.core.topics.last_values.every = broker.last_values
        self.core.topics.observer = self._collected.publish if config.log.collect else None
        scheduler.memory.limits = MemoryLimits(address=broker.memory_per_address, total=broker.memory)
        scheduler.proxies.use(broker.trusted_proxies)
