"""Addresses of services: each wire refuses the same ones with the same reason, and marks the same ones."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from twisted.logger import capturedLogs

from broker.core.errors import Reason, Refusal
from broker.core.hostports import MAX_REMARKS, check_hostport, hostport_remark
from broker.operate.broker_tables import service_row
from broker.rest.problem import Problem
from broker.wires.elko.sessions.authentication import Policy
from tests.contract.wires import WIRES
from tests.wires.dbp.recording import DbpFarm
from tests.wires.elko.director_recording import DirectorFarm, reserve
from tests.wires.http.recording import HttpFarm
from tests.wires.recording import ElkoFarm, desc

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


@pytest.mark.parametrize("hostport", REFUSED, ids=repr)
def test_the_director_sends_no_user_to_it(hostport: str) -> None:
    farm = DirectorFarm()
    server = farm.authenticated("provider")
    server.say("provider", "willserve", context="room")
    [diagnostic] = server.ask("provider", "address", protocol="tcp", hostport=hostport)
    assert REFUSED[hostport] in diagnostic["msg"]
    assert "deny" in reserve(farm.user(), "room-1")


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
        ("h:٣", "no host:port"),
        ("h:000", "no port"),
        ("192.0.2.1:80", ""),
        ("bank.example.com:80", ""),
    ],
)
def test_an_address_that_does_not_serve_every_client_has_a_remark(hostport: str, remark: str) -> None:
    found = hostport_remark(hostport)
    assert (remark in found) if remark else found == ""


@pytest.mark.parametrize("wire", [name for name in OFFERING if name != "dbp"])  # where the port is a field apart
@pytest.mark.parametrize("digit", ["1", "٣"])
def test_a_port_of_thousands_of_digits_makes_no_wire_fail(wire: str, digit: str) -> None:
    farm = ElkoFarm()
    provider = WIRES[wire](farm).provider("provider")
    with suppress(Refusal, Problem, AssertionError), capturedLogs() as events:
        provider.offer("bank", f"h:{digit * 5_000}")
    assert not [each for each in events if "log_failure" in each]
    assert not farm.registry.find("bank", "tcp") or digit == "٣", "other digits are free text"


@pytest.mark.parametrize("wire", OFFERING)
def test_each_wire_accepts_and_marks_it(wire: str) -> None:
    farm = ElkoFarm()
    WIRES[wire](farm).provider("provider").offer("bank", "169.254.1.1:80")
    [service] = farm.registry.find("bank", "tcp")
    assert "link-local" in str(service_row(farm.registry, service).get("remark"))


def _elko_says(farm: ElkoFarm, hostport: str, address: str) -> list[str]:
    client = farm.client("server", address=f"{address}:40001")
    told = client.ask("client", "willserve", services=[desc("bank", hostport)])
    return [remark for each in told for remark in each["msg"].removeprefix("willserve: ").split("; ")]


def _dbp_says(farm: ElkoFarm, hostport: str, address: str) -> list[str]:
    host, _, port = hostport.rpartition(":")
    [answer] = DbpFarm(registry=farm.registry).dealer(address).register("bank", ip=host, port=int(port))
    return list(json.loads(answer[2]).get("warnings", ()))


def _http_says(farm: ElkoFarm, hostport: str, address: str) -> list[str]:
    return list(HttpFarm(farm).put("bank", "1", hostport, address).json.get("warnings", ()))


SAYING = {"elko": _elko_says, "dbp": _dbp_says, "http": _http_says}
"""The remarks of the broker on an offer, by the wire: a Confirm of MTL has no place for them."""


@pytest.mark.parametrize("wire", SAYING)
def test_the_peer_that_registers_it_is_sent_the_remark(wire: str) -> None:
    says = SAYING[wire]
    reason = "it is a link-local address: clients behind a router do not reach it"
    assert says(ElkoFarm(), "169.254.1.1:80", "192.0.2.1") == [f"hostport '169.254.1.1:80': {reason}"]
    assert says(ElkoFarm(), "bank.example.com:80", "192.0.2.1") == []
    # DBP replaces a loopback address of a peer on another host.
    assert len(says(ElkoFarm(), "127.0.0.1:80", "192.0.2.1")) == (wire != "dbp")
    # HTTP has a member of the answer for it, and says it to each peer.
    assert len(says(ElkoFarm(), "127.0.0.1:80", "127.0.0.1")) == (wire == "http")


def test_remarks_on_one_offer_are_bounded_and_are_sent_together() -> None:
    farm = ElkoFarm()
    offered = [desc(f"bank-{number}", f"169.254.1.{number}:80") for number in range(200)]
    [told] = farm.client("server").ask("client", "willserve", services=offered)
    assert told["msg"].startswith("willserve: hostport '169.254.1.0:80': it is a link-local address")
    assert told["msg"].count("link-local") == MAX_REMARKS
    assert told["msg"].endswith(" more")
    assert len(farm.registry.services()) >= 200


def test_an_address_that_is_refused_has_no_remark_besides() -> None:
    [told] = ElkoFarm().client("server").ask("client", "willserve", services=[desc("bank", "not a host port")])
    assert told["msg"] == "willserve: hostport 'not a host port' has white space or a control character"


def test_a_listener_without_diagnostics_sends_no_remarks() -> None:
    client = ElkoFarm().client("server", policy=Policy(diagnostics=False))
    assert client.ask("client", "willserve", services=[desc("bank", "169.254.1.1:80")]) == []
