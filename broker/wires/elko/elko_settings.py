"""The sections ``[elko]`` and ``[director]`` of the configuration: keys, checks, sockets, and lines of ``--check``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import attrs

from broker.config import endpoint, key_checks
from broker.config.endpoint import Endpoint
from broker.config.key import Binding, PortOption, Resolves, Section, Settings, key, seconds_key
from broker.config.key_checks import MAX_LABEL, MAX_SUFFIX, Problem, hostport
from broker.wires.elko.transports.transport_limits import TransportLimits

Role = Literal["client", "admin"]
"""Roles at a listener of the broker."""

DirectorRole = Literal["user", "provider", "admin"]
"""Roles at a listener of the director."""

MAX_PATH = 200
"""Characters of a path: with a session id and a number it must fit into a request line."""

MAX_ORIGINS = 1_000
"""Origins that one listener may list: no list that is maintained by hand is longer."""

FOR_BROWSERS = ("websocket", "http")
"""The transports that have paths and origins."""

CLEAR = "passwords and tokens cross the network in the clear; tls: would hide them"
"""The warning about a listener that other machines reach without TLS."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PATH = re.compile(r"/[A-Za-z0-9._~/-]*")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _name(here: str, name: str) -> Iterator[Problem]:
    if not name:
        yield Problem(here, "is empty")
    elif not _NAME.fullmatch(name):
        yield Problem(here, "may have up to 64 letters, digits, dots, hyphens and underscores")


def _publish(here: str, publish: str) -> Iterator[Problem]:
    if hostport(publish) is None:
        hint = "; an IPv6 address goes in brackets" if publish.count(":") > 1 else ""
        yield Problem(here, f"must be host:port with a port from 1 to 65535{hint}")
    elif len(publish) > MAX_LABEL:
        yield Problem(here, f"has more than {MAX_LABEL} characters")


def _roles(roles: str, here: str, allow: tuple[str, ...]) -> Iterator[Problem]:
    if not allow:
        yield Problem(here, f"allows no role; name {roles}")


def _origin(key: str, origin: str) -> Iterator[Problem]:
    if origin in ("*", "null"):
        return
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        yield Problem(key, 'must be an origin such as "https://game.example.org", without a path, or "*" for all')
    elif origin.endswith(_DEFAULT_PORTS.get(match["scheme"], "\0")):
        yield Problem(key, "names the default port of its scheme, which browsers omit")


@attrs.frozen
class BrokerLimits(TransportLimits):
    """Limits of the peers of this listener."""

    waits: int = key(1_000, "Finds that one peer may have waiting or monitoring.", within=(0, 100_000), reload=True)
    services: int = key(1_000, "Services that one peer may offer.", within=(0, 100_000), reload=True)


@attrs.frozen
class DirectorLimits(TransportLimits):
    """Limits of the peers of this listener."""

    watches: int = key(1_000, "Contexts and users that one administrator may watch.", within=(0, 1_000), reload=True)
    reservations: int = key(
        100,
        "Unused reservations of one connection, unless it is a Context Server's. A gatekeeper asks for all its users"
        " over one connection: at most this many can be on their way.",
        within=(1, 10_000),
        reload=True,
    )


