"""What an operator is told of a configuration that is valid: what it comes to, and what may surprise."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from broker.config import endpoint
from broker.config.endpoint import Endpoint
from broker.config.validate import effective_auth, effective_offer, hostport
from broker.config.values import Config, Console, Listener


def resolves(host: str) -> bool:
    """Whether this machine knows an address of ``host``. Blocks while it asks."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def report(config: Config, resolves: Callable[[str], bool] = resolves) -> str:
    """A line for each listener, the console and the launchers, then a line for each warning.

    ``config`` is one that was found valid. Blocks while published names are resolved. Shows no secret.
    """
    lines = [_listener(each) for each in config.elko.listeners]
    lines.append(_console(config.console))
    names = ", ".join(entry.name for entry in config.launchers.table) or "none"
    lines.append(f"launchers: {names}, start {config.launchers.start}")
    if not config.elko.listeners:
        lines.append("warning: elko.listeners is empty: no server can connect")
    for each in config.elko.listeners:
        lines += [f"warning: elko.listeners[{each.name}]: {text}" for text in _warnings(each, resolves)]
    return "\n".join(lines)


def _listener(listener: Listener) -> str:
    where = endpoint.parse(listener.endpoint)
    offer = " ".join(effective_offer(listener)) or "nothing"
    parts = (
        f"bound to {_bound(where)}",
        f"published as {listener.publish or _bound(where)}",
        f"allow {' '.join(listener.allow)}",
        f"auth {effective_auth(listener)}",
        f"offer {offer}",
    )
    return f"listener {listener.name}: {', '.join(parts)}"


def _bound(where: Endpoint) -> str:
    return f"{where.kind} {where.where}" if where.kind in ("tls", "unix") else where.where


def _console(console: Console) -> str:
    if not console.enabled:
        return "console: off"
    where = endpoint.parse(console.endpoint)
    return f"console: bound to {_bound(where)}, {'no password' if console.password is None else 'password'}"


def _warnings(listener: Listener, resolves: Callable[[str], bool]) -> Iterator[str]:
    where = endpoint.parse(listener.endpoint)
    yield from _published(listener, where, resolves)
    if where.loopback:
        return
    if effective_auth(listener) == "open":
        yield from _open(listener, where)
    elif where.kind == "tcp":
        yield "the password crosses the network in the clear; tls: would hide it"
    if effective_auth(listener) == "password" and listener.allow_before_auth:
        yield "allow_before_auth: anybody who reaches it may find services without the password"


def _published(listener: Listener, where: Endpoint, resolves: Callable[[str], bool]) -> Iterator[str]:
    if listener.publish is None:
        if where.wildcard:
            yield f"{where.where} is published, which is an address for nobody; set publish"
        return
    host, _ = hostport(listener.publish) or ("", 0)
    if host in ("0.0.0.0", "::"):
        yield f"{listener.publish} is published, which is an address for nobody"
    elif not resolves(host):
        yield f"{host} is published, but does not resolve on this machine"


def _open(listener: Listener, where: Endpoint) -> Iterator[str]:
    steer = (
        ", and may watch, steer and shut down all of them, since admin is allowed" if "admin" in listener.allow else ""
    )
    yield f"open: anybody who reaches {where.where} may find every service{steer}"
    if any(pattern.startswith("*") for pattern in effective_offer(listener)):
        yield "open: anybody may offer a service of any name, and collect what others send to it"
