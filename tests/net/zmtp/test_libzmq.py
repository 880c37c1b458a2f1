"""Real peers: sockets of libzmq over TCP, as clients of our server role and as servers of our client role.

The file is longer than others: both roles are tested with the same real sockets.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from broker.net.zmtp.frames import Fault, FrameLimits, ZmtpError, command, message
from broker.net.zmtp.machine import Claim, Machine, Mechanism, Null, Output, ZmtpState
from tests.net.zmtp.blocking import Connection, Listener, connect
from tests.net.zmtp.conversation import ROUTER_PEERS, Side, reads, router
from tests.packages import MISSING
from tests.patience import PATIENCE

MIB = 1024 * 1024

SIZES = [0, 1, 255, 256, 4_095, 4_096, 65_535, 70_000, MIB, 16 * MIB]


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


Open = Callable[..., Any]


@pytest.fixture
def peer(context: zmq.Context[Any]) -> Open:
    """Open a socket of libzmq, which waits for `PATIENCE` at most, with options by their names."""

    def open_(kind: int, **options: object) -> Any:
        socket = context.socket(kind)
        socket.linger = 0
        socket.sndtimeo = socket.rcvtimeo = int(PATIENCE * 1_000)
        socket.sndhwm = socket.rcvhwm = 0
        socket.reconnect_ivl = 1
        for name, value in options.items():
            setattr(socket, name, value)
        return socket

    return open_


_NUMBERS = count()


def events_of(socket: Any) -> Callable[[int], int]:
    """Monitor the events of a socket. The result is a function that waits for one of these events, and returns it."""
    # pyzmq names the place after the descriptor, which may be that of a socket that libzmq has not quite closed yet.
    monitor = socket.get_monitor_socket(addr=f"inproc://events-{next(_NUMBERS)}")

    def wait(events: int) -> int:
        while True:
            assert monitor.poll(PATIENCE * 1_000)
            event = recv_monitor_message(monitor)["event"]
            if event & events:
                return int(event)

    return wait


KINDS = {"DEALER": zmq.DEALER, "REQ": zmq.REQ, "ROUTER": zmq.ROUTER}


# libzmq connects to us


@pytest.mark.parametrize("kind", KINDS)
def test_each_socket_that_talks_to_a_router_sends_and_receives(peer: Open, listener: Listener, kind: str) -> None:
    client = peer(KINDS[kind], identity=b"me")
    to = []
    if kind == "ROUTER":
        client.connect_routing_id = b"broker"
        to = [b"broker"]
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        for frames in ([b"hello"], [b"", b"a", b"", b"b" * 300]):
            client.send_multipart([*to, *frames])
            envelope = [b""] if kind == "REQ" else []
            assert server.message() == envelope + frames
            server.send([*envelope, b"to", *frames])
            assert client.recv_multipart() == [*to, b"to", *frames]
        [claim] = server.side.claims
        assert claim == Claim({"socket-type": kind.encode(), "identity": b"me"})
        assert (server.side.machine.version, server.side.machine.minor) == (3, 1)


def test_frames_of_each_size_go_to_and_fro(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        for size in SIZES:
            body = bytes([size % 251]) * size
            client.send_multipart([b"", body], copy=False)
            frames = server.message()
            assert frames == [b"", body]
            server.send(frames)
            assert client.recv_multipart() == [b"", body]
        assert server.side.machine.pending == 0


def test_thousands_of_frames_and_messages_go_to_and_fro(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        frames = [b"%d" % number for number in range(5_000)]
        client.send_multipart(frames)
        assert server.message() == frames
        server.send(frames)
        assert client.recv_multipart() == frames
        for number in range(5_000):
            client.send(b"%d" % number)
        assert [server.message() for _ in range(5_000)] == [[frame] for frame in frames]


def test_heartbeats_of_the_peer_are_answered_and_the_connection_stays(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER, heartbeat_ivl=20, heartbeat_ttl=60_000, heartbeat_timeout=60_000)
    wait = events_of(client)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        pongs = 0
        while pongs < 5:
            pongs += server.step().count(command(b"PONG", b""))
        client.send(b"still here")
        assert server.message() == [b"still here"]
        client.disconnect(listener.endpoint)
        happened = wait(zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        assert happened == zmq.EVENT_HANDSHAKE_SUCCEEDED


def test_a_peer_whose_heartbeats_are_not_answered_closes(peer: Open, listener: Listener) -> None:
    """So the connection above stays because of the answers."""
    client = peer(zmq.DEALER, heartbeat_ivl=20, heartbeat_timeout=100)
    wait = events_of(client)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        server.until(lambda: server.side.claims)
        server.answering = False
        with pytest.raises((EOFError, ConnectionError)):
            server.until(lambda: False)
    assert wait(zmq.EVENT_DISCONNECTED)


def test_our_pings_are_answered(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        server.until(lambda: server.side.claims)
        for _ in range(3):
            server.ping()
            server.step()
            assert server.input == command(b"PONG", b"")
        assert server.side.messages == []


def test_a_peer_connects_again_after_we_have_closed(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER, identity=b"me")
    client.connect(listener.endpoint)
    for number in range(3):
        with listener.accept(router()) as server:
            while not server.side.claims:
                server.step()
            client.send(b"%d" % number)
            assert server.message() == [b"%d" % number]
            assert server.side.claims[0].properties["identity"] == b"me"


def test_a_message_that_was_cut_off_is_not_given(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        server.until(lambda: server.side.claims)
        octets = message([b"never", b"x" * 10_000])
        server.write(octets[:-1])
    with listener.accept(router()) as server:
        server.send([b"whole"])
        assert client.recv_multipart() == [b"whole"]


FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

ENDED = FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
"""A handshake has succeeded or failed. Of an ERROR in NULL whose reason is no status code of ZAP, libzmq shows no more
than that the connection ends."""


@pytest.mark.parametrize("kind", ["SUB", "PUSH", "PULL", "PUB", "PAIR", "REP"])
def test_sockets_that_do_not_talk_to_a_router_are_refused(peer: Open, listener: Listener, kind: str) -> None:
    client = peer(getattr(zmq, kind), reconnect_ivl=-1)
    wait = events_of(client)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        with pytest.raises(ZmtpError) as refusal:
            server.until(lambda: False)
        assert refusal.value.fault is Fault.HANDSHAKE
        assert repr(kind) in refusal.value.text
        server.flush()
        server.write(refusal.value.reply)
        assert server.to_the_end() == b""  # it closes because of the ERROR
    assert wait(ENDED) == zmq.EVENT_DISCONNECTED
    assert server.side.claims == []


def test_a_peer_with_another_mechanism_is_refused(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER, reconnect_ivl=-1, plain_username=b"user", plain_password=b"word")
    wait = events_of(client)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        # The end, where the peer has seen the mechanism of this side before it sent its own.
        with pytest.raises((ZmtpError, EOFError)) as refusal:
            server.until(lambda: False)
        assert getattr(refusal.value, "fault", Fault.MECHANISM) is Fault.MECHANISM
        server.flush()
        server.to_the_end()
    assert wait(FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED) & FAILED


class Refusing(Side):
    """It refuses each claim, for a reason."""

    reason = ""

    def take(self, data: bytes) -> None:
        """Feed what was read, and refuse a claim."""
        for event in self.machine.feed(data):
            if isinstance(event, Claim):
                self.claims.append(event)
                self.output += self.machine.refuse(self.reason)
            elif isinstance(event, Output):
                self.output += event.data


@pytest.mark.parametrize(
    ("reason", "event"), [("400", zmq.EVENT_HANDSHAKE_FAILED_AUTH), ("no room", zmq.EVENT_DISCONNECTED)]
)
def test_a_refused_claim_fails_the_handshake_of_the_peer(
    peer: Open, listener: Listener, reason: str, event: int
) -> None:
    client = peer(zmq.DEALER, reconnect_ivl=-1)
    wait = events_of(client)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        server.side = refusing = Refusing(server.side.machine)
        refusing.reason = reason
        refusing.give()
        server.until(lambda: refusing.claims)
        assert refusing.machine.state is ZmtpState.FAILED
        assert server.to_the_end() == b""  # it closes because of the ERROR
    assert wait(ENDED) == event


RUBY = """
require "ffi-rzmq"
context = ZMQ::Context.new
client = context.socket(ZMQ::DEALER)
client.setsockopt(ZMQ::LINGER, 0)
client.setsockopt(ZMQ::IDENTITY, "ruby")
client.connect(ARGV[0])
[0, 1, 255, 256, 70_000, 1_048_576].each do |size|
  client.send_strings(["", "x" * size])
  frames = []
  client.recv_strings(frames)
  exit 1 unless frames == ["", "x" * size]
