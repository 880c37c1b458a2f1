"""Opening MTL: its sockets, users and keys, the two flows, the profiles, and the durable queues.

Order at the start: users, keys and queues from the disk, the flows, the profiles; the sockets are bound last. At the
stop nothing more is received on the data flows; messages that the queues have taken are written, and confirmed to their
writers. The sockets are closed last, or when that takes too long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from broker.config.values import Broker
from broker.config.zmq_endpoint import parse
from broker.core.database import StateError, StateFull
from broker.core.disk_reserve import is_full
from broker.core.interfaces import ILeases, ITopics
from broker.core.queues.queues import Queues
from broker.core.queues.recorder import QueueRecorder
from broker.core.queues.settings import Death, QueueRule, QueueSettings
from broker.core.queues.store import QueueStore
from broker.core.topics import Topics
from broker.net.allowed_keys import AllowedKeys
from broker.net.endpoints import CannotListen
from broker.net.router.router import SILENCE
from broker.wires.common.password_backoff import Delays
from broker.wires.common.router_listener import RouterListener, make_router
from broker.wires.interface import Context, PlainWire
from broker.wires.mtl import views
from broker.wires.mtl.config import Mtl
from broker.wires.mtl.profiles.queue import WorkQueues
from broker.wires.mtl.profiles.registry import Registry
from broker.wires.mtl.profiles.service import Services
from broker.wires.mtl.profiles.test import FanOut
from broker.wires.mtl.profiles.topic import Topic
from broker.wires.mtl.sessions.accounts import Accounts
from broker.wires.mtl.sessions.control import WIRE, Control
from broker.wires.mtl.sessions.data import Data
from broker.wires.mtl.sessions.leases import DataLeases
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.rights import Rule, Rulebook
from broker.wires.mtl.sessions.sasl import CHECKS, Mechanisms
from broker.wires.mtl.sessions.settings import Settings
from broker.wires.mtl.sessions.shared_socket import Shared
from broker.wires.mtl.validation import effective_mtl_auth, mtl_curve, mtl_data_place
from broker.wires.views import AnyView

DATA = "mtl-data"
"""The name of the data flow's ROUTER in counters and logs."""

SECRET = "mtl.secret"
"""A file in the state directory, by which names that are no users look like users, also after a restart."""

SECRET_BYTES = 32


STOP_SECONDS = 2.0
"""Seconds for which the sockets stay open at the stop while the last messages are written: a busy disk takes some
hundredths. Systems give a service ten times as long."""


