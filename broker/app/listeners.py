"""The listeners of an Elko protocol, whatever carries its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from broker.app.parts import Parts
from broker.config import endpoint as endpoints
from broker.config import values
from broker.config.endpoint import Endpoint
from broker.config.validate import effective_auth
from broker.net.lines import Accepting, Limits, LineFactory, LineProtocol
from broker.net.listen import CannotListen, bound, listen
from broker.net.longpoll import LongPollFactory
from broker.net.origins import Origins
from broker.net.rtcp import RtcpFactory
from broker.net.tls import Certificates, TlsFactory
from broker.net.websocket import WebSockets
from broker.session.auth import Door, Policy
from broker.session.backoff import Guesses
from broker.session.peer import Peer, Reader, Session

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


@attrs.frozen
class OpenListener:
    """One open listener. ``protocol`` is what a service descriptor says of it; ``lines`` has its connections."""

    name: str
    door: Door
    carrier: Carrier
    lines: LineFactory
    port: IListeningPort
    protocol: str
    certificates: Certificates | None


def open_listener(
    reactor: Any,
    wire: str,
    listener: values.ElkoListener,
    door: Door,
    converse: Converse,
    limits: Limits,
    parts: Parts,
) -> OpenListener:
    """Open a listener whose peers are spoken to by what ``converse`` makes. Raises `CannotListen`."""
    endpoint = endpoints.parse(listener.endpoint)
    carrier, lines = _carrier(reactor, wire, listener, endpoint, converse, limits, parts)
    try:
        certificates = _certificates(endpoint)
    except (OSError, ValueError) as error:
        raise CannotListen(str(error)) from None
    factory = carrier
    if certificates is not None:
        factory = TlsFactory(carrier, certificates, parts.turns, parts.complaints)
    port = listen(reactor, endpoint, factory)
    carrier.port = port
    return OpenListener(listener.name, door, carrier, lines, port, _protocol(listener, endpoint), certificates)


def open_listeners(
    reactor: Any,
    wire: str,
    listeners: Iterable[L],
    policy: Callable[[L], Policy],
    converse: Callable[[Door, Peer], tuple[Reader, Session]],
    limits: Callable[[L], Limits],
    parts: Parts,
    log: Logger,
) -> Iterator[OpenListener]:
    """Open listeners, one after the other, and log where they are. Raises `CannotListen`."""
    for listener in listeners:
        door = Door(policy(listener), Guesses(reactor.seconds))
        try:
            opened = open_listener(reactor, wire, listener, door, partial(converse, door), limits(listener), parts)
        except CannotListen as error:
            raise CannotListen(f"{wire} listener {listener.name!r}: {error}") from None
        yield opened
        log.info(
            "{wire} listener {name!r} on {where} ({transport}{auth}; {roles})",
            wire=wire,
            name=listener.name,
            where=bound(opened.port),
            transport="" if listener.transport == "tcp" else f"{listener.transport}; ",
            auth=effective_auth(listener),
            roles=", ".join(listener.allow),
        )


def renew(
    running: Iterable[OpenListener],
    listeners: Iterable[L],
    policy: Callable[[L], Policy],
    limits: Callable[[L], Limits],
) -> None:
    """Give open listeners the rules and limits that they have from now on."""
    by_name = {listener.name: listener for listener in listeners}
    for each in running:
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
