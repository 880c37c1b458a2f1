"""The section ``[dns]`` of the configuration: keys, checks, sockets, and the lines of ``--check``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address

import attrs

from broker.access.identity import address_of
from broker.config.endpoint import BadEndpoint, Endpoint, parse
from broker.config.key import Binding, PortOption, Resolves, Section, Settings, key, moved, seconds_key
from broker.config.key_checks import Problem
from broker.net.connection_limits import connections_key, connections_per_address_key
from broker.wires.dns.codec.dns_query import Labels, host_labels, wire_length

MAX_DOMAIN = 100
"""Bytes of the domain in wire format, so that names of services below it have room."""


def _labels(domain: str) -> Labels | None:
    labels = host_labels(domain)
    return None if labels is None or wire_length(labels) > MAX_DOMAIN else labels


def _domain(here: str, domain: str) -> Iterator[Problem]:
    if _labels(domain) is None:
        yield Problem(here, f"{domain!r} is no domain name of less than {MAX_DOMAIN} characters")


@attrs.frozen
class Dns(Settings):
    """The DNS wire: SRV, A, AAAA and TXT records of services, over UDP and TCP, as NAME.service.elkobroker. Services
    with a secret are omitted."""

    enabled: bool = key(False, "Enables the wire.")
    endpoint: str = key(
        "tcp:9053:interface=127.0.0.1",
        'Endpoint of both UDP and TCP: "tcp:PORT:interface=ADDRESS". Port 0 is any free one.',
    )
    domain: str = key("elkobroker.", "Parent domain of all names.", check=_domain, reload=True)
    # 0 keeps resolvers from caching; after an hour nothing is current.
    ttl: int = seconds_key(5, "TTL of all records, and of negative responses.", within=(0, 3_600))
    response_rate: float = key(
        50.0,
        "Responses by UDP to one address a second; its network (/24, or /56 of IPv6) gets four times as many. Source"
        " addresses can be forged, and responses are longer than queries. Further ones are dropped, or make the "
        "client repeat the query by TCP. 0 is no limit.",
        within=(0, 1_000_000),
        reload=True,
    )
    response_burst: int = key(
        200, "Responses to one address at once before `response_rate` applies.", within=(1, 1_000_000), reload=True
    )
    limit_loopback: bool = key(False, "Apply `response_rate` to addresses of this machine as well.", reload=True)
    connections: int = connections_key(
        2_000, "Open TCP connections. Beyond them, the one that is idle for the longest time is closed."
    )
    connections_per_address: int = connections_per_address_key(
        500, "Open connections of one address; further ones are closed. Loopback addresses count. 0 is no limit."
    )
    # A client needs a round trip; RFC 7766 advises seconds.
    idle: float = seconds_key(
        10.0, "Time between two queries, after which a connection is closed.", within=(0.1, 3_600)
    )

    @cached_property
    def place(self) -> Endpoint:
        """The address of both sockets. Raises `BadEndpoint`."""
        where = parse(self.endpoint)
        if where.kind != "tcp":
            raise BadEndpoint("must be tcp:PORT:interface=ADDRESS: UDP is bound to the same address and port")
        return where

    @property
    def host(self) -> str:
        """The IP address that the endpoint is bound to."""
        where = self.place
        return {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(where.interface, where.interface)

    @cached_property
    def labels(self) -> Labels:
        """The labels of the domain, in lower case."""
        labels = _labels(self.domain)
        assert labels is not None, "the configuration was checked"
        return labels

    @cached_property
    def server(self) -> IPv4Address | IPv6Address | None:
        """The address of the name server, if it is bound to a single one. One with a scope cannot be in AAAA."""
        if self.place.wildcard:
            return None
        ip = address_of(self.host)
        return None if isinstance(ip, IPv6Address) and ip.scope_id is not None else ip

    def problems(self, here: str) -> Iterator[Problem]:
        """Yield an endpoint that is none."""
        try:
            _ = self.place
        except BadEndpoint as error:
            yield Problem(f"{here}.endpoint", str(error))

    def bindings(self) -> Iterator[Binding]:
        """Yield both sockets."""
        if self.enabled:
            yield Binding("dns.endpoint", "dns", self.place)
            yield Binding("dns.endpoint", "dns", self.place, datagrams=True)

    def summary(self) -> Iterator[str]:
        """Yield a line if it is on: it is off unless it is asked for."""
        if self.enabled:
            shown = b".".join(self.labels).decode("ascii")
            rate = f"{self.response_rate:g} a second for each address" if self.response_rate else "unlimited"
            where = self.place.where
            yield f"dns: bound to udp and tcp {where}, domain {shown}., ttl {self.ttl} s, responses by udp {rate}"

    def warnings(self, resolves: Resolves) -> Iterator[str]:
        """Yield the risks of an endpoint that other machines reach."""
        if not self.enabled or self.place.loopback:
            return
        yield f"dns: no authentication: every program that reaches {self.place.where} is the user anonymous"
        if not self.response_rate:
            why = "with a forged address they can be made to flood a victim"
            yield f"dns.response_rate: responses are not limited: {why}"


SECTION = Section(
    "dns",
    Dns(),
    PortOption(
        "dns-port",
        "Port of DNS on 127.0.0.1, UDP and TCP, or 'off' [default: off]",
        moved("tcp:{}:interface=127.0.0.1"),
    ),
)
"""The section ``[dns]``."""