@attrs.define(eq=False)
class OpenMtl(PlainWire):
    """MTL as it runs; see `broker.wires.interface.OpenWire`.

    ``control_listener`` and ``data_listener`` are the same where one socket carries both flows."""

    log = Logger()

    config: Mtl
    control_listener: RouterListener
    data_listener: RouterListener
    room: int
    accounts: Accounts | None
    keys: AllowedKeys | None
    rulebook: Rulebook
    control: Control
    data: Data
    data_leases: DataLeases
    profiles: Mapping[str, Profile]
    work_queues: WorkQueues
    service_profile: Services
    queues: Queues
    recorder: QueueRecorder
    threads: list[ThreadPool]
    clock: IReactorTime
    leases: ILeases

    @property
    def address(self) -> str:
        """The address of the control flow, empty before `bind`."""
        return self.control_listener.address

    @property
    def data_address(self) -> str:
        """The address of the data flows, empty before `bind`."""
        return self.data_listener.address

    def bind(self, title: str) -> str:
        """Listen. Returns the control flow's address.

        Raises `CannotListen` with neither open; it may be tried again.

        The data flows come first: the control flow tells its clients where they are.
        """
        data_place = mtl_data_place(self.config)
        if data_place is not None:
            self.data_listener.bind(data_place)
        try:
            where = self.control_listener.bind(parse(self.config.endpoint))
        except CannotListen:
            self.data_listener.unbind()
            raise
        self.log.info(
            "mtl on {where} (data {data}; {auth}{curve})",
            where=where,
            data=self.data_address,
            auth=effective_mtl_auth(self.config),
            curve=", curve" if mtl_curve(self.config) else "",
        )
        return where

    def places(self) -> Sequence[Mapping[str, object]]:
        """Return the sockets of both flows."""
        if not self.address:
            return []
        data = [] if self.data_listener is self.control_listener else [self.data_listener.place(WIRE, "data")]
        return [self.control_listener.place(WIRE), *data]

    def views(self) -> Sequence[AnyView]:
        """Return control sessions, data flows and queues."""
        return views.views(self.control, self.data, self.queues.describe, self.leases)

    def reload(self, config: Mtl, broker: Broker) -> None:
        """Take new rules, hosts, queues and limits, and look for new client keys and users."""
        self.rulebook.use(config.hosts, _rules(config))
        # The host of the other wires stays while they run.
        settings = attrs.evolve(_settings(config), bridge=self.config.hosts[0])
        self.control.use(settings)
        self.data.use(settings)
        self.control.review()
        self.queues.use(_queue_rules(config))
        for listener in self._listeners():
            listener.router.limit(config.connection_limits(self.room))
        self.work_queues.window_bytes = self.service_profile.window_bytes = config.window_bytes
        if self.keys is not None:
            self.keys.refresh()
        if self.accounts is not None:
            self.accounts.refresh()

    def counts(self) -> Mapping[str, int]:
        """All that is counted where it happens."""
        counts: dict[str, int] = {}
        counts.update(self.control.counts())
        counts.update(self.data.counts())
        counts.update(self.data_leases.counts())
        for profile in self.profiles.values():
            counts.update(profile.counts())
        counts.update({f"mtl_disk.{key}": value for key, value in self.recorder.counts().items()})
        return counts

    def stop_listening(self) -> Deferred[None]:
        """Return at once: the sockets are closed when the queues have confirmed what they took."""
        return succeed(None)

    def close(self) -> Deferred[None]:
        """Stop. Fires when the messages of durable queues are on the disk, and all connections are closed."""
        self.control.stop()
        shared = self.data_listener is self.control_listener
        # Nothing more is taken on the data flows, while their last messages are confirmed.
        self.data_listener.router.serve(Shared(self.control, SILENCE) if shared else SILENCE)
        for profile in self.profiles.values():
            profile.close()
        closed: Deferred[object] = Deferred()

        def shut(_: object) -> None:
            if not closed.called:
                closed.callback(None)

        too_late = self.clock.callLater(STOP_SECONDS, shut, None)

        def written(_: object) -> None:
            if too_late.active():
                too_late.cancel()
            shut(None)
            self._end_threads()

        written_to_disk = self.recorder.stop().addBoth(written)
        closed.addCallback(lambda _: self._shut())
        both: list[Deferred[Any]] = [written_to_disk, closed]
        return DeferredList(both).addCallback(lambda _: None)

    def abandon(self) -> None:
        """Let go of everything, where the reactor does not run: the start failed."""
        self._shut()
        maybeDeferred(self.recorder.stop)
        self._end_threads()

    def _shut(self) -> Deferred[Any]:
        for watched in (self.keys, self.accounts):
            if watched is not None:
                watched.stop()
        return DeferredList([listener.close() for listener in self._listeners()])

    def _listeners(self) -> list[RouterListener]:
        if self.data_listener is self.control_listener:
            return [self.control_listener]
        return [self.control_listener, self.data_listener]

    def _end_threads(self) -> None:
        for threads in self.threads:
            threads.stop()


def open_mtl(config: Mtl, context: Context) -> OpenMtl:
    """Make the wire without listening. Raises `CannotListen`, with nothing left open."""
    try:
        return _make(config, context)
    except (OSError, ValueError, StateError) as error:
        raise CannotListen(str(error)) from None


