"""Handshakes of real ZeroMQ sockets: who gets in, by itself too, and who is kept out without harm to others."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zmq
from broker.net.zap import ENDPOINT, Gate
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from zmq.utils.monitor import parse_monitor_message

from broker.core.counters import Counters
from broker.net.allowed import CHECK, AllowedKeys
from broker.net.limits import Complaints
from tests.patience import PATIENCE

HANDSHAKE = 300
"""Milliseconds for a handshake, after which a client that is kept waiting tries again."""

Pair = tuple[bytes, bytes]


class Broker:
    """A ROUTER behind a gate, and clients, all turned by `until`."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.clients = zmq.Context()
        self.poller = zmq.Poller()
        self.clock = Clock()
        self.counters = Counters()
        self.admitted = True
        self.addresses: list[str] = []
        self.gate = Gate(Complaints(self.counters, self.clock), self.clock, self._admit)
        self.gate.serve(self)
        self.public, self.secret = zmq.curve_keypair()
        self.messages: list[tuple[bytes, str]] = []
        """What arrived: the last frame, and the User-Id of its sender."""
        self.events: dict[bytes, list[int]] = {}
        """What happened to each client, by identity."""
        self._monitors: dict[zmq.Socket[bytes], bytes] = {}
        self._wires: list[zmq.Socket[bytes]] = []
        self._zap = self._socket(self.context, zmq.ROUTER)
        self._zap.bind(ENDPOINT)

    def _admit(self, address: str) -> bool:
        self.addresses.append(address)
        return self.admitted

    def _socket(self, context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.linger = 0
        self.poller.register(socket, zmq.POLLIN)
        return socket

    def close(self) -> None:
        self.clients.destroy(0)
        self.context.destroy(0)

    def stop_answering(self) -> None:
        """Close the handler's socket."""
        self.poller.unregister(self._zap)
        self._zap.close()

    def send(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """What the gate answers."""
        self._zap.send_multipart([identity, *frames])

    def listen(self, domain: bytes, curve: bool, address: str = "tcp://127.0.0.1:*") -> str:
        """Open a ROUTER. Returns where."""
        wire = self._socket(self.context, zmq.ROUTER)
        wire.set(zmq.ZAP_DOMAIN, domain)
        wire.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        wire.set(zmq.HANDSHAKE_IVL, HANDSHAKE)
        wire.set(zmq.IPV6, int("[" in address))
        if curve:
            wire.curve_server = True
            wire.curve_secretkey = self.secret
        wire.bind(address)
        self._wires.append(wire)
        bound = wire.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.decode()

    def client(
        self, address: str, identity: bytes, keys: Pair | None, server: bytes | None = None
    ) -> zmq.Socket[bytes]:
        """Connect a client; one without keys does not encrypt."""
        socket = self._socket(self.clients, zmq.DEALER)
        socket.identity = identity
        if keys is not None:
            socket.curve_publickey, socket.curve_secretkey = keys
            socket.curve_serverkey = server or self.public
        self.events[identity] = []
        monitor = socket.get_monitor_socket(zmq.EVENT_ALL)
        self._monitors[monitor] = identity
        self.poller.register(monitor, zmq.POLLIN)
        socket.connect(address)
        return socket

    def until(self, condition: Callable[[], bool]) -> None:
        """Serve everybody until the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            left = end - time.monotonic()
            assert left > 0, "it did not happen"
            for socket, _ in self.poller.poll(int(left * 1000)):
                self._serve(socket)

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        if socket is self._zap:
            identity, *frames = socket.recv_multipart()
            self.gate.receive(identity, list(frames), -1)
        elif socket in self._wires:
            parts = socket.recv_multipart(copy=False)
            self.messages.append((parts[-1].bytes, str(parts[-1].get("User-Id"))))
        elif socket in self._monitors:
            event = parse_monitor_message(socket.recv_multipart())
            self.events[self._monitors[socket]].append(event["event"])

    def arrives(self, text: bytes, user: bytes = b"") -> None:
        """Wait for a message of that peer."""
        self.until(lambda: (text, user.decode()) in self.messages)

    def refusals(self, reason: str) -> int:
        return self.counters.get("mc0_refused", reason)

    def refused(self, reason: str, times: int) -> None:
        """Wait until so many more handshakes were refused."""
        before = self.refusals(reason)
        self.until(lambda: self.refusals(reason) >= before + times)

    def failed(self, identity: bytes, times: int) -> None:
        """Wait until that many handshakes of a client have failed on its own side."""
        failures = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self.until(lambda: sum(self.events[identity].count(failure) for failure in failures) >= times)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with contextlib.closing(Broker()) as made:
        yield made


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def keys(broker: Broker, directory: Path) -> AllowedKeys:
    return AllowedKeys(str(directory), broker.clock, maybeDeferred)


def put(directory: Path, name: str, keys: Pair) -> None:
    (directory / f".{name}").write_bytes(keys[0] + b"\n")
    (directory / f".{name}").rename(directory / f"{name}.public")


@pytest.fixture
def web1(directory: Path, keys: AllowedKeys, broker: Broker) -> Pair:
    """A pair of keys that is allowed."""
    pair: Pair = zmq.curve_keypair()
    put(directory, "web1", pair)
    broker.clock.advance(CHECK)
    return pair


@pytest.fixture
def address(broker: Broker, keys: AllowedKeys) -> str:
    broker.gate.domain(b"mc0", keys, False)
    return broker.listen(b"mc0", curve=True)


def test_an_allowed_key_gets_in_and_its_messages_have_it_as_their_user_id(
    broker: Broker, address: str, keys: AllowedKeys, web1: Pair
) -> None:
    client = broker.client(address, b"one", web1)
    client.send(b"hello")
    broker.arrives(b"hello", web1[0])
    assert keys.name_of(web1[0].decode()) == "web1"
    assert broker.addresses == ["127.0.0.1"]


def test_an_unknown_key_stays_out_and_gets_in_by_itself_once_it_is_allowed(
    broker: Broker, address: str, directory: Path
) -> None:
    pair = zmq.curve_keypair()
    client = broker.client(address, b"new", pair)
    client.send(b"hello")
    broker.refused("key-not-allowed", 3)
    assert broker.messages == []
    put(directory, "new", pair)
    broker.clock.advance(CHECK)
    broker.arrives(b"hello", pair[0])
    client.send(b"again")
    broker.arrives(b"again", pair[0])
    assert len(broker.messages) == 2


def test_a_removed_key_is_told_and_does_not_get_in_any_more(
    broker: Broker, address: str, directory: Path, keys: AllowedKeys, web1: Pair
) -> None:
    gone: list[frozenset[str]] = []
    keys.changed.append(gone.append)
    first = broker.client(address, b"one", web1)
    first.send(b"hello")
    broker.arrives(b"hello", web1[0])
    (directory / "web1.public").unlink()
    broker.clock.advance(CHECK)
    broker.clock.advance(CHECK)
    assert gone == [frozenset([web1[0].decode()])]
    second = broker.client(address, b"two", web1)
    second.send(b"late")
    broker.refused("key-not-allowed", 2)
    first.send(b"still open")  # libzmq has no way to end one connection: the sessions refuse it
    broker.arrives(b"still open", web1[0])
    assert [text for text, _ in broker.messages] == [b"hello", b"still open"]


def test_clients_with_a_wrong_server_key_or_without_keys_do_no_harm(broker: Broker, address: str, web1: Pair) -> None:
    wrong = broker.client(address, b"wrong", web1, server=zmq.curve_keypair()[0])
    wrong.send(b"wrong")
    plain = broker.client(address, b"plain", None)
    plain.send(b"plain")
    client = broker.client(address, b"one", web1)
    for number in range(5):
        broker.failed(b"wrong", number + 1)
        client.send(b"%d" % number)
        broker.arrives(b"%d" % number, web1[0])
    broker.failed(b"plain", 1)
    client.send(b"end")
    broker.arrives(b"end", web1[0])
    assert [text for text, _ in broker.messages] == [b"0", b"1", b"2", b"3", b"4", b"end"]
    assert broker.counters.all() == {}, "libzmq does not ask about those"


def test_any_key_gets_in_where_that_was_said(broker: Broker) -> None:
    broker.gate.domain(b"mc0", None, True)
    address = broker.listen(b"mc0", curve=True)
    pair = zmq.curve_keypair()
    broker.client(address, b"any", pair).send(b"hello")
    broker.arrives(b"hello", pair[0])


def test_null_gets_in_where_there_is_no_curve_beside_a_wire_that_has_it(
    broker: Broker, address: str, web1: Pair
) -> None:
    broker.gate.domain(b"open", None, False)
    open_address = broker.listen(b"open", curve=False)
    broker.client(open_address, b"plain", None).send(b"plain")
    broker.arrives(b"plain")
    broker.client(address, b"one", web1).send(b"hello")
    broker.arrives(b"hello", web1[0])


@pytest.mark.parametrize("curve", [True, False])
def test_a_peer_too_many_gets_in_by_itself_once_there_is_room(broker: Broker, curve: bool) -> None:
    broker.gate.domain(b"mc0", None, curve)
    address = broker.listen(b"mc0", curve)
    broker.admitted = False
    pair = zmq.curve_keypair() if curve else None
    broker.client(address, b"one", pair).send(b"hello")
    broker.refused("too-many-connections", 3)
    assert broker.messages == []
    broker.admitted = True
    broker.arrives(b"hello", pair[0] if pair else b"")


def test_a_socket_of_a_domain_that_nobody_defined_lets_nobody_in(broker: Broker) -> None:
    address = broker.listen(b"unknown", curve=True)
    broker.client(address, b"one", zmq.curve_keypair()).send(b"hello")
    broker.until(lambda: broker.counters.get("zap_refused", "handshake") == 1)
    broker.until(lambda: zmq.EVENT_HANDSHAKE_FAILED_AUTH in broker.events[b"one"])
    assert broker.messages == []


def test_processes_of_this_machine_are_known_by_their_user(broker: Broker, tmp_path: Path) -> None:
    broker.gate.domain(b"mc0", None, False)
    address = broker.listen(b"mc0", False, f"ipc://{tmp_path}/socket")
    broker.client(address, b"one", None).send(b"hello")
    broker.arrives(b"hello")
    assert broker.addresses == [f"uid {os.getuid()} here"]


def test_an_ipv4_address_is_the_same_on_a_socket_for_both(broker: Broker) -> None:
    broker.gate.domain(b"mc0", None, False)
    port = broker.listen(b"mc0", False, "tcp://[::]:*").rpartition(":")[2]
    broker.client(f"tcp://127.0.0.1:{port}", b"one", None).send(b"hello")
    broker.arrives(b"hello")
    assert broker.addresses == ["127.0.0.1"]


def test_without_a_handler_nobody_gets_in(broker: Broker, web1: Pair, address: str) -> None:
    """Where the domain is enforced; else libzmq would let everybody in."""
    broker.stop_answering()
    broker.client(address, b"one", web1).send(b"hello")
    broker.failed(b"one", 3)
    assert broker.messages == []


def test_many_unknown_clients_leave_nothing_behind(broker: Broker, address: str, web1: Pair) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    client = broker.client(address, b"one", web1)
    client.send(b"before")
    broker.arrives(b"before", web1[0])
    before = descriptors()
    with zmq.Context() as crowd:
        unknowns = [crowd.socket(zmq.DEALER) for _ in range(50)]
        for unknown in unknowns:
            unknown.linger = 0
            unknown.curve_publickey, unknown.curve_secretkey = zmq.curve_keypair()
            unknown.curve_serverkey = broker.public
            unknown.connect(address)
        broker.refused("key-not-allowed", 100)
        crowd.destroy(0)
    client.send(b"after")
    broker.arrives(b"after", web1[0])
    end = time.monotonic() + PATIENCE
    while descriptors() > before:  # libzmq closes in its own thread
        assert time.monotonic() < end, f"{descriptors() - before} descriptors are left"
        client.send(b"more")
        broker.messages.clear()
        broker.arrives(b"more", web1[0])
