"""The section ``[dns]`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Literal

import attrs

from broker.config.endpoint import BadEndpoint, Endpoint, parse
from broker.config.problem import Problem, in_ranges
from broker.config.section import Binding, Section
from broker.wires.dns.codec.names import Labels, host_labels, wire_length

WIRE = "dns"
"""The name of the wire, its table and its listener."""

MAX_DOMAIN = 100
"""Bytes of the domain in wire format, so that names of services below it have room."""

RANGES: dict[str, tuple[float, float]] = {
    # 0 keeps resolvers from caching; after an hour nothing is current
    "ttl": (0, 3_600),
    # 0 is no limit
    "rate": (0, 1_000_000),
    "burst": (1, 1_000_000),
    # as those of a listener
    "connections": (1, 1_000_000),
    "connections_per_address": (0, 1_000_000),
    # a client needs a round trip; RFC 7766 advises seconds
    "idle": (0.1, 3_600),
    # as that of a listener
    "stalled_after": (0.1, 86_400),
}
"""The least and the most of each number, in the units of `Dns`."""


@attrs.frozen
class Dns:
    """DNS: services by name, for any program. Times in seconds."""

    enabled: bool = False
    endpoint: str = "tcp:9053:interface=127.0.0.1"
    """Where both UDP and TCP are bound. Port 0 takes a free one."""
    auth: Literal["open"] | None = None
    """DNS has no authentication. None: open on loopback; elsewhere it must be given."""
    domain: str = "elkobroker."
    """The domain below which the names are."""
    ttl: int = 5
    """Time for which resolvers may keep a response, negative ones as well."""
    rate: float = 50.0
    """Responses by UDP that one address gets in a second; its network (/24, /56) gets four times as many. 0: no
    limit."""
    burst: int = 200
    """Responses that one address may get at once before ``rate`` counts."""
    limit_loopback: bool = False
    """``rate`` counts for addresses of this machine as well."""
    connections: int = 2_000
    """Open TCP connections; over it, the one that is idle for the longest time is closed."""
    connections_per_address: int = 500
    """Those of one address; further ones are closed. 0: no bound."""
    idle: float = 10.0
    """Time between two queries on a connection; then it is closed."""
    stalled_after: float = 30.0
    """Time in which a client must read something of what it was sent."""


def place(dns: Dns) -> Endpoint:
    """Return the endpoint. Raises `BadEndpoint`."""
    where = parse(dns.endpoint)
    if where.kind != "tcp":
        raise BadEndpoint("must be tcp:PORT, with interface=ADDRESS: UDP is bound to the same address and port")
    return where


def host(where: Endpoint) -> str:
    """Return the IP address that an endpoint names."""
    return {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(where.interface, where.interface)


def domain_labels(dns: Dns) -> Labels | None:
    """Return the labels of the domain, or None if it is none."""
    labels = host_labels(dns.domain)
    return None if labels is None or wire_length(labels) > MAX_DOMAIN else labels


def _problems(dns: Dns) -> Iterator[Problem]:
    try:
        where = place(dns)
    except BadEndpoint as error:
        yield Problem("dns.endpoint", str(error))
    else:
        if dns.enabled and dns.auth is None and not where.loopback:
            yield Problem(
                "dns.auth",
                f"must be given, since {where.where} can be reached from elsewhere and DNS has no authentication: "
                '"open", which answers everybody',
                "dns.endpoint",
            )
    if domain_labels(dns) is None:
        yield Problem("dns.domain", f"{dns.domain!r} is no domain name of less than {MAX_DOMAIN} characters")
    yield from in_ranges("dns", dns, RANGES)


def _bindings(dns: Dns) -> Iterable[Binding]:
    if not dns.enabled:
        return
    try:
        where = place(dns)
    except BadEndpoint:
        return
    yield Binding("dns.endpoint", WIRE, where, datagrams=True)
    yield Binding("dns.endpoint", WIRE, where)


def _summary(dns: Dns) -> Iterable[str]:
    if dns.enabled:
        yield f"dns on {place(dns).where}, UDP and TCP: names in service.{_shown(dns)}, for {dns.ttl} s"


def _warnings(dns: Dns, resolves: object) -> Iterable[str]:
    if not dns.enabled or _problem_of_place(dns):
        return
    if not dns.rate and not place(dns).loopback:
        yield "dns.rate is 0: with forged addresses, anybody can have the broker send responses to a victim"


def _problem_of_place(dns: Dns) -> bool:
    try:
        place(dns)
    except BadEndpoint:
        return True
    return False


def _shown(dns: Dns) -> str:
    return dns.domain.removesuffix(".").lower() + "."


def name_server(where: Endpoint) -> str | None:
    """Return the address of the endpoint, or None where it is bound to all addresses."""
    return None if ip_address(host(where)).is_unspecified else host(where)


EXAMPLE = """\
# DNS: any program finds a service by its name, over UDP and TCP. NAME.service.elkobroker. has SRV, A, AAAA and TXT.
# Services with a secret are left out.
[dns]
# Whether there is one.
#enabled = false
# Where it listens, both UDP and TCP: "tcp:PORT:interface=ADDRESS". Port 0 is any free one.
#endpoint = "tcp:9053:interface=127.0.0.1"
# "open", the only one: DNS has no authentication. By default open on loopback; elsewhere it must be said.
#auth = "open"  # example
# The domain below which the names are. (reload)
#domain = "elkobroker."
# Seconds for which resolvers may keep a response, also that there is none, 0 to 3600. (reload)
#ttl = 5
# Responses by UDP that one address gets in a second, and its network (/24, or /56 of IPv6) four times as many: source
# addresses can be forged, and responses are longer than queries. Further ones are dropped, or have the client ask again
# by TCP. 0 is no limit. (reload)
#rate = 50.0
# Responses that one address may get at once before `rate` counts. (reload)
#burst = 200
# Have `rate` count for addresses of this machine as well. (reload)
#limit_loopback = false
# Open TCP connections, from 1. Over it, the one that is idle for the longest time is closed. (reload)
#connections = 2000
# Those of one address; further ones are closed. Loopback addresses count. 0 is no bound. (reload)
#connections_per_address = 500
# Seconds between two queries on a connection, 0.1 to 3600; then it is closed. (reload)
#idle = 10.0
# Seconds in which a client must read something of what it was sent, 0.1 to 86400. (reload)
#stalled_after = 30.0
"""

SECTION: Section[Dns] = Section(
    name=WIRE,
    values=Dns,
    default=Dns(),
    problems=_problems,
    bindings=_bindings,
    summary=_summary,
    warnings=_warnings,
    reloadable=(
        "domain",
        "ttl",
        "rate",
        "burst",
        "limit_loopback",
        "connections",
        "connections_per_address",
        "idle",
        "stalled_after",
    ),
    example=EXAMPLE,
)
