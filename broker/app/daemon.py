"""The daemon: which parts it has, and in which order they start and stop.

Order at start: state directory, registry, listeners, launchers. At the stop: listeners (so that nothing is accepted and
dropped), the final records of the store and the journal (so that the peers now disconnected are remembered, and did not
leave), connections.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
from twisted.application.service import Service as TwistedService
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from broker.admin.console import ConsoleSession, Shown
from broker.admin.elko import views as elko_views
from broker.admin.reader import ConsoleReader
from broker.app.director import DirectorPart
from broker.app.journal import JournalWriter, open_journal
from broker.app.listeners import Carrier, OpenListener, base_policy, net_limits, open_listeners, renew
from broker.app.parts import Parts
from broker.app.status import elko_places, place, status, version
from broker.app.zeromq import ZmqWires, sockets
from broker.config import endpoint as endpoints
from broker.config import values
from broker.config.endpoint import Endpoint
from broker.config.errors import BadConfig
from broker.config.reload import refused
from broker.config.validate import effective_offer
from broker.core.counters import Counters
from broker.core.database import StateError, StateFull
from broker.core.interfaces import Beats, IControl
from broker.core.launchers import Launchers
from broker.core.liveness import Leases
from broker.core.model import BROKER, Auth, Launcher, Rights, Service, Snapshot
from broker.core.recorder import Recorder
from broker.core.registry import Registry
from broker.core.restored import Restored
from broker.core.store import Store
from broker.core.topics import Topics
from broker.logs import Level
from broker.net.limits import Complaints
from broker.net.lines import Limits, LineFactory, LineProtocol
from broker.net.listen import CannotListen, bound, listen
from broker.net.probes import MOST
from broker.net.programs import Programs
from broker.net.sdnotify import SystemdNotifier
from broker.net.turns import Turns
from broker.session.auth import Door, Policy
from broker.session.backoff import Guesses
from broker.session.elko_broker import BrokerSession, Wiring
from broker.session.elko_notices import Notices
from broker.session.farm_topics import FarmTopics
from broker.session.peer import Peer, Reader, Session
from broker.wire.elko import blocks
from broker.wire.elko.broker import VOCABULARY

DESCRIPTORS = 65_536
"""File descriptors asked for, within what the system allows: one for each connection, and some."""

SPARE_DESCRIPTORS = 150
"""Those that are not for Elko connections: the console's, the store's, listeners, launched programs' pipes. Where the
system allows few, new connections wait in the kernel's queue instead of being accepted and dropped."""

PROBE_DESCRIPTORS = 2 * MOST
"""Those of the questions that DBP asks silent services, two for each; but no more than a quarter of all."""

COLLECT_AFTER = (20_000, 20, 1_000)
"""Thresholds of the garbage collector. Closed connections leave nothing for it to find, and a full collection holds up
all peers for 200 ms where 50,000 finds wait: so it only comes when very much was left."""

CONSOLE_LIMITS = Limits(connections=100, rate=1, burst=20, authenticate_within=30)
"""Operators are few, and a password is not guessed at one connection a second."""


class StartFailed(Exception):
    """The daemon cannot start; the text says why. Nothing is left running."""


