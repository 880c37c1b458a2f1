"""Listeners of an Elko protocol, for all its transports. `broker_wire` and `director_wire` supply the sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from broker.config.endpoint import Endpoint
from broker.core.model import BROKER, Service
from broker.net.admission import ConnectionFactory
from broker.net.http.request import RequestIds
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.listeners import StreamListener, bound, listener_row
from broker.net.peer_interfaces import MessageReader, Peer, PeerSession
from broker.net.tls import Certificates
from broker.net.web_origins import Origins
from broker.wires.elko.elko_settings import BrokerListener, DirectorListener, ElkoListener, title
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.transports.elko_websocket import WebSockets
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from broker.wires.elko.transports.transport_limits import TransportLimits
from broker.wires.interface import PlainWire, WireContext

L = TypeVar("L", BrokerListener, DirectorListener)
"""A listener of the broker or the director."""

Converse = Callable[[Peer], tuple[MessageReader, PeerSession]]
"""Factory of the reader and the session of a peer."""

PROTOCOLS = {"websocket": "ws", "http": "http", "rtcp": "rtcp"}
"""The protocol in the service descriptor of a listener that is not plain TCP; with TLS it gets the suffix s."""


@attrs.define
class NamedListener(StreamListener):
    """A listener of an Elko protocol, with its name in the configuration and the access control of its peers."""

    name: str = attrs.field(kw_only=True)
    access: AccessControl = attrs.field(kw_only=True)
    origins: Origins = attrs.field(kw_only=True)


def make_listener(
    wire: str,
    listener: ElkoListener,
    access: AccessControl,
    converse: Converse,
    limits: TransportLimits,
    context: WireContext,
) -> NamedListener:
    """Create a listener, without opening it. ``converse`` makes the readers and sessions of its peers."""
    endpoint = listener.place
    origins = Origins(listener.origins)
    port_factory, lines = _carrier(wire, listener, endpoint, converse, limits, context, origins)
    return NamedListener(
        context.network.clock,
        endpoint,
        port_factory,
        lines,
        context.network.scheduler,
        context.network.refusal_log,
        _protocol(listener, endpoint),
        name=listener.name,
        access=access,
        origins=origins,
    )


class ElkoWire(PlainWire, Generic[L]):
    """An open wire of an Elko protocol with its listeners, by the titles of their bindings.

    A subclass gives the policy of a listener and the sessions of its peers.
    """

    log = Logger()

    def __init__(self, wire: str, context: WireContext, configured: Sequence[L]) -> None:
        self._wire = wire
        self._configured: Sequence[L] = configured
        self._made: dict[str, NamedListener] = {}
        accounts = context.accounts
        for listener in configured:
            at = title(wire, listener)
            access = AccessControl(
                self.policy(listener),
                accounts.access,
                at,
                accounts.audit,
                accounts.logins.requests,
                in_turns=context.network.scheduler.background.run,
            )
            accounts.access.changed.append(access.review)
            converse = partial(self.converse, access)
            self._made[at] = make_listener(wire, listener, access, converse, net_limits(listener), context)

    def policy(self, listener: L) -> Policy:
        """Return the policy of a listener."""
        raise NotImplementedError

    def converse(self, access: AccessControl, peer: Peer) -> tuple[MessageReader, PeerSession]:
        """Return the reader and the session of a peer."""
        raise NotImplementedError

    def bind(self, title: str) -> str:
        """Open the listener with that title, and log its address. Raises `CannotListen`."""
        opening = self._made[title]
        [listener] = (each for each in self._configured if each.name == opening.name)
        where = opening.open()
        self.log.info(
            "{wire} listener {name!r} on {where} ({transport}{roles})",
            wire=self._wire,
            name=listener.name,
            where=where,
            transport="" if listener.transport == "tcp" else f"{listener.transport}; ",
            roles=", ".join(listener.allow),
        )
        return where

    def listener_rows(self) -> Iterator[Mapping[str, object]]:
        """Yield the open listeners, in the form of `broker.wires.interface.OpenWire.listener_rows`."""
        for each in self._made.values():
            yield from listener_row(self._wire, each.name, each)

    def services_of(self, name: Callable[[str], str], elsewhere: Mapping[str, str] | None = None) -> Iterator[Service]:
        """Yield the open listeners as services of provider 0; ``name`` gives the service name of each role.

        ``elsewhere`` has the endpoints of another broker's listeners by title: then those take the place of the own.
        """
        open_ones = {each.name: each for each in self._made.values()}
        for listener in self._configured:
            each = open_ones.get(listener.name)
            if each is None or each.port is None:
                continue
            where = listener.publish or bound(each.port)
            if elsewhere is not None:
                where = elsewhere.get(title(self._wire, listener), "").removeprefix("tcp://")
            for role in sorted(listener.allow) if where else ():
                yield Service(
                    name=name(role),
                    hostport=where,
                    provider=BROKER,
                    protocol=each.protocol,
                    label=listener.label,
                )

    def certificates(self) -> list[Certificates]:
        """Return the certificates of the open TLS listeners; others read their files when they open."""
        return [each.certificates for each in self._made.values() if each.certificates is not None]

    def reload_listeners(self, configured: Sequence[L]) -> None:
        """Apply new policies and limits to all listeners, including those that are not open yet."""
        self._configured = configured
        for listener in configured:
            each = self._made.get(title(self._wire, listener))
            if each is not None:
                each.access.use(self.policy(listener))
                each.origins.use(listener.origins)
                each.port_factory.limit(net_limits(listener))

    def connection_factories(self) -> list[ConnectionFactory]:
        """Return the factories of the sessions, one for each listener."""
        return [each.lines for each in self._made.values()]

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when all ports are closed."""
        return DeferredList([each.stop_listening() for each in self._made.values()])

    def close(self) -> Deferred[Any]:
        """Close all connections in order. Fires when they are closed."""
        closing = [each.port_factory.close() for each in self._made.values()]
        self._made.clear()
        return DeferredList(closing)

    def abandon(self) -> None:
        """Close the ports if the reactor does not run."""
        self.stop_listening()