end
client.close
context.terminate
puts LibZMQ.version.values.join(".")
"""


def ruby_with_zmq() -> str | None:
    """The path of a Ruby that has ffi-rzmq."""
    ruby = shutil.which("ruby")
    asked = [ruby or "false", "-e", 'require "ffi-rzmq"']
    return ruby if subprocess.run(asked, capture_output=True, check=False).returncode == 0 else None


def test_ruby_sends_and_receives(listener: Listener) -> None:
    ruby = ruby_with_zmq()
    if ruby is None:
        pytest.skip(f"{MISSING}: ruby-ffi-rzmq (Ruby with ffi-rzmq)")
    with subprocess.Popen([ruby, "-e", RUBY, listener.endpoint], stdout=subprocess.PIPE) as process:
        with listener.accept(router()) as server, suppress(EOFError):
            while True:
                server.send(server.message())
        assert process.stdout is not None
        assert process.stdout.read().startswith(b"4.")
    assert process.returncode == 0
    assert server.side.claims == [Claim({"socket-type": b"DEALER", "identity": b"ruby"})]


# we connect to libzmq


def client_of(endpoint: str, mechanism: Mechanism, socket_type: str = "DEALER") -> Connection:
    peers = frozenset([b"ROUTER", b"REP", b"DEALER"])
    return connect(endpoint, Machine(mechanism, socket_type, FrameLimits(), b"ours", peers))


def test_a_client_of_ours_talks_to_a_router(peer: Open) -> None:
    server = peer(zmq.ROUTER)
    server.bind("tcp://127.0.0.1:*")
    with client_of(server.last_endpoint.decode(), Null(False)) as client:
        for size in SIZES[:-1]:
            client.send([b"", b"x" * size])
            assert server.recv_multipart() == [b"ours", b"", b"x" * size]
            server.send_multipart([b"ours", b"", b"y" * size])
            assert client.message() == [b"", b"y" * size]
        assert client.side.claims == [Claim({"socket-type": b"ROUTER", "identity": b""})]


def test_a_client_of_ours_asks_a_rep(peer: Open) -> None:
    server = peer(zmq.REP)
    server.bind("tcp://127.0.0.1:*")
    with client_of(server.last_endpoint.decode(), Null(False), "REQ") as client:
        client.send([b"", b"question"])
        assert server.recv_multipart() == [b"question"]
        server.send(b"answer")
        assert client.message() == [b"", b"answer"]
        assert client.side.claims == [Claim({"socket-type": b"REP"})]


def test_a_client_of_ours_refuses_a_server_with_another_mechanism(peer: Open) -> None:
    server = peer(zmq.ROUTER, plain_server=True)
    server.bind("tcp://127.0.0.1:*")
    with client_of(server.last_endpoint.decode(), Null(False)) as client:
        with pytest.raises(ZmtpError) as refusal:
            client.until(lambda: client.side.claims)
        assert refusal.value.fault is Fault.MECHANISM


def test_a_client_of_ours_answers_heartbeats(peer: Open) -> None:
    server = peer(zmq.ROUTER, heartbeat_ivl=20, heartbeat_ttl=60_000, heartbeat_timeout=60_000)
    server.bind("tcp://127.0.0.1:*")
    with client_of(server.last_endpoint.decode(), Null(False)) as client:
        pongs = 0
        while pongs < 3:
            pongs += client.step().count(command(b"PONG", b""))
        client.send([b"still here"])
        assert server.recv_multipart() == [b"ours", b"still here"]


# what libzmq sends, octet by octet


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (zmq.DEALER, {"identity": b"me"}, b"\x04\x2b\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02me"),
        (zmq.REQ, {}, b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0"),
        (zmq.SUB, {}, b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB"),
    ],
)
def test_the_octets_of_a_handshake_are_those_of_the_examples(
    peer: Open, listener: Listener, kind: int, options: dict[str, Any], expected: bytes
) -> None:
    client = peer(kind, **options)
    client.connect(listener.endpoint)
    received = b""
    with listener.accept(Machine(Null(True), "ROUTER", FrameLimits())) as server:
        while len(received) < 64 + len(expected):
            server.step()
            received += server.input
    greeting, handshake = received[:64], received[64:]
    assert greeting[:1] + greeting[9:] == b"\xff\x7f\x03\x01NULL" + bytes(48)
    assert greeting[1:9] == (1 + len(options.get("identity", b""))).to_bytes(8, "big")
    assert handshake == expected


def test_libzmq_reads_our_octets_byte_by_byte(peer: Open, listener: Listener) -> None:
    client = peer(zmq.DEALER)
    client.connect(listener.endpoint)
    with listener.accept(router()) as server:
        server.until(lambda: server.side.claims)
        frames = [b"", b"a" * 255, b"b" * 256]
        for piece in reads(message(frames), 1):
            server.write(piece)
        assert client.recv_multipart() == frames


def test_the_peers_of_a_router_are_those_of_libzmq(peer: Open) -> None:
    """Which sockets libzmq lets talk to a ROUTER of its own."""
    talking = set()
    for kind in ("PAIR", "PUB", "SUB", "REQ", "REP", "DEALER", "ROUTER", "PULL", "PUSH", "XPUB", "XSUB"):
        server = peer(zmq.ROUTER)
        server.bind("tcp://127.0.0.1:*")
        client = peer(getattr(zmq, kind), reconnect_ivl=-1)
        wait = events_of(client)
        client.connect(server.last_endpoint.decode())
        if wait(ENDED) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            talking.add(kind.encode())
    assert talking == ROUTER_PEERS
