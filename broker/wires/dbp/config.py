"""The configuration of DBP as frozen values, with their defaults."""

from __future__ import annotations

from typing import Literal

import attrs

from broker.net.interfaces.limits import RouterLimits


@attrs.frozen
class Dbp(RouterLimits):
    """The DBP wire: a catalogue of services over ZeroMQ, with heartbeats by UDP. Sizes in bytes, times in seconds. See
    docs/configuration.md."""

    enabled: bool = True
    endpoint: str = "tcp://127.0.0.1:5246"
    """``tcp://ADDRESS:PORT`` with an IPv4 address, ``*`` or ``localhost``: heartbeats and beacons are broadcast, which
    IPv6 does not support. Port 0 takes a free one."""
    udp_port: int | None = None
    """UDP port for heartbeats, at the same address; None: the number of the endpoint's port. 0 takes a free one."""
    auth: Literal["open"] | None = None
    """DBP has no authentication. None: open on loopback. Required for other endpoints."""
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be registered; None: all on loopback, else none."""
    beacon: tuple[str, ...] | None = None
    """IPv4 destinations of the beacon; None: 127.255.255.255 on loopback, else 255.255.255.255; empty: no beacon."""
    beacon_port: int = 5245
    """Destination port of the beacon. The broker must not bind it: then peers on this machine could not receive the
    beacon."""
    check_address: bool = True
    """Accept a heartbeat, an update or a DISCONNECT only from the address that registered the service."""
    interval: float = 1.0
    """Time between heartbeats of services that register no interval; also between the broker's own."""
    least_interval: float = 0.2
    """Lower bound of the agreed interval."""
    most_interval: float = 3_600.0
    """Upper bound of the agreed interval."""
    liveness: int = 3
    """Intervals without a sign of life after which a service expires, if it registers no number."""
    fall_back: bool = True
    """Probe a service that missed a heartbeat, over ZeroMQ, before it expires."""
    probe: float = 0.0
    """Time between probes of services without a heartbeat contract; 0 for no probes. The original broker and its
    services abort when two requests overlap."""
    services: int = 10_000
    """Registered services."""
    max_message: int = 1024 * 1024
    """Size of one frame; see `RouterLimits`."""
