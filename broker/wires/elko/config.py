"""Configuration of the Elko Broker and the Elko Director: frozen values with defaults.

`section` declares how they are read and shown, `validation` checks them; docs/configuration.md describes them for
users.
"""

from __future__ import annotations

from typing import Literal

import attrs

from broker.wires.elko.transports.limits import TransportLimits

Role = Literal["client", "admin"]
"""Roles at a listener of the broker."""

DirectorRole = Literal["user", "provider", "admin"]
"""Roles at a listener of the director."""


@attrs.frozen
class BrokerLimits(TransportLimits):
    """Limits of a listener of the broker."""

    waits: int = 1_000
    """Finds of one peer that may wait or monitor."""
    services: int = 1_000
    """Services that one peer may offer."""


@attrs.frozen
class DirectorLimits(TransportLimits):
    """Limits of a listener of the director."""

    watches: int = 1_000
    """Contexts and users that one administrator may watch."""
    reservations: int = 100
    """Unused reservations of one connection, unless it is a Context Server's."""


@attrs.frozen
class ElkoListener:
    """One listener of an Elko protocol."""

    name: str = "main"
    endpoint: str = "tcp:9000:interface=127.0.0.1"
    """Endpoint string: ``tcp:``, ``unix:``, ``tls:`` or ``systemd:``."""
    transport: Literal["tcp", "websocket", "http", "rtcp"] = "tcp"
    """Transport of the messages: plain bytes, WebSocket frames, HTTP requests, or RTCP sessions."""
    path: str | None = None
    """Path of the WebSocket, or the root of the paths of HTTP; None is ``/``."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect (``https://HOST[:PORT]``) over a transport for browsers; ``*`` permits
    all."""
    allow_before_auth: bool = False
    """Serve ping, debug and find before `auth`, as the original does."""
    publish: str | None = None
    """The ``host:port`` in the registry; None is the bound address."""
    label: str | None = None
    """The label of its services in the registry."""


@attrs.frozen
class BrokerListener(ElkoListener):
    """One listener of the broker."""

    allow: tuple[Role, ...] = ("client", "admin")
    limits: BrokerLimits = BrokerLimits()


@attrs.frozen
class DirectorListener(ElkoListener):
    """One listener of the director."""

    endpoint: str = "tcp:9010:interface=127.0.0.1"
    """Endpoint string, as for the broker."""
    allow: tuple[DirectorRole, ...] = ("user", "provider", "admin")
    limits: DirectorLimits = DirectorLimits()


@attrs.frozen
class Elko:
    """The Elko Broker wire."""

    listeners: tuple[BrokerListener, ...] = (BrokerListener(),)


@attrs.frozen
class Director:
    """The Elko Director, which places users into contexts on a farm of Context Servers. Times in seconds."""

    enabled: bool = True
    """True if the director runs. Without a table ``director`` it does not: servers that find a director in the registry
    connect to it, which would change a farm that has its own."""
    service: str | None = None
    """Suffix of its service names: ``director-provider-SUFFIX``; None is that of the broker."""
    providers: int = 10_000
    """Connections of Context Servers, all together."""
    load_bump: float = 0.0008
    """Load that a placed context adds to the last report of its server, until the next report."""
    reservation: float = 30.0
    """Time for which an unused reservation takes up room: as long as the servers keep it."""
    user_reservations: int = 10
    """Unused reservations of one user, for different contexts."""
    listeners: tuple[DirectorListener, ...] = (DirectorListener(),)
