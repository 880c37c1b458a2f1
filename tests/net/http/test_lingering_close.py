"""The lingering close after a refusal, over real sockets, plain and over TLS: the answer arrives, whatever the peer
sends; and the close is bounded by time and bytes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from twisted.internet.pollreactor import PollReactor

from broker import pem
from broker.net.admission import SENT_WITHIN
from broker.net.connection_limits import ConnectionLimits
from broker.net.http.channel import LINGER_BYTES, LINGER_WITHIN
from broker.net.http.request import RequestBounds
from broker.net.refusal_log import Deadlines
from broker.net.tls import Certificates, TlsFactory
from tests.config.certificates import certificate
from tests.net.http.http_peers import Site
from tests.net.reactors import close

TURNS = 10_000
"""Turns in which an event must come, of up to 10 ms each if nothing happens."""

BODY = 1_000
"""Bytes of the largest body."""

TOO_LARGE = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n"
MALFORMED = b"what is this\r\n\r\n"

State = Literal["open", "ended", "reset"]


class Client:
    """A client, whose socket never blocks. ``tls`` are its trusted certificates; None: plain."""

    def __init__(self, server: Server, tls: ssl.SSLContext | None) -> None:
        self._server = server
        plain = socket.create_connection(("127.0.0.1", server.port.getHost().port))
        plain.setblocking(False)
        self.socket: Any = plain
        self.heard = b""
        self.state: State = "open"
        if tls is not None:
            self.socket = tls.wrap_socket(plain, server_hostname="broker", do_handshake_on_connect=False)
            server.until(self._shake)

    def _shake(self) -> bool:
        return self._tried(self.socket.do_handshake) is not BLOCKED

    def send(self, data: bytes) -> bool:
        """Send all of ``data``. Returns False if the connection is reset before."""

        def some() -> bool:
            nonlocal data
            sent = self._tried(lambda: self.socket.send(data[:65_536]))
            if sent is not BLOCKED and sent is not None:
                data = data[sent:]
            return not data or self.state == "reset"

        self._server.until(some)
        return not data

    def hear(self) -> State:
        """Read what has arrived. Returns the state of the connection."""
        while True:
            data = self._tried(lambda: self.socket.recv(65_536))
            if data is BLOCKED or data is None:
                return self.state
            if not data:
                self.state = "ended"
                return self.state
            self.heard += data

    def hears(self, state: State) -> Callable[[], bool]:
        """The condition that the connection has that state."""
        return lambda: self.hear() == state

    def _tried(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return BLOCKED
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self.state = "reset"
            return None


BLOCKED = object()


class Server:
    """A listening socket of HTTP on a reactor of its own. Deadlines are by the clock of ``site``."""

    def __init__(self, files: tuple[Path, Path] | None, limits: ConnectionLimits | None = None) -> None:
        self.site = Site(connections=limits, requests=RequestBounds(body=BODY))
        self.reactor = PollReactor()
        factory: Any = self.site.factory
        self._tls = None
        if files is not None:
            certificates = Certificates(pem.Files(str(files[0]), str(files[1])))
            factory = TlsFactory(factory, certificates, factory.turns, factory.refusal_log)
            self._tls = ssl.create_default_context(cafile=str(files[0]))
            self._tls.check_hostname = False
        self.port: Any = self.reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.clients: list[Client] = []

    def connect(self) -> Client:
        self.clients.append(Client(self, self._tls))
        return self.clients[-1]

    @property
    def connections(self) -> int:
        return len(self.site.factory.connections)

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(TURNS):
            if condition():
                return
            self.reactor.runUntilCurrent()
            self.reactor.doIteration(0.01)
            self.site.clock.turn()
        raise AssertionError("it did not come")

    def close(self) -> None:
        self.port.stopListening()
        for client in self.clients:
            client.socket.close()
        for connection in list(self.site.factory.connections):
            connection.abort()
        self.until(lambda: not self.connections)
        close(self.reactor)


Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"), "broker")


@pytest.fixture(params=["plain", "tls"])
def serve(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> Iterator[Serve]:
    servers: list[Server] = []

    def start(limits: ConnectionLimits | None = None) -> Server:
        servers.append(Server(files if request.param == "tls" else None, limits))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(("request_", "status"), [(TOO_LARGE + b"x", 413), (MALFORMED + b"x" * 500, 400)])
def test_the_refusal_arrives_whatever_the_peer_sends_behind_it(serve: Serve, request_: bytes, status: int) -> None:
    server = serve()
    client = server.connect()
    assert client.send(request_)
    assert client.send(b"x" * 1_000_000)
    server.until(client.hears("ended"))
    assert client.heard.startswith(b"HTTP/1.1 %d " % status)
    assert client.heard.count(b"HTTP/1.1 ") == 1
    assert client.heard.endswith(b"}")
    client.socket.close()
    server.until(lambda: not server.connections)
    assert server.site.requests == []


def test_the_refusal_of_a_connection_arrives_although_its_request_is_not_read(serve: Serve) -> None:
    server = serve(ConnectionLimits(connections_per_address=1))
    first = server.connect()
    server.until(lambda: server.connections == 1)
    second = server.connect()
    second.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    server.until(second.hears("ended"))
    assert second.heard.startswith(b"HTTP/1.1 503 ")
    second.socket.close()
    server.until(lambda: server.connections == 1)
    assert first.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    server.until(lambda: server.site.requests)


def test_a_peer_that_does_not_close_is_cut_off_at_the_deadline(serve: Serve) -> None:
    server = serve()
    client = server.connect()
    client.send(TOO_LARGE)
    server.until(client.hears("ended"))
    server.site.clock.pump([1.0] * int(LINGER_WITHIN - 1))
    assert client.send(b"x")
    server.until(lambda: True)
    assert server.connections == 1
    server.site.clock.pump([Deadlines.CHECK] * 2)
    server.until(lambda: not server.connections)
    assert server.site.clock.getDelayedCalls() == []

    def is_reset() -> bool:
        client.send(b"x")
        return client.state == "reset"

    server.until(is_reset)


@pytest.mark.long
def test_a_peer_that_sends_more_than_a_close_discards_is_cut_off(serve: Serve) -> None:
    server = serve()
    client = server.connect()
    client.send(TOO_LARGE)
    server.until(client.hears("ended"))
    assert not client.send(b"x" * (3 * LINGER_BYTES))
    server.until(lambda: not server.connections)


def test_a_shutdown_cuts_off_a_peer_that_does_not_close(serve: Serve) -> None:
    server = serve()
    client, silent = server.connect(), server.connect()
    client.send(TOO_LARGE)
    server.until(client.hears("ended"))
    server.until(lambda: server.connections == 2)
    closed = server.site.factory.close()
    server.until(silent.hears("ended"))
    server.site.clock.advance(SENT_WITHIN)
    server.until(lambda: closed.called)
    assert server.connections == 0
