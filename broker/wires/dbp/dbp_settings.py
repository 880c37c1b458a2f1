"""The section ``[dbp]`` of the configuration: keys, checks, sockets, and the lines of ``--check``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from ipaddress import AddressValueError, IPv4Address

import attrs

from broker.config import endpoint
from broker.config.endpoint import BadEndpoint, Endpoint, ZEndpoint
from broker.config.key import Binding, PortOption, Resolves, Section, key, moved, seconds_key
from broker.config.key_checks import Problem
from broker.net.connection_limits import RouterLimits, max_message_key

BEACON_PORT = 5245
"""UDP port on which the original nodes wait for the beacon, one after the other. If another program binds it, they fail
or miss the beacon."""

MAX_BEACONS = 64
"""Destinations of the beacon, each of which gets a datagram a second. No machine is in so many networks."""

LEAST_PROBE = 1.0
"""Seconds. Each probe takes a connection of its own, and a service answers one at a time."""

LOCAL_BEACON = "127.255.255.255"
"""Broadcast address of the loopback network: only processes of this machine receive it."""

BEACON = "255.255.255.255"
"""Limited broadcast address, of the local network."""


def _destinations(here: str, addresses: tuple[str, ...]) -> Iterator[Problem]:
    if len(addresses) > MAX_BEACONS:
        yield Problem(here, f"has more than {MAX_BEACONS} addresses")
    for number, address in enumerate(addresses):
        ip = _ipv4(address)
        if ip is None:
            yield Problem(f"{here}[{number}]", f"{address!r} is no IPv4 address; names are not taken")
        elif ip.is_unspecified:
            yield Problem(f"{here}[{number}]", f"{address} is no destination; {BEACON} is the broadcast address")


def _probe(here: str, seconds: float) -> Iterator[Problem]:
    if 0 < seconds < LEAST_PROBE:
        yield Problem(here, f"must be 0, for never, or at least {LEAST_PROBE:g}, not {seconds:.15g}")


def _ipv4(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except AddressValueError:
        return None


@attrs.frozen
class Dbp(RouterLimits):
    """The DBP wire: a catalogue of services over ZeroMQ, with heartbeats by UDP, the protocol of the Core
    Catalog Service."""

    enabled: bool = key(True, "Enables the wire.")
    endpoint: str = key(
        "tcp://127.0.0.1:5246",
        'Endpoint, in ZeroMQ\'s form: "tcp://ADDRESS:PORT" with an IPv4 address, or "tcp://*:PORT". Port 0 is any '
        "free one.",
    )
    udp_port: int | None = key(
        None,
        "UDP port of heartbeats at the same address, but not 5245. By default the number of the endpoint's port.",
        within=(0, 65_535),
        example=5246,
    )
    beacon: tuple[str, ...] | None = key(
        None,
        "IPv4 addresses of the beacon, by which peers find the broker; up to 64. By default 127.255.255.255, which "
        "is this machine, on loopback, and elsewhere 255.255.255.255, the local network. [] is no beacon.",
        check=_destinations,
        example=("127.255.255.255",),
    )
    beacon_port: int = key(5_245, "UDP port of the beacon. Peers wait for it at 5245.", within=(1, 65_535))
    check_address: bool = key(
        True,
        "Accept heartbeats, updates and disconnects only from the address that registered the service, by UDP and "
        "over ZeroMQ.",
        reload=True,
    )
    # An iteration of the loop under load takes some tens of milliseconds. A heartbeat a day detects nothing.
    interval: float = seconds_key(
        1.0, "Time between heartbeats, of the broker, and of services that register no interval.", within=(0.05, 86_400)
    )
    least_interval: float = seconds_key(
        0.2, "Shortest interval that a service may register; shorter ones are clamped.", within=(0.05, 86_400)
    )
    most_interval: float = seconds_key(
        3600.0, "Longest interval that a service may register; longer ones are clamped.", within=(0.05, 86_400)
    )
    # The usual range of the protocol. With fewer, one lost datagram would end a service.
    liveness: int = key(
        3,
        "Intervals without a sign of life after which a service expires, where it registers no number.",
        within=(3, 5),
        reload=True,
    )
    fall_back: bool = key(True, "Probe a service by TCP that missed a heartbeat by UDP.", reload=True)
    probe: float = seconds_key(
        0.0,
        "Time between probes of services that send no heartbeats, at least 1. 0 is never: those of the original "
        "abort when two requests overlap.",
        within=(0, 86_400),
        check=_probe,
    )
    services: int = key(10_000, "Services that may be registered.", within=(0, 100_000), reload=True)
    # A registration of ordinary size must fit. Its sender is not authenticated, and there may be many.
    max_message: int = max_message_key(1024**2, within=(1_024, 16 * 1024**2))

    @cached_property
    def place(self) -> ZEndpoint:
        """The address of the ROUTER. Raises `BadEndpoint`."""
        where = endpoint.parse_zmq(self.endpoint)
        if where.kind == "systemd":
            raise BadEndpoint("must be tcp://, not systemd's socket: the UDP port and the beacon go with its address")
        if where.kind != "tcp" or ":" in where.host:
            raise BadEndpoint(
                "must be tcp:// with an IPv4 address, * or localhost, since heartbeats and beacons are IPv4 broadcasts"
            )
        return where

    @property
    def beacons(self) -> tuple[str, ...]:
        """The destinations of the beacon: by default a broadcast to the network of the endpoint."""
        if self.beacon is not None:
            return self.beacon
        return (LOCAL_BEACON if self.place.loopback else BEACON,)

    @property
    def heartbeat_port(self) -> int | None:
        """The UDP port of heartbeats."""
        return self.place.port if self.udp_port is None else self.udp_port

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield keys that contradict the endpoint, and intervals that contradict each other."""
        try:
            where = self.place
        except BadEndpoint as error:
            yield Problem(f"{here}.endpoint", str(error))
        else:
            yield from self._reach(here, where)
            yield from self._udp_port(here, where)
        yield from self._intervals(here)

    def _reach(self, here: str, where: ZEndpoint) -> Iterator[Problem]:
        if where.loopback:
            for number, address in enumerate(self.beacon or ()):
                ip = _ipv4(address)
                if ip is not None and not ip.is_loopback:
                    text = f"is not reached from {where.where}, which is loopback; leave it out, or change endpoint"
                    yield Problem(f"{here}.beacon[{number}]", text, f"{here}.endpoint")

    def _udp_port(self, here: str, where: ZEndpoint) -> Iterator[Problem]:
        given, port = ("endpoint", where.port) if self.udp_port is None else ("udp_port", self.udp_port)
        why = "where peers wait for the beacon: were the broker bound to it, those on this machine could not find it"
        if port == 0:
            return
        if port == BEACON_PORT:
            hint = ", since there is no udp_port" if self.udp_port is None else ""
            yield Problem(f"{here}.{given}", f"heartbeats would arrive on UDP port {port}{hint}; but that is {why}")
        elif port == self.beacon_port:
            text = f"{port} is the UDP port of heartbeats, and cannot be {why}"
            yield Problem(f"{here}.beacon_port", text, f"{here}.{given}")

    def _intervals(self, here: str) -> Iterator[Problem]:
        least, most = self.least_interval, self.most_interval
        if least > most:
            text = f"{least:.15g} is more than most_interval, {most:.15g}"
            yield Problem(f"{here}.least_interval", text, f"{here}.most_interval")
        elif self.interval < least:
            text = f"{self.interval:.15g} is less than least_interval, {least:.15g}"
            yield Problem(f"{here}.interval", text, f"{here}.least_interval")
        elif self.interval > most:
            text = f"{self.interval:.15g} is more than most_interval, {most:.15g}"
            yield Problem(f"{here}.interval", text, f"{here}.most_interval")

    def bindings(self) -> Iterator[Binding]:
        """Yield the sockets of the ROUTER and of heartbeats."""
        if self.enabled:
            yield Binding("dbp.endpoint", "dbp", self.place.stream)
            udp = Endpoint("tcp", (str(self.heartbeat_port or 0),), {"interface": self.place.stream.interface})
            yield Binding("dbp.endpoint" if self.udp_port is None else "dbp.udp_port", "dbp", udp, datagrams=True)

    def summary(self) -> Iterator[str]:
        """Yield a line."""
        if not self.enabled:
            yield "dbp: off"
            return
        parts = (
            f"bound to tcp {self.place.where}",
            f"udp {self.heartbeat_port}",
            f"beacon {' '.join(f'{address}:{self.beacon_port}' for address in self.beacons) or 'none'}",
        )
        yield f"dbp: {', '.join(parts)}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of an endpoint that other machines reach."""
        if not self.enabled:
            return
        where = self.place
        if not where.loopback:
            yield f"dbp: no authentication: every peer that reaches {where.where} is the user anonymous"
            if not self.check_address:
                yield "dbp.check_address: any peer may end any service, or keep a dead one registered"


SECTION = Section(
    "dbp",
    Dbp(),
    PortOption(
        "dbp-port",
        "Port of DBP on 127.0.0.1, TCP and UDP, or 'off'; 0 takes a free one [default: 5246]",
        moved("tcp://127.0.0.1:{}", udp_port=None),
    ),
)
"""The section ``[dbp]``."""