def _make(config: Mtl, context: Context) -> OpenMtl:
    clock, state = context.clock, context.state
    registry, leases, complaints, in_thread = context.registry, context.leases, context.complaints, context.in_thread
    curve = mtl_curve(config)
    secret = _secret(state)
    with ExitStack() as undo:
        keys = AllowedKeys(config.client_keys, clock, in_thread) if curve and config.client_keys is not None else None
        if keys is not None:
            undo.callback(keys.stop)
        accounts = None if config.users is None else Accounts(config.users, clock, in_thread)
        if accounts is not None:
            undo.callback(accounts.stop)
        store = QueueStore(state)
        full: StateFull | None = None
        try:
            rows = store.open(clock.seconds())
        except StateFull as error:
            full = error
            rows = store.look(clock.seconds())
        undo.pop_all()
    key_user = _nobody if keys is None else keys.name_of
    threads = [ThreadPool(0, most, name) for name, most in (("mtl passwords", CHECKS), ("mtl queues", 1))]
    for pool in threads:
        pool.start()
    passwords, disk = (partial(deferToThreadPool, clock, pool) for pool in threads)

    shared = mtl_data_place(config) is None
    secret_key = config.secret_key if curve else None
    control_router = make_router(WIRE, config, secret_key, keys, context)
    data_router = control_router if shared else make_router(DATA, config, secret_key, keys, context)
    control_listener = RouterListener(control_router, clock)
    data_listener = control_listener if shared else RouterListener(data_router, clock)

    settings = _settings(config)
    data_leases = DataLeases(leases, settings)
    data = Data(data_router, leases, data_leases, complaints, settings)
    recorder = QueueRecorder(store, leases, clock, disk, rows, full)
    queues = Queues(leases, _queue_rules(config), recorder)
    queues.restore(rows)
    spaces: dict[str, ITopics] = {config.hosts[0]: context.topics}
    work_queues = WorkQueues(queues, data, clock, config.window_bytes)
    services = Services(data, registry, leases, complaints, config.hosts[0], config.window_bytes)
    profiles: dict[str, Profile] = {
        each.name: each
        for each in (
            FanOut(data),
            Registry(data, registry, leases, complaints),
            Topic(data, partial(_space, spaces), complaints),
            work_queues,
            services,
        )
    }
    rulebook = Rulebook(config.hosts, _rules(config))
    control = Control(
        control_router,
        Mechanisms(accounts, passwords, secret, key_user, config.anonymous),
        Delays(),
        rulebook,
        profiles,
        data_leases,
        lambda: _port(data_listener.address),
        complaints,
        settings,
        leases,
        clock,
        key_user,
        (lambda key: True) if keys is None else (lambda key: keys.name_of(key) is not None),
    )
    if accounts is not None:
        accounts.changed.append(control.revoke_users)
    if keys is not None:
        # Sessions and leases end as revoked before their connections are closed.
        keys.changed.insert(0, control.revoke_keys)
    if shared:
        control_router.serve(Shared(control, data))
    else:
        control_router.serve(control)
        data_router.serve(data)
    return OpenMtl(
        config,
        control_listener,
        data_listener,
        context.room,
        accounts,
        keys,
        rulebook,
        control,
        data,
        data_leases,
        profiles,
        work_queues,
        services,
        queues,
        recorder,
        threads,
        clock,
        leases,
    )


def _settings(config: Mtl) -> Settings:
    return Settings(
        heartbeat=config.heartbeat,
        lease_ttl=config.lease,
        window=config.window,
        most_window=config.most_window,
        window_bytes=config.window_bytes,
        sessions=config.sessions,
        flows=config.flows,
        hosts=config.hosts,
        bridge=config.hosts[0],
        shared=mtl_data_place(config) is None,
        max_message=config.max_message,
        endpoint=config.data_endpoint,
        open=effective_mtl_auth(config) == "open",
        plain=config.plain,
    )


def _rules(config: Mtl) -> list[Rule]:
    return [Rule(rule.users, rule.hosts, rule.read, rule.write, rule.offer) for rule in config.rules]


def _queue_rules(config: Mtl) -> list[QueueRule]:
    return [
        QueueRule(
            each.queues,
            QueueSettings(
                durable=each.durable,
                max_messages=each.messages,
                max_bytes=each.size,
                max_deliveries=each.deliveries,
                dead_letters=frozenset(map(Death, each.dead_letters)),
                ttl=each.ttl or None,
                expires=each.expires or math.inf,
                single=each.single,
                duplicates=each.duplicates,
            ),
        )
        for each in config.queues
    ]


def _space(spaces: dict[str, ITopics], host: str) -> ITopics:
    """The topics of a virtual host: those of the other wires in the first one, else its own."""
    return spaces.setdefault(host, Topics()) if host not in spaces else spaces[host]


def _nobody(key: str) -> str | None:
    return None


def _port(address: str) -> int:
    """The port of a bound address, 0 for one that has none."""
    return int(address.rpartition(":")[2]) if address.startswith("tcp://") else 0


def _secret(state: str) -> bytes:
    """The content of the file, which is made if need be; on a full disk, one for this run. Raises OSError."""
    path = Path(state) / SECRET
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        secret = os.urandom(SECRET_BYTES)
        new = path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(descriptor, secret)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            new.rename(path)
        except OSError as error:
            if not is_full(error, state):
                raise
    return secret
