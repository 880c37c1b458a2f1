"""Wiring of MTL: listeners, identities of clients, both flows, the profiles, and the durable queues.

Order of the start: queues from the disk; the flows; the profiles. Sockets are bound last.
Order of the stop: the data flow accepts nothing more; messages that queues have accepted are written and confirmed to
their writers; sockets are closed then, or after `STOP_SECONDS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import attrs
from twisted.internet.defer import Deferred, DeferredList, succeed
from twisted.internet.defer import TimeoutError as LateReply
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access.principal import Access, Principal
from broker.blocking import blocking
from broker.config.daemon_settings import Broker
from broker.core.cluster.cluster_interfaces import IMembers
from broker.core.database import StateError
from broker.core.disk import is_full
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics
from broker.core.model import NotReady
from broker.core.operator_interfaces import Reply, as_text
from broker.net.admission import ConnectionFactory
from broker.net.listeners import CannotListen
from broker.net.router.router import SILENCE
from broker.wires.common.router_listener import KnownKeys, RouterListener, make_router
from broker.wires.interface import PlainWire, WireContext
from broker.wires.mtl import mtl_tables
from broker.wires.mtl.durable_queues import DurableQueues, queue_rules
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles import registry_profile, service_profile
from broker.wires.mtl.profiles.queue_profile import QueueProfile
from broker.wires.mtl.profiles.registry_profile import RegistryProfile
from broker.wires.mtl.profiles.service_profile import ServiceProfile
from broker.wires.mtl.profiles.topic_profile import FanOutProfile, TopicProfile
from broker.wires.mtl.queue_actions import QueueActs
from broker.wires.mtl.sessions.access_policy import AccessPolicy
from broker.wires.mtl.sessions.access_policy import Principal as Caller
from broker.wires.mtl.sessions.control_flow import WIRE, ControlFlow
from broker.wires.mtl.sessions.data_flow import DataFlow
from broker.wires.mtl.sessions.data_leases import DataLeases, FlowContext, ProfileAccess, SharedSocket
from broker.wires.mtl.sessions.login_exchange import AuthenticationContext
from broker.wires.mtl.sessions.profile_interface import Profile
from broker.wires.mtl.sessions.sasl import Mechanisms
from broker.wires.tables import AnyView

# Listeners of both flows: two ROUTERs on two ports, or one that carries both.

DATA = "mtl-data"
"""Name of the data flow's ROUTER in counters and logs."""

NAMING_SERVICES = {profile.NAME: registry_profile.service_of for profile in (registry_profile, service_profile)}
"""The profiles whose resources name services."""


