"""CURVE with libzmq at the other end, as client and as server, over TCP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from broker import brokerkeys
from broker.net.zmtp.frames import Fault, ZmtpError
from broker.net.zmtp.machine import Claim, Machine, Output, ZmtpState
from tests.net.zmtp.curve_sides import (
    CLIENT,
    CLIENT_SECRET,
    SERVER,
    SERVER_SECRET,
    client_side,
    forms,
    server_side,
)
from tests.patience import PATIENCE

MESSAGES = [
    [b"a"],
    [b"", b"PUT", b"", b"x" * 100],
    *([b"b" * size] for size in (221, 222, 223, 255, 256, 4_096, 65_535, 65_536, 1_048_576)),
    [b"c" * (index % 300) for index in range(700)],
]

BEAT = 10
"""Milliseconds between two heartbeats of libzmq."""


class Side:
    """Our side of one connection over a blocking socket."""

    def __init__(self, machine: Machine, connection: socket.socket) -> None:
        self.machine = machine
        self.connection = connection
        self.claim: Claim | None = None
        self.pings = 0
        self.messages: list[list[bytes]] = []
        connection.settimeout(PATIENCE)
        connection.sendall(machine.begin())

    def until(self, reached: Callable[[], object]) -> None:
        """Take what comes until a condition holds."""
        while not reached():
            data = self.connection.recv(65_536)
            assert data, "the other side closed the connection"
            for event in self.machine.feed(data):
                if isinstance(event, Output):
                    self.pings += self.machine.state is ZmtpState.TRAFFIC
                    self.connection.sendall(event.data)
                elif isinstance(event, Claim):
                    self.claim = event
                    self.connection.sendall(self.machine.accept())
                elif event is not None:
                    self.messages.append(event)

    def until_messages(self, count: int) -> None:
        """Take what comes until there have been so many messages."""
        self.until(lambda: len(self.messages) >= count)

    def until_claim(self) -> Claim:
        """Take what comes until the peer has proved its key."""
        self.until(lambda: self.claim)
        assert self.claim is not None
        return self.claim

    def send(self, message: list[bytes]) -> None:
        assert self.machine.encoder is not None
        self.connection.sendall(self.machine.encoder.message(message))


@contextmanager
def peer(kind: int) -> Iterator[zmq.Socket[bytes]]:
    """A socket of libzmq with heartbeats."""
    context = zmq.Context()
    made = context.socket(kind)
    made.linger = 0
    made.rcvtimeo = made.sndtimeo = int(PATIENCE * 1000)
    made.setsockopt(zmq.HEARTBEAT_IVL, BEAT)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(PATIENCE * 1000))
    try:
        yield made
    finally:
        made.close()
        context.term()


@contextmanager
def dealer(
    port: int, server: bytes = SERVER, public: bytes = CLIENT, secret: bytes = CLIENT_SECRET
) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER of libzmq that connects to our server."""
    with peer(zmq.DEALER) as made:
        made.curve_serverkey, made.curve_publickey, made.curve_secretkey = map(z85.encode, (server, public, secret))
        made.routing_id = b"dealer"
        made.connect(f"tcp://127.0.0.1:{port}")
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE)
        yield made


def echo_here(side: Side, count: int) -> None:
    """Send each message of the peer back to it, in order."""
    for received in range(1, count + 1):
        side.until_messages(received)
        side.send(side.messages[received - 1])


@forms
def test_a_dealer_of_libzmq_gets_back_what_it_sent(form, listener):
    with dealer(listener.getsockname()[1]) as client:
        for message in MESSAGES:
            client.send_multipart(message)
        connection, _ = listener.accept()
        with connection:
            side = Side(server_side(form), connection)
            claim = side.until_claim()
            assert claim.key == CLIENT
            assert claim.properties == {"socket-type": b"DEALER", "identity": b"dealer"}
            echoing = threading.Thread(target=echo_here, args=(side, len(MESSAGES)), daemon=True)
            echoing.start()
            for message in MESSAGES:
                assert client.recv_multipart() == message
            echoing.join(PATIENCE)
            assert side.messages == MESSAGES


@forms
def test_heartbeats_of_a_dealer_are_answered(form, listener):
    with dealer(listener.getsockname()[1]) as client:
        connection, _ = listener.accept()
        with connection:
            side = Side(server_side(form), connection)
            side.until(lambda: side.pings >= 3)
            side.send([b"still here"])
            assert client.recv_multipart() == [b"still here"]


@forms
def test_our_ping_is_answered_by_libzmq(form, listener):
    with dealer(listener.getsockname()[1]) as client:
        connection, _ = listener.accept()
        with connection:
            side = Side(server_side(form), connection)
            side.until_claim()
            side.connection.sendall(side.machine.ping())
            side.send([b"a"])
            assert client.recv_multipart() == [b"a"]
            client.send(b"b")
            side.until(lambda: side.messages)
            assert side.messages == [[b"b"]]


@forms
def test_a_router_of_libzmq_sends_back_what_our_client_sent(form):
    with peer(zmq.ROUTER) as server:
        server.curve_server = True
        server.curve_publickey, server.curve_secretkey = z85.encode(SERVER), z85.encode(SERVER_SECRET)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            side = Side(client_side(form), connection)
            claim = side.until_claim()
            assert claim.key == SERVER
            assert claim.properties["socket-type"] == b"ROUTER"
            for count, message in enumerate(MESSAGES, start=1):
                side.send(message)
                assert server.recv_multipart() == [b"me", *message]
                server.send_multipart([b"me", *message])
                side.until_messages(count)
            assert side.messages == MESSAGES
            side.until(lambda: side.pings >= 3)


def test_a_dealer_that_has_another_key_for_the_server_is_refused(listener):
    with dealer(listener.getsockname()[1], server=CLIENT):
        connection, _ = listener.accept()
        with connection:
            side = Side(server_side(), connection)
            with pytest.raises(ZmtpError, match="the box of HELLO does not open") as caught:
                side.until_claim()
            assert caught.value.fault is Fault.HANDSHAKE


def test_keys_of_brokerkeys_are_taken(listener, tmp_path: Path):
    brokerkeys.new("node", str(tmp_path), False)
    secret = (tmp_path / "node.private").read_text().strip()
    public = (tmp_path / "node.public").read_text().strip()
    keys = {"public": z85.decode(public), "secret": z85.decode(secret)}
    with dealer(listener.getsockname()[1], **keys):
        connection, _ = listener.accept()
        with connection:
            side = Side(server_side(), connection)
            claim = side.until_claim()
            assert claim.key == keys["public"]
