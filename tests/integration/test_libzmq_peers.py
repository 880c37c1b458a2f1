"""Peers that a ROUTER of libzmq serves, with every socket option that shows on the wire: the broker serves them too.

Each case is tried at a ROUTER of libzmq and at mc0, DBP and MTL: all of them answer, or none.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
import pytest
import zmq

from tests.integration.daemon import Daemon
from tests.net.zmtp_peers import SIGNATURE, command, greeting, message, message_1, ready
from tests.patience import PATIENCE

SECONDS = 0.5
"""Time that a peer waits for the answer of a ROUTER that does not serve it. Others are waited for patiently."""

NOTHING = b"nothing"


@attrs.frozen
class Door:
    """A ROUTER, and a request that it answers by a message that contains ``answer``."""

    name: str
    port: int
    request: Sequence[bytes]
    answer: bytes

    def answered(self, frames: Sequence[bytes]) -> bool:
        """Return True if these frames are the answer, behind the empty frame of a REQ."""
        return any(self.answer in frame for frame in frames)


class Reference:
    """A ROUTER of libzmq that sends each message back."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                frames = self._socket.recv_multipart()
                if len(frames) > 2:
                    self._socket.send_multipart(frames)
        except zmq.ZMQError:
            self._socket.close(0)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Door]]:
    """The reference, and the three wires."""
    context: zmq.Context[Any] = zmq.Context()
    with Daemon(tmp_path_factory.mktemp("libzmq")) as running:
        mtl = int(running.wait_for(r"mtl on tcp://127\.0\.0\.1:(\d+)").group(1))
        yield [
            Door("libzmq", Reference(context).port, [NOTHING, NOTHING], NOTHING),
            Door("mc0", running.mc0_port(), [b"NOOP", b"ID", b"1"], b"OK"),
            Door("dbp", running.dbp_port(), [b"ping", b"1795246621.35", b"x"], b"pong"),
            Door("mtl", mtl, [b"Connection.Open", b'{"protocol":{"name":"MTL","version":1}}'], b"Ready"),
        ]
    context.term()


class Peers:
    """Makes sockets that ask. `close` closes them, and ends the proxies before them."""

    def __init__(self) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._made: list[Asking] = []

    def ask(self, port: int, kind: int, options: Mapping[str, Any] | None = None, proxies: int = 0) -> Asking:
        """Return a socket with options that is connected to a ROUTER, directly or through proxies."""
        asking = Asking(self._context, port, kind, options or {}, proxies)
        self._made.append(asking)
        return asking

    def close(self) -> None:
        for asking in self._made:
            asking.socket.close(0)
        self._context.term()  # ends the proxies, which close their own sockets


@pytest.fixture
def peers() -> Iterator[Peers]:
    made = Peers()
    yield made
    made.close()