@attrs.frozen(eq=False)
class MtlListeners:
    """The listeners of the control flow and the data flow: the same one where a socket carries both."""

    control: RouterListener
    data: RouterListener

    @classmethod
    def make(cls, config: Mtl, keys: KnownKeys | None, context: WireContext) -> MtlListeners:
        """Make the ROUTERs without binding them. Raises OSError."""
        secret_key = config.secret_key if config.curve else None
        control = RouterListener(make_router(WIRE, config, secret_key, keys, context.network), context.network.clock)
        if config.data_place is None:
            return cls(control, control)
        return cls(
            control, RouterListener(make_router(DATA, config, secret_key, keys, context.network), context.network.clock)
        )

    @property
    def shared(self) -> bool:
        """True if one socket carries both flows."""
        return self.data is self.control

    @property
    def all(self) -> Sequence[RouterListener]:
        """Each listener once."""
        return [self.control] if self.shared else [self.control, self.data]

    def data_port(self) -> int:
        """Return the TCP port of the data flow, 0 for a unix socket: clients use the endpoint of the control flow."""
        address = self.data.address
        return int(address.rpartition(":")[2]) if address.startswith("tcp://") else 0

    def serve(self, control: ControlFlow, data: DataFlow) -> None:
        """Pass received messages to the flows."""
        if self.shared:
            self.control.router.serve(SharedSocket(control, data))
        else:
            self.control.router.serve(control)
            self.data.router.serve(data)

    def silence_data(self, control: ControlFlow) -> None:
        """Drop what comes for the data flow. Messages are still sent on it."""
        self.data.router.serve(SharedSocket(control, SILENCE) if self.shared else SILENCE)

    def bind(self, config: Mtl) -> str:
        """Listen. Returns the address of the control flow. Raises `CannotListen`, with neither open."""
        # The data flow first: replies of the control flow have its port.
        where = config.data_place
        if where is not None:
            self.data.bind(where)
        try:
            return self.control.bind(config.place)
        except CannotListen:
            self.data.unbind()
            raise

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the rows of open listeners: see `broker.wires.interface.OpenWire.listener_rows`."""
        if not self.control.address:
            return []
        data = [] if self.shared else [self.data.place(WIRE, "data")]
        return [self.control.place(WIRE), *data]

    def limit(self, config: Mtl) -> None:
        """Apply other limits of connections."""
        for listener in self.all:
            listener.router.use(config)

    def close(self) -> Deferred[Any]:
        """Close the listeners and all connections. Fires when they are closed."""
        return DeferredList([listener.close() for listener in self.all])


STOP_SECONDS = 2.0
"""Seconds for which sockets stay open at the stop while the last messages are written: a busy disk takes some
hundredths. Service managers wait ten times as long."""


@attrs.frozen(eq=False)
class MtlProfiles:
    """The profiles. ``queue`` and ``service`` take a setting of a reload."""

    by_name: Mapping[str, Profile]
    queue: QueueProfile
    service: ServiceProfile

    @classmethod
    def make(cls, config: Mtl, context: WireContext, data: DataFlow, queues: DurableQueues) -> MtlProfiles:
        """Make the profiles over the data flow."""
        registry, leases, refusal_log = context.core.registry, context.core.leases, context.network.refusal_log
        bridge = config.hosts[0]
        spaces: dict[str, ITopics] = {bridge: context.core.topics}
        memory = context.network.scheduler.memory
        queue = QueueProfile(queues.queues, data, context.network.clock, config.window_bytes, queues.ownership)
        service = ServiceProfile(
            data,
            registry,
            leases,
            refusal_log,
            bridge,
            config.window_bytes,
            memory,
            endpoint_of=partial(_endpoint_of, context.cluster.members),
        )
        profiles: tuple[Profile, ...] = (
            FanOutProfile(data),
            RegistryProfile(data, registry, leases, refusal_log),
            TopicProfile(data, partial(_space, spaces, context.cluster.join_topics), refusal_log, spaces[bridge]),
            queue,
            service,
        )
        return cls({profile.name: profile for profile in profiles}, queue, service)


@attrs.frozen(eq=False)
class OpenMtl(PlainWire):
    """MTL while it runs; see `broker.wires.interface.OpenWire`. ``config`` is the configuration at the start."""

    log = Logger()

    config: Mtl
    context: WireContext
    identities: ClientIdentities
    listeners: MtlListeners
    flows: FlowContext
    policy: AccessPolicy
    control: ControlFlow
    data: DataFlow
    queues: DurableQueues
    profiles: MtlProfiles

    def bind(self, title: str) -> str:
        """Listen. Returns the address of the control flow.

        Raises `CannotListen` with neither listener open; it may be tried again.
        """
        where = self.listeners.bind(self.config)
        self.log.info(
            "mtl on {where} (data {data}; {kind})",
            where=where,
            data=self.listeners.data.address,
            kind="curve" if self.config.curve else "null",
        )
        return where

    def listener_rows(self) -> Sequence[Mapping[str, object]]:
        """Return the open listeners of both flows."""
        return self.listeners.listener_rows()

    def views(self) -> Sequence[AnyView]:
        """Return control sessions, data flows and queues."""
        queues, leases = self.queues, self.flows.leases
        return mtl_tables.views(self.control, self.data, queues.queues.describe, leases, NAMING_SERVICES, queues.left)

    def shortcomings(self) -> Iterable[NotReady]:
        """Return the messages that were left in a former store."""
        left = self.queues.left
        return [NotReady("queues", left.trouble)] if left is not None and left.trouble else []

    def actions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the actions on queues, the move of messages from a former store, and the request to a service."""
        clock = self.context.network.clock
        acts = QueueActs(self.queues.queues, self.queues.ownership, self.policy, self.config.hosts[0], clock)
        return {**acts.actions(), "move": self.queues.move, "call": self._call}

    def _call(self, service: str, body: bytes, seconds: float, user: Principal) -> Deferred[Reply]:
        """Send a request to a service in the first virtual host, and return its reply. Raises `Refusal`."""
        caller = Caller(user.name, self.config.hosts[0], self.policy.allowed(user.name, self.config.hosts[0]))
        reply = self.profiles.service.call(service, body, seconds, caller, user.address)

        def late(failure: Failure) -> NoReturn:
            failure.trap(LateReply)
            raise Refusal(Reason.UNAVAILABLE, f"no reply came within {seconds:g} s")

        reply.addTimeout(seconds, self.context.network.clock)
        return reply.addErrback(late).addCallback(_shown_reply)

    def reload(self, config: Mtl, broker: Broker) -> None:
        """Apply other hosts, queues and limits."""
        self.policy.use(config.hosts)
        self.control.use(config)
        self.data.use(config)
        # After the policy and the section: it compares the permissions of sessions with the present ones.
        self.control.review()
        if self.identities.keys is not None:
            self.identities.keys.use(*self.policy.titles)
        self.queues.queues.use(queue_rules(config))
        self.listeners.limit(config)
        self.profiles.queue.window_bytes = self.profiles.service.window_bytes = config.window_bytes

    def degradations(self) -> Iterable[NotReady]:
        """Return the reason for which messages of durable queues cannot be written, if there is one."""
        why = self.queues.trouble
        return [NotReady("queues", why)] if why else []

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the ROUTERs, one for both flows if they share a socket."""
        return [each.router for each in self.listeners.all]

    def drain(self) -> None:
        """End the access and the data flows of all sessions, and answer all requests of the control flow by 503.

        Connections of the control flow stay, and are accepted: a client that is only cut off by ZeroMQ connects again,
        and would wait for an answer. Those of the data flow are closed. Messages without a confirmation go to other
        readers, or stay in their queue.
        """
        self.control.drain()
        if not self.listeners.shared:
            self.listeners.data.router.drain()

    def undrain(self) -> None:
        """Serve all requests again."""
        self.control.undrain()
        super().undrain()

    def peers(self) -> int:
        """Return the number of sessions with access, and of clients of the data flow."""
        return sum(each.principal is not None for each in self.control.sessions()) + len(self.data)

    def disconnect(self, key: str) -> bool:
        """Close the connection of that number, or the connections from an address. Their sessions and flows end."""
        if key.isdecimal():
            return self.listeners.control.router.disconnect_number(int(key))
        return super().disconnect(key)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of flows, leases, profiles and durable queues."""
        counts: dict[str, int] = {}
        counts.update(self.control.counts())
        counts.update(self.data.counts())
        counts.update(self.flows.data_leases.counts())
        for profile in self.profiles.by_name.values():
            counts.update(profile.counts())
        counts.update({f"mtl_disk.{key}": value for key, value in self.queues.recorder.counts().items()})
        counts.update({f"mtl_owned.{key}": value for key, value in self.queues.owned().items()})
        return counts

    def stop_listening(self) -> Deferred[None]:
        """Return at once: sockets close after the queues have confirmed what they accepted (`close`)."""
        return succeed(None)

    def close(self) -> Deferred[None]:
        """Stop. Fires when messages of durable queues are on the disk, and all connections are closed."""
        self.control.stop()
        # Before the queues: nothing more is accepted while the last messages are confirmed.
        self.listeners.silence_data(self.control)
        for profile in self.profiles.by_name.values():
            profile.close()
        closed: Deferred[object] = Deferred()

        def shut(_: object) -> None:
            if not closed.called:
                closed.callback(None)

        too_late = self.context.network.clock.callLater(STOP_SECONDS, shut, None)

        def written(_: object) -> None:
            if too_late.active():
                too_late.cancel()
            shut(None)
            self.queues.threads.stop()

        written_to_disk = self.queues.stop().addBoth(written)
        closed.addCallback(lambda _: self.listeners.close())
        both: list[Deferred[Any]] = [written_to_disk, closed]
        return DeferredList(both).addCallback(lambda _: None)

    def abandon(self) -> None:
        """Release everything where the reactor does not run: the start failed."""
        self.listeners.close()
        self.queues.stop()
        self.queues.threads.stop()


