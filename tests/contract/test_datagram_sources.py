"""Answers by UDP on a host with several addresses: they come from the address that was asked.

A wildcard address accepts datagrams to each of them, and the system would choose the source by the route to the peer.
Resolvers and firewalls discard an answer from an address that was not asked.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import zmq

from tests.access.users import OPEN
from tests.contract.newcomers import QUERY
from tests.integration.daemon import Daemon
from tests.integration.dbp_nodes import Node, text
from tests.integration.mc0_clients import Clients
from tests.patience import PATIENCE

ASKED = "127.0.0.2"
"""An address of the host besides the one that the system chooses on loopback."""

PEER = "127.0.0.1"

CONFIG = """
[http]
enabled = false
[mtl]
enabled = false
[mc0]
enabled = false
[dbp]
endpoint = "tcp://*:0"
beacon = []
[dns]
enabled = true
endpoint = 'tcp:0:interface={any}'
"""

ASKS = {
    "dns": (r"dns on \S+:(\d+) \(udp and tcp\)", QUERY),
    "dbp": (r"dbp on \S+ \(udp \S+:(\d+)", b" <3 1.5 nobody"),
}
"""By wire: the log line with the UDP port, and a datagram that is answered."""


@pytest.fixture(scope="module", params=["0.0.0.0", r"\:\:"])
def wildcard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("wildcard")
    config = directory / "broker.toml"
    config.write_text(CONFIG.format(any=request.param) + OPEN)
    with Daemon(directory, "--config", str(config)) as daemon:
        yield daemon


@pytest.mark.parametrize("wire", ASKS)
def test_an_answer_comes_from_the_address_that_was_asked(wildcard: Daemon, wire: str) -> None:
    line, datagram = ASKS[wire]
    port = int(wildcard.wait_for(line).group(1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((PEER, 0))
        peer.settimeout(PATIENCE)
        peer.sendto(datagram, (ASKED, port))
        _, source = peer.recvfrom(65_536)
    assert source == (ASKED, port)


def test_heartbeats_to_a_service_come_from_the_address_that_it_asked_last(wildcard: Daemon) -> None:
    port = int(wildcard.wait_for(ASKS["dbp"][0]).group(1))
    with Clients(f"tcp://{PEER}:{port}") as clients, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        Node(clients.new(kind=zmq.REQ), text).registered("beating")
        peer.bind((PEER, 0))
        peer.settimeout(PATIENCE)
        for asked in (ASKED, "127.0.0.3", PEER):
            peer.sendto(b" <3 1.5 beating", (asked, port))
            while peer.recvfrom(65_536)[1] != (asked, port):
                pass  # one that was sent before
