"""Connections over real sockets: behaviour of the kernel that a transport in memory lacks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from twisted.internet.pollreactor import PollReactor

from broker.core.errors import Reason
from broker.net.admission import STOP_WITHIN
from broker.net.connection_limits import ConnectionLimits
from broker.net.epoll_streams import nothing_waits
from tests.net.reactors import close
from tests.net.words import Hub

TURNS = 2_000
"""Turns in which whatever a test waits for must come, of up to 10 ms each if nothing happens."""


class Server:
    """A listening socket with a hub behind it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.reactor = PollReactor()
        self.port: Any = self.reactor.listenTCP(0, hub.factory, interface="127.0.0.1")
        self.peers: list[socket.socket] = []

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        peer = socket.socket()
        if receive_buffer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.peers.append(peer)
        connections = len(self.hub.factory.connections)
        peer.connect(("127.0.0.1", self.port.getHost().port))
        peer.setblocking(False)
        self.until(lambda: len(self.hub.factory.connections) > connections)
        return peer

    def turn(self, patience: float = 0.0) -> None:
        self.reactor.runUntilCurrent()
        self.reactor.doIteration(patience)
        self.hub.later()

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(TURNS):
            if condition():
                return
            self.turn(0.01)
        raise AssertionError("it did not come")

    def read(self, peer: socket.socket, size: int) -> bytes:
        """So many bytes, or those before the end."""
        data = bytearray()

        def enough() -> bool:
            try:
                piece = peer.recv(size - len(data))
            except BlockingIOError:
                return False
            data.extend(piece)
            return not piece or len(data) == size

        self.until(enough)
        return bytes(data)

    def close(self) -> None:
        self.port.stopListening()
        for peer in self.peers:
            peer.close()
        for connection in list(self.hub.factory.connections):
            connection.abort()
        self.until(lambda: not self.hub.factory.connections)
        close(self.reactor)


@pytest.fixture
def serve() -> Iterator[Callable[[Hub], Server]]:
    servers: list[Server] = []

    def start(hub: Hub) -> Server:
        servers.append(Server(hub))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Hub], Server]


def test_an_answer_is_there_in_the_turn_of_its_question(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"say a\nsay b\n")
    server.until(server.hub.words)
    assert peer.recv(100) == b"ab"


