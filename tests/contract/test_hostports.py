"""Addresses of services: each wire refuses the same ones with the same reason, and marks the same ones."""

from __future__ import annotations

from contextlib import suppress

import pytest

from broker.core.errors import Reason, Refusal
from broker.core.hostports import check_hostport, hostport_remark
from broker.operate.broker_tables import service_row
from broker.rest.problem import Problem
from tests.contract.wires import WIRES
from tests.wires.recording import ElkoFarm

OFFERING = [name for name in WIRES if name != "mc0"]
"""The wires that offer services."""

REFUSED = {
    "h:65536": "has a port above 65535",
    "h:123456789": "has a port above 65535",
    "http://h:80": "is a URL",
    "h h:80": "white space",
    "h:80\n": "white space",
}


@pytest.mark.parametrize("hostport", REFUSED, ids=repr)
def test_an_address_that_cannot_be_meant_is_refused_with_the_reason(hostport: str) -> None:
    with pytest.raises(Refusal, match=REFUSED[hostport]) as refused:
        check_hostport(hostport)
    assert refused.value.reason is Reason.PARAMETER


@pytest.mark.parametrize("hostport", ["h:1", "h:65535", "h:0", "[2001:db8::1]:80", "2001:db8::1", "/run/x.sock", ""])
def test_other_addresses_are_accepted(hostport: str) -> None:
    check_hostport(hostport)


@pytest.mark.parametrize("wire", OFFERING)
@pytest.mark.parametrize("hostport", ["h h:80", "h:65536"])
def test_no_wire_registers_it(wire: str, hostport: str) -> None:
    farm = ElkoFarm()
    provider = WIRES[wire](farm).provider("provider")
    with suppress(Refusal, Problem, AssertionError, ValueError):
        provider.offer("bank", hostport)
    # An info of DBP is free: a port that is none in it is left out, and the address marked.
    accepted = wire == "dbp" and hostport == "h:65536"
    assert [each.hostport for each in farm.registry.find("bank", "tcp")] == (["h:0"] if accepted else [])


@pytest.mark.parametrize(
    ("hostport", "remark"),
    [
        ("127.0.0.1:80", "loopback"),
        ("localhost:80", "loopback"),
        ("[::1]:80", "loopback"),
        ("169.254.1.1:80", "link-local"),
        ("[fe80::1%eth0]:80", "link-local"),
        ("172.17.0.2:80", "Docker"),
        ("0.0.0.0:80", "no address to connect to"),
        ("h:0", "no port"),
        ("h", "no host:port"),
        ("192.0.2.1:80", ""),
        ("bank.example.com:80", ""),
    ],
)
def test_an_address_that_does_not_serve_every_client_has_a_remark(hostport: str, remark: str) -> None:
    found = hostport_remark(hostport)
    assert (remark in found) if remark else found == ""


@pytest.mark.parametrize("wire", OFFERING)
def test_each_wire_accepts_and_marks_it(wire: str) -> None:
    farm = ElkoFarm()
    WIRES[wire](farm).provider("provider").offer("bank", "169.254.1.1:80")
    [service] = farm.registry.find("bank", "tcp")
    assert "link-local" in str(service_row(farm.registry, service).get("remark"))
