"""Stream listeners from endpoint strings.

Invariant: `listen` returns a bound port with its socket options set, or raises `CannotListen` with nothing bound.
`broker.net.listener_retry` retries failed listeners, and `broker.net.stream_listener` adds TLS.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet import endpoints
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.protocol import Factory, connectionDone
from twisted.python.failure import Failure

from broker.config.endpoint import Endpoint, shown_path
from broker.net.epoll_streams import dispatch
from broker.net.proxies import ProxyFactory
from broker.net.scheduler import Scheduler
from broker.net.silent_hosts import end_with_host
from broker.net.unix_socket import clear

UNIX_MODE = 0o660
"""Default permissions of a Unix socket: the broker's user and group may connect."""


class CannotListen(Exception):
    """Failure to open a listener. The text names the listener, its address and the reason."""


def listen(reactor: Any, endpoint: Endpoint, factory: Factory, shown: str = "") -> IListeningPort:
    """Open a listener now. Raises `CannotListen`, which names the endpoint as ``shown``.

    Clients of trusted proxies have their own addresses (`broker.net.proxies`).
    """
    shown = shown or endpoint.where
    turns: Scheduler | None = getattr(factory, "turns", None)
    if turns is not None:
        factory = ProxyFactory(factory, turns.proxies, reactor)
    try:
        port = _open(reactor, endpoint, factory)
    except CannotListenError as error:
        reason = error.socketError
        raise CannotListen(f"cannot listen on {shown}: {getattr(reason, 'strerror', None) or reason}") from None
    except OSError as error:
        raise CannotListen(f"cannot listen on {shown}: {error.strerror or error}") from None
    _tune(port)
    dispatch(reactor, port)
    return port


def bound(port: IListeningPort) -> str:
    """Return the address of a port: ``host:port``, a path, or ``@NAME`` for a name in the abstract namespace."""
    address: Any = port.getHost()
    if not hasattr(address, "port"):
        return shown_path(os.fsdecode(address.name))
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


def close_now(port: Any) -> None:
    """Close a port in this turn of the reactor; ``stopListening`` leaves it open until the next one."""
    port.stopReading()
    port.connectionLost(connectionDone)


def _open(reactor: Any, endpoint: Endpoint, factory: Factory) -> IListeningPort:
    port: IListeningPort
    if endpoint.kind in ("tcp", "tls"):
        port = reactor.listenTCP(endpoint.port, factory, endpoint.backlog, endpoint.interface)
    elif endpoint.path is not None:
        mode = UNIX_MODE if endpoint.mode is None else endpoint.mode
        has_file = not endpoint.path.startswith("\0")
        if has_file:
            clear(endpoint.path)
        port = reactor.listenUNIX(endpoint.path, factory, endpoint.backlog, mode, wantPID=has_file)
    else:
        port = _inherited(reactor, endpoint, factory)
    return port


def _inherited(reactor: Any, endpoint: Endpoint, factory: Factory) -> IListeningPort:
    """Open a socket passed by systemd (socket activation)."""
    options = "".join(f":{name}={value}" for name, value in endpoint.kwargs.items())
    try:
        opening: Deferred[IListeningPort] = endpoints.serverFromString(reactor, f"systemd{options}").listen(factory)
    except (KeyError, ValueError, IndexError):
        raise CannotListen(f"cannot listen on {endpoint.where}: systemd passed no such socket (LISTEN_FDS)") from None
    result: list[Any] = []
    opening.addBoth(result.append)
    if isinstance(result[0], Failure):
        result[0].raiseException()
    port: IListeningPort = result[0]
    return port


def _tune(port: Any) -> None:
    """Set options that accepted sockets inherit, which saves a system call for each connection."""
    listening: socket.socket = port.socket
    if listening.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end_with_host(listening)
