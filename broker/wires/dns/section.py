"""The section ``[dns]`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

from broker.config.section import Binding, PortOption, Resolves, Section
from broker.wires.dns.config import Dns
from broker.wires.dns.validation import dns_domain, dns_place, dns_problems


def _bindings(dns: Dns) -> Iterator[Binding]:
    where = dns_place(dns)
    if dns.enabled and where is not None:
        yield Binding("dns.endpoint", "dns", where)
        yield Binding("dns.endpoint", "dns", where, datagrams=True)


def _summary(dns: Dns) -> Iterator[str]:
    where, domain = dns_place(dns), dns_domain(dns)
    if not dns.enabled or where is None or domain is None:
        return  # it is off unless it is asked for
    shown = b".".join(domain).decode("ascii")
    rate = f"{dns.response_rate:g} a second for each address" if dns.response_rate else "unlimited"
    yield f"dns: bound to udp and tcp {where.where}, domain {shown}., ttl {dns.ttl} s, responses by udp {rate}"


def _warnings(dns: Dns, resolves: Resolves) -> Iterator[str]:
    where = dns_place(dns)
    if not dns.enabled or where is None or where.loopback:
        return
    yield f"dns: open: every program that reaches {where.where} may find every service that has no secret"
    if not dns.response_rate:
        yield "dns.response_rate: responses are not limited: with a forged address they can be made to flood a victim"


def _port(dns: Dns, port: int | None) -> Dns:
    if port is None:
        return attrs.evolve(dns, enabled=False)
    return attrs.evolve(dns, enabled=True, endpoint=f"tcp:{port}:interface=127.0.0.1")


SECTION = Section(
    "dns",
    Dns,
    Dns(),
    dns_problems,
    _bindings,
    _summary,
    _warnings,
    reloadable=(
        "domain",
        "ttl",
        "response_rate",
        "response_burst",
        "limit_loopback",
        "connections",
        "connections_per_address",
        "idle",
        "stalled_after",
    ),
    option=PortOption("dns-port", "Port of DNS on 127.0.0.1, UDP and TCP, or 'off' [default: off]", _port),
    example=Path(__file__).with_name("example.toml"),
)
"""The section ``[dns]``."""
