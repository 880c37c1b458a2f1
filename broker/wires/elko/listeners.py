"""The listeners of an Elko protocol, whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from broker.app.parts import Parts
from broker.config import endpoint as endpoints
from broker.config import values
from broker.config.endpoint import Endpoint
from broker.config.validate import effective_auth
from broker.core.model import BROKER, Auth, Service
from broker.net.admission import Accepting, Limits
from broker.net.endpoints import CannotListen, bound, listen
from broker.net.interfaces.peer import Peer, Reader, Session
from broker.net.line_protocol import LineFactory, LineProtocol
from broker.net.listener_retry import Openings
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.net.tls import Certificates, TlsFactory
from broker.net.web_origins import Origins
from broker.wires.common.password_backoff import Guesses
from broker.wires.elko.sessions.authentication import Door, Policy
from broker.wires.elko.transports.long_poll import LongPollFactory
from broker.wires.elko.transports.rtcp import RtcpFactory
from broker.wires.elko.transports.websocket import WebSockets

L = TypeVar("L", values.Listener, values.DirectorListener)

Converse = Callable[[Peer], tuple[Reader, Session]]

PROTOCOLS = {"websocket": "ws", "http": "http", "rtcp": "rtcp"}
"""What a service descriptor says of a listener that is not plain TCP; with TLS it ends with an s."""


class Carrier(Protocol):
    """A factory of connections, and what the daemon asks of it."""

    port: Accepting | None

    def limit(self, limits: Limits) -> None:
        """Other limits from now on."""

    def close(self) -> Deferred[None]:
        """Close all connections in good order. Fires when they are closed."""


@attrs.define
class StreamListener:
    """A listener of streams. ``port`` is None until it is open, ``certificates`` also where it has no TLS.

    ``protocol`` is what a service descriptor says of it; ``lines`` has its connections.
    """

    reactor: Any
    endpoint: Endpoint
    carrier: Carrier
    lines: LineFactory
    turns: Turns
    complaints: Complaints
    protocol: str = "tcp"
    port: IListeningPort | None = None
    certificates: Certificates | None = None

    def open(self) -> str:
        """Listen. Returns the bound address. Raises `CannotListen` with nothing open."""
        try:
            # Read for each attempt: the files may have changed since the last one.
            certificates = _certificates(self.endpoint)
        except (OSError, ValueError) as error:
            raise CannotListen(str(error)) from None
        factory: Any = self.carrier
        if certificates is not None:
            factory = TlsFactory(factory, certificates, self.turns, self.complaints)
        self.port = listen(self.reactor, self.endpoint, factory)
        self.carrier.port = cast(Accepting, self.port)
        self.certificates = certificates
        return bound(self.port)

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when that is so."""
        port, self.port = self.port, None
        return succeed(None) if port is None else maybeDeferred(port.stopListening)


@attrs.define
class NamedListener(StreamListener):
    """A listener of an Elko protocol: its name in the configuration, and the rules that its peers come under."""

    name: str = attrs.field(kw_only=True)
    door: Door = attrs.field(kw_only=True)


def make_listener(
    reactor: Any,
    wire: str,
    listener: values.ElkoListener,
    door: Door,
    converse: Converse,
    limits: Limits,
    parts: Parts,
) -> NamedListener:
    """A listener, not open yet, whose peers are spoken to by what ``converse`` makes."""
    endpoint = endpoints.parse(listener.endpoint)
    carrier, lines = _carrier(reactor, wire, listener, endpoint, converse, limits, parts)
    return NamedListener(
        reactor,
        endpoint,
        carrier,
        lines,
        parts.turns,
        parts.complaints,
        _protocol(listener, endpoint),
        name=listener.name,
        door=door,
    )


def title(wire: str, listener: values.ElkoListener) -> str:
    """The name by which the log calls a listener."""
    return f"{wire} listener {listener.name!r}"


def add_listeners(
    openings: Openings,
    reactor: Any,
    wire: str,
    listeners: Iterable[L],
    policy: Callable[[L], Policy],
    converse: Callable[[Door, Peer], tuple[Reader, Session]],
    limits: Callable[[L], Limits],
    parts: Parts,
    log: Logger,
    first_required: bool = False,
) -> list[NamedListener]:
    """Make listeners, for ``openings`` to open. ``first_required``: the start fails without the first of them."""
    made: list[NamedListener] = []
    for listener in listeners:
        door = Door(policy(listener), Guesses(reactor.seconds))
        each = make_listener(reactor, wire, listener, door, partial(converse, door), limits(listener), parts)
        openings.add(
            title(wire, listener),
            each.endpoint.where,
            partial(_open_and_log, each, wire, listener, log),
            required=first_required and not made,
        )
        made.append(each)
    return made


