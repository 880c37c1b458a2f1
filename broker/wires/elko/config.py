"""The configuration of the Elko Broker and the Elko Director as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.wires.elko.transports.limits import TransportLimits

Role = Literal["client", "admin"]

DirectorRole = Literal["user", "provider", "admin"]


@attrs.frozen
class BrokerLimits(TransportLimits):
    """Those of a listener of the broker."""

    waits: int = 1_000
    """Finds that one peer may have waiting or monitoring."""
    services: int = 1_000
    """Services that one peer may offer."""


@attrs.frozen
class DirectorLimits(TransportLimits):
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
class BrokerListener(ElkoListener):
    """One where the broker's peers do."""

    allow: tuple[Role, ...] = ("client", "admin")
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be offered; None: all on a password, loopback or unix listener, else none."""
    limits: BrokerLimits = BrokerLimits()


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

    listeners: tuple[BrokerListener, ...] = (BrokerListener(),)


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
