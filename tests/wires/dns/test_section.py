"""The section ``[dns]``: its checks, what ``--check`` says of it, where it listens, and its option."""

from __future__ import annotations

import pytest

from broker.config.key import Binding
from broker.wires.dns.dns_settings import SECTION, Dns

ELSEWHERE = "tcp:53:interface=192.0.2.1"


def problems(**keys: object) -> list[str]:
    """The keys that are wrong, where it is switched on."""
    return [problem.key for problem in SECTION.problems(Dns(enabled=True, **keys))]  # type: ignore[arg-type]


def warnings(**keys: object) -> list[str]:
    return list(Dns(**keys).warnings(lambda name: True))  # type: ignore[arg-type]


def test_the_defaults_are_right() -> None:
    assert list(SECTION.problems(Dns())) == []
    assert problems() == []
    assert list(Dns().summary()) == []
    assert list(SECTION.bindings(Dns())) == []


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"endpoint": "tcp:53"}, []),
        ({"endpoint": ELSEWHERE}, []),
        ({"endpoint": r"tcp:53:interface=\:\:1"}, []),
        ({"endpoint": "tcp:0:interface=localhost"}, []),
        ({"endpoint": "unix:/run/dns"}, ["dns.endpoint"]),
        ({"endpoint": "tls:853:certificate=/c:key=/k"}, ["dns.endpoint"]),
        ({"endpoint": "systemd:domain=INET:index=0"}, ["dns.endpoint"]),
        ({"endpoint": "127.0.0.1:9053"}, ["dns.endpoint"]),
        ({"domain": "farm.example.com"}, []),
        ({"domain": "."}, ["dns.domain"]),
        ({"domain": ""}, ["dns.domain"]),
        ({"domain": "a b."}, ["dns.domain"]),
        ({"domain": "é."}, ["dns.domain"]),
        ({"domain": f"{'a' * 60}.{'b' * 60}"}, ["dns.domain"]),
        ({"ttl": -1}, ["dns.ttl"]),
        ({"ttl": 3_601}, ["dns.ttl"]),
        ({"ttl": 0}, []),
        ({"response_rate": -1.0}, ["dns.response_rate"]),
        ({"response_rate": float("nan")}, ["dns.response_rate"]),
        ({"response_rate": 0.0}, []),
        ({"response_burst": 0}, ["dns.response_burst"]),
        ({"connections": 0}, ["dns.connections"]),
        ({"connections_per_address": -1}, ["dns.connections_per_address"]),
        ({"idle": 0.0}, ["dns.idle"]),
    ],
)
def test_problems(keys: dict[str, object], wrong: list[str]) -> None:
    assert problems(**keys) == wrong


def test_both_sockets_are_bound_to_one_address() -> None:
    bindings = list(SECTION.bindings(Dns(enabled=True)))
    assert [(each.key, each.title, each.where.where, each.datagrams) for each in bindings] == [
        ("dns.endpoint", "dns", "127.0.0.1:9053", False),
        ("dns.endpoint", "dns", "127.0.0.1:9053", True),
    ]
    assert isinstance(bindings[0], Binding)
    assert list(SECTION.bindings(Dns(enabled=True, endpoint="unix:/x"))) == []


def test_the_summary() -> None:
    assert list(Dns(enabled=True, domain="Farm.example", response_rate=0.0, ttl=1).summary()) == [
        "dns: bound to udp and tcp 127.0.0.1:9053, domain farm.example., ttl 1 s, responses by udp unlimited"
    ]
    [line] = Dns(enabled=True).summary()
    assert line.endswith("responses by udp 50 a second for each address")


def test_only_an_endpoint_outside_loopback_has_warnings() -> None:
    assert warnings() == warnings(enabled=True) == warnings(enabled=True, response_rate=0.0) == []
    assert warnings(enabled=True, endpoint=ELSEWHERE) == [
        "dns: no authentication: every program that reaches 192.0.2.1:53 is the user anonymous"
    ]
    found = warnings(enabled=True, endpoint=ELSEWHERE, response_rate=0.0)
    assert [warning.split(":")[0] for warning in found] == ["dns", "dns.response_rate"]


def test_the_option_moves_it_to_a_port_of_loopback_or_switches_it_off() -> None:
    assert SECTION.option is not None
    use = SECTION.option.use
    assert use(Dns(ttl=9), 1053) == Dns(enabled=True, endpoint="tcp:1053:interface=127.0.0.1", ttl=9)
    assert use(Dns(enabled=True), None) == Dns()
