"""The daemon: which parts it has, and in which order they start and stop.

Order at start: state directory, registry, what all wires keep and restore, listeners, launchers. At the stop: listeners
(so that nothing is accepted and dropped), the final records of the store and the journal (so that the peers now
disconnected are remembered, and did not leave), connections.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
from twisted.application.service import Service as TwistedService
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool
from zope.interface import implementer

from broker.admin import listener_views
from broker.admin.console import ConsoleSession, Shown
from broker.admin.telnet import ConsoleReader
from broker.app.journal import JournalWriter, open_journal
from broker.app.parts import Parts
from broker.app.signals import reload_on_hangup, stop_once
from broker.app.status import elko_places, places, status, version
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
from broker.core.model import Launcher, Rights, Service, Snapshot
from broker.core.recorder import Recorder
from broker.core.registry import Registry
from broker.core.restored_services import Restored
from broker.core.store import Store
from broker.core.topics import Topics
from broker.logs import Level
from broker.net.admission import Limits
from broker.net.child_processes import Programs
from broker.net.endpoints import CannotListen
from broker.net.interfaces.peer import Peer, Reader, Session
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.listener_retry import Openings
from broker.net.probes import MOST as MOST_PROBES
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.net.sdnotify import SystemdNotifier
from broker.wires.common.password_backoff import Guesses
from broker.wires.common.registry_topics import FarmTopics
from broker.wires.elko.codec import blocks
from broker.wires.elko.codec.broker import VOCABULARY
from broker.wires.elko.listeners import (
    Carrier,
    NamedListener,
    StreamListener,
    add_listeners,
    base_policy,
    certificates,
    net_limits,
    renew,
    services,
)
from broker.wires.elko.open_director import DirectorPart
from broker.wires.elko.sessions.authentication import Door, Policy
from broker.wires.elko.sessions.broker import BrokerSession, Wiring
from broker.wires.elko.sessions.change_notices import Notices
from broker.wires.elko.views import views as elko_views

DESCRIPTORS = 65_536
"""File descriptors asked for, within what the system allows: one for each connection, and some."""

SPARE_DESCRIPTORS = 150
"""Those that are not for Elko connections: the console's, the store's, listeners, launched programs' pipes. Where the
system allows few, new connections wait in the kernel's queue instead of being accepted and dropped."""

COLLECT_AFTER = (20_000, 20, 1_000)
"""Thresholds of the garbage collector. Closed connections leave nothing for it to find, and a full collection holds up
all peers for 200 ms where 50,000 finds wait: so it only comes when very much was left."""

CONSOLE_LIMITS = Limits(connections=100, rate=1, burst=20, authenticate_within=30)
"""Operators are few, and a password is not guessed at one connection a second."""


class StartFailed(Exception):
    """The daemon cannot start; the text says why. Nothing is left running."""