def open_mtl(config: Mtl, context: WireContext) -> OpenMtl:
    """Make the wire without listening. Raises `CannotListen`, with nothing left open."""
    try:
        return _make(config, context)
    except (OSError, ValueError, StateError) as error:
        raise CannotListen(str(error)) from None


def _make(config: Mtl, context: WireContext) -> OpenMtl:
    policy = AccessPolicy(config.hosts, config.hosts[0], context.accounts.access)
    identities = ClientIdentities.open(config, context, policy)
    listeners = MtlListeners.make(config, identities.keys, context)
    # The last step that can fail: an open store cannot be closed without the reactor.
    queues = DurableQueues.open(config, context)
    leases = context.core.leases
    flows = FlowContext(leases, DataLeases(leases, config), context.network.refusal_log, config, context.checks.silence)
    data = DataFlow(listeners.data.router, flows)
    profiles = MtlProfiles.make(config, context, data, queues)
    access = ProfileAccess(policy, profiles.by_name, listeners.data_port)
    control = ControlFlow(listeners.control.router, flows, identities.authentication(context, policy), access)
    identities.revoke_from(control)
    listeners.serve(control, data)
    return OpenMtl(config, context, identities, listeners, flows, policy, control, data, queues, profiles)


def _shown_reply(body: bytes) -> Reply:
    text, base64 = as_text(body)
    return Reply(text=text, base64=base64)


