"""The wiring of DBP: what is there before its sockets are bound, and what is left where one of them cannot be."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from broker.core.model import Provider, Service
from broker.net.listeners import CannotListen
from broker.wires.dbp.codec import dbp_datagrams
from broker.wires.dbp.codec.dbp_datagrams import MAX_DATAGRAM
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.dbp.dbp_wire import OpenDbp, open_dbp
from tests.net.reactors import poll_reactor
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.wires.contexts import context

SERVICE = Service("kept", "127.0.0.1:7000", 7, info='{"ip": "127.0.0.1", "port": 7000}', lasting=True)

KEPT = Provider(7, "kept", "dbp", "127.0.0.1", 0.0, 0.0, (SERVICE,))


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture
def stage() -> Iterator[Any]:
    made: list[OpenDbp] = []

    def make(port: int, **more: Any) -> OpenDbp:
        config = attrs.evolve(Dbp(endpoint=f"tcp://127.0.0.1:{port}", beacon=()), **more)
        made.append(open_dbp(config, context(reactor, [KEPT])))
        return made[-1]

    with poll_reactor() as reactor:
        yield SimpleNamespace(make=make)
        for each in made:
            each.close()


def test_nothing_is_accepted_before_what_is_known_is_restored(stage: Any) -> None:
    port = free_port()
    listener = stage.make(port)
    assert [entry.name for entry in listener.catalogue] == ["kept"]
    assert not accepts(port)
    assert listener.bind("dbp") == f"tcp://127.0.0.1:{port}"
    assert accepts(port)


def test_a_bind_that_fails_leaves_neither_socket_bound_and_may_be_tried_again(stage: Any) -> None:
    port = free_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", port))
        listener = stage.make(port)
        with pytest.raises(CannotListen, match=f"cannot listen on udp 127.0.0.1:{port}: "):
            listener.bind("dbp")
        assert not accepts(port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(CannotListen, match=f"on tcp://127.0.0.1:{port}: "):
        listener.bind("dbp")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", port))
    assert listener.bind("dbp") == f"tcp://127.0.0.1:{port}"
    assert listener.udp_address == f"127.0.0.1:{port}"


def test_where_any_port_will_do_both_sockets_have_the_same(stage: Any) -> None:
    listener = stage.make(0)
    port = int(listener.bind("dbp").rpartition(":")[2])
    assert port > 0
    assert listener.udp_address == f"127.0.0.1:{port}"


def test_a_listener_that_is_opened_in_a_drain_sends_beacons_from_its_end_on(stage: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.bind(("127.0.0.1", 0))
        node.setblocking(False)
        listener = stage.make(0, beacon=("127.0.0.1",), beacon_port=node.getsockname()[1])
        listener.drain()
        port = int(listener.bind("dbp").rpartition(":")[2])
        with pytest.raises(BlockingIOError):
            node.recv(MAX_DATAGRAM)
        listener.undrain()
        assert node.recv(MAX_DATAGRAM) == dbp_datagrams.beacon(port)
