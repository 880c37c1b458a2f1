"""The configuration of the Elko Broker and the Elko Director as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

Role = Literal["client", "admin"]

DirectorRole = Literal["user", "provider", "admin"]


@attrs.frozen
class ConnectionLimits:
    """What the peers of one listener may take. Sizes in bytes, times in seconds."""

    connections: int = 20_000
    """Open connections; while there are so many, new ones wait in the kernel's queue."""
    connections_per_address: int = 0
    """Open connections of one address, over HTTP and RTCP its sessions; 0 is no limit."""
    rate: float = 100.0
    """New connections a second from one address (loopback and unix sockets excepted); 0 is no limit."""
    burst: int = 1_000
    """New connections that one address may make at once before ``rate`` counts."""
    authenticate_within: float = 30.0
    """Time to a successful `auth`; 0 is no limit."""
    write_buffer: int = 4 * 1024 * 1024
    """Output that may wait for one peer that does not read, before it is disconnected."""
    stalled_after: float = 30.0
    """Time that output may wait for a peer without any of it being read."""
    http_timeout: float = 15.0
    """Time that a session over HTTP may go without a request of its peer."""
    http_select_wait: float = 60.0
    """Time after which a select that nothing came for is answered all the same."""
    rtcp_timeout: float = 60.0
    """Silence of an RTCP peer after which its session ends; after half of it, the broker says something itself."""
    rtcp_disconnected: float = 30.0
    """Time that an RTCP session waits for its peer to connect again."""
    rtcp_backlog: int = 64_000
    """Output that may be unacknowledged in an RTCP session, before the session ends."""


@attrs.frozen
class Limits(ConnectionLimits):
    """Those of a listener of the broker."""

    waits: int = 1_000
    """Finds that one peer may have waiting or monitoring."""
    services: int = 1_000
    """Services that one peer may offer."""


@attrs.frozen
class DirectorLimits(ConnectionLimits):
    """Those of a listener of the director."""

    watches: int = 1_000
    """Contexts and users that one administrator may watch."""
    reservations: int = 100
    """Reservations that one connection may have whose users have not come yet, unless it is a Context Server's."""


@attrs.frozen
class ElkoListener:
    """One place where peers of an Elko protocol connect."""

    name: str = "main"
    endpoint: str = "tcp:9000:interface=127.0.0.1"
    """``tcp:``, ``unix:``, ``tls:`` or ``systemd:`` endpoint string."""
    transport: Literal["tcp", "websocket", "http", "rtcp"] = "tcp"
    """How messages are carried: as they are, in WebSocket frames, by HTTP requests, or in sessions of RTCP."""
    path: str | None = None
    """Path of the WebSocket, or the root of the paths of HTTP; None: ``/``."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect (``https://HOST[:PORT]``), where the transport is for browsers too; ``*``: all."""
    auth: Literal["open", "password"] | None = None
    """None: open on loopback and unix sockets; elsewhere it must be said."""
    code: str | None = attrs.field(default=None, repr=False)
    """The password of a ``password`` listener."""
    code_file: str | None = None
    """A file that holds ``code`` instead, relative to the configuration file; reading it fills ``code``."""
    allow_before_auth: bool = False
    """Serve ping, debug and find before `auth`, as the original does."""
    publish: str | None = None
    """The ``host:port`` told to peers; by default the bound one."""
    label: str | None = None


@attrs.frozen
class Listener(ElkoListener):
    """One where the broker's peers do."""

    allow: tuple[Role, ...] = ("client", "admin")
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be offered; None: all on a password, loopback or unix listener, else none."""
    limits: Limits = Limits()


@attrs.frozen
class DirectorListener(ElkoListener):
    """One where the director's peers do."""

    endpoint: str = "tcp:9010:interface=127.0.0.1"
    """As the broker's."""
    allow: tuple[DirectorRole, ...] = ("user", "provider", "admin")
    limits: DirectorLimits = DirectorLimits()


@attrs.frozen
class Elko:
    """The Elko Broker wire."""

    listeners: tuple[Listener, ...] = (Listener(),)


@attrs.frozen
class Director:
    """The Elko Director: it places users into contexts on a farm of Context Servers. Times in seconds."""

    enabled: bool = True
    """Whether there is one. Without the table ``director`` there is none: servers that find one in the registry
    connect to it, so that a farm which has its own would be changed."""
    service: str | None = None
    """Suffix of its service names: ``director-provider-SUFFIX``; None: that of the broker."""
    providers: int = 10_000
    """Connections that Context Servers may have, all together."""
    load_bump: float = 0.0008
    """What placing a context on a server adds to the load that it reported, until it reports again."""
    reservation: float = 30.0
    """Time that a reservation takes up room before its user has come: as long as the servers keep it."""
    user_reservations: int = 10
    """Reservations that one user may have, for different contexts, before coming to any of them."""
    listeners: tuple[DirectorListener, ...] = (DirectorListener(),)
