"""Topics and requests across real brokers with a real etcd: peers of mc0 and clients of MTL at different brokers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import zmq

from broker.client.blocking import Client
from broker.client.profiles.service import RequestFailed
from tests.cluster.brokers import Broker, Brokers
from tests.patience import PATIENCE, until

MTL = '[mtl]\nendpoint = "tcp://127.0.0.1:0"\n'
MANY = 200


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        for name in "ab":
            brokers.start(name, config=MTL)
        for name, other in ("ab", "ba"):
            until(lambda name=name, other=other: linked(brokers[name], other), f"{name} has a link to {other}")  # type: ignore[misc]
        yield brokers


def linked(broker: Broker, other: str) -> bool:
    return any(each["member"] == other and each["linked"] for each in broker.get("/v1/cluster")["members"])


def address(broker: Broker, title: str) -> str:
    """The address of a listener, as the broker publishes it."""
    [own] = [each for each in broker.get("/v1/cluster")["members"] if each["here"]]
    [found] = [each.rpartition(" ")[2] for each in own["listeners"] if each.startswith(f"{title} ")]
    return str(found)


def wanted(broker: Broker, topic: str) -> bool:
    """True if another broker has announced a topic."""
    return any(row["topic"] == topic and row.get("brokers") for row in broker.get("/v1/topics")["rows"])


class Mc0:
    """A peer of mc0."""

    def __init__(self, broker: Broker, identity: bytes, sockets: zmq.Context[Any]) -> None:
        self.socket: zmq.Socket[bytes] = sockets.socket(zmq.DEALER)
        self.socket.routing_id = identity
        self.socket.rcvtimeo = round(PATIENCE * 1000)
        self.socket.connect(address(broker, "mc0"))

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart([b"", *frames])

    def receive(self) -> list[bytes]:
        return self.socket.recv_multipart()


@pytest.mark.long
def test_messages_reach_both_wires_at_the_other_broker_in_order_and_again_after_a_stop(brokers: Brokers) -> None:
    a, b = brokers["a"], brokers["b"]
    with zmq.Context() as sockets, Client(address(b, "mtl")) as client:
        sockets.linger = 0
        listener, publisher = Mc0(b, b"listener", sockets), Mc0(a, b"publisher", sockets)
        listener.send(b"SUB", b"ID", b"1", b"", b"news")
        assert listener.receive() == [b"", b"OK", b"ID", b"1"]
        reader = client.read("topic", ["news"])
        until(lambda: wanted(a, "news"), "the interest of b is known at a")
        for number in range(MANY):
            publisher.send(b"PUT", b"TOPIC", b"news", b"X-N", b"%d" % number, b"", b"body")
        assert [number_of(listener.receive()) for _ in range(MANY)] == list(range(MANY))
        contents = iter(reader)
        assert [int(str(next(contents).properties["X-N"])) for _ in range(MANY)] == list(range(MANY))
        b.process.send_signal(signal.SIGSTOP)
        until(lambda: not linked(a, "b"), "a notices that b has stopped")
        b.process.send_signal(signal.SIGCONT)
        until(lambda: wanted(a, "news"), "the interest of b is known again")
        publisher.send(b"PUT", b"TOPIC", b"news", b"X-N", b"1000", b"", b"body")
        assert number_of(listener.receive()) == 1000


def number_of(frames: list[bytes]) -> int:
    return int(frames[frames.index(b"X-N") + 1])


def test_a_content_of_mtl_keeps_its_properties(brokers: Brokers) -> None:
    with Client(address(brokers["a"], "mtl")) as here, Client(address(brokers["b"], "mtl")) as there:
        reader = there.read("topic", ["news"])
        until(lambda: wanted(brokers["a"], "news"), "the interest of b is known at a")
        here.write("topic", ["news"]).send(b"body", "news", {"content-type": "text/plain", "X-A": "1"})
        content = next(iter(reader))
        assert content.body == b"body"
        assert dict(content.properties) == {"content-type": "text/plain", "X-A": "1"}


def test_a_request_is_sent_to_the_broker_of_its_worker(brokers: Brokers) -> None:
    with Client(address(brokers["a"], "mtl")) as here, Client(address(brokers["b"], "mtl")) as there:
        worker = here.serve("upper")
        Thread(target=worker.work, args=(lambda request: request.body.upper(),), daemon=True).start()
        until(lambda: any(each.name == "upper" for each in there.services()), "b has the worker in its registry")
        with pytest.raises(RequestFailed) as caught:
            there.caller(["upper"]).call("upper", b"x", timeout=PATIENCE)
        assert (caught.value.code, caught.value.owner) == (421, "a")
        with Client(caught.value.endpoint) as again:
            assert again.caller(["upper"]).call("upper", b"x", timeout=PATIENCE).body == b"X"
        worker.close()
