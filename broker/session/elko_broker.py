"""The Elko Broker protocol: one session for each connection.

Rules (the Broker document; where real peers differ, both are served, see docs/protocols/elko-broker.md):
- The objects ``client`` (document) and ``broker`` (real peers) are one. A reply carries the name that its request used,
  an unsolicited message the name that the peer authenticated to.
- Anything but `auth` first closes the connection, unless the listener says ``allow_before_auth``: then the operations
  common to all objects and `find` are served, unknown ones are answered, and only an operation of a role that was not
  authenticated closes. An `auth` with an ill-typed parameter is answered, and may be tried again.
- A role is authenticated once; both may be, on one connection. A client becomes a provider at `auth`.
- The peer's end of input is the provider's end. Answers to finds with a limited wait are still delivered.
- How to authenticate with a service is shown to trusted peers only: those that authenticated by password, or from this
  machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import msgspec
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.interfaces import IControl, ILaunchers, IRegistry, IWait
from broker.core.model import ANONYMOUS, MAX_NAME, MAX_TEXT, Provider, Service
from broker.session.auth import Door
from broker.session.elko_descriptors import (
    DEFAULT_PROTOCOL,
    Encoded,
    failure_desc,
    launcher_desc,
    load_desc,
    offered,
    service_desc,
    service_descs,
)
from broker.session.elko_notices import Notices
from broker.session.peer import Peer
from broker.wire.elko import broker as wire
from broker.wire.elko.blocks import encode
from broker.wire.elko.vocabulary import Message

WIRE = "elko"
"""How providers of this wire are marked in the registry."""

LONG = 10 * 365 * 86_400
"""Seconds; a longer wait is one for ever. It keeps absurd numbers away from the timers."""

PROBLEMS_TOLD = 3
"""How many refused services of one offer are told to the peer: the first ones show what is wrong."""

ALL = "all"
"""The ``server`` of reinit and shutdown that means every provider."""


@attrs.frozen
class Wiring:
    """What all sessions of the daemon share. ``roster`` holds the session of each Elko provider, by its id."""

    registry: IRegistry
    notices: Notices
    launchers: ILaunchers
    control: IControl
    encoded: Encoded = attrs.field(factory=Encoded)
    roster: dict[int, BrokerSession] = attrs.field(factory=dict)


class BrokerSession:
    """One peer's conversation with the broker."""

    __slots__ = (
        "_as",
        "_door",
        "_ended",
        "_is_admin",
        "_label",
        "_objects",
        "_peer",
        "_provider",
        "_waits",
        "_wiring",
        "trusted",
    )

    def __init__(self, wiring: Wiring, door: Door, peer: Peer) -> None:
        self._wiring = wiring
        self._door = door
        self._peer = peer
        self._label = ANONYMOUS
        self._as = "client"
        self._provider: int | None = None
        self._is_admin = False
        self._ended = False
        self._waits: dict[IWait | Deferred[None], bool] | None = None
        self.trusted = False
        self._objects = _TOLERANT if door.policy.allow_before_auth else _STRICT

    # what the connection calls

    def receive(self, message: Message) -> None:
        """Take one message."""
        operations = self._objects.get(message.to)
        operation = None if operations is None else operations.get(message.__class__)
        if operation is None:
            self.refuse(self._why_not(message))
            return
        try:
            operation(self, message)
        except Refusal as refusal:
            self.refuse(refusal)

    def malformed(self, malformed: Malformed) -> None:
        """Take what could not be read as a message."""
        if self._objects is _STRICT and malformed.op != "auth":
            self.refuse(Refusal(Reason.NOT_AUTHENTICATED, f"the first message must be auth, but: {malformed.text}"))
        else:
            self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Tell the peer what is refused, if the listener has diagnostics on; close if that is fatal."""
        patient = self._peer.refused(refusal)
        if self._door.policy.diagnostics and not (self._door.policy.allow_before_auth and refusal.reason in _SILENT):
            text = refusal.text if patient else f"{refusal.text} (too much is refused: closing)"
            self._peer.write(encode(wire.Diagnostic(msg=text)))
        if refusal.reason.fatal or not patient:
            self._peer.close()

    def input_ended(self) -> bool:
        """The peer will send no more. Returns whether answers are still to come, for which it may be listening."""
        self._withdraw()
        for wait, limited in list((self._waits or {}).items()):
            if not limited:
                self._drop(wait)
        self._ended = True
        return bool(self._waits)

    def lost(self) -> None:
        """The connection is gone."""
        self._withdraw()
        self._ended = True
        for wait in list(self._waits or ()):
            self._drop(wait)

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

    def write(self, data: bytes) -> None:
        """Send one encoded message: a notice."""
        self._peer.write(data)

    # common to all objects

    def _auth(self, message: wire.Auth) -> None:
        policy = self._door.policy
        if message.to == "error":
            raise Refusal(Reason.WRONG_CREDENTIALS, "auth: the object 'error' has no role")
        as_admin = message.to == "admin"
        if self._is_admin if as_admin else self._provider is not None:
            raise Refusal(Reason.ALREADY_AUTHENTICATED, f"auth: already authenticated to {message.to!r}")
        policy.check("admin" if as_admin else "client", message.auth)
        self.trusted = policy.code is not None or self._peer.local
        self._label = ANONYMOUS if message.label is None else message.label[:MAX_TEXT]
        registry = self._wiring.registry
        if as_admin:
            self._is_admin = True
            if self._provider is not None:
                registry.relabel(self._provider, self._label)
        else:
            self._as = message.to
            self._provider = registry.join(self._label, WIRE, self._peer.address)
            self._wiring.roster[self._provider] = self
        self._objects = _OBJECTS[self._provider is not None, self._is_admin]
        self._peer.authenticated()

    def _disconnect(self, message: wire.Disconnect) -> None:
        self._peer.close()

    def _ping(self, message: wire.Ping) -> None:
        tag = message.tag
        self._peer.write(encode(wire.PongOut(message.to, "pong", msgspec.UNSET if tag is None else tag)))

    def _pong(self, message: wire.Pong) -> None:
        pass

    def _debug(self, message: wire.Debug) -> None:
        self._peer.debug(self._label, message.msg)

    # client

    def _find(self, message: wire.Find) -> None:
        name = message.service
        protocol = DEFAULT_PROTOCOL if message.protocol is None else message.protocol
        wait = 0 if message.wait is None else int(message.wait)
        standing = wait != 0 or message.monitor is True
        known = self._wiring.registry.lookup(name, protocol, not standing)
        if known:
            desc = self._wiring.encoded.descs(known, self.trusted)
            self._peer.write(wire.encode_found(message.to, desc, message.tag))
        elif wait == 0:
            self._peer.write(wire.encode_found(message.to, wire.encode_not_found(name), message.tag))
            return
        if standing:
            self._stand(message, wait if 0 < wait <= LONG else None, bool(known))

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
        found = self._wiring.registry.find(message.service, seconds)
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
        refused += self._wiring.registry.offer(services, self._door.policy.rights)
        if refused:
            more = len(refused) - PROBLEMS_TOLD
            text = "; ".join(refusal.text for refusal in refused[:PROBLEMS_TOLD])
            raise Refusal(refused[0].reason, f"willserve: {text}" + (f"; and {more} more" if more > 0 else ""))

    def _wont_serve(self, message: wire.WontServe) -> None:
        assert self._provider is not None
        self._wiring.registry.withdraw(self._provider, message.services or ())

    def _load(self, message: wire.LoadReport) -> None:
        assert self._provider is not None
        self._wiring.registry.load(self._provider, message.factor)

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
        for session in self._sessions(message.server):
            session.reinit()
        if message.self_:
            self._wiring.control.reinitialize()

    def _shutdown(self, message: wire.Shutdown) -> None:
        kill = message.kill is True
        sessions = self._sessions(message.server)
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

    def _sessions(self, server: str | None) -> list[BrokerSession]:
        roster = self._wiring.roster
        if server is None:
            return []
        if server == ALL:
            return list(roster.values())
        return [roster[provider.id] for provider in self._matching(server) if provider.id in roster]

    def _room_for_wait(self, message: wire.Find) -> None:
        """Raise `Refusal` if a standing find may not be kept."""
        for name, text, most in (("service", message.service, MAX_NAME), ("tag", message.tag, MAX_TEXT)):
            if text is not None and len(text) > most:
                raise Refusal(Reason.PARAMETER, f"find: {name} has more than {most} characters")
        most = self._door.policy.waits
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
        if self._is_admin:
            self._wiring.notices.watch_services(self, False)
            self._wiring.notices.watch_loads(self, False)
            self._is_admin = False
        if self._provider is not None:
            self._wiring.roster.pop(self._provider, None)
            self._wiring.registry.leave(self._provider)
            self._provider = None

    def _why_not(self, message: Message) -> Refusal:
        """Why a message that the present state does not take is refused."""
        known = _OBJECTS[True, True].get(message.to)
        op = message.__struct_config__.tag
        if self._objects is _STRICT:
            text = f"the first message must be auth, not {op!r}"
            if op == "auth":
                text = f"auth: there is no object {message.to[:40]!r}"
            return Refusal(Reason.NOT_AUTHENTICATED, text)
        if known is None:
            return Refusal(Reason.UNKNOWN_TARGET, f"there is no object {message.to[:40]!r}")
        if type(message) not in known:
            return Refusal(Reason.UNKNOWN_OP, f"the object {message.to!r} has no op {op!r}")
        return Refusal(Reason.NOT_AUTHENTICATED, f"{op}: not authenticated to {message.to!r}")


_SILENT = {Reason.NOT_AUTHENTICATED, Reason.WRONG_CREDENTIALS, Reason.ALREADY_AUTHENTICATED}
"""What the original closes the connection for without a word, and so do listeners that behave like it."""

_Operation = Callable[[Any, Any], None]
_Operations = dict[type[Message], _Operation]

_COMMON: _Operations = {
    wire.Auth: BrokerSession._auth,
    wire.Disconnect: BrokerSession._disconnect,
    wire.Ping: BrokerSession._ping,
    wire.Pong: BrokerSession._pong,
    wire.Debug: BrokerSession._debug,
}
_FIND: _Operations = {wire.Find: BrokerSession._find}
_CLIENT: _Operations = {
    wire.WillServe: BrokerSession._will_serve,
    wire.WontServe: BrokerSession._wont_serve,
    wire.LoadReport: BrokerSession._load,
}
_ADMIN: _Operations = {
    wire.LoadDescRequest: BrokerSession._load_desc,
    wire.ServiceDescRequest: BrokerSession._service_desc,
    wire.Watch: BrokerSession._watch,
    wire.Reinit: BrokerSession._reinit,
    wire.Shutdown: BrokerSession._shutdown,
    wire.Launch: BrokerSession._launch,
    wire.LauncherDescRequest: BrokerSession._launcher_desc,
}


def _objects(client: bool, admin: bool) -> dict[str, _Operations]:
    """What each object does for a peer with these roles."""
    to_client = {**_COMMON, **_FIND, **(_CLIENT if client else {})}
    return {
        "broker": to_client,
        "client": to_client,
        "admin": {**_COMMON, **(_ADMIN if admin else {})},
        "error": _COMMON,
    }


_OBJECTS = {(client, admin): _objects(client, admin) for client in (False, True) for admin in (False, True)}
_TOLERANT = _OBJECTS[False, False]
_AUTH: _Operations = {wire.Auth: BrokerSession._auth}
_STRICT: dict[str, _Operations] = dict.fromkeys(_TOLERANT, _AUTH)