@implementer(IControl)
class Daemon(TwistedService):
    """The daemon as a Twisted service.

    ``config`` is what to run; ``state`` the state directory. ``read_config`` gives the configuration again for a
    reload (raising `BadConfig`), None where there is no file to read. ``failing`` is called before a `StartFailed` is
    raised; ``exit`` ends the process at once. Nothing is opened before `startService`: twistd may fork in between.
    """

    log = Logger()

    def __init__(
        self,
        config: values.Config,
        reactor: Any,
        state: str,
        level: Level,
        notifier: SystemdNotifier,
        read_config: Callable[[], values.Config] | None = None,
        failing: Callable[[], object] = lambda: None,
        exit: Callable[[int], object] = os._exit,
    ) -> None:
        self._config = config
        self._reactor = reactor
        self._state = state
        self._store = Store(state)
        self._level = level
        self._notifier = notifier
        self._read_config = read_config
        self._failing = failing
        self._exit = exit
        self.counters = Counters()
        self.listeners: list[OpenListener] = []
        self.console: tuple[LineFactory, IListeningPort] | None = None
        self.zmq = ZmqWires(reactor, self.counters)
        self.director: DirectorPart | None = None
        self.journal: JournalWriter | None = None
        self._console_password = config.console.password
        self._console_guesses = Guesses(reactor.seconds)
        self._started = reactor.seconds()

    # the service

    def startService(self) -> None:
        """Start everything, or nothing: raises `StartFailed`."""
        super().startService()  # type: ignore[no-untyped-call]
        try:
            self._start()
        except StartFailed as error:
            self.log.critical("elkobroker cannot start: {error}", error=str(error))
            self._failing()
            raise

    def _start(self) -> None:
        self._started = self._reactor.seconds()
        self._descriptors = _raise_descriptor_limit()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        snapshot = self._open_store()
        try:
            self.parts = self._build(snapshot)
        except StateError as error:
            self._store.close(snapshot.next_provider)
            raise StartFailed(str(error)) from None
        try:
            self._listen(snapshot)
        except StartFailed:
            self._undo_start(snapshot)
            raise
        self.counters.include(self._counts)
        self._offer_own()
        self.parts.launchers.start_all(self._config.launchers.start)
        _on_hangup(partial(self._reactor.callFromThread, self.reinitialize))
        self._reactor.callWhenRunning(self._notifier.start, self._reactor)

    @inlineCallbacks
    def stopService(self) -> Any:
        """Stop in good order. Fires when all is closed."""
        yield maybeDeferred(super().stopService)
        self._notifier.stopping()
        factories: list[Carrier] = [listener.carrier for listener in self.listeners]
        ports = [listener.port for listener in self.listeners]
        if self.console is not None:
            factories.append(self.console[0])
            ports.append(self.console[1])
        yield DeferredList([maybeDeferred(port.stopListening) for port in ports])
        if self.director is not None:
            yield self.director.stop_listening()
        yield self.zmq.close()
        self.parts.restored.stop()
        yield self.parts.recorder.stop()
        yield self._close_journal()
        closing = [factory.close() for factory in factories]
        if self.director is not None:
            closing.append(self.director.close())
        yield DeferredList(closing)
        self.parts.programs.stop()
        self.parts.threads.stop()
        self.log.info("stopped")

    # what administrators may do

    def reinitialize(self) -> None:
        """Read the configuration again; a bad one changes nothing."""
        if self._read_config is None:
            self.log.info("there is no configuration file to read again")
            return
        self._notifier.reloading()
        try:
            config = self._read_config()
            keep = refused(self._config, config)
            if keep:
                raise BadReload(f"these keys need a restart, so nothing was changed: {', '.join(keep)}")
            certificates = [listener.certificates for listener in self.listeners if listener.certificates is not None]
            certificates += self.director.certificates() if self.director is not None else []
            contexts = [each.read() for each in certificates]
        except (BadConfig, BadReload, OSError, ValueError) as error:
            self.log.error("the configuration was not reloaded: {error}", error=str(error))
        else:
            self._apply(config)
            for each, context in zip(certificates, contexts, strict=True):
                each.use(context)
            self.log.info("the configuration was reloaded")
        self._notifier.ready()

    def shut_down(self, kill: bool) -> None:
        """End the process: in good order, or at once."""
        if kill:
            self.log.warn("killed by an administrator")
            self._exit(0)
        else:
            self.log.info("shut down by an administrator")
            self._reactor.callLater(0, self._reactor.stop)

    # building

    def _open_store(self) -> Snapshot:
        """Open the store, or look at it if its disk is full: then the recorder says so, and opens it later."""
        try:
            try:
                return self._store.open()
            except StateFull:
                return self._store.look()
        except StateError as error:
            raise StartFailed(str(error)) from None

    def _build(self, snapshot: Snapshot) -> Parts:
        clock = self._reactor
        threads = ThreadPool(minthreads=0, maxthreads=1, name="store")
        in_thread: Callable[..., Deferred[Any]] = partial(deferToThreadPool, self._reactor, threads)
        restored = Restored(snapshot.providers, self._config.broker.grace, clock, lambda ids: recorder.forget(ids))
        registry = Registry(clock, lambda: recorder.next_id(), restored)
        recorder = Recorder(
            registry, self._store, clock, in_thread, snapshot.next_provider, (s.identity for s in snapshot.sessions)
        )
        threads.start()
        programs = Programs(self._reactor)

        def remember(name: str, on: bool) -> None:
            in_thread(self._store.switch, name, on).addErrback(
                lambda failure: self.log.failure("the switch of {name} was not stored", failure, name=name)
            )

        launchers = Launchers(_launchers(self._config), snapshot.launchers_on, programs.spawn, remember)
        wiring = Wiring(registry, Notices(registry), launchers, self)
        topics = Topics()
        FarmTopics(registry, topics)
        return Parts(
            registry=registry,
            restored=restored,
            recorder=recorder,
            launchers=launchers,
            programs=programs,
            threads=threads,
            wiring=wiring,
            topics=topics,
            leases=Leases(clock),
            turns=Turns(clock),
            complaints=Complaints(self.counters, clock),
            in_thread=in_thread,
        )

    def _listen(self, snapshot: Snapshot) -> None:
        if self._config.journal.enabled:
            self._open_journal(self._config.journal)
        listeners, policy = self._config.elko.listeners, partial(_policy, config=self._config)
        try:
            for opened in open_listeners(
                self._reactor, "elko", listeners, policy, self._converse, self._limits, self.parts, self.log
            ):
                self.listeners.append(opened)
        except CannotListen as error:
            raise StartFailed(str(error)) from None
        if self._config.director.enabled:
            self._open_director()
        console = self._config.console
        if console.enabled:
            endpoint = endpoints.parse(console.endpoint)
            factory = self._factory("console", self._converse_with_operator, CONSOLE_LIMITS, endpoint)
            try:
                port = listen(self._reactor, endpoint, factory)
            except CannotListen as error:
                raise StartFailed(f"console: {error}") from None
            self.console = (factory, port)
            self.log.info("console on {where}", where=bound(port))
        try:
            self.zmq.start(self._config, snapshot, self._state, self.parts, self._beats(), self._room())
        except OSError as error:
            raise StartFailed(str(error)) from None

    def _open_director(self) -> None:
        self.director = DirectorPart(
            self._config, self._reactor, self.parts, self._room(), self.reinitialize, self._offer_own
        )
        self.counters.include(self.director.counts)
        try:
            self.director.open()
        except CannotListen as error:
            raise StartFailed(str(error)) from None

    def _beats(self) -> Beats | None:
        return None if self.journal is None else self.journal.feed

    def _open_journal(self, config: values.Journal) -> None:
        try:
            self.journal = open_journal(config, self._state, self.parts.registry, self._reactor)
        except OSError as error:
            raise StartFailed(f"journal: {error}") from None
        self.counters.include(self.journal.counts)
        self.log.info("metrics journal in {where}", where=self.journal.where)

    def _close_journal(self) -> Deferred[None]:
        journal, self.journal = self.journal, None
        return succeed(None) if journal is None else journal.stop()

    def _factory(
        self, wire: str, converse: Callable[[LineProtocol], tuple[Reader, Session]], limits: Limits, endpoint: Endpoint
    ) -> LineFactory:
        parts = self.parts
        return LineFactory(
            wire,
            converse,
            limits,
            parts.turns,
            parts.complaints,
            self._reactor,
            half_close=endpoint.kind != "tls",
            guarded=False,  # the console's reader knows telnet's own bytes, and sees to that
        )

    def _room(self) -> int:
        """Connections that each listener may have, so that there are descriptors for all."""
        spare = SPARE_DESCRIPTORS
        if self._config.dbp.enabled:
            spare += min(PROBE_DESCRIPTORS, self._descriptors // 4)
        shares = len(self._config.elko.listeners) + sockets(self._config)
        if self._config.director.enabled:
            shares += len(self._config.director.listeners)
        return max(1, (self._descriptors - spare) // shares)

    def _limits(self, listener: values.Listener) -> Limits:
        limits = listener.limits
        room = self._room()
        if room < limits.connections:
            self.log.info(
                "elko listener {name!r} takes {room} connections, since the system allows {most} file descriptors",
                name=listener.name,
                room=room,
                most=self._descriptors,
            )
        return net_limits(limits, room, 0 if listener.allow_before_auth else limits.authenticate_within)

    def _converse(self, door: Door, peer: Peer) -> tuple[Reader, Session]:
        return blocks.Reader(VOCABULARY), BrokerSession(self.parts.wiring, door, peer)

    def _converse_with_operator(self, peer: Peer) -> tuple[Reader, Session]:
        wiring = self.parts.wiring
        shown = Shown(self.counters.all, self._status, version(), elko_views(wiring) | self.zmq.views())
        director = None if self.director is None else self.director.wiring
        return ConsoleReader(), ConsoleSession(
            wiring, shown, self._console_password, self._console_guesses, peer, director
        )

    def _status(self) -> dict[str, object]:
        return status(self.parts, self.journal, self._started, self._reactor.seconds(), self._places())

    def _places(self) -> Iterator[dict[str, object]]:
        yield from elko_places("elko", self.listeners)
        if self.director is not None:
            yield from elko_places("director", self.director.listeners)
        if self.console is not None:
            yield place("console", "console", self.console[1], self.console[0])
        yield from self.zmq.places()

    def _counts(self) -> dict[str, int]:
        """How many there are now, beside what the counters count."""
        sizes = {f"registry.{name}": size for name, size in self.parts.registry.sizes().items()}
        return {**sizes, "elko.connections": sum(len(each.lines.connections) for each in self.listeners)}

    def _offer_own(self) -> None:
        self.parts.registry.offer_own(list(self._own_services()))

    def _own_services(self) -> Iterator[Service]:
        """The broker's own listeners as services of provider 0, named as the original names them."""
        suffix = f"-{self._config.broker.service}" if self._config.broker.service else ""
        for listener, running in zip(self._config.elko.listeners, self.listeners, strict=True):
            for role in sorted(listener.allow):
                yield Service(
                    name=f"broker-{role}{suffix}",
                    hostport=listener.publish or bound(running.port),
                    provider=BROKER,
                    protocol=running.protocol,
                    label=listener.label,
                    auth=None if listener.code is None else Auth("password", listener.code),
                )
        if self.director is not None:
            yield from self.director.services()

    # undoing, and doing again

    def _undo_start(self, snapshot: Snapshot) -> None:
        for listener in self.listeners:
            listener.port.stopListening()
        if self.console is not None:
            self.console[1].stopListening()
        if self.director is not None:
            self.director.abandon()
        self.listeners.clear()
        self.zmq.abandon()
        if self.journal is not None:
            self.journal.abandon()
            self.journal = None
        self.parts.restored.stop()
        self.parts.threads.stop()
        self._store.close(snapshot.next_provider)

    def _apply(self, config: values.Config) -> None:
        renew(self.listeners, config.elko.listeners, partial(_policy, config=config), self._limits)
        if self.director is not None:
            self.director.use(config)
        self.zmq.use(config)
        if self.journal is not None:
            self.journal.use(config.journal)
        self.parts.launchers.replace(_launchers(config))
        self._console_password = config.console.password
        self._level.set(config.log.level)
        self.parts.restored.last(config.broker.grace)
        self._config = config
        self._offer_own()


class BadReload(Exception):
    """A configuration that cannot be taken while running."""


def _policy(listener: values.Listener, config: values.Config) -> Policy:
    rights = Rights(effective_offer(listener), listener.limits.services)
    return attrs.evolve(base_policy(listener, config), rights=rights, waits=listener.limits.waits)


def _launchers(config: values.Config) -> list[Launcher]:
    return [Launcher(e.name, e.script, e.initial, e.on) for e in config.launchers.table]


def _raise_descriptor_limit() -> int:
    """Raise it as far as allowed and needed. Returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _on_hangup(reload: Callable[[], object]) -> None:
    # Outside the main thread it is embedded in something else, which keeps its own signals.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGHUP, lambda *_: reload())