def base_policy(listener: BrokerListener | DirectorListener, diagnostics: bool) -> Policy:
    """Return the part of a policy that both protocols share."""
    return Policy(
        roles=frozenset(listener.allow),
        allow_before_auth=listener.allow_before_auth,
        log_debug=listener.log_debug,
        diagnostics=diagnostics,
    )


def net_limits(listener: BrokerListener | DirectorListener) -> TransportLimits:
    """Return the limits of a listener."""
    limits: TransportLimits = listener.limits
    if listener.allow_before_auth:
        # As in the original, a peer may use such a listener without `auth`, for any time.
        return attrs.evolve(limits, authenticate_within=0.0)
    return limits


def _carrier(
    wire: str,
    listener: ElkoListener,
    endpoint: Endpoint,
    converse: Converse,
    limits: TransportLimits,
    context: WireContext,
    origins: Origins,
) -> tuple[Any, LineFactory]:
    """Return the factory of the listener's port, a `PortFactory`, and the factory that has its sessions."""
    path = "/" if listener.path is None else listener.path
    on_a_line: Callable[[LineProtocol], tuple[MessageReader, PeerSession]] = converse
    if listener.transport == "websocket":
        on_a_line = WebSockets(converse, path, origins, context.network.clock).converse
    lines = LineFactory(
        wire,
        on_a_line,
        limits,
        context.network.scheduler,
        context.network.refusal_log,
        context.network.clock,
        half_close=endpoint.kind != "tls",
        guarded=listener.transport == "tcp",
        # Sessions over HTTP and RTCP are virtual; their connections take descriptors.
        pool=None if listener.transport in ("http", "rtcp") else context.network.pool,
        forwards=listener.transport == "websocket",
    )
    if listener.transport == "http":
        return LongPollFactory(lines, limits, path, origins, RequestIds.fresh(), context.network.pool), lines
    return RtcpFactory(lines, limits, context.network.pool) if listener.transport == "rtcp" else lines, lines


def _protocol(listener: ElkoListener, endpoint: Endpoint) -> str:
    if listener.transport == "tcp":
        return "tcp" if endpoint.kind == "systemd" else endpoint.kind
    return PROTOCOLS[listener.transport] + ("s" if endpoint.kind == "tls" else "")
