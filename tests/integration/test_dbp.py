"""DBP from outside: registering and finding across wires, heartbeats and their end, restarts, and bad neighbours.

The file is longer than others: its tests share one daemon, which is expensive to start.
"""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from broker.wires.dbp.codec.dbp_datagrams import MAX_DATAGRAM
from tests.integration.daemon import Daemon, Peer
from tests.integration.dbp_nodes import LONGEST, NOWHERE, Answering, Node, Nodes, Service, configured
from tests.integration.mc0_clients import console, counters, shown, whole_log
from tests.patience import PATIENCE, takes_less_than, until

LONGEST_FRAME = 100_000
"""The value of ``max_message`` in these tests."""

LATEST = 3.2
"""Seconds after a node was killed, with one second and three of them agreed, until everybody knows."""

EARLIEST = 1.9
"""The same: its last heartbeat was sent at most a second before."""

FAST = {"heartbeat_ms": 200, "liveness": 5, "ip": "127.0.0.1", "port": NOWHERE}
"""A service that is gone after a second of silence."""

SLOW = {"heartbeat_ms": 60_000, "ip": "127.0.0.1", "port": NOWHERE}
"""A service that does not expire while it is tested."""

HERMES = {"interfaces": {"router": {"ip": "127.0.0.1", "port": 5247}}, "reg_time": "Sat Nov 21 07:37:01 2026"}
"""The registration of a service of the original, which sends nothing else."""

BEACON_PORT = 5245
"""The port at which nodes of the original wait for a beacon."""


