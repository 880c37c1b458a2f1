"""The configuration of DBP as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class Dbp(RouterLimits):
    """The DBP wire: a catalogue of services over ZeroMQ, with heartbeats by UDP. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:5246"
    """``tcp://ADDRESS:PORT`` with an IPv4 address, ``*`` or ``localhost``: heartbeats and beacons are broadcast, which
    IPv6 does not do. Port 0 takes a free one."""
    udp_port: int | None = None
    """Where heartbeats arrive, at the same address; None: the number of the endpoint's port. 0 takes a free one."""
    auth: Literal["open"] | None = None
    """DBP has no authentication. None: open on loopback; elsewhere it must be said."""
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be registered; None: all on loopback, else none."""
    beacon: tuple[str, ...] | None = None
    """IPv4 addresses that the beacon goes to; None: 127.255.255.255 on loopback, else 255.255.255.255; empty: no
    beacon."""
    beacon_port: int = 5245
    """Where peers wait for the beacon. Nothing of the broker's may be bound to it, or they cannot."""
    check_address: bool = True
    """A heartbeat, an update or a DISCONNECT counts only from the address that registered the service."""
    interval: float = 1.0
    """Time between heartbeats, where a service names none; the broker's own too."""
    least_interval: float = 0.2
    """A service that names a shorter one gets this."""
    most_interval: float = 3_600.0
    """A service that names a longer one gets this."""
    liveness: int = 3
    """Intervals without a sign of life after which a service is gone, where it names no number."""
    fall_back: bool = True
    """Ask a service that missed a heartbeat by TCP, before it is gone."""
    probe: float = 0.0
    """Time between questions to services without a heartbeat contract; 0: they are never asked. The original broker
    and its services abort when two requests overlap."""
    services: int = 10_000
    """Registered services."""
    max_message: int = 1024 * 1024
    """As every ROUTER's."""