def _open_and_log(opening: NamedListener, wire: str, listener: L, log: Logger) -> str:
    where = opening.open()
    log.info(
        "{wire} listener {name!r} on {where} ({transport}{auth}; {roles})",
        wire=wire,
        name=listener.name,
        where=where,
        transport="" if listener.transport == "tcp" else f"{listener.transport}; ",
        auth=effective_auth(listener),
        roles=", ".join(listener.allow),
    )
    return where


def services(made: Iterable[NamedListener], listeners: Iterable[L], name: Callable[[str], str]) -> Iterator[Service]:
    """The listeners that are open as services of provider 0; ``name`` gives that of each role."""
    open_ones = {each.name: each for each in made if each.port is not None}
    for listener in listeners:
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


def certificates(made: Iterable[StreamListener]) -> list[Certificates]:
    """Those of the listeners over TLS that are open; the others read the files when they open."""
    return [each.certificates for each in made if each.certificates is not None]


def renew(
    made: Iterable[NamedListener],
    listeners: Iterable[L],
    policy: Callable[[L], Policy],
    limits: Callable[[L], Limits],
) -> None:
    """Give listeners, also those that are not open yet, the rules and limits that they have from now on."""
    by_name = {listener.name: listener for listener in listeners}
    for each in made:
        listener = by_name[each.name]
        each.door.policy = policy(listener)
        each.carrier.limit(limits(listener))


def base_policy(listener: values.Listener | values.DirectorListener, config: values.Config) -> Policy:
    """The rules that do not depend on what is spoken there."""
    return Policy(
        roles=frozenset(listener.allow),
        code=listener.code if effective_auth(listener) == "password" else None,
        allow_before_auth=listener.allow_before_auth,
        diagnostics=config.broker.diagnostics,
    )


def net_limits(limits: values.ConnectionLimits, room: int, authenticate_within: float) -> Limits:
    """The limits of a listener that has descriptors for ``room`` connections."""
    return Limits(
        connections=min(limits.connections, room),
        connections_per_address=limits.connections_per_address,
        rate=limits.rate,
        burst=limits.burst,
        authenticate_within=authenticate_within,
        write_buffer=limits.write_buffer,
        stalled_after=limits.stalled_after,
        http_timeout=limits.http_timeout,
        http_select_wait=limits.http_select_wait,
        rtcp_timeout=limits.rtcp_timeout,
        rtcp_disconnected=limits.rtcp_disconnected,
        rtcp_backlog=limits.rtcp_backlog,
    )


def _carrier(
    reactor: Any,
    wire: str,
    listener: values.ElkoListener,
    endpoint: Endpoint,
    converse: Converse,
    limits: Limits,
    parts: Parts,
) -> tuple[Any, LineFactory]:
    """The factory that the listener's port gets, a `Carrier`; and the one that has its sessions."""
    path = "/" if listener.path is None else listener.path
    origins = Origins(listener.origins)
    on_a_line: Callable[[LineProtocol], tuple[Reader, Session]] = converse
    if listener.transport == "websocket":
        on_a_line = WebSockets(converse, path, origins, reactor).converse
    lines = LineFactory(
        wire,
        on_a_line,
        limits,
        parts.turns,
        parts.complaints,
        reactor,
        half_close=endpoint.kind != "tls",
        guarded=listener.transport == "tcp",
    )
    if listener.transport == "http":
        return LongPollFactory(lines, path, origins), lines
    return RtcpFactory(lines) if listener.transport == "rtcp" else lines, lines


def _certificates(endpoint: Endpoint) -> Certificates | None:
    if endpoint.kind != "tls":
        return None
    options = endpoint.kwargs
    return Certificates(options["certificate"], options["key"], options.get("ca"))


def _protocol(listener: values.ElkoListener, endpoint: Endpoint) -> str:
    if listener.transport == "tcp":
        return "tcp" if endpoint.kind == "systemd" else endpoint.kind
    return PROTOCOLS[listener.transport] + ("s" if endpoint.kind == "tls" else "")
