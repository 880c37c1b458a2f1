"""Validation of DBP's configuration values, and the effective values of keys that are not given."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address

from broker.config import zmq_endpoint
from broker.config.checks import unless_said
from broker.config.endpoint import BadEndpoint
from broker.config.problem import Problem, in_range, in_ranges
from broker.config.zmq_endpoint import ZEndpoint
from broker.net.interfaces.limits import ROUTER_RANGES
from broker.wires.dbp.config import Dbp

BEACON_PORT = 5245
"""UDP port on which the original nodes wait for the beacon, one after the other. If another program binds it, they fail
or miss the beacon."""

MAX_BEACONS = 64
"""Destinations of the beacon, each of which gets a datagram a second. No machine is in so many networks."""

LEAST_PROBE = 1.0
"""Seconds. Each probe takes a connection of its own, and a service answers one at a time."""

DBP_RANGES: dict[str, tuple[float, float]] = {
    **ROUTER_RANGES,
    "beacon_port": (1, 65_535),
    # An iteration of the broker's loop under load takes some tens of milliseconds. A heartbeat a day detects nothing.
    "interval": (0.05, 86_400),
    "least_interval": (0.05, 86_400),
    "most_interval": (0.05, 86_400),
    # The protocol's usual range. With fewer, one lost datagram would end a service.
    "liveness": (3, 5),
    # Values between 0 and LEAST_PROBE are refused separately.
    "probe": (0, 86_400),
    # The range of the services of an Elko listener.
    "services": (0, 100_000),
    # A registration of ordinary size must fit. Its sender is not authenticated, and there may be many.
    "max_message": (1_024, 16 * 1024 * 1024),
}
"""Minimum and maximum of each number of DBP, in the units of `Dbp`."""

LOCAL_BEACON = "127.255.255.255"
"""Broadcast address of the loopback network: only processes of this machine receive it."""

BEACON = "255.255.255.255"
"""Limited broadcast address, of the local network."""


def effective_dbp_offer(dbp: Dbp) -> tuple[str, ...]:
    """Return the patterns of service names that may be registered: the configured ones, else all on loopback, and none
    elsewhere.

    Raises `BadEndpoint`.
    """
    if dbp.offer is not None:
        return dbp.offer
    return ("*",) if _place(dbp).loopback else ()


def effective_dbp_beacon(dbp: Dbp) -> tuple[str, ...]:
    """Return the destinations of the beacon: the configured ones, else a broadcast to the network of the endpoint.

    Raises `BadEndpoint`.
    """
    if dbp.beacon is not None:
        return dbp.beacon
    return (LOCAL_BEACON if _place(dbp).loopback else BEACON,)


def dbp_place(dbp: Dbp) -> ZEndpoint | None:
    """Return the endpoint of DBP; None if the value is invalid."""
    try:
        return _place(dbp)
    except BadEndpoint:
        return None


def dbp_problems(dbp: Dbp) -> Iterator[Problem]:
    """Yield the problems of the values of DBP."""
    try:
        where = _place(dbp)
    except BadEndpoint as error:
        yield Problem("dbp.endpoint", str(error))
    else:
        yield from _reach(dbp, where)
        yield from _udp_port(dbp, where)
    if dbp.udp_port is not None:
        yield from in_range("dbp.udp_port", dbp.udp_port, 0, 65_535)
    for number, pattern in enumerate(dbp.offer or ()):
        if not pattern:
            yield Problem(f"dbp.offer[{number}]", 'is empty; "*" is every name')
    yield from _beacon(dbp)
    outside = list(in_ranges("dbp", dbp, DBP_RANGES))
    yield from outside
    if 0 < dbp.probe < LEAST_PROBE:
        yield Problem("dbp.probe", f"must be 0, for never, or at least {LEAST_PROBE:g}, not {dbp.probe:.15g}")
    # A value outside of its range is reported once, not again in comparison with the others.
    if not any(problem.key.endswith("interval") for problem in outside):
        yield from _intervals(dbp)


def _place(dbp: Dbp) -> ZEndpoint:
    where = zmq_endpoint.parse(dbp.endpoint)
    if where.kind == "systemd":
        raise BadEndpoint("must be tcp://, not systemd's socket: the UDP port and the beacon go with its address")
    if where.kind != "tcp" or ":" in where.host:
        raise BadEndpoint(
            "must be tcp:// with an IPv4 address, * or localhost, since heartbeats and beacons are IPv4 broadcasts"
        )
    return where


def _reach(dbp: Dbp, where: ZEndpoint) -> Iterator[Problem]:
    if where.loopback:
        for number, address in enumerate(dbp.beacon or ()):
            ip = _ipv4(address)
            if ip is not None and not ip.is_loopback:
                text = f"is not reached from {where.where}, which is loopback; leave it out, or change endpoint"
                yield Problem(f"dbp.beacon[{number}]", text, "dbp.endpoint")
    elif dbp.enabled and dbp.auth is None:
        yield from unless_said(
            "dbp.auth",
            where,
            ' and DBP has no authentication: "open", which admits any client that reaches it',
        )


def _udp_port(dbp: Dbp, where: ZEndpoint) -> Iterator[Problem]:
    key, port = ("dbp.endpoint", where.port) if dbp.udp_port is None else ("dbp.udp_port", dbp.udp_port)
    why = "where peers wait for the beacon: were the broker bound to it, those on this machine could not find it"
    if port == 0:
        return
    if port == BEACON_PORT:
        hint = ", since there is no udp_port" if dbp.udp_port is None else ""
        yield Problem(key, f"heartbeats would arrive on UDP port {port}{hint}; but that is {why}")
    elif port == dbp.beacon_port:
        yield Problem("dbp.beacon_port", f"{port} is the UDP port of heartbeats, and cannot be {why}", key)


def _beacon(dbp: Dbp) -> Iterator[Problem]:
    addresses = dbp.beacon or ()
    if len(addresses) > MAX_BEACONS:
        yield Problem("dbp.beacon", f"has more than {MAX_BEACONS} addresses")
    for number, address in enumerate(addresses):
        ip = _ipv4(address)
        if ip is None:
            yield Problem(f"dbp.beacon[{number}]", f"{address!r} is no IPv4 address; names are not taken")
        elif ip.is_unspecified:
            yield Problem(f"dbp.beacon[{number}]", f"{address} is no destination; {BEACON} is the broadcast address")


def _intervals(dbp: Dbp) -> Iterator[Problem]:
    least, most = dbp.least_interval, dbp.most_interval
    if least > most:
        yield Problem(
            "dbp.least_interval", f"{least:.15g} is more than most_interval, {most:.15g}", "dbp.most_interval"
        )
    elif dbp.interval < least:
        text = f"{dbp.interval:.15g} is less than least_interval, {least:.15g}"
        yield Problem("dbp.interval", text, "dbp.least_interval")
    elif dbp.interval > most:
        text = f"{dbp.interval:.15g} is more than most_interval, {most:.15g}"
        yield Problem("dbp.interval", text, "dbp.most_interval")


def _ipv4(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except AddressValueError:
        return None
