"""Session of the Elko Broker protocol: one for each connection.

Rules (the Broker document; where real peers differ, both are supported, see docs/protocols/elko-broker.md):
- `session` handles authentication and the ops common to all objects. `find` needs no role.
- The objects ``client`` (document) and ``broker`` (real peers) are one. A reply has the name that its request used, an
  unsolicited message has the name to which the peer authenticated.
- A client becomes a provider at `auth`.
- The end of the peer's input ends the provider. Finds with a limited wait are still answered.
- Only trusted peers receive the credentials of services.

The file is longer than others: it has one method for each operation of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

import attrs
import msgspec

from broker.core.errors import PER_ADDRESS, Reason, Refusal, Refusals, at_limit
from broker.core.hostports import remarks_for
from broker.core.interfaces import IControl, ILaunchers, IRegistry, IWait
from broker.core.model import MAX_NAME, MAX_TEXT, Service, load_details
from broker.core.silent_peers import EndAtOnce, Silence
from broker.net.peer_interfaces import Peer
from broker.wires.elko.codec import broker_messages as wire
from broker.wires.elko.codec.blocks import Auth, encode
from broker.wires.elko.sessions.authentication import AccessControl, Role
from broker.wires.elko.sessions.descriptor_cache import (
    DEFAULT_PROTOCOL,
    ChangeNotices,
    DescriptorCache,
    failure_desc,
    launcher_desc,
    load_desc,
    offered,
    service_desc,
    service_descs,
)
from broker.wires.elko.sessions.session import (
    ALL,
    COMMON,
    ElkoSession,
    ObjectTables,
    OperationRoles,
    administering,
    viewing,
)

WIRE = "elko"
"""The wire of these providers in the registry."""

STANDING = 2_000
"""Bytes of memory that a standing find takes, besides its texts: its message, its wait, and its timer."""

MAX_WAIT = 10 * 365 * 86_400
"""Seconds; a longer wait has no limit. The bound keeps absurd numbers away from the timers."""

IN_A_TURN = 32
"""Services of one message that are offered or withdrawn in one turn, in 1 ms with all wires on. The rest follow in
further turns, so that other peers do not wait for a thousand."""

NOTICES_IN_A_TURN = 2_000
"""Notices to watchers that the services of one turn may cause: some 5 ms. Beside many watchers, a turn has fewer
services."""

MAX_PROBLEMS_SHOWN = 3
"""Refused services of one offer that the diagnostic lists: the first ones show the mistake."""


@attrs.frozen
class BrokerWiring:
    """Dependencies that all broker sessions share.

    ``sessions`` holds all of them, the oldest first, and ``roster`` the session of each Elko provider, by its id.
    """

    registry: IRegistry
    notices: ChangeNotices
    launchers: ILaunchers
    control: IControl
    descriptors: DescriptorCache = attrs.field(factory=DescriptorCache)
    roster: dict[int, BrokerSession] = attrs.field(factory=dict)
    sessions: dict[BrokerSession, None] = attrs.field(factory=dict)
    silence: Silence = attrs.field(factory=EndAtOnce)

    def servers(self, name: str) -> list[BrokerSession]:
        """Return the sessions of the Elko providers with that label, hostport or id, or of all."""
        if name == ALL:
            return list(self.roster.values())
        return [self.roster[id] for id in self.registry.named(name) if id in self.roster]

    def reinit(self, name: str) -> int:
        """Send servers the order to reinitialize. Returns their number."""
        servers = self.servers(name)
        for server in servers:
            server.reinit()
        return len(servers)


@attrs.frozen
class PeerInfo:
    """One connected peer, for operators. ``provider`` is its id in the registry, or None.

    ``roles`` are those that it authenticated for, sorted; ``waits`` is the number of its finds that wait or monitor.
    """

    address: str
    label: str
    roles: tuple[Role, ...]
    trusted: bool
    provider: int | None
    waits: int


class BrokerSession(ElkoSession):
    """The session of one peer of the broker."""

    __slots__ = ("_as", "_held", "_orphan", "_provider", "_standing", "_wiring")

    def __init__(self, wiring: BrokerWiring, access: AccessControl, peer: Peer) -> None:
        super().__init__(_OBJECTS, access, peer)
        self._wiring = wiring
        self._as = "client"
        self._provider: int | None = None
        self._orphan: int | None = None  # the provider that stays registered after the end of the connection
        self._standing: dict[_Standing, None] | None = None
        self._held = 0
        wiring.sessions[self] = None

    # Called by the connection

    def input_ended(self) -> bool:
        """Handle the end of the peer's input. Returns True if answers are pending, which the peer may still read."""
        if self._waits_for_login():
            return True
        self._withdraw()
        # A find without a limit would keep the half-closed connection open without end.
        for standing in list(self._standing or ()):
            if not standing.limited:
                self.end(standing)
        self._ended = True
        return bool(self._standing)

    @property
    def needed(self) -> bool:
        """True while the peer has services, a find that waits, or a watch."""
        provider = None if self._provider is None else self._wiring.registry.provider(self._provider)
        offers = provider is not None and bool(provider.services)
        return offers or bool(self._standing) or self._wiring.notices.watched_by(self)

    def lost(self) -> None:
        """Handle the end of the connection."""
        self._wiring.sessions.pop(self, None)
        self._give_up_login()
        if self._ended and not self._standing:
            return
        self._withdraw(self._peer.vanished)
        self._ended = True
        for standing in list(self._standing or ()):
            self.end(standing)

    def review(self) -> bool:
        """Check the user, the rights and the roles again, and end activities that are no longer permitted.

        Withdraws services, answers standing finds by a refusal, and ends the watches of an administrator.
        """
        if self._orphan is not None:
            if self._objection() is None:
                self._withdraw_forbidden(self._orphan)
            else:
                self._wiring.registry.leave(self._orphan)
            return False
        stays = super().review()
        self._withdraw_forbidden(self._provider)
        if stays:
            self._end_forbidden_waits()
            self._end_forbidden_watches()
        return stays

    # State for views and commands

    @property
    def info(self) -> PeerInfo:
        """The peer as operators see it."""
        roles = tuple(sorted(self._roles))
        return PeerInfo(self._peer.address, self._label, roles, self.trusted, self._provider, len(self._standing or ()))

    @property
    def is_client(self) -> bool:
        """True if the peer authenticated as a client."""
        return self._provider is not None

    # Called by other sessions

    def reinit(self) -> None:
        """Send "reinit" to the peer."""
        self._peer.write(encode(wire.ReinitOut(self._as)))

    def shut_down(self, kill: bool) -> None:
        """Send "shutdown" to the peer."""
        self._peer.write(encode(wire.ShutdownOut(self._as, kill=True if kill else msgspec.UNSET)))

    def check(self, answered: Callable[[bool | None], object]) -> None:
        """Ping the peer; see `ElkoSession.ping`."""
        self.ping(self._as, answered)

    # Authentication

    def _kept(self) -> int:
        return self._held

    def _admit(self, role: Role, message: Auth) -> None:
        registry = self._wiring.registry
        if role == "client":
            self._as = message.to
            payer = "" if self.principal.name else self._peer.host
            self._provider = registry.join(self._label, WIRE, self._peer.address, payer=payer)
            self._wiring.roster[self._provider] = self
        elif self._provider is not None:
            # One label for each connection: that of the latest `auth`, for whatever role.
            registry.relabel(self._provider, self._label)

    # Object `client`

    def _find(self, message: wire.Find) -> None:
        name = message.service
        if self._grants is not None and not self._grants.may("find", name):
            # A client that waits for an answer gets one in place of a diagnostic.
            refusal = self._forbidden("find", name)
            self._peer.refused(refusal)
            self._found(message.to, message.tag, [failure_desc(name, refusal.text)])
            return
        protocol = DEFAULT_PROTOCOL if message.protocol is None else message.protocol
        # The fraction of a wait has no effect, see "find" in docs/protocols/elko-broker.md.
        wait = 0 if message.wait is None else int(message.wait)
        standing = wait != 0 or message.monitor is True
        known = self._wiring.registry.find(name, protocol, not standing)
        if known:
            desc = self._wiring.descriptors.descs(known, self.trusted)
            self._peer.write(wire.encode_found(message.to, desc, message.tag))
        elif wait == 0:
            # Even with ``monitor``: a find of an unknown service without a wait has its one answer at once.
            self._peer.write(wire.encode_found(message.to, wire.encode_not_found(name), message.tag))
            return
        if standing:
            self._stand(message, wait if 0 < wait <= MAX_WAIT else None, bool(known))

    def _stand(self, message: wire.Find, seconds: int | None, known: bool) -> None:
        """Keep a find that waits or monitors. ``known`` is true if it was already answered: then it only monitors."""
        if known and not message.monitor:
            return
        try:
            self._room_for_wait(message)
            standing = _Standing(self, message, seconds is not None, known)
            standing.wait = self._wiring.registry.monitor(message.service, seconds, standing.offered, standing.ended)
        except Refusal as refusal:
            # A client that waits for an answer gets a failure descriptor in place of a diagnostic, unless it got an
            # answer.
            if known or refusal.reason is not Reason.LIMIT:
                raise
            self._peer.refused(refusal)
            self.answer(message, [failure_desc(message.service, refusal.text)])
        else:
            self._held += _memory(message)
            if self._standing is None:
                self._standing = {}
            self._standing[standing] = None

    def answer(self, message: wire.Find, desc: list[wire.ServiceDescOut]) -> None:
        """Answer a find."""
        self._found(message.to, message.tag, desc)

    def _found(self, to: str, tag: str | None, desc: list[wire.ServiceDescOut]) -> None:
        self._peer.write(encode(wire.Found(to=to, desc=desc, tag=msgspec.UNSET if tag is None else tag)))

    def _will_serve(self, message: wire.WillServe) -> None:
        if message.services is msgspec.UNSET:
            raise Refusal(Reason.PARAMETER, "willserve: the parameter services is missing")
        descs = message.services or []
        piece = self._in_a_turn()
        if len(descs) > piece:
            self._peer.go_on_with(self._offer_in_turns(descs, piece))
            return
        refused: list[Refusal] = []
        self._offer(descs, refused)
        self._remark(descs)
        if refused:
            raise _will_not_serve(refused)

    def _in_a_turn(self) -> int:
        """Return the number of services that one turn handles."""
        return min(IN_A_TURN, max(1, NOTICES_IN_A_TURN // max(1, self._wiring.notices.service_watchers)))

    def _offer_in_turns(self, descs: list[wire.ServiceDesc], piece: int) -> Iterator[None]:
        """Offer services in several turns, and send the refusals of all of them at the end."""
        refused: list[Refusal] = []
        remarked = False
        for at in range(0, len(descs), piece):
            if self._provider is None:
                break
            self._offer(descs[at : at + piece], refused)
            remarked = remarked or self._remark(descs[at : at + piece])
            yield
        if refused:
            self.refuse(_will_not_serve(refused))

    def _offer(self, descs: Iterable[wire.ServiceDesc], refused: list[Refusal]) -> None:
        """Offer services, and append what is refused."""
        assert self._provider is not None
        services: list[Service] = []
        for desc in descs:
            service = offered(desc, self._provider)
            if service is not None and self._grants is not None and not self._grants.may("offer", service.name):
                refused.append(self._forbidden("offer", service.name))
            elif service is not None:
                services.append(service)
            elif desc.failure is None:
                refused.append(Refusal(Reason.PARAMETER, f"service {desc.service[:MAX_NAME]!r} has no hostport"))
        try:
            self._wiring.registry.offer(services, self._access.policy.rights)
        except Refusals as refusals:
            refused += refusals.each

    def _remark(self, descs: Iterable[wire.ServiceDesc]) -> bool:
        """Send remarks on offered addresses that do not serve every client, as a diagnostic: servers log these. Returns
        True if one was sent."""
        if not self._access.policy.diagnostics:
            return False
        remarks = remarks_for((each.hostport for each in descs if each.hostport), self._peer.host)
        if remarks:
            self.diagnose(f"willserve: {'; '.join(remarks)}")
        return bool(remarks)

    def _wont_serve(self, message: wire.WontServe) -> None:
        assert self._provider is not None
        names = message.services or []
        piece = self._in_a_turn()
        if len(names) > piece:
            self._peer.go_on_with(self._withdraw_in_turns(names, piece))
        else:
            self._wiring.registry.withdraw(self._provider, names)

    def _withdraw_in_turns(self, names: list[str], piece: int) -> Iterator[None]:
        for at in range(0, len(names), piece):
            if self._provider is None:
                break
            self._wiring.registry.withdraw(self._provider, names[at : at + piece])
            yield

    def _load(self, message: wire.LoadReport) -> None:
        assert self._provider is not None
        self.permit_some("offer")
        # As in the original, a negative load is 0, without a diagnostic.
        load = 0.0 if message.factor < 0 else message.factor
        # Nearly all reports are without details, and cost no call for them.
        if message.requests is message.errors is message.in_flight is message.latency_ms is None:
            self._wiring.registry.load(self._provider, load)
        else:
            self._load_with_details(message, load)

    def _load_with_details(self, message: wire.LoadReport, load: float) -> None:
        """Report a load with its details. The load counts in any case; invalid details raise `Refusal`."""
        assert self._provider is not None
        details, refused = None, None
        try:
            details = load_details(message.requests, message.errors, message.in_flight, message.latency_ms)
        except Refusal as refusal:
            refused = Refusal(refusal.reason, f"load: {refusal.text}")
        self._wiring.registry.load(self._provider, load, details)
        if refused is not None:
            raise refused

    # Object `admin`

    def _load_desc(self, message: wire.LoadDescRequest) -> None:
        registry = self._wiring.registry
        loads = registry.loads()
        if message.server is not None:
            wanted = set(registry.named(message.server))
            loads = [load for load in loads if load.provider in wanted]
        if message.service is not None:
            wanted = {service.provider for service in registry.services(message.service)}
            loads = [load for load in loads if load.provider in wanted]
        reading = self.reading
        if not reading.every:
            offered = registry.services_of
            loads = [load for load in loads if reading.shows_any(each.name for each in offered(load.provider))]
        self._peer.write(encode(wire.LoadDescs(desc=[load_desc(load) for load in loads])))

    def _service_desc(self, message: wire.ServiceDescRequest) -> None:
        registry = self._wiring.registry
        if message.service is None:
            services = registry.services()
        else:
            protocol = DEFAULT_PROTOCOL if message.protocol is None else message.protocol
            services = registry.services(message.service, protocol)
        reading = self.reading
        if not reading.every:
            services = [service for service in services if reading.shows(service.name)]
        self._peer.write(encode(wire.ServiceDescs(desc=service_descs(services, self.trusted), on=True)))

    def _watch(self, message: wire.Watch) -> None:
        notices = self._wiring.notices
        if message.services is not None:
            # The present state is sent before the first notice.
            if message.services:
                self._service_desc(wire.ServiceDescRequest(message.to))
            notices.watch_services(self, message.services)
        if message.load is not None:
            if message.load:
                self._load_desc(wire.LoadDescRequest(message.to))
            notices.watch_loads(self, message.load)

    def _reinit(self, message: wire.Reinit) -> None:
        if message.server is not None:
            self._reached("reinit", message.server, self._wiring.reinit(message.server))
        if message.self_:
            self._wiring.control.reload()

    def _shutdown(self, message: wire.Shutdown) -> None:
        kill = message.kill is True
        sessions = [] if message.server is None else self._wiring.servers(message.server)
        if message.server is not None:
            self._reached("shutdown", message.server, len(sessions))
        for session in sessions:
            session.shut_down(kill)
        # Servers that are shut down by name stay down: their launchers are switched off, unless ``cluster`` is given.
        if sessions and message.server not in (None, ALL) and not message.cluster:
            self._wiring.launchers.switch_off(message.server)
        if message.self_:
            self._wiring.control.shutdown(kill and message.server is None)

    def _launch(self, message: wire.Launch) -> None:
        self._peer.write(encode(wire.LaunchStatus(status=self._wiring.launchers.launch(message.name))))

    def _launcher_desc(self, message: wire.LauncherDescRequest) -> None:
        launchers = [launcher_desc(launcher) for launcher in self._wiring.launchers.describe()]
        self._peer.write(encode(wire.LauncherDescs(launchers=launchers)))

    # Internals

    def _room_for_wait(self, message: wire.Find) -> None:
        """Raise `Refusal` if another standing find may not be kept."""
        for name, text, most in (("service", message.service, MAX_NAME), ("tag", message.tag, MAX_TEXT)):
            if text is not None and len(text) > most:
                raise Refusal(Reason.PARAMETER, f"find: {name} has more than {most} characters")
        most = self._access.policy.waits
        if len(self._standing or ()) >= most:
            text = f"find: this peer has {most} waiting finds, and may have no more"
            raise at_limit(text, "elko.listeners.limits.waits")
        if not self._peer.hold(self._held + _memory(message)):
            raise at_limit("find: the peers of this address have too many waiting finds", PER_ADDRESS)

    def _end_forbidden_waits(self) -> None:
        """Answer the standing finds that are not permitted any more by a failure, which ends them."""
        for standing in list(self._standing or ()):
            message = standing.message
            refusal: Refusal | None = None
            if self.must_authenticate:
                refusal = Refusal(Reason.NOT_AUTHENTICATED, f"find: not authenticated to {message.to!r}")
            elif self._grants is not None and not self._grants.may("find", message.service):
                refusal = self._forbidden("find", message.service)
            if refusal is not None:
                self._peer.refused(refusal)
                self.answer(message, [failure_desc(message.service, refusal.text)])
                self.end(standing)

    def _end_forbidden_watches(self) -> None:
        """End the watches of an administrator without the right "view" any more, with a diagnostic."""
        notices = self._wiring.notices
        if self._grants is not None and not self._grants.may("view") and notices.watched_by(self):
            notices.watch_services(self, False)
            notices.watch_loads(self, False)
            self.refuse(self._forbidden("view", ""))

    def end(self, standing: _Standing) -> None:
        """End a standing find, and close a connection whose input has ended after its last one. Idempotent."""
        if self._standing is not None and standing in self._standing:
            del self._standing[standing]
            standing.wait.cancel()
            self._held -= _memory(standing.message)
            self._peer.hold(self._held)
            if self._ended and not self._standing:
                self._peer.close()

    def _withdraw_forbidden(self, provider: int | None) -> None:
        """Withdraw the services of a provider that the user may not offer."""
        if provider is None or self._grants is None:
            return
        registry, may = self._wiring.registry, self._grants.may
        # Not by `IRegistry.provider`, whose snapshot takes a third of the review of 20,000 sessions, in one turn.
        names = {service.name for service in registry.services_of(provider) if not may("offer", service.name)}
        if names:
            registry.withdraw(provider, names)

    def _withdraw(self, vanished: bool = False) -> None:
        """Withdraw all services and end all watches; of a peer that has ``vanished`` with many others, later."""
        if "admin" in self._roles:
            self._wiring.notices.watch_services(self, False)
            self._wiring.notices.watch_loads(self, False)
        if self._provider is not None:
            self._wiring.roster.pop(self._provider, None)
            if vanished and self._wiring.silence.orphaned(self._provider, self):
                self._orphan = self._provider
            else:
                self._wiring.registry.leave(self._provider)
            self._provider = None


class _Standing:
    """A standing find, which waits for the first service or monitors all. ``limited``: it has a deadline."""

    __slots__ = ("_answered", "_session", "limited", "message", "wait")

    wait: IWait

    def __init__(self, session: BrokerSession, message: wire.Find, limited: bool, answered: bool) -> None:
        self._session = session
        self._answered = answered
        self.message = message
        self.limited = limited

    def offered(self, service: Service) -> None:
        """Answer by a service. A find that waits ends."""
        self._answered = True
        if not self.message.monitor:
            self.wait.cancel()
        self._session.answer(self.message, [service_desc(service, self._session.trusted)])
        if not self.message.monitor:
            self._session.end(self)

    def ended(self) -> None:
        """Answer by a failure if no service came in time."""
        if not self._answered:
            self._session.answer(self.message, [failure_desc(self.message.service, "no such service")])
        self._session.end(self)


def _will_not_serve(refused: list[Refusal]) -> Refusal:
    """Return the refusal of an offer, of which these services are refused."""
    more = len(refused) - MAX_PROBLEMS_SHOWN
    text = "; ".join(refusal.text for refusal in refused[:MAX_PROBLEMS_SHOWN])
    return Refusal(refused[0].reason, f"willserve: {text}" + (f"; and {more} more" if more > 0 else ""))


def _memory(message: wire.Find) -> int:
    """Return the bytes that a standing find takes."""
    return STANDING + 2 * (len(message.service) + len(message.tag or ""))


def _ordered(message: wire.Reinit | wire.Shutdown) -> str:
    """Return the servers that an order is for, and "self" for the broker."""
    return " ".join(filter(None, (message.server, "self" if message.self_ else None)))


_CLIENT: OperationRoles = {
    **COMMON,
    wire.Find: (BrokerSession._find, ()),
    wire.WillServe: (BrokerSession._will_serve, ("client",)),
    wire.WontServe: (BrokerSession._wont_serve, ("client",)),
    wire.LoadReport: (BrokerSession._load, ("client",)),
}
_ADMIN: OperationRoles = {
    **COMMON,
    wire.LoadDescRequest: (viewing(BrokerSession._load_desc), ("admin",)),
    wire.ServiceDescRequest: (viewing(BrokerSession._service_desc), ("admin",)),
    wire.Watch: (viewing(BrokerSession._watch), ("admin",)),
    wire.Reinit: (administering("admin.reload", BrokerSession._reinit, _ordered), ("admin",)),
    wire.Shutdown: (administering("admin.shutdown", BrokerSession._shutdown, _ordered), ("admin",)),
    wire.Launch: (administering("admin.launch", BrokerSession._launch, attrgetter("name")), ("admin",)),
    wire.LauncherDescRequest: (viewing(BrokerSession._launcher_desc), ("admin",)),
}
_OBJECTS = ObjectTables(
    {"broker": _CLIENT, "client": _CLIENT, "admin": _ADMIN, "error": COMMON},
    {"broker": "client", "client": "client", "admin": "admin"},
)
