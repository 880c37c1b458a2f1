"""The Elko Broker protocol: one session for each connection.

Rules (the Broker document; where real peers differ, both are served, see docs/protocols/elko-broker.md):
- Authentication and the ops common to all objects: see `broker.wires.elko.sessions.session`. `find` needs no role.
- The objects ``client`` (document) and ``broker`` (real peers) are one. A reply carries the name that its request used,
  an unsolicited message the name that the peer authenticated to.
- A client becomes a provider at `auth`.
- The peer's end of input is the provider's end. Answers to finds with a limited wait are still delivered.
- How to authenticate with a service is shown to trusted peers only.
"""

from __future__ import annotations

from functools import partial

import attrs
import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal, Refusals
from broker.core.interfaces import IControl, ILaunchers, IRegistry, IWait
from broker.core.model import MAX_NAME, MAX_TEXT, Provider, Service
from broker.net.interfaces.peer import Peer
from broker.wires.elko.codec import broker as wire
from broker.wires.elko.codec.blocks import encode
from broker.wires.elko.codec.common import Auth
from broker.wires.elko.sessions.authentication import AccessControl, Role
from broker.wires.elko.sessions.change_notices import ChangeNotices
from broker.wires.elko.sessions.descriptors import (
    DEFAULT_PROTOCOL,
    DescriptorCache,
    failure_desc,
    launcher_desc,
    load_desc,
    offered,
    service_desc,
    service_descs,
)
from broker.wires.elko.sessions.session import ALL, COMMON, ElkoSession, ObjectTables, OperationRoles

WIRE = "elko"
"""How providers of this wire are marked in the registry."""

MAX_WAIT = 10 * 365 * 86_400
"""Seconds; a longer wait is one for ever. It keeps absurd numbers away from the timers."""

MAX_PROBLEMS_SHOWN = 3
"""How many refused services of one offer are told to the peer: the first ones show what is wrong."""


@attrs.frozen
class BrokerWiring:
    """The parts that all sessions of the daemon share.

    ``sessions`` holds all of them, the oldest first, and ``roster`` that of each Elko provider, by its id.
    """

    registry: IRegistry
    notices: ChangeNotices
    launchers: ILaunchers
    control: IControl
    descriptors: DescriptorCache = attrs.field(factory=DescriptorCache)
    roster: dict[int, BrokerSession] = attrs.field(factory=dict)
    sessions: dict[BrokerSession, None] = attrs.field(factory=dict)


@attrs.frozen
class PeerInfo:
    """One connected peer, for people. ``provider`` is its id in the registry, None if it is no provider.

    ``roles`` are those that it authenticated for, in order; ``waits`` is how many of its finds wait or monitor.
    """

    address: str
    label: str
    roles: tuple[Role, ...]
    trusted: bool
    provider: int | None
    waits: int


