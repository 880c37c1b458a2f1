"""The configuration sections ``[elko]`` and ``[director]``: bindings, summary, warnings, secrets and reloadable keys.

`config` has the values, `validation` the errors; warnings, which do not prevent a start, are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from broker.config import endpoint
from broker.config.checks import hostport, parsed
from broker.config.endpoint import Endpoint
from broker.config.section import Binding, PortOption, Resolves, Section
from broker.config.summary import bound
from broker.wires.elko.config import BrokerListener, Director, DirectorListener, Elko, ElkoListener
from broker.wires.elko.validate_transport import FOR_BROWSERS
from broker.wires.elko.validation import director_problems, elko_problems

CLEAR = "passwords and tokens cross the network in the clear; tls: would hide them"
"""The warning about a listener that other machines reach without TLS."""


def title(wire: str, listener: ElkoListener) -> str:
    """Return the name of a listener in logs and in the state of the daemon."""
    return f"{wire} listener {listener.name!r}"


def _bindings(elko: Elko) -> Iterator[Binding]:
    for index, listener in enumerate(elko.listeners):
        where = parsed(listener.endpoint)
        if where is not None:
            # The first listener is the one of the command line's ``--port``: a broker without it must not start.
            yield Binding(f"elko.listeners[{index}].endpoint", title("elko", listener), where, required=index == 0)


def _director_bindings(director: Director) -> Iterator[Binding]:
    for index, listener in enumerate(director.listeners if director.enabled else ()):
        where = parsed(listener.endpoint)
        if where is not None:
            yield Binding(f"director.listeners[{index}].endpoint", title("director", listener), where)


def _summary(elko: Elko) -> Iterator[str]:
    for listener in elko.listeners:
        yield f"listener {listener.name}: {_listener(listener, listener.allow)}"


def _director_summary(director: Director) -> Iterator[str]:
    for listener in director.listeners if director.enabled else ():
        yield f"director listener {listener.name}: {_listener(listener, listener.allow)}"


def _listener(listener: ElkoListener, allow: tuple[str, ...]) -> str:
    where = endpoint.parse(listener.endpoint)
    parts = (
        f"{_carried(listener)}bound to {bound(where)}",
        f"published as {listener.publish or bound(where)}",
        f"allow {' '.join(allow)}",
    )
    return ", ".join(parts)


def _carried(listener: ElkoListener) -> str:
    """Return the transport as the beginning of a line; empty for TCP."""
    if listener.transport not in FOR_BROWSERS:
        return "" if listener.transport == "tcp" else f"{listener.transport} "
    return f"{listener.transport} at {listener.path or '/'} for {' '.join(listener.origins) or 'no'} pages, "


def _warnings(elko: Elko, resolves: Resolves) -> Iterator[str]:
    if not elko.listeners:
        yield "elko.listeners is empty: no Elko server can connect"
    for listener in elko.listeners:
        for text in _listener_warnings(listener, resolves):
            yield f"elko.listeners[{listener.name}]: {text}"


def _director_warnings(director: Director, resolves: Resolves) -> Iterator[str]:
    if not director.enabled:
        return
    if not director.listeners:
        yield "director.listeners is empty: no peer can connect to the director"
    for listener in director.listeners:
        here = f"director.listeners[{listener.name}]"
        where = endpoint.parse(listener.endpoint)
        for text in (*_published(listener, where, resolves), *_pages(listener)):
            yield f"{here}: {text}"
        if where.kind == "tcp" and not where.loopback:
            yield f"{here}: {CLEAR}"


def _listener_warnings(listener: BrokerListener, resolves: Resolves) -> Iterator[str]:
    where = endpoint.parse(listener.endpoint)
    yield from _published(listener, where, resolves)
    yield from _pages(listener)
    if where.kind == "tcp" and not where.loopback:
        yield CLEAR


def _pages(listener: ElkoListener) -> Iterator[str]:
    if "*" in listener.origins:
        yield "origins: open to every page: without a credential, a page has the rights of the anonymous user"
    elif "null" in listener.origins:
        yield "origins: null is the origin of many pages, such as local files"


def _published(listener: ElkoListener, where: Endpoint, resolves: Callable[[str], bool]) -> Iterator[str]:
    if listener.publish is None:
        if where.wildcard:
            yield f"{where.where} is published, which is not an address that peers can use; set publish"
        return
    host, _ = hostport(listener.publish) or ("", 0)
    if host in ("0.0.0.0", "::"):
        yield f"{listener.publish} is published, which is not an address that peers can use"
    elif not resolves(host):
        yield f"{host} is published, but does not resolve on this machine"


def _director_port(director: Director, port: int | None) -> Director:
    if port is None:
        return attrs.evolve(director, enabled=False)
    if director.listeners != Director().listeners:
        raise ValueError("describes the one listener, but the configuration file has director listeners of its own")
    listener = DirectorListener(endpoint=f"tcp:{port}:interface=127.0.0.1")
    return attrs.evolve(director, enabled=True, listeners=(listener,))


_LISTENER_KEYS = (
    "origins",
    "allow",
    "allow_before_auth",
    "publish",
    "label",
    "limits.*",
)

BROKER = Section(
    "elko",
    Elko,
    Elko(),
    elko_problems,
    _bindings,
    _summary,
    _warnings,
    reloadable=tuple(f"listeners[*].{key}" for key in _LISTENER_KEYS),
    named=("listeners",),
    example=(Path(__file__).with_name("broker.toml")).read_text,
)
"""The section ``[elko]``."""

DIRECTOR = Section(
    "director",
    Director,
    Director(enabled=False),
    director_problems,
    _director_bindings,
    _director_summary,
    _director_warnings,
    reloadable=(
        "service",
        "providers",
        "load_bump",
        "reservation",
        "user_reservations",
        *(f"listeners[*].{key}" for key in _LISTENER_KEYS),
    ),
    named=("listeners",),
    option=PortOption(
        "director-port",
        "Port of the Elko Director on 127.0.0.1, usually 9010, or 'off'; 0 takes a free one [default: no director]",
        _director_port,
    ),
    example=(Path(__file__).with_name("director.toml")).read_text,
)
"""The section ``[director]``."""