@pytest.fixture(scope="module")
def beacons() -> Iterator[socket.socket]:
    """A socket that waits for the beacon of this module's daemon, at a port of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waiting:
        waiting.bind(("", 0))
        waiting.settimeout(PATIENCE)
        yield waiting


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, beacons: socket.socket) -> Iterator[Daemon]:
    """One daemon for many tests; in the end it must have had no defect, and sent beacons where beacons go."""
    directory = tmp_path_factory.mktemp("dbp")
    port = beacons.getsockname()[1]
    keys = f'beacon = ["127.255.255.255"]\nbeacon_port = {port}\nmax_message = {LONGEST_FRAME}'
    with Daemon(directory, *configured(directory, keys)) as running:
        only = b"SHALOM %d" % running.dbp_port()
        yield running
        running.signal(signal.SIGTERM)
        log = whole_log(running)
        assert "Traceback" not in log
        assert " critical " not in log
        beacons.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                assert beacons.recv(LONGEST) == only


@pytest.fixture
def nodes(daemon: Daemon) -> Iterator[Nodes]:
    with Nodes(daemon) as nodes:
        yield nodes


def found(daemon: Daemon, name: str) -> list[dict[str, Any]]:
    """Return the services that a peer of Elko finds."""
    with daemon.connect() as customer:
        desc: list[dict[str, Any]] = customer.ask(to="client", op="find", service=name)["desc"]
        return [each for each in desc if "failure" not in each]


def notice(admin: Peer, name: str) -> bool:
    """Return True if the next notice of a service to a watching administrator is its offer."""
    while True:
        message = admin.receive()
        if any(desc["service"] == name for desc in message["desc"]):
            return bool(message["on"])


# across wires


def test_a_service_that_registers_by_dealer_is_found_by_elko(daemon: Daemon, nodes: Nodes) -> None:
    node = nodes.dealer()
    approved = node.ask("UwU", {"name": "by dealer", "ip": "127.0.0.1", "port": 7000, "heartbeat": 5})
    assert approved == [b"OwO", b'{"heartbeat": 5000, "liveness": 3}', b"", b""]
    [desc] = found(daemon, "by dealer")
    assert (desc["hostport"], desc["protocol"]) == ("127.0.0.1:7000", "tcp")


def test_so_is_one_of_the_original_that_updates_later(daemon: Daemon, nodes: Nodes) -> None:
    assert nodes.hermes().ask("UwU", {"name": "original", **HERMES, "topics": None}) == [b"OwO", b""]
    assert nodes.hermes().ask("UoU", {"name": "original", "topics": ["a", "b"]}) == [b"u.u", b""]
    client = nodes.hermes()
    assert client.find("original") == {"original": {**HERMES, "topics": ["a", "b"]}}
    assert client.find()["original"] == {**HERMES, "topics": ["a", "b"]}
    assert client.find("nobody") == {"Error": "No Registered Service With the Name nobody"}
    [desc] = found(daemon, "original")
    assert desc["hostport"] == "127.0.0.1:5247"


# heartbeats


def test_heartbeats_by_udp_are_returned_until_they_end(daemon: Daemon, nodes: Nodes) -> None:
    with daemon.connect("admin") as admin:
        admin.send(to="admin", op="watch", services=True)
        nodes.hermes().registered("beating", **FAST)
        assert notice(admin, "beating")
        udp = nodes.udp()
        for _ in range(5):
            udp.beat("beating")
            assert udp.heartbeat() == b"elkobroker"
        assert not notice(admin, "beating")
        assert udp.hear() == [b"</3"]
    assert found(daemon, "beating") == []
    assert "inactive" in nodes.dealer().find("beating")["status"]


def test_heartbeats_by_dealer_are_returned_too_and_those_of_a_req_acknowledged(nodes: Nodes) -> None:
    node = nodes.dealer().registered("by zmq", **FAST)
    for _ in range(3):
        node.say("<3", "by zmq")
        assert node.heartbeat() == b"elkobroker"
    assert nodes.req().ask("<3", "by zmq") == [b"u.u"]
    assert nodes.hermes().ask("<3", "by zmq") == [b"u.u", b""]
    assert node.hear() == [b"</3"]


def test_everybody_knows_in_time_that_a_node_was_killed(daemon: Daemon) -> None:
    with daemon.connect("admin") as admin:
        admin.send(to="admin", op="watch", services=True)

        def known_after() -> float:
            with Service(daemon.dbp_port(), "killed", 1.0) as service:
                assert json.loads(service.says("registered: ")) == {"heartbeat": 1000, "liveness": 3}
                assert notice(admin, "killed")
                assert found(daemon, "killed") != []
                service.process.kill()
                killed = time.monotonic()
                assert not notice(admin, "killed")
                took = time.monotonic() - killed
                assert took >= EARLIEST
                return took

        takes_less_than(LATEST, known_after)


@pytest.mark.long
def test_a_node_whose_datagrams_are_lost_stays_while_it_answers(daemon: Daemon, nodes: Nodes) -> None:
    with Answering() as own:
        node = nodes.dealer().registered("fallen back", **{**FAST, "port": own.port})
        nodes.udp().beat("fallen back")
        until(lambda: len(own.asked) >= 6)  # three of them are asked in the time that it has
        assert own.asked[0] == [b"", b"<3", b"elkobroker"]
        [desc] = found(daemon, "fallen back")
        assert desc["hostport"] == f"127.0.0.1:{own.port}"
        own.close()
        assert node.hear() == [b"</3"]
        assert found(daemon, "fallen back") == []


def test_a_node_that_says_good_bye_is_gone_at_once(daemon: Daemon, nodes: Nodes) -> None:
    node = nodes.dealer().registered("by zmq", **SLOW)
    node.say("</3")
    nodes.req().registered("by udp", **SLOW)
    udp = nodes.udp()
    udp.send(b" </3 1795246600 by udp")
    until(lambda: not found(daemon, "by zmq") and not found(daemon, "by udp"))
    assert node.hears_nothing(0)
    assert udp.hears_nothing()


def test_the_console_shows_services_and_how_they_live(daemon: Daemon, nodes: Nodes) -> None:
    nodes.hermes().registered("shown-1", **HERMES)
    nodes.dealer().registered("shown-2", **SLOW)
    udp = nodes.udp()
    udp.beat("shown-2")
    until(lambda: "udp" in shown(daemon, "dbp services shown-2")[0])
    lasting, beating = shown(daemon, "dbp services shown-*")
    assert (lasting["service"], lasting["hostport"], lasting["contract"]) == ("shown-1", "127.0.0.1:5247", False)
    assert (beating["service"], beating["contract"], beating["connected"]) == ("shown-2", True, True)
    assert (beating["interval"], beating["liveness"], beating["udp"]) == (60.0, 3, udp.address)
    assert 0 <= beating["heard"] < PATIENCE
    assert lasting["provider"] < beating["provider"]


# the beacon


def test_the_beacon_calls_and_nothing_else_goes_there(daemon: Daemon, nodes: Nodes, beacons: socket.socket) -> None:
    """Any other datagram there is found when the daemon has ended."""
    port = daemon.dbp_port()
    nodes.hermes().registered("at the port of beacons", **FAST)
    before = counters(daemon)["dbp_heartbeats.udp"]
    beacons.sendto(b" <3 1795246600 unknown", ("127.0.0.1", port))
    for _ in range(3):
        beacons.sendto(b" <3 1795246600 at the port of beacons", ("127.0.0.1", port))
        data, source = beacons.recvfrom(LONGEST)
        assert (data, source) == (b"SHALOM %d" % port, ("127.0.0.1", port))
    assert counters(daemon)["dbp_heartbeats.udp"] >= before + 1
    until(lambda: not found(daemon, "at the port of beacons"))


def test_a_node_finds_the_broker_as_those_of_the_original_do(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waiting:
        waiting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            waiting.bind(("", BEACON_PORT))
        except OSError:
            pytest.skip("somebody else has the port of beacons for himself")
        waiting.settimeout(PATIENCE)
        with Daemon(tmp_path) as daemon, Nodes(daemon) as nodes:
            data, source = b"", ("", 0)
            while source != ("127.0.0.1", nodes.port):  # there may be other brokers on this machine
                data, source = waiting.recvfrom(1024)
            address = f"tcp://{source[0]}:{data.decode('utf-8').split(' ')[1]}"
            assert address == nodes.address
            assert nodes.hermes().registered("Rohan", **HERMES).find("Rohan") == {"Rohan": HERMES}


# restarts


def stored(directory: Path, name: str) -> bool:
    """Return True if a service is in the store."""
    database = directory / "state" / "elkobroker.sqlite3"
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection:
        [count] = connection.execute("SELECT count(*) FROM provider WHERE described LIKE ?", (f"%{name}%",)).fetchone()
    return bool(count)


def test_after_a_kill_those_that_register_once_are_there_and_the_others_are_told_to(tmp_path: Path) -> None:
    with Daemon(tmp_path, *configured(tmp_path)) as daemon, Nodes(daemon) as nodes:
        port = nodes.port
        nodes.hermes().registered("lasting", **HERMES)
        dealer = nodes.dealer().registered("beating", **SLOW)
        udp = nodes.udp()
        udp.beat("beating")
        until(lambda: counters(daemon)["dbp_heartbeats.udp"])
        until(lambda: stored(tmp_path, "lasting") and stored(tmp_path, "beating"))
        daemon.signal(signal.SIGKILL)
        daemon.ended()
        with Daemon(tmp_path, *configured(tmp_path, f'endpoint = "tcp://127.0.0.1:{port}"')) as again:
            assert again.dbp_port() == port
            assert nodes.hermes().find() == {"lasting": HERMES}
            assert [desc["hostport"] for desc in found(again, "lasting")] == ["127.0.0.1:5247"]
            udp.beat("beating")
            assert udp.hear() == [b"</3"]
            dealer.say("<3", "beating")  # over the connection that ZeroMQ has made again
            assert dealer.hear() == [b"</3"]
            nodes.dealer().registered("beating", **SLOW)
            assert set(nodes.hermes().find()) == {"lasting", "beating"}
            udp.beat("beating")
            until(lambda: counters(again)["dbp_heartbeats.udp"])


def test_a_broker_that_stops_says_good_bye_and_the_example_comes_again(tmp_path: Path) -> None:
    with Daemon(tmp_path, *configured(tmp_path)) as daemon, Nodes(daemon) as nodes:
        port = nodes.port
        dealer = nodes.dealer().registered("by zmq", **SLOW)
        lasting = nodes.dealer().registered("lasting")
        original = nodes.hermes().registered("original", **HERMES)
        nodes.req().registered("by udp", **SLOW)
        udp = nodes.udp()
        udp.beat("by udp")
        until(lambda: counters(daemon)["dbp_heartbeats.udp"])
        with Service(port, "example", 0.2) as service:
            service.says("registered")
            daemon.signal(signal.SIGTERM)
            assert dealer.hear() == [b"</3"]
            assert lasting.hear() == [b"</3"]
            assert udp.hear() == [b"</3"]
            service.says("the broker sent us away")
            assert "Traceback" not in whole_log(daemon)
            assert original.hears_nothing(0)
            with Daemon(tmp_path, *configured(tmp_path, f'endpoint = "tcp://127.0.0.1:{port}"')) as again:
                service.says("registered")
                assert set(nodes.hermes().find()) == {"lasting", "original", "example"}
                again.signal(signal.SIGKILL)
                again.ended()
                service.says("the broker is silent")


# bad neighbours


@pytest.fixture
def bystander(nodes: Nodes) -> Node:
    """A service that must not notice anything."""
    return nodes.dealer().registered("bystander", **SLOW)


def is_served(bystander: Node) -> None:
    assert set(bystander.find("bystander")) == {"bystander"}


BAD_DATAGRAMS = [
    b"",
    b" ",
    b"\0",
    b"<3",
    b" <3 ",
    b" <3 now bystander",
    b" <3 1e999 bystander",
    b" <3 1795246600 \xff\xfe",
    b" <3 1795246600 " + b"n" * 256,
    b" </3",
    b" </3 1795246600 " + b"n" * 256,
    b" </3 1795246600 nobody",
    b" u.u 1795246600",
    b"\xff\xfe" * 500,
    b"\x01\x00\x01\x02<3\x01\xff",
    b"\x01\x00\x01\x02<3\x01\x04\0\0\0\0\x00\x02\xff\xfe",
    b"SHALOM 5246",
    b"GONDOR_CALLS_FOR_AID",
    b" <3 1795246600 elkobroker",
    b"GET / HTTP/1.1\r\n\r\n",
    b" <3 1795246600 bystander" + b" " * 1_001,
    bytes(range(256)) * 4,
    bytes(65_507),
    b" <3 1795246600 " + b"b" * 65_000,
]


def test_bad_datagrams_are_not_answered_and_harm_nobody(daemon: Daemon, nodes: Nodes, bystander: Node) -> None:
    before = counters(daemon)
    stranger = nodes.udp()
    for data in BAD_DATAGRAMS:
        stranger.send(data)
    until(lambda: counters(daemon)["dbp_datagrams.received"] >= before["dbp_datagrams.received"] + len(BAD_DATAGRAMS))
    after = counters(daemon)
    assert after["dbp_heartbeats.udp"] == before["dbp_heartbeats.udp"]
    oversized = sum(len(data) > MAX_DATAGRAM for data in BAD_DATAGRAMS)
    assert after["dbp_datagrams.oversized"] - before["dbp_datagrams.oversized"] == oversized == 3
    assert after["dbp_datagrams.failed"] == 0
    assert stranger.hears_nothing()
    is_served(bystander)
    nodes.udp().beat("bystander")
    until(lambda: counters(daemon)["dbp_heartbeats.udp"] > before["dbp_heartbeats.udp"])


def test_a_valid_but_unexpected_message_is_answered_by_a_good_bye_and_a_close(nodes: Nodes, bystander: Node) -> None:
    for command in ("o_O", "OwO", "(O_O)", "OmO", "<3", "u.u"):
        node = nodes.dealer()
        assert node.ask(command, "nobody") == [b"</3"]
        node.client.cut_off()
        is_served(bystander)
    assert bystander.ask("UwU", {"name": "bystander 2"}) == [b"</3"]


# starting


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with Daemon(tmp_path, "--dbp-port", "off") as daemon:
        assert "dbp" not in console(daemon, "help")
        assert not any(name.startswith("dbp") for name in counters(daemon))
        daemon.signal(signal.SIGTERM)
        assert "dbp" not in whole_log(daemon)
