"""Checks of the values of DNS, and the values that follow from them."""

from __future__ import annotations

from collections.abc import Iterator

from broker.config.checks import unless_said
from broker.config.endpoint import BadEndpoint, Endpoint, parse
from broker.config.problem import Problem, in_ranges
from broker.wires.dns.codec.hosts import Labels, host_labels, wire_length
from broker.wires.dns.config import Dns

MAX_DOMAIN = 100
"""Bytes of the domain in wire format, so that names of services below it have room."""

RANGES: dict[str, tuple[float, float]] = {
    # 0 keeps resolvers from caching; after an hour nothing is current
    "ttl": (0, 3_600),
    # 0 is no limit
    "response_rate": (0, 1_000_000),
    "response_burst": (1, 1_000_000),
    # as those of a listener
    "connections": (1, 1_000_000),
    "connections_per_address": (0, 1_000_000),
    # a client needs a round trip; RFC 7766 advises seconds
    "idle": (0.1, 3_600),
    # as that of a listener
    "stalled_after": (0.1, 86_400),
}
"""The least and the most of each number, in the units of `Dns`."""


def dns_place(dns: Dns) -> Endpoint | None:
    """Return the endpoint, or None where nothing can be bound to it."""
    try:
        return _place(dns)
    except BadEndpoint:
        return None


def dns_domain(dns: Dns) -> Labels | None:
    """Return the labels of the domain in lower case, or None if it is none."""
    labels = host_labels(dns.domain)
    return None if labels is None or wire_length(labels) > MAX_DOMAIN else labels


def dns_host(where: Endpoint) -> str:
    """Return the IP address that an endpoint is bound to."""
    return {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(where.interface, where.interface)


def dns_problems(dns: Dns) -> Iterator[Problem]:
    """Yield what is wrong with the values of DNS."""
    try:
        where = _place(dns)
    except BadEndpoint as error:
        yield Problem("dns.endpoint", str(error))
    else:
        if dns.enabled and dns.auth is None:
            yield from unless_said(
                "dns.auth",
                where,
                ' and DNS has no authentication: "open", which answers every program that reaches it',
            )
    if dns_domain(dns) is None:
        yield Problem("dns.domain", f"{dns.domain!r} is no domain name of less than {MAX_DOMAIN} characters")
    yield from in_ranges("dns", dns, RANGES)


def _place(dns: Dns) -> Endpoint:
    where = parse(dns.endpoint)
    if where.kind != "tcp":
        raise BadEndpoint("must be tcp:PORT:interface=ADDRESS: UDP is bound to the same address and port")
    return where