class Asking:
    """A socket with options, connected to a ROUTER directly or through proxies."""

    def __init__(
        self, context: zmq.Context[Any], port: int, kind: int, options: Mapping[str, Any], proxies: int
    ) -> None:
        for _ in range(proxies):
            port = self._proxy(context, port)
        self.socket = context.socket(kind)
        self.socket.linger = 0
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        if kind == zmq.ROUTER:
            self.socket.router_mandatory = True
        before: dict[int, list[bytes]] = {zmq.DEALER: [b""], zmq.ROUTER: [b"there", b""]}
        self._before = before.get(kind, [])

    def _proxy(self, context: zmq.Context[Any], port: int) -> int:
        front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        front.linger = back.linger = 0
        number: int = front.bind_to_random_port("tcp://127.0.0.1")
        back.connect(f"tcp://127.0.0.1:{port}")

        def run() -> None:
            try:
                zmq.proxy(front, back)
            except zmq.ZMQError:
                front.close(0)
                back.close(0)

        threading.Thread(target=run, daemon=True).start()
        return number

    def ask(self, frames: Sequence[bytes], seconds: float = PATIENCE) -> list[bytes]:
        """Send a message, and return the answer; no frames if there is none."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.socket.send_multipart([*self._before, *frames])
                break
            except zmq.ZMQError as error:  # of a ROUTER, until it is connected
                assert error.errno == zmq.EHOSTUNREACH
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return self.socket.recv_multipart() if self.socket.poll(int(seconds * 1_000)) else []


IDENTITY = {"ROUTING_ID": b"an identity"}

CASES: Mapping[str, tuple[int, Mapping[str, Any], int]] = {
    "REQ": (zmq.REQ, {}, 0),
    "REQ, numbered": (zmq.REQ, {"REQ_CORRELATE": 1}, 0),
    "REQ, numbered and relaxed": (zmq.REQ, {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}, 0),
    "REQ behind a proxy": (zmq.REQ, {}, 1),
    "REQ, numbered, behind a proxy": (zmq.REQ, {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}, 1),
    "REQ behind two proxies": (zmq.REQ, IDENTITY, 2),
    "DEALER": (zmq.DEALER, {}, 0),
    "DEALER behind a proxy": (zmq.DEALER, {}, 1),
    "DEALER, probing": (zmq.DEALER, {"PROBE_ROUTER": 1}, 0),
    "REQ, probing": (zmq.REQ, {"PROBE_ROUTER": 1}, 0),
    "ROUTER to ROUTER": (zmq.ROUTER, {"CONNECT_ROUTING_ID": b"there"}, 0),
    "ROUTER to ROUTER, named": (zmq.ROUTER, {"CONNECT_ROUTING_ID": b"there", **IDENTITY}, 0),
    "ROUTER to ROUTER, handing over": (zmq.ROUTER, {"CONNECT_ROUTING_ID": b"there", "ROUTER_HANDOVER": 1}, 0),
    "named": (zmq.REQ, IDENTITY, 0),
    "a long name": (zmq.DEALER, {"ROUTING_ID": bytes(range(1, 256))}, 0),
    "a name that begins with zero": (zmq.DEALER, {"ROUTING_ID": b"\0me"}, 0),
    "a name of text": (zmq.DEALER, {"ROUTING_ID": "Räuber".encode()}, 0),
    "metadata": (zmq.REQ, {"METADATA": b"X-Role:tester"}, 0),
    "connected peers only": (zmq.DEALER, {"IMMEDIATE": 1}, 0),
    "heartbeats": (zmq.DEALER, {"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 20_000, "HEARTBEAT_TTL": 20_000}, 0),
    "a bounded handshake": (zmq.DEALER, {"HANDSHAKE_IVL": 20_000}, 0),
    "one message at a time": (zmq.DEALER, {"CONFLATE": 0, "SNDHWM": 1, "RCVHWM": 1}, 0),
    "the network's options": (zmq.DEALER, {"TCP_KEEPALIVE": 1, "TOS": 0x28, "SNDBUF": 4_096, "RCVBUF": 4_096}, 0),
    "a reconnection with back-off": (zmq.DEALER, {"RECONNECT_IVL": 10, "RECONNECT_IVL_MAX": 100}, 0),
    "a password that nobody wants": (zmq.DEALER, {"PLAIN_USERNAME": b"me", "PLAIN_PASSWORD": b"secret"}, 0),
    "a zone of ZAP": (zmq.DEALER, {"ZAP_DOMAIN": b"global"}, 0),
    "bounds of the connection": (
        zmq.DEALER,
        {
            "AFFINITY": 1,
            "BACKLOG": 10,
            "CONNECT_TIMEOUT": 20_000,
            "IPV6": 1,
            "MAXMSGSIZE": 100_000,
            "RECONNECT_STOP": 1,
        },
        0,
    ),
    "bounds of the kernel": (
        zmq.DEALER,
        {
            "TCP_MAXRT": 20_000,
            "TCP_KEEPALIVE": 1,
            "TCP_KEEPALIVE_CNT": 3,
            "TCP_KEEPALIVE_IDLE": 30,
            "TCP_KEEPALIVE_INTVL": 5,
        },
        0,
    ),
    "options of other sockets": (
        zmq.DEALER,
        {"MULTICAST_HOPS": 2, "RATE": 200, "RECOVERY_IVL": 20_000, "INVERT_MATCHING": 1, "SOCKS_USERNAME": b"me"},
        0,
    ),
}
"""Sockets that ask, with options, behind so many proxies."""

UNSERVED = frozenset(
    ["a password that nobody wants", "a publisher", "a mechanism of other servers", "text", "ZMTP 1.0 without flags"]
)
"""The cases of both tables that a ROUTER of libzmq does not serve either."""


@pytest.mark.parametrize("case", CASES)
def test_a_peer_that_libzmq_serves_is_served(doors: list[Door], peers: Peers, case: str) -> None:
    kind, options, proxies = CASES[case]
    served = case not in UNSERVED
    for door in doors:
        asking = peers.ask(door.port, kind, options, proxies)
        frames = asking.ask(door.request, PATIENCE if served else SECONDS)
        assert door.answered(frames) == served, (door.name, frames)
        if served:
            assert door.answered(asking.ask(door.request)), f"{door.name}: the second request"


def test_each_client_behind_a_proxy_gets_its_own_answers(doors: list[Door], peers: Peers) -> None:
    for door in doors:
        behind = peers.ask(door.port, zmq.DEALER, proxies=1)
        port = int(behind.socket.last_endpoint.rpartition(b":")[2])
        clients = [behind, *(peers.ask(port, zmq.DEALER) for _ in range(4))]
        for client in clients:
            client.socket.send_multipart([b"", *door.request])
        for client in clients:
            assert client.socket.poll(int(PATIENCE * 1_000)), door.name
            assert door.answered(client.socket.recv_multipart())
        assert not any(client.socket.poll(0) for client in clients)


def test_subscribers_behind_a_proxy_get_messages(doors: list[Door], peers: Peers) -> None:
    [mc0] = [door for door in doors if door.name == "mc0"]
    behind = peers.ask(mc0.port, zmq.DEALER, proxies=1)
    other = peers.ask(int(behind.socket.last_endpoint.rpartition(b":")[2]), zmq.DEALER)
    direct = peers.ask(mc0.port, zmq.DEALER)
    for number, client in enumerate((behind, other, direct)):
        topic = b"topic.%d" % (number % 2)
        assert client.ask([b"SUB", b"ID", b"1", b"", topic]) == [b"", b"OK", b"ID", b"1"]
    assert direct.ask([b"PUT", b"TOPIC", b"topic.0", b"", b"news"])[-1] == b"news"
    assert behind.socket.poll(int(PATIENCE * 1_000))
    assert behind.socket.recv_multipart() == [b"", b"MESSAGE", b"TOPIC", b"topic.0", b"", b"news"]
    assert other.ask([b"PUT", b"TOPIC", b"topic.1", b"", b"more"])[-1] == b"more"
    assert not behind.socket.poll(0)


def test_a_newcomer_takes_the_name_of_its_host(doors: list[Door], peers: Peers) -> None:
    """A ROUTER with ZMQ_ROUTER_HANDOVER: the broker's are always so among peers of one host."""
    for door in doors[1:]:
        older = peers.ask(door.port, zmq.DEALER, IDENTITY)
        assert door.answered(older.ask(door.request))
        older.socket.close(0)
        assert door.answered(peers.ask(door.port, zmq.DEALER, IDENTITY).ask(door.request))