def _endpoint_of(members: IMembers, broker: str) -> str:
    """Return the endpoint of the control flow at another broker; empty if it is unknown."""
    member = members.member(broker)
    return "" if member is None else member.listeners.get(WIRE, "")


def _space(spaces: dict[str, ITopics], join: Callable[[str, ITopics], None], host: str) -> ITopics:
    """Return the topics of a virtual host. The first host has those of the other wires; each other has its own."""
    topics = spaces.get(host)
    if topics is None:
        topics = spaces[host] = next(iter(spaces.values())).space(host)
        join(host, topics)
    return topics


SECRET = "mtl.secret"
"""File in the state directory: the key of the salts that unknown users are shown. Kept, since other salts after a
restart would distinguish unknown users from known ones."""

SECRET_BYTES = 32


@attrs.frozen(eq=False)
class ClientIdentities:
    """Identities of clients: users, keys and the means of SASL. ``keys`` is None without CURVE."""

    keys: KnownKeys | None
    access: Access
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def open(cls, config: Mtl, context: WireContext, policy: AccessPolicy) -> ClientIdentities:
        """Read the secret. Raises OSError."""
        secret = _secret(context.state)
        keys = KnownKeys(context.accounts.access, *policy.titles) if config.curve else None
        return cls(keys, context.accounts.access, secret)

    def authentication(self, context: WireContext, policy: AccessPolicy) -> AuthenticationContext:
        """Return the means of authentication for the control flow."""
        name_of = (lambda key: "") if self.keys is None else self.keys.name_of
        mechanisms = Mechanisms(self.access, context.accounts.logins, self.secret, name_of)
        return AuthenticationContext(mechanisms, name_of, policy.serves_anonymous)

    def revoke_from(self, control: ControlFlow) -> None:
        """Revoke the access of users and keys that are removed or changed, in the control flow."""
        verifiers = self.access.verifiers

        def passwords_changed() -> None:
            nonlocal verifiers
            before, verifiers = verifiers, self.access.verifiers
            control.revoke_users({name for name, kept in before.items() if verifiers.get(name) != kept})

        self.access.changed.append(passwords_changed)
        # The permissions of users change with their rights.
        self.access.changed.append(control.review)
        if self.keys is not None:
            # First, before the ROUTER closes their connections: sessions and leases are then counted as revoked.
            self.keys.changed.insert(0, control.revoke_keys)


@blocking
def _secret(state: str) -> bytes:
    """Return the secret in the file, which is created if it does not exist. On a full disk the secret is kept in memory
        only.

    Raises OSError for any other error.
    """
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
            # Atomic: a crash leaves the old file or the new one, never half of one.
            new.rename(path)
        except OSError as error:
            if not is_full(error, state):
                raise
    return secret