@attrs.frozen
class ElkoListener(Settings):
    """A listener of an Elko protocol."""

    name: str = key(
        "main",
        "Unique name in logs, by which a reload identifies the listener: letters, digits, dots, hyphens, underscores.",
        check=_name,
    )
    endpoint: str = key(
        "tcp:9000:interface=127.0.0.1",
        'Endpoint: "tcp:PORT:interface=ADDRESS", "tls:PORT:certificate=FILE:key=FILE:ca=FILE:interface=ADDRESS", '
        '"unix:PATH:mode=660" or "systemd:domain=INET:name=NAME". Without interface it is all addresses of the '
        "machine.",
        check=key_checks.listens,
    )
    transport: Literal["tcp", "websocket", "http", "rtcp"] = key(
        "tcp",
        'Transport of messages: "tcp"; "websocket" and "http" for browsers, "rtcp" for peers that lose their '
        "connections. All of these also work over TLS. docs/protocols/elko-transports.md describes them.",
    )
    path: str | None = key(
        None, 'Path of the WebSocket, or root of the paths of HTTP: ROOT/connect. By default "/".', example="/elko"
    )
    origins: tuple[str, ...] = key(
        (),
        'Web pages that may connect over websocket or http, by their origins; "*" is every page. Programs other than'
        " browsers are not affected. By default no page may connect.",
        reload=True,
    )
    allow_before_auth: bool = key(
        False, "Serve ping, debug and find before `auth`, as the original Elko broker does.", reload=True
    )
    log_debug: bool = key(
        False, "Write the text of `debug` messages of peers to the log; otherwise they are ignored.", reload=True
    )
    publish: str | None = key(
        None,
        "The host:port that peers receive as the address of this listener, an IPv6 address in brackets. By default "
        "the bound one.",
        check=_publish,
        example="broker.example.org:9000",
        reload=True,
    )
    label: str | None = key(
        None,
        "Label of this listener in the descriptors of the broker's own services.",
        check=partial(key_checks.printable, most=MAX_LABEL),
        example="East wing",
        reload=True,
    )

    @property
    def place(self) -> Endpoint:
        """The address. Raises `BadEndpoint`."""
        return endpoint.parse(self.endpoint)

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield keys that contradict the transport."""
        if self.transport not in FOR_BROWSERS:
            for name, given in (("path", self.path is not None), ("origins", bool(self.origins))):
                if given:
                    yield Problem(f"{here}.{name}", 'has no effect without transport = "websocket" or "http"')
            return
        path = self.path
        if path is not None and not _PATH.fullmatch(path):
            text = "must begin with / and have letters, digits, dots, hyphens, underscores, tildes"
            yield Problem(f"{here}.path", text)
        elif path is not None and len(path) > MAX_PATH:
            yield Problem(f"{here}.path", f"has more than {MAX_PATH} characters")
        if len(self.origins) > MAX_ORIGINS:
            yield Problem(f"{here}.origins", f"has more than {MAX_ORIGINS} entries")
        for number, origin in enumerate(self.origins):
            yield from _origin(f"{here}.origins[{number}]", origin)

    def described(self, allow: Sequence[str]) -> str:
        """Return the line of ``--check``, without the name."""
        where = self.place.shown
        return f"{self._carried()}bound to {where}, published as {self.publish or where}, allow {' '.join(allow)}"

    def _carried(self) -> str:
        """Return the transport as the beginning of a line; empty for TCP."""
        if self.transport not in FOR_BROWSERS:
            return "" if self.transport == "tcp" else f"{self.transport} "
        return f"{self.transport} at {self.path or '/'} for {' '.join(self.origins) or 'no'} pages, "

    def listener_warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the warnings about one listener."""
        where = self.place
        yield from self._published(where, resolves)
        if "*" in self.origins:
            yield "origins: open to every page: without a credential, a page has the rights of the anonymous user"
        elif "null" in self.origins:
            yield "origins: null is the origin of many pages, such as local files"
        if where.kind == "tcp" and not where.loopback:
            yield CLEAR

    def _published(self, where: Endpoint, resolves: Callable[[str], bool]) -> Iterator[str]:
        if self.publish is None:
            if where.wildcard:
                yield f"{where.where} is published, which is not an address that peers can use; set publish"
            return
        host, _ = hostport(self.publish) or ("", 0)
        if host in ("0.0.0.0", "::"):
            yield f"{self.publish} is published, which is not an address that peers can use"
        elif not resolves(host):
            yield f"{host} is published, but does not resolve on this machine"


@attrs.frozen
class BrokerListener(ElkoListener):
    """One endpoint for Elko peers."""

    allow: tuple[Role, ...] = key(
        ("client", "admin"),
        'Roles that may authenticate here: servers and their clients ("client"), operators ("admin").',
        check=partial(_roles, "client, admin or both"),
        reload=True,
    )
    limits: BrokerLimits = key(BrokerLimits())


@attrs.frozen
class DirectorListener(ElkoListener):
    """One endpoint for the director's peers."""

    endpoint: str = key(
        "tcp:9010:interface=127.0.0.1",
        'Endpoint: "tcp:PORT:interface=ADDRESS", "tls:PORT:certificate=FILE:key=FILE:ca=FILE:interface=ADDRESS", '
        '"unix:PATH:mode=660" or "systemd:domain=INET:name=NAME". Without interface it is all addresses of the '
        "machine.",
        check=key_checks.listens,
    )
    allow: tuple[DirectorRole, ...] = key(
        ("user", "provider", "admin"),
        'Roles that may authenticate here: users ("user"), Context Servers ("provider"), operators ("admin").',
        check=partial(_roles, "user, provider or admin"),
        reload=True,
    )
    limits: DirectorLimits = key(DirectorLimits())