# by hand

DEALER = {b"Socket-Type": b"DEALER"}

V3, V31 = greeting(), SIGNATURE + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Greetings."""

Rest = Callable[[Sequence[bytes]], bytes]

BY_HAND: Mapping[str, tuple[bytes, int, Rest]] = {
    "ZMTP 3.0": (V3, 64, lambda frames: ready(DEALER) + message(b"", *frames)),
    "ZMTP 3.1": (V31, 64, lambda frames: ready(DEALER) + message(b"", *frames)),
    "a later version": (SIGNATURE + b"\x04\x02" + V3[12:], 64, lambda frames: ready(DEALER) + message(b"", *frames)),
    "ZMTP 2.0": (SIGNATURE + b"\x01\x05", 11, lambda frames: b"\0\0" + message(b"", *frames)),
    "ZMTP 2.0, named": (SIGNATURE + b"\x01\x03", 11, lambda frames: b"\0\x02me" + message(b"", *frames)),
    "ZMTP 1.0": (b"\x01\0", 10, lambda frames: message_1(b"", *frames)),
    "ZMTP 1.0, named": (b"\x04\0old", 10, lambda frames: message_1(b"", *frames)),
    "ZMTP 1.0, with reserved flags": (
        b"\x01\0",
        10,
        lambda frames: b"\x01\x03" + message_1(*frames),
    ),
    "ZMTP 1.0, with sizes of eight octets": (
        b"\xff\0\0\0\0\0\0\0\x04\0big",
        10,
        lambda frames: b"\xff\0\0\0\0\0\0\0\x01\x01" + message_1(*frames),
    ),
    "ZMTP 1.0 behind a signature": (SIGNATURE + b"\0\x05", 11, lambda frames: b"\x01\0" + message_1(b"", *frames)),
    "ZMTP 1.0 without flags": (b"\x01\0", 10, lambda frames: b"\0\0"),
    "no socket type": (V3, 64, lambda frames: ready({b"Identity": b"by hand"}) + message(b"", *frames)),
    "no metadata": (V3, 64, lambda frames: command(b"\x05READY") + message(b"", *frames)),
    "names in other case": (V3, 64, lambda frames: ready({b"SOCKET-TYPE": b"REQ"}) + message(b"", *frames)),
    "properties of applications": (
        V3,
        64,
        lambda frames: ready({**DEALER, **{b"X-%d" % n: b"value" * n for n in range(20)}}) + message(b"", *frames),
    ),
    "a resource": (V3, 64, lambda frames: ready({**DEALER, b"Resource": b"name"}) + message(b"", *frames)),
    "sizes of eight octets": (
        V3,
        64,
        lambda frames: ready(DEALER) + _long(b"") + b"".join(map(_long, frames[:-1])) + _long(frames[-1], 2),
    ),
    "unknown commands": (
        V3,
        64,
        lambda frames: ready(DEALER) + command(b"\x05HELLOx") + command(b"\x04JOINgroup") + message(b"", *frames),
    ),
    # ZMQ_HELLO_MSG. ZMQ_DISCONNECT_MSG and ZMQ_HICCUP_MSG are given to the socket itself, and not sent.
    "a message at the connection": (V31, 64, lambda frames: ready(DEALER) + message(b"", *frames) * 2),
    "subscriptions": (
        V31,
        64,
        lambda frames: ready(DEALER) + command(b"\x09SUBSCRIBEa") + command(b"\x06CANCELa") + message(b"", *frames),
    ),
    "a PING": (V31, 64, lambda frames: ready(DEALER) + command(b"\x04PING\x00\x64context") + message(b"", *frames)),
    "a PONG": (V31, 64, lambda frames: ready(DEALER) + command(b"\x04PONGcontext") + message(b"", *frames)),
    "a publisher": (V3, 64, lambda frames: ready({b"Socket-Type": b"PUB"}) + message(b"", *frames)),
    "a mechanism of other servers": (greeting(b"PLAIN"), 11, lambda frames: ready(DEALER) + message(b"", *frames)),
    "text": (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 10, lambda frames: b""),
}
"""The greeting of a peer, the octets that it waits for then (libzmq reads no command before), and what it sends of the
frames of the request."""


def _long(frame: bytes, flags: int = 3) -> bytes:
    return bytes((flags,)) + len(frame).to_bytes(8, "big") + frame


@pytest.mark.parametrize("case", BY_HAND)
def test_input_that_libzmq_reads_is_read(doors: list[Door], case: str) -> None:
    served = case not in UNSERVED
    for door in doors:
        began, octets, rest = BY_HAND[case]
        received = b""
        with socket.create_connection(("127.0.0.1", door.port), PATIENCE if served else SECONDS) as raw:
            raw.sendall(began)
            with suppress(OSError):
                while len(received) < octets and (data := raw.recv(65_536)):
                    received += data
                raw.sendall(rest(door.request))
                while door.answer not in received and (data := raw.recv(65_536)):
                    received += data
        assert (door.answer in received) == served, (door.name, received)
        if "PING" in case:
            assert b"\x04PONGcontext" in received


def test_a_subscriber_of_the_first_version_gets_messages_in_its_frames(doors: list[Door], peers: Peers) -> None:
    [mc0] = [door for door in doors if door.name == "mc0"]
    body = bytes(range(256)) * 100
    with socket.create_connection(("127.0.0.1", mc0.port), PATIENCE) as raw:
        file = raw.makefile("rb")
        raw.sendall(b"\x01\0" + message_1(b"", b"SUB", b"ID", b"1", b"", b"topic"))
        answer = SIGNATURE[:8] + b"\x01\x7f" + message_1(b"", b"OK", b"ID", b"1")
        assert file.read(len(answer)) == answer
        publisher = peers.ask(mc0.port, zmq.DEALER)
        for news in (b"short", body, b"last"):
            publisher.socket.send_multipart([b"", b"PUT", b"TOPIC", b"topic", b"", news])
        expected = b"".join(
            message_1(b"", b"MESSAGE", b"TOPIC", b"topic", b"", news) for news in (b"short", body, b"last")
        )
        assert file.read(len(expected)) == expected