@implementer(IControl)
class Daemon(TwistedService):
    """The daemon as a Twisted service. ``openings`` knows the state of all its listeners.

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
        self.openings = Openings(reactor, self._listeners_changed)
        self.listeners: list[NamedListener] = []
        self.console: StreamListener | None = None
        self.zmq = ZmqWires(reactor, self.counters)
        self.director: DirectorPart | None = None
        self.journal: JournalWriter | None = None
        self._console_password = config.console.password
        self._ending = False
        self._console_guesses = Guesses(reactor.seconds)
        self._started = reactor.seconds()

    # the service

    def startService(self) -> None:
        """Start, or raise `StartFailed` with nothing left running.

        The start fails over the first Elko listener, and where no listener at all can be opened; others may be opened
        later (`broker.net.listener_retry`), unless ``broker.strict_listeners`` is set.
        """
        super().startService()  # type: ignore[no-untyped-call]
        # First of all, since SIGHUP ends a process that has no handler of it; the reload comes when the reactor turns.
        reload_on_hangup(self._reactor, self.reinitialize)
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
        self._listeners_changed()
        self.parts.launchers.start_all(self._config.launchers.start)
        self._reactor.callWhenRunning(stop_once, self._reactor, self._begin_to_end)
        self._reactor.callWhenRunning(self._notifier.start, self._reactor)

    @inlineCallbacks
    def stopService(self) -> Any:
        """Stop in good order. Fires when all is closed."""
        self._ending = True
        yield maybeDeferred(super().stopService)
        self._notifier.stopping()
        self.openings.stop()
        streams = self._streams()
        factories: list[Carrier] = [listener.carrier for listener in streams]
        yield DeferredList([listener.stop_listening() for listener in streams])
        if self.director is not None:
            yield self.director.stop_listening()
        # These close meanwhile: the ends of their connections change nothing that is kept.
        closing = [self.zmq.close()]
        self.parts.restored.stop()
        yield self.parts.recorder.stop()
        yield self._close_journal()
        closing += [factory.close() for factory in factories]
        if self.director is not None:
            closing.append(self.director.close())
        yield DeferredList(closing)
        self.parts.programs.stop()
        self.parts.threads.stop()
        self.log.info("stopped")

    # what administrators may do

    def reinitialize(self) -> None:
        """Read the configuration again; a bad one changes nothing. Listeners that are not open are tried again."""
        if self._ending:
            self.log.info("the configuration is not read again: the broker stops")
            return
        if self._read_config is None:
            self.log.info("there is no configuration file to read again")
            return
        self._notifier.reloading()
        try:
            config = self._read_config()
            keep = refused(self._config, config)
            if keep:
                raise BadReload(f"these keys need a restart, so nothing was changed: {', '.join(keep)}")
            shown = certificates([*self._streams(), *(() if self.director is None else self.director.listeners)])
            contexts = [each.read() for each in shown]
        except (BadConfig, BadReload, OSError, ValueError) as error:
            self.log.error("the configuration was not reloaded: {error}", error=str(error))
        else:
            self._apply(config)
            for each, context in zip(shown, contexts, strict=True):
                each.use(context)
            self.log.info("the configuration was reloaded")
            self.openings.retry()
        self._notifier.ready()

    def shut_down(self, kill: bool) -> None:
        """End the process: in good order, or at once."""
        if kill:
            self.log.warn("killed by an administrator")
            self._exit(0)
        elif self._begin_to_end():
            self.log.info("shut down by an administrator")
            self._reactor.callLater(0, self._reactor.stop)

    def _begin_to_end(self) -> bool:
        """The process is to end. Returns whether this is the first to say so: the reactor stops once."""
        first, self._ending = not self._ending, True
        return first

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
        leases = Leases(clock)
        FarmTopics(registry, topics, leases)
        return Parts(
            registry=registry,
            restored=restored,
            recorder=recorder,
            launchers=launchers,
            programs=programs,
            threads=threads,
            wiring=wiring,
            topics=topics,
            leases=leases,
            turns=Turns(clock, leases.look),
            complaints=Complaints(self.counters, clock),
            in_thread=in_thread,
        )

    def _listen(self, snapshot: Snapshot) -> None:
        if self._config.journal.enabled:
            self._open_journal(self._config.journal)
        config, openings = self._config, self.openings
        self.listeners = add_listeners(
            openings,
            self._reactor,
            "elko",
            config.elko.listeners,
            partial(_policy, config=config),
            self._converse,
            self._limits,
            self.parts,
            self.log,
            first_required=True,
        )
        if config.director.enabled:
            self.director = DirectorPart(
                config, self._reactor, self.parts, openings, self._room(), self.reinitialize, self._offer_own
            )
            self.counters.include(self.director.counts)
        if config.console.enabled:
            self._add_console(config.console)
        try:
            self.zmq.add(openings, config, snapshot, self._state, self.parts, self._beats(), self._room())
            openings.open(config.broker.strict_listeners)
        except (CannotListen, OSError) as error:
            raise StartFailed(str(error)) from None

    def _add_console(self, config: values.Console) -> None:
        endpoint = endpoints.parse(config.endpoint)
        factory = self._factory("console", self._converse_with_operator, CONSOLE_LIMITS, endpoint)
        console = self.console = StreamListener(
            self._reactor, endpoint, factory, factory, self.parts.turns, self.parts.complaints
        )

        def bind() -> str:
            where = console.open()
            self.log.info("console on {where}", where=where)
            return where

        self.openings.add("console", endpoint.where, bind)

    def _streams(self) -> list[StreamListener]:
        """The listeners of streams that are the daemon's own; the director has others."""
        return [*self.listeners, *(() if self.console is None else (self.console,))]

    def _listeners_changed(self) -> None:
        """Some listener has another state: tell peers which services there are, and the service manager the rest."""
        self._offer_own()
        missing = [each for each in self.openings.states() if not each.ready]
        self._notifier.status("; ".join(["serving", *(f"{each.name} is not ready: {each.reason}" for each in missing)]))

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
            spare += min(MOST_PROBES, self._descriptors // 4)  # one for each question of DBP
        shares = len(self._config.elko.listeners) + sockets(self._config)
        if self._config.director.enabled:
            shares += len(self._config.director.listeners)
        return max(1, (self._descriptors - spare) // max(1, shares))

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
        views = elko_views(wiring) | listener_views.views(self.openings.states, self._reactor) | self.zmq.views()
        shown = Shown(self.counters.all, self._status, version(), views)
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
            yield from places("console", "console", self.console)
        yield from self.zmq.places()
        for missing in self.openings.states():
            if not missing.ready:
                yield {"name": missing.name, "address": missing.where, "ready": False, "reason": missing.reason}

    def _counts(self) -> dict[str, int]:
        """Numbers of what there is now, beside what the counters count."""
        sizes = {f"registry.{name}": size for name, size in self.parts.registry.sizes().items()}
        return {**sizes, "elko.connections": sum(len(each.lines.connections) for each in self.listeners)}

    def _offer_own(self) -> None:
        self.parts.registry.offer_own(list(self._own_services()))

    def _own_services(self) -> Iterator[Service]:
        """The broker's own listeners as services of provider 0, named as the original names them."""
        suffix = f"-{self._config.broker.service}" if self._config.broker.service else ""
        yield from services(self.listeners, self._config.elko.listeners, lambda role: f"broker-{role}{suffix}")
        if self.director is not None:
            yield from self.director.services()

    # undoing, and doing again

    def _undo_start(self, snapshot: Snapshot) -> None:
        self.openings.stop()
        director = [] if self.director is None else self.director.listeners
        for listener in (*self._streams(), *director):
            listener.stop_listening()
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