class BrokerSession(ElkoSession):
    """One peer's conversation with the broker."""

    __slots__ = ("_as", "_provider", "_waits", "_wiring")

    def __init__(self, wiring: BrokerWiring, access: AccessControl, peer: Peer) -> None:
        super().__init__(_OBJECTS, access, peer)
        self._wiring = wiring
        self._as = "client"
        self._provider: int | None = None
        self._waits: dict[IWait | Deferred[None], bool] | None = None
        wiring.sessions[self] = None

    # what the connection calls

    def input_ended(self) -> bool:
        """The peer will send no more. Returns whether answers are still to come, for which it may be listening."""
        self._withdraw()
        if self._waits:
            for wait, limited in list(self._waits.items()):
                if not limited:
                    self._drop(wait)
        self._ended = True
        return bool(self._waits)

    def lost(self) -> None:
        """The connection is gone."""
        self._wiring.sessions.pop(self, None)
        if self._ended and not self._waits:
            return
        self._withdraw()
        self._ended = True
        for wait in list(self._waits or ()):
            self._drop(wait)

    # what others ask

    @property
    def info(self) -> PeerInfo:
        """The peer as operators see it."""
        roles = tuple(sorted(self._roles))
        return PeerInfo(self._peer.address, self._label, roles, self.trusted, self._provider, len(self._waits or ()))

    @property
    def is_client(self) -> bool:
        """Whether it authenticated as a client."""
        return self._provider is not None

    # what other sessions call

    def reinit(self) -> None:
        """Tell the peer to reinitialize itself."""
        self._peer.write(encode(wire.ReinitOut(self._as)))

    def shut_down(self, kill: bool) -> None:
        """Tell the peer to shut itself down."""
        self._peer.write(encode(wire.ShutdownOut(self._as, kill=True if kill else msgspec.UNSET)))

    # authentication

    def _admit(self, role: Role, message: Auth) -> None:
        registry = self._wiring.registry
        if role == "client":
            self._as = message.to
            self._provider = registry.join(self._label, WIRE, self._peer.address)
            self._wiring.roster[self._provider] = self
        elif self._provider is not None:
            registry.relabel(self._provider, self._label)

    # client

    def _find(self, message: wire.Find) -> None:
        name = message.service
        protocol = DEFAULT_PROTOCOL if message.protocol is None else message.protocol
        wait = 0 if message.wait is None else int(message.wait)
        standing = wait != 0 or message.monitor is True
        known = self._wiring.registry.find(name, protocol, not standing)
        if known:
            desc = self._wiring.descriptors.descs(known, self.trusted)
            self._peer.write(wire.encode_found(message.to, desc, message.tag))
        elif wait == 0:
            self._peer.write(wire.encode_found(message.to, wire.encode_not_found(name), message.tag))
            return
        if standing:
            self._stand(message, wait if 0 < wait <= MAX_WAIT else None, bool(known))

    def _stand(self, message: wire.Find, seconds: int | None, known: bool) -> None:
        """Keep a find that waits (for nothing more, where something was known at once) or monitors."""
        try:
            if message.monitor:
                self._monitor(message, seconds, silent=known)
            elif not known:
                self._wait(message, seconds)
        except Refusal as refusal:
            if known or refusal.reason is not Reason.LIMIT:
                raise
            self._peer.refused(refusal)
            self._found(message.to, message.tag, [failure_desc(message.service, refusal.text)])

    def _wait(self, message: wire.Find, seconds: int | None) -> None:
        self._room_for_wait(message)
        found = self._wiring.registry.wait(message.service, seconds)
        answered = found.addCallback(partial(self._answer, message)).addErrback(partial(self._no_answer, message))
        if answered.called:
            return
        self._keep(answered, limited=seconds is not None)
        answered.addBoth(lambda _: self._drop(answered))

    def _answer(self, message: wire.Find, service: Service) -> None:
        self._found(message.to, message.tag, [service_desc(service, self.trusted)])

    def _no_answer(self, message: wire.Find, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            failure.trap(Refusal)
            assert isinstance(failure.value, Refusal)
            if failure.value.reason is Reason.LIMIT:
                self._peer.refused(failure.value)
            self._found(message.to, message.tag, [failure_desc(message.service, failure.value.text)])

    def _monitor(self, message: wire.Find, seconds: int | None, silent: bool) -> None:
        self._room_for_wait(message)
        told = silent

        def offer(service: Service) -> None:
            nonlocal told
            told = True
            self._answer(message, service)

        def end() -> None:
            if not told:
                self._found(message.to, message.tag, [failure_desc(message.service, "no such service")])
            self._drop(monitor)

        monitor = self._wiring.registry.monitor(message.service, seconds, offer, end)
        self._keep(monitor, limited=seconds is not None)

    def _found(self, to: str, tag: str | None, desc: list[wire.ServiceDescOut]) -> None:
        self._peer.write(encode(wire.Found(to=to, desc=desc, tag=msgspec.UNSET if tag is None else tag)))

    def _will_serve(self, message: wire.WillServe) -> None:
        assert self._provider is not None
        services: list[Service] = []
        refused: list[Refusal] = []
        if message.services is msgspec.UNSET:
            raise Refusal(Reason.PARAMETER, "willserve: the parameter services is missing")
        for desc in message.services or ():
            if desc.provider is not None and desc.provider != -1:
                text = (
                    "a service descriptor has a provider id, which only the broker gives; it and the rest are left out"
                )
                refused.append(Refusal(Reason.PARAMETER, text))
                break
            service = offered(desc, self._provider)
            if service is not None:
                services.append(service)
            elif desc.failure is None:
                refused.append(Refusal(Reason.PARAMETER, f"service {desc.service[:MAX_NAME]!r} has no hostport"))
        try:
            self._wiring.registry.offer(services, self._access.policy.rights)
        except Refusals as refusals:
            refused += refusals.each
        if refused:
            more = len(refused) - MAX_PROBLEMS_SHOWN
            text = "; ".join(refusal.text for refusal in refused[:MAX_PROBLEMS_SHOWN])
            raise Refusal(refused[0].reason, f"willserve: {text}" + (f"; and {more} more" if more > 0 else ""))

    def _wont_serve(self, message: wire.WontServe) -> None:
        assert self._provider is not None
        self._wiring.registry.withdraw(self._provider, message.services or ())

    def _load(self, message: wire.LoadReport) -> None:
        assert self._provider is not None
        # The original takes a negative load for 0, and says nothing.
        self._wiring.registry.load(self._provider, 0.0 if message.factor < 0 else message.factor)

    def _heartbeat(self) -> None:
        if self._provider is not None:
            self._wiring.registry.beat(self._provider)

    # admin

    def _load_desc(self, message: wire.LoadDescRequest) -> None:
        registry = self._wiring.registry
        loads = registry.loads()
        if message.server is not None:
            wanted = {provider.id for provider in self._matching(message.server)}
            loads = [load for load in loads if load.provider in wanted]
        if message.service is not None:
            wanted = {service.provider for service in registry.services(message.service)}
            loads = [load for load in loads if load.provider in wanted]
        self._peer.write(encode(wire.LoadDescs(desc=[load_desc(load) for load in loads])))

    def _service_desc(self, message: wire.ServiceDescRequest) -> None:
        registry = self._wiring.registry
        if message.service is None:
            services = registry.services()
        else:
            protocol = DEFAULT_PROTOCOL if message.protocol is None else message.protocol
            services = registry.services(message.service, protocol)
        self._peer.write(encode(wire.ServiceDescs(desc=service_descs(services, self.trusted), on=True)))

    def _watch(self, message: wire.Watch) -> None:
        notices = self._wiring.notices
        if message.services is not None:
            if message.services:
                self._service_desc(wire.ServiceDescRequest(message.to))
            notices.watch_services(self, message.services)
        if message.load is not None:
            if message.load:
                self._load_desc(wire.LoadDescRequest(message.to))
            notices.watch_loads(self, message.load)

    def _reinit(self, message: wire.Reinit) -> None:
        sessions = self._sessions("reinit", message.server)
        for session in sessions:
            session.reinit()
        if message.self_:
            self._wiring.control.reinitialize()

    def _shutdown(self, message: wire.Shutdown) -> None:
        kill = message.kill is True
        sessions = self._sessions("shutdown", message.server)
        for session in sessions:
            session.shut_down(kill)
        if sessions and message.server not in (None, ALL) and not message.cluster:
            self._wiring.launchers.switch_off(message.server)
        if message.self_:
            self._wiring.control.shut_down(kill and message.server is None)

    def _launch(self, message: wire.Launch) -> None:
        self._peer.write(encode(wire.LaunchStatus(status=self._wiring.launchers.launch(message.name))))

    def _launcher_desc(self, message: wire.LauncherDescRequest) -> None:
        launchers = [launcher_desc(launcher) for launcher in self._wiring.launchers.describe()]
        self._peer.write(encode(wire.LauncherDescs(launchers=launchers)))

    # inside

    def _matching(self, server: str) -> list[Provider]:
        """The providers that ``server`` names: by label, by the hostport of a service, or by id."""
        return [
            provider
            for provider in self._wiring.registry.providers()
            if provider.label == server
            or str(provider.id) == server
            or any(service.hostport == server for service in provider.services)
        ]

    def _sessions(self, op: str, server: str | None) -> list[BrokerSession]:
        """The Elko providers that an order is for. Raises `Refusal` if there are none, and that is an error here."""
        roster = self._wiring.roster
        if server is None:
            return []
        if server == ALL:
            return list(roster.values())
        sessions = [roster[provider.id] for provider in self._matching(server) if provider.id in roster]
        self._reached(op, server, len(sessions))
        return sessions

    def _room_for_wait(self, message: wire.Find) -> None:
        """Raise `Refusal` if a standing find may not be kept."""
        for name, text, most in (("service", message.service, MAX_NAME), ("tag", message.tag, MAX_TEXT)):
            if text is not None and len(text) > most:
                raise Refusal(Reason.PARAMETER, f"find: {name} has more than {most} characters")
        most = self._access.policy.waits
        if len(self._waits or ()) >= most:
            raise Refusal(Reason.LIMIT, f"find: this peer has {most} waiting finds, and may have no more")

    def _keep(self, wait: IWait | Deferred[None], limited: bool) -> None:
        if self._waits is None:
            self._waits = {}
        self._waits[wait] = limited

    def _drop(self, wait: IWait | Deferred[None]) -> None:
        """A wait has ended, or is to end."""
        if self._waits is not None and self._waits.pop(wait, None) is not None:
            wait.cancel()
            if self._ended and not self._waits:
                self._peer.close()

    def _withdraw(self) -> None:
        """Nothing is offered or watched any more."""
        if "admin" in self._roles:
            self._wiring.notices.watch_services(self, False)
            self._wiring.notices.watch_loads(self, False)
        if self._provider is not None:
            self._wiring.roster.pop(self._provider, None)
            self._wiring.registry.leave(self._provider)
            self._provider = None


_CLIENT: OperationRoles = {
    **COMMON,
    wire.Find: (BrokerSession._find, ()),
    wire.WillServe: (BrokerSession._will_serve, ("client",)),
    wire.WontServe: (BrokerSession._wont_serve, ("client",)),
    wire.LoadReport: (BrokerSession._load, ("client",)),
}
_ADMIN: OperationRoles = {
    **COMMON,
    wire.LoadDescRequest: (BrokerSession._load_desc, ("admin",)),
    wire.ServiceDescRequest: (BrokerSession._service_desc, ("admin",)),
    wire.Watch: (BrokerSession._watch, ("admin",)),
    wire.Reinit: (BrokerSession._reinit, ("admin",)),
    wire.Shutdown: (BrokerSession._shutdown, ("admin",)),
    wire.Launch: (BrokerSession._launch, ("admin",)),
    wire.LauncherDescRequest: (BrokerSession._launcher_desc, ("admin",)),
}
_OBJECTS = ObjectTables(
    {"broker": _CLIENT, "client": _CLIENT, "admin": _ADMIN, "error": COMMON},
    {"broker": "client", "client": "client", "admin": "admin"},
)
