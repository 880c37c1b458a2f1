"""The listeners of an Elko protocol, whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker.config import endpoint as endpoints
from broker.config.endpoint import Endpoint
from broker.core.model import BROKER, Auth, Service
from broker.net.endpoints import bound
from broker.net.interfaces.peer import Peer, Reader, Session
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.stream_listener import StreamListener
from broker.net.tls import Certificates
from broker.net.web_origins import Origins
from broker.wires.common.password_backoff import Guesses
from broker.wires.common.places import place
from broker.wires.elko.config import BrokerListener, DirectorListener, ElkoListener
from broker.wires.elko.section import title
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.transports.limits import TransportLimits
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from broker.wires.elko.transports.websocket import WebSockets
from broker.wires.elko.validation import effective_auth
from broker.wires.interface import Context

L = TypeVar("L", BrokerListener, DirectorListener)

Converse = Callable[[Peer], tuple[Reader, Session]]

PROTOCOLS = {"websocket": "ws", "http": "http", "rtcp": "rtcp"}
"""What a service descriptor says of a listener that is not plain TCP; with TLS it ends with an s."""


@attrs.define
class NamedListener(StreamListener):
    """A listener of an Elko protocol: its name in the configuration, and the rules that its peers come under."""

    name: str = attrs.field(kw_only=True)
    access: AccessControl = attrs.field(kw_only=True)


def make_listener(
    wire: str,
    listener: ElkoListener,
    access: AccessControl,
    converse: Converse,
    limits: TransportLimits,
    context: Context,
) -> NamedListener:
    """A listener, not open yet, whose peers are spoken to by what ``converse`` makes."""
    endpoint = endpoints.parse(listener.endpoint)
    carrier, lines = _carrier(wire, listener, endpoint, converse, limits, context)
    return NamedListener(
        context.clock,
        endpoint,
        carrier,
        lines,
        context.scheduler,
        context.complaints,
        _protocol(listener, endpoint),
        name=listener.name,
        access=access,
    )


@attrs.define(eq=False)
class ElkoListeners(Generic[L]):
    """The listeners of one Elko protocol, by the titles of their bindings.

    ``policy`` gives the rules of a listener's peers, ``converse`` their sessions, ``limits`` the limits of connections.
    """

    log = Logger()

    wire: str
    context: Context
    configured: Sequence[L]
    policy: Callable[[L], Policy]
    converse: Callable[[AccessControl, Peer], tuple[Reader, Session]]
    limits: Callable[[L], TransportLimits]
    made: dict[str, NamedListener] = attrs.field(factory=dict)

    def make(self) -> None:
        """Make all of them, without opening any."""
        for listener in self.configured:
            access = AccessControl(self.policy(listener), Guesses(self.context.clock.seconds))
            converse = partial(self.converse, access)
            made = make_listener(self.wire, listener, access, converse, self.limits(listener), self.context)
            self.made[title(self.wire, listener)] = made

    def bind(self, name: str) -> str:
        """Open the one with that title, and log its address. Raises `CannotListen`."""
        opening = self.made[name]
        [listener] = (each for each in self.configured if each.name == opening.name)
        where = opening.open()
        self.log.info(
            "{wire} listener {name!r} on {where} ({transport}{auth}; {roles})",
            wire=self.wire,
            name=listener.name,
            where=where,
            transport="" if listener.transport == "tcp" else f"{listener.transport}; ",
            auth=effective_auth(listener),
            roles=", ".join(listener.allow),
        )
        return where

    def places(self) -> Iterator[Mapping[str, object]]:
        """Yield the open ones, as `broker.wires.interface.OpenWire.places` has them."""
        for each in self.made.values():
            yield from place(self.wire, each.name, each)

    def services(self, name: Callable[[str], str]) -> Iterator[Service]:
        """Yield the open ones as services of provider 0; ``name`` gives that of each role."""
        open_ones = {each.name: each for each in self.made.values()}
        for listener in self.configured:
            each = open_ones.get(listener.name)
            if each is None or each.port is None:
                continue
            for role in sorted(listener.allow):
                yield Service(
                    name=name(role),
                    hostport=listener.publish or bound(each.port),
                    provider=BROKER,
                    protocol=each.protocol,
                    label=listener.label,
                    auth=None if listener.code is None else Auth("password", listener.code),
                )

    def certificates(self) -> list[Certificates]:
        """Return those of the open ones over TLS; the others read the files when they open."""
        return [each.certificates for each in self.made.values() if each.certificates is not None]

    def reload(self, configured: Sequence[L]) -> None:
        """Give all of them, also those that are not open yet, the rules and limits that they have from now on."""
        self.configured = configured
        for listener in configured:
            each = self.made.get(title(self.wire, listener))
            if each is not None:
                each.access.policy = self.policy(listener)
                each.carrier.limit(self.limits(listener))

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when that is so."""
        return DeferredList([each.stop_listening() for each in self.made.values()])

    def close(self) -> Deferred[Any]:
        """Close all connections in good order. Fires when they are closed."""
        closing = [each.carrier.close() for each in self.made.values()]
        self.made.clear()
        return DeferredList(closing)


def base_policy(listener: BrokerListener | DirectorListener, diagnostics: bool) -> Policy:
    """The rules that both protocols have."""
    return Policy(
        roles=frozenset(listener.allow),
        code=listener.code if effective_auth(listener) == "password" else None,
        allow_before_auth=listener.allow_before_auth,
        diagnostics=diagnostics,
    )


def net_limits(listener: BrokerListener | DirectorListener, room: int) -> TransportLimits:
    """The limits of a listener that has descriptors for ``room`` connections."""
    limits: TransportLimits = listener.limits.fitting(room)
    if listener.allow_before_auth:
        return attrs.evolve(limits, authenticate_within=0.0)
    return limits


def _carrier(
    wire: str,
    listener: ElkoListener,
    endpoint: Endpoint,
    converse: Converse,
    limits: TransportLimits,
    context: Context,
) -> tuple[Any, LineFactory]:
    """The factory that the listener's port gets, a `Carrier`; and the one that has its sessions."""
    path = "/" if listener.path is None else listener.path
    origins = Origins(listener.origins)
    on_a_line: Callable[[LineProtocol], tuple[Reader, Session]] = converse
    if listener.transport == "websocket":
        on_a_line = WebSockets(converse, path, origins, context.clock).converse
    lines = LineFactory(
        wire,
        on_a_line,
        limits,
        context.scheduler,
        context.complaints,
        context.clock,
        half_close=endpoint.kind != "tls",
        guarded=listener.transport == "tcp",
    )
    if listener.transport == "http":
        return LongPollFactory(lines, limits, path, origins), lines
    return RtcpFactory(lines, limits) if listener.transport == "rtcp" else lines, lines


def _protocol(listener: ElkoListener, endpoint: Endpoint) -> str:
    if listener.transport == "tcp":
        return "tcp" if endpoint.kind == "systemd" else endpoint.kind
    return PROTOCOLS[listener.transport] + ("s" if endpoint.kind == "tls" else "")
