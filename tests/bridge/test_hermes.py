"""Nodes in the wire format of Hermes at the brokers of two sites, each in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.access.users import OPEN
from tests.bridge.sites import EVERY, Site, bridge
from tests.cluster.farm.network import Host, Network
from tests.integration.daemon import Daemon
from tests.patience import until

pytestmark = pytest.mark.long

NODE = """
import json, struct, sys, time, zmq
port, command, body = sys.argv[1:]
socket = zmq.Context().socket(zmq.REQ)
socket.setsockopt(zmq.RCVTIMEO, 60_000)
socket.connect(f"tcp://127.0.0.1:{port}")
socket.send_multipart([command.encode(), struct.pack("<f", time.time()), body.encode()])
answer, at, *frames = socket.recv_multipart()
assert len(at) == 4, at
print(json.dumps([answer.decode(), *(frame.decode() for frame in frames)]))
"""
"""A node of Hermes: one REQ socket for each operation, a time of four bytes, one frame behind it."""

ROHAN = {
    "name": "Rohan",
    "interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}},
    "reg_time": "Sat Nov 21 07:37:01 2026",
    "topics": None,
}
"""A registration as it was recorded from Hermes' service."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(["west", "east"]) as network:
        yield network


def node(host: Host, daemon: Daemon, command: str, body: str) -> list[Any]:
    """The answer to a node in the namespace of a broker."""
    run = subprocess.run(
        [*host.runner, sys.executable, "-c", NODE, str(daemon.dbp_port()), command, body],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    answer: list[Any] = json.loads(run.stdout)
    return answer


def test_nodes_find_each_other_over_a_bridge_that_is_cut_and_healed(network: Network, tmp_path: Path) -> None:
    west, east = Site.of("west", tmp_path), Site.of("east", tmp_path)
    here, there = network.hosts["west"], network.hosts["east"]

    def found(name: str) -> Any:
        command, body = node(there, east.daemon, "u_U", name)
        assert command == "o_O"
        return json.loads(body)

    with ExitStack() as running:
        running.enter_context(west.start(bridge(east, **EVERY), more=OPEN, listen="0.0.0.0", runner=here.runner))
        running.enter_context(
            east.start(
                bridge(west, receive_services=["*"], keep=5, connect=f"tcp://{here.address}:{west.port}"),
                more=OPEN,
                listen="0.0.0.0",
                runner=there.runner,
            )
        )
        assert node(here, west.daemon, "UwU", json.dumps(ROHAN)) == ["OwO", ""]
        info = {key: value for key, value in ROHAN.items() if key != "name"}
        until(lambda: found("Rohan") == {"Rohan": info})
        assert found("") == {"Rohan": info}
        assert node(here, west.daemon, "UoU", json.dumps({"name": "Rohan", "topics": ["a", "b"]})) == ["u.u", ""]
        until(lambda: found("Rohan") == {"Rohan": {**info, "topics": ["a", "b"]}})
        network.cut("west", "east")
        until(lambda: "Error" in found("Rohan"))
        network.heal("west", "east")
        until(lambda: found("Rohan") == {"Rohan": {**info, "topics": ["a", "b"]}})