def test_more_than_the_kernel_takes_comes_whole_and_in_order(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    words = [f"say {number:08} " + "." * 50_000 for number in range(100)]
    expected = "".join(word[4:] for word in words).encode()
    pending = "".join(f"{word}\n" for word in ["hello", *words]).encode()
    received = b""

    def exchange() -> bool:
        nonlocal pending, received
        with suppress(BlockingIOError):
            pending = pending[peer.send(pending[:65_536]) :] if pending else pending
        with suppress(BlockingIOError):
            received += peer.recv(1 << 20)
        return len(received) >= len(expected)

    server.until(exchange)
    assert received == expected


def test_notices_behind_an_answer_that_waits_stay_behind_it(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    size = 20_000_000
    peer.send(f"big {size}\n".encode())
    server.until(server.hub.words)
    [connection] = server.hub.factory.connections
    connection.write(b"notice")
    server.turn()
    assert server.read(peer, size + 6) == b"x" * size + b"notice"


def test_nothing_overtakes_the_little_that_the_kernel_did_not_take(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    [connection] = server.hub.factory.connections
    expected = b""
    while nothing_waits(connection.transport):
        expected += (notice := f"{len(expected):>10000}".encode())
        connection.write(notice)
        server.hub.later()
    received = peer.recv(1 << 22)  # now the kernel has room, and the reactor does not know it yet
    connection.write(b"last")
    server.hub.later()
    expected += b"last"
    assert received + server.read(peer, len(expected) - len(received)) == expected


def test_the_peers_end_of_input_ends_it_after_the_answer(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"say a\n" * 200 + b"say unfinished")
    peer.shutdown(socket.SHUT_WR)
    assert server.read(peer, 1_000) == b"a" * 200
    server.until(lambda: not server.hub.factory.connections)


def test_much_is_delivered_to_one_that_says_no_more(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"big 20000000\nsay last")
    peer.send(b"\n")
    peer.shutdown(socket.SHUT_WR)
    data = server.read(peer, 20_000_005)
    assert (len(data), data[-5:]) == (20_000_004, b"xlast")
    server.until(lambda: not server.hub.factory.connections)


@pytest.mark.parametrize("unread", [0, 100_000])
def test_the_last_words_are_read_and_then_the_end(serve: Serve, unread: int) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"say last\nclose\n" + b"x" * unread)
    assert server.read(peer, 1_000) == b"last", "and no reset, however much was sent"
    peer.close()
    server.until(lambda: not server.hub.factory.connections)


def test_a_peer_that_is_reset_is_forgotten(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    server.until(lambda: not server.hub.factory.connections)
    assert [session.losses for session in server.hub.sessions] == [1]


def test_a_peer_that_never_reads_is_not_read_from_and_cut_off(serve: Serve) -> None:
    server = serve(Hub(ConnectionLimits(stalled_after=5)))
    idle, polite = server.connect(), server.connect()

    idle.send(b"big 100000\n" * 10_000)
    server.until(server.hub.words)
    handled = 0
    for _ in range(500):  # until the kernel's buffers are full
        server.turn()
        handled += len(server.hub.words())
    assert handled < 1_000
    polite.send(b"say hello\n")
    assert server.read(polite, 5) == b"hello"
    server.hub.pass_seconds(7)
    server.until(lambda: len(server.hub.factory.connections) == 1)
    assert server.hub.refused(Reason.NOT_READING) == 1


def test_a_watcher_that_never_reads_is_cut_off_at_its_bound(serve: Serve) -> None:
    server = serve(Hub(ConnectionLimits(write_buffer=1_000_000)))
    server.connect()
    [connection] = server.hub.factory.connections
    written = 0
    while not server.hub.refused(Reason.NOT_READING):
        connection.write(b"n" * 10_000)
        written += 10_000
        assert written < 30_000_000
        server.turn()
    server.until(lambda: not server.hub.factory.connections)


def test_a_peer_that_reads_slowly_is_not_one_that_does_not_read(serve: Serve) -> None:
    server = serve(Hub(ConnectionLimits(stalled_after=5)))
    peer = server.connect()
    peer.send(b"big 30000000\n")
    server.until(server.hub.words)
    received = 0
    while received < 30_000_000:
        data = server.read(peer, 1_000_000)
        received += len(data)
        assert data, "it was cut off"
        server.hub.pass_seconds(1)
    assert server.hub.refused(Reason.NOT_READING) == 0


def test_a_peer_that_reads_slowly_does_not_keep_a_listener_from_stopping(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"big 30000000\n")
    server.until(server.hub.words)
    stopped: list[None] = []
    server.hub.factory.close().addCallback(stopped.append)
    for _ in range(int(STOP_WITHIN) + 1):
        with suppress(ConnectionResetError):
            server.read(peer, 3_000_000)
        server.hub.pass_seconds(1)
        server.turn()
    assert stopped, "all are closed in the time that the listener has to stop"


def test_a_peer_that_has_read_all_and_does_not_close_keeps_a_listener_a_second_from_stopping(serve: Serve) -> None:
    server = serve(Hub())
    peer = server.connect()
    peer.send(b"say 1\n")
    server.until(server.hub.words)
    stopped: list[None] = []
    server.hub.factory.close().addCallback(stopped.append)
    while server.read(peer, 1_000):
        pass
    server.hub.clock.advance(0.9)
    server.turn()
    assert not stopped
    server.hub.clock.advance(0.1)
    server.until(lambda: stopped)