def title(wire: str, listener: ElkoListener) -> str:
    """Return the name of a listener in logs and in the state of the daemon."""
    return f"{wire} listener {listener.name!r}"


def _names(here: str, listeners: Sequence[ElkoListener]) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for index, listener in enumerate(listeners):
        place = f"{here}[{index}]"
        if not _NAME.fullmatch(listener.name):
            continue
        if listener.name in names:
            other = names[listener.name]
            yield Problem(f"{place}.name", f'the name "{listener.name}" is that of {other} too', other)
        names.setdefault(listener.name, place)


def _bindings(wire: str, listeners: Sequence[ElkoListener], first_required: bool) -> Iterator[Binding]:
    for index, listener in enumerate(listeners):
        where = key_checks.parsed(listener.endpoint)
        if where is not None:
            required = first_required and index == 0
            yield Binding(f"{wire}.listeners[{index}].endpoint", title(wire, listener), where, required)


@attrs.frozen
class Elko(Settings):
    """The Elko Broker wire."""

    listeners: tuple[BrokerListener, ...] = key((BrokerListener(),), check=_names)

    def bindings(self) -> Iterator[Binding]:
        """Yield the sockets."""
        # The first listener is the one of the command line's ``--port``: a broker without it must not start.
        yield from _bindings("elko", self.listeners, first_required=True)

    def summary(self) -> Iterator[str]:
        """Yield a line for each listener."""
        for listener in self.listeners:
            yield f"listener {listener.name}: {listener.described(listener.allow)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of each listener."""
        if not self.listeners:
            yield "elko.listeners is empty: no Elko server can connect"
        for listener in self.listeners:
            for text in listener.listener_warnings(resolves):
                yield f"elko.listeners[{listener.name}]: {text}"


@attrs.frozen
class Director(Settings):
    """The Elko Director: it places users into contexts on a farm of Context Servers. This section enables it; without
    the section there is none, since Context Servers connect to every director that they find."""

    enabled: bool = key(True, "Enables the director.")
    service: str | None = key(
        None,
        "Suffix of the names under which the director is registered: director-provider-SUFFIX, director-user-SUFFIX,"
        " director-admin-SUFFIX. By default that of the broker.",
        check=partial(key_checks.printable, most=MAX_SUFFIX),
        reload=True,
        example="east",
    )
    providers: int = key(10_000, "Connections of all Context Servers together.", within=(1, 1_000_000), reload=True)
    load_bump: float = key(
        0.0008,
        "Load that a new context adds to its server until the server reports its load again.",
        within=(0, 1),
        reload=True,
    )
    reservation: float = seconds_key(
        30.0,
        "Time for which a reservation takes up room before its user has arrived: as long as the "
        "Context Servers keep it (their conf.context.reservationexpire).",
        within=(1, 3_600),
    )
    user_reservations: int = key(
        10,
        "Unused reservations of one user, for different contexts. One more is refused, or replaces one that another "
        "connection requested in this user's name.",
        within=(1, 100),
        reload=True,
    )
    listeners: tuple[DirectorListener, ...] = key((DirectorListener(),), check=_names)

    def bindings(self) -> Iterator[Binding]:
        """Yield the sockets."""
        if self.enabled:
            yield from _bindings("director", self.listeners, first_required=False)

    def summary(self) -> Iterator[str]:
        """Yield a line for each listener."""
        for listener in self.listeners if self.enabled else ():
            yield f"director listener {listener.name}: {listener.described(listener.allow)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of each listener."""
        if self.enabled and not self.listeners:
            yield "director.listeners is empty: no peer can connect to the director"
        for listener in self.listeners if self.enabled else ():
            for text in listener.listener_warnings(resolves):
                yield f"director.listeners[{listener.name}]: {text}"


def _director_port(director: Director, port: int | None) -> Director:
    if port is None:
        return attrs.evolve(director, enabled=False)
    if director.listeners != Director().listeners:
        raise ValueError("describes the one listener, but the configuration file has director listeners of its own")
    listener = DirectorListener(endpoint=f"tcp:{port}:interface=127.0.0.1")
    return attrs.evolve(director, enabled=True, listeners=(listener,))


BROKER = Section("elko", Elko())
"""The section ``[elko]``."""

DIRECTOR = Section(
    "director",
    Director(enabled=False),
    PortOption(
        "director-port",
        "Port of the Elko Director on 127.0.0.1, usually 9010, or 'off'; 0 takes a free one [default: no director]",
        _director_port,
    ),
)
"""The section ``[director]``."""
