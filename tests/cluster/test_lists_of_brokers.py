"""The list of brokers as clients of each wire get it from any broker: HTTP, Elko and DNS."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.wires.dns.codec import dns_response
from tests.cluster.brokers import Broker, Brokers
from tests.integration.daemon import Daemon
from tests.integration.http_api import call
from tests.patience import until

DNS = '[dns]\nenabled = true\nendpoint = "tcp:0:interface=127.0.0.1"\n'


def links(broker: Daemon, method: str, path: str, body: object = None) -> tuple[int, list[str]]:
    """The status of an answer, and the URLs of its header Link."""
    status, _, headers = call(broker, method, path, body)
    found = headers["Link"].split(", ") if "Link" in headers else []
    assert all(each.endswith('; rel="alternate"') for each in found)
    return status, [each.partition(">")[0][1:] for each in found]


def elko(broker: Daemon) -> list[str]:
    """The brokers that an Elko client finds."""
    with broker.connect() as client:
        found = client.ask(to="client", op="find", service="broker-client")["desc"]
        return sorted(each["hostport"] for each in found if "hostport" in each)


def ports(broker: Daemon, name: str, type: int) -> list[int]:
    """The ports of the SRV records of a name, the lengths of those of another type, or the negative response code."""
    question = b"".join(bytes([len(each)]) + each.encode() for each in name.split(".")) + b"\0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", int(broker.wait_for(r"dns on \S+:(\d+) ")[1])))
        client.send(struct.pack(">6H", 1, 0, 1, 0, 0, 0) + question + struct.pack(">2H", type, 1))
        response = client.recv(4096)
    if code := response[3] & 15:
        return [-code]
    at, found = 12 + len(question) + 4, []
    for _ in range(struct.unpack_from(">6H", response)[3]):
        [length] = struct.unpack_from(">H", response, at + 10)
        found.append(struct.unpack_from(">H", response, at + 16)[0] if type == dns_response.SRV else length)
        at += 12 + length
    return sorted(found)


def test_clients_of_each_wire_get_the_list_of_brokers(tmp_path: Path) -> None:
    with Brokers(tmp_path) as farm:
        a, b = (farm.start(name, config=DNS) for name in "ab")
        urls = {each.name: f"http://127.0.0.1:{each.http_port()}/" for each in (a, b)}

        def sees(what: Callable[[], object], wanted: object) -> None:
            until(lambda: what() == wanted, f"{wanted}")

        for here, other in ((a, b), (b, a)):

            def srv(name: str, broker: Broker = here) -> list[int]:
                return ports(broker, name, dns_response.SRV)

            sees(lambda: links(here, "GET", "/v1/services/bank"), (200, [urls[other.name]]))  # noqa: B023
            sees(lambda: elko(here), sorted(f"127.0.0.1:{each.port()}" for each in (a, b)))  # noqa: B023
            sees(lambda: srv("_http._tcp.broker.elkobroker"), sorted(each.http_port() for each in (a, b)))
            sees(lambda: srv("_ELKO._tcp.broker.elkobroker"), sorted(each.port() for each in (a, b)))
            assert ports(here, "broker.elkobroker", dns_response.A) == [4]
            assert srv("_tcp.broker.elkobroker") == []
            assert srv("_none._tcp.broker.elkobroker") == srv("x.y.broker.elkobroker") == [-3]
        # The list is in a registration and in a refusal, too, and in none of an operator's answers.
        assert links(a, "PUT", "/v1/services/bank/1", {"hostport": "h:1"}) == (201, [urls["b"]])
        assert links(a, "GET", "/v1/status") == (200, [])
        a.call("POST", "/v1/actions/drain", {"deadline": 60})
        assert links(a, "GET", "/v1/services/bank") == (503, [urls["b"]])
        a.call("POST", "/v1/actions/drain", {"undo": True})
        # A broker that has gone is in no list.
        farm.stop("b")
        sees(lambda: links(a, "GET", "/v1/services/bank"), (200, []))
        sees(lambda: elko(a), [f"127.0.0.1:{a.port()}"])
        assert not any("raceback" in line for line in [*a.log, *b.log])


@pytest.mark.parametrize(("name", "found"), [("broker.elkobroker", [4]), ("_http._tcp.broker.elkobroker", [-3])])
def test_a_broker_alone_has_its_own_address_at_most(tmp_path: Path, name: str, found: list[int]) -> None:
    file = tmp_path / "x.toml"
    file.write_text(DNS + '[elko]\n[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    with Broker(
        tmp_path, "--config", str(file), "--mc0-port", "off", "--dbp-port", "off", "--mtl-port", "off"
    ) as alone:
        alone.wait_for("console on")
        assert ports(alone, name, dns_response.A) == found
        assert links(alone, "GET", "/v1/services/bank") == (200, [])
