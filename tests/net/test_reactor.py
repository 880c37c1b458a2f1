"""The broker's reactor: an instance of its own, iterated by hand, and the one that is installed."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.protocol import ClientFactory, Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from broker.config import endpoint
from broker.net.epoll_streams import END_SECONDS, EndBudget
from broker.net.listeners import listen
from broker.net.reactor import EVENTS, Reactor
from broker.net.silent_hosts import KEEPALIVE_IDLE, USER_TIMEOUT
from tests.net.reactors import close
from tests.patience import PATIENCE


class Recording(Protocol):
    """One accepted connection."""

    def __init__(self) -> None:
        self.received = b""
        self.reason: Any = None

    def connectionMade(self) -> None:
        self.factory.accepted.append(self)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        assert self.transport is not None
        self.factory.calls.append((self.transport.reactor.at_end(self.at_end), data))  # type: ignore[attr-defined, union-attr]

    def at_end(self) -> None:
        self.factory.calls.append(("end", self.received))  # type: ignore[union-attr]
        if self.received == b"fail":
            raise ValueError

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = type(reason.value)


class Accepting(Factory):
    protocol = Recording
    noisy = False

    def __init__(self) -> None:
        self.accepted: list[Recording] = []
        self.calls: list[tuple[Any, bytes]] = []


class Pipe:
    """A descriptor that is neither a port nor an accepted connection."""

    def __init__(self) -> None:
        self.end, self.start = os.pipe()
        self.received: list[bytes] = []

    def fileno(self) -> int:
        return self.end

    def doRead(self) -> None:
        self.received.append(os.read(self.end, 100))

    def connectionLost(self, reason: Failure) -> None:
        os.close(self.end)

    def logPrefix(self) -> str:
        return "pipe"


@pytest.fixture
def reactor() -> Iterator[Any]:
    made = Reactor()
    yield made
    close(made)


def connected(reactor: Any, port: Any, factory: Accepting) -> tuple[socket.socket, Recording]:
    """A client's socket, and the other end of it."""
    before = len(factory.accepted)
    client = socket.create_connection(("127.0.0.1", port.getHost().port), PATIENCE)
    while len(factory.accepted) == before:
        reactor.iterate(PATIENCE)
    return client, factory.accepted[-1]


def test_calls_at_the_end_follow_all_reads_of_a_turn(reactor: Any) -> None:
    factory = Accepting()
    port: Any = listen(reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), factory)
    clients = [connected(reactor, port, factory)[0] for _ in range(2)]
    clients[0].sendall(b"fail")
    clients[1].sendall(b"second")
    while len(factory.calls) < 4:
        reactor.iterate(PATIENCE)
    assert [made for made, _ in factory.calls] == [True, True, "end", "end"]
    assert {data for _, data in factory.calls} == {b"fail", b"second"}
    assert not port.reactor.at_end(lambda: None)
    for client in clients:
        client.close()
    reactor.disconnectAll()


def test_other_descriptors_are_served_beside_connections(reactor: Any) -> None:
    factory = Accepting()
    pipe = Pipe()
    reactor.addReader(pipe)
    port: Any = listen(reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), factory)
    client, accepted = connected(reactor, port, factory)
    client.sendall(b"input")
    os.write(pipe.start, b"of the pipe")
    while not (pipe.received and accepted.received):
        reactor.iterate(PATIENCE)
    assert (pipe.received, accepted.received) == ([b"of the pipe"], b"input")
    assert {pipe, port, accepted.transport} <= set(reactor.getReaders())
    assert reactor.getWriters() == []
    client.close()
    os.close(pipe.start)
    reactor.disconnectAll()


def test_a_turn_is_bounded_and_the_next_one_serves_the_waiting_descriptors(reactor: Any) -> None:
    read, write = os.pipe()
    os.write(write, b"never read")
    served: list[int] = []

    class Ready(Pipe):
        """A duplicate of the same end, which stays readable."""

        def __init__(self) -> None:
            self.end = os.dup(read)

        def doRead(self) -> None:
            served.append(self.end)

    for _ in range(EVENTS + 10):
        reactor.addReader(Ready())
    reactor.iterate(0)
    assert len(served) == EVENTS
    reactor.iterate(0)
    assert len(set(served)) == EVENTS + 10
    reactor.disconnectAll()
    os.close(read)
    os.close(write)


def test_outgoing_connections_end_with_a_vanished_host(reactor: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connector = reactor.connectTCP("127.0.0.1", server.getsockname()[1], ClientFactory.forProtocol(Protocol))
        handle = connector.transport.getHandle()
        assert handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE
        assert handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT * 1_000
        connector.disconnect()


def test_the_end_of_the_reactor_ends_ports_and_connections(reactor: Any) -> None:
    factory = Accepting()
    port: Any = listen(reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), factory)
    pairs = [connected(reactor, port, factory) for _ in range(2)]
    where = port.getHost().port
    reactor.disconnectAll()
    assert [accepted.reason for _, accepted in pairs] == [ConnectionLost, ConnectionLost]
    assert not set(reactor.getReaders()) & {port, *(accepted.transport for _, accepted in pairs)}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", where), PATIENCE)
    for client, _ in pairs:
        client.close()


@pytest.mark.parametrize(
    ("before", "expected"),
    [("", "True broker.net.reactor.Reactor"), ("import twisted.internet.reactor", "False twisted.internet")],
)
def test_it_is_installed_unless_there_is_one(before: str, expected: str) -> None:
    code = f"""
{before}
from broker.net.reactor import install
installed = install()
from twisted.internet import reactor
print(installed, type(reactor).__module__ + "." + type(reactor).__name__)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith(expected)


class Polls:
    """The epoll set of a reactor, which keeps the times for which it was to wait, and never waits."""

    def __init__(self, epoll: Any) -> None:
        self.waits: list[float] = []
        self._epoll = epoll

    def poll(self, wait: float, most: int) -> list[tuple[int, int]]:
        self.waits.append(wait)
        events: list[tuple[int, int]] = self._epoll.poll(0, most)
        return events


def test_ends_that_wait_for_a_turn_do_not_wait_for_an_event(reactor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = Accepting()
    port: Any = listen(reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), factory)
    pairs = [connected(reactor, port, factory) for _ in range(5)]
    readings = itertools.count()
    monkeypatch.setattr(
        reactor.streams, "ends", EndBudget(lambda: next(readings) * 2 * END_SECONDS)
    )  # one in each turn
    polls = Polls(reactor._poller)
    monkeypatch.setattr(reactor, "_poller", polls)
    for client, _ in pairs[:3]:
        client.close()
    for _, accepted in pairs[3:]:
        accepted.transport.abortConnection()  # type: ignore[union-attr]
    for _ in pairs:
        reactor.runUntilCurrent()
        reactor.doIteration(PATIENCE)
    assert polls.waits == [0] * len(pairs)
    reactor.runUntilCurrent()
    reactor.doIteration(PATIENCE)
    assert polls.waits[-1] == PATIENCE
    assert {accepted.reason for _, accepted in pairs} == {ConnectionDone, ConnectionAborted}
    monkeypatch.undo()
    for client, _ in pairs:
        client.close()
    reactor.disconnectAll()
