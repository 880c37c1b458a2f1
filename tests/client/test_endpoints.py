"""Clients with several brokers: the order in which they are tried, names with several addresses, and back-off."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.client.errors import Lost, Unreachable
from broker.client.mtl import Client, Settings
from broker.client.profiles import registry
from broker.client.settings import Event
from broker.client.testing import FakeBroker
from broker.client.transport import Endpoints

A, B, C = "tcp://192.0.2.1:5975", "tcp://192.0.2.2:5975", "tcp://192.0.2.3:5975"
SETTINGS = Settings(first_contact=None, failover=2.0, least_pause=0.1, most_pause=1.0)


class Machines:
    """A transport to brokers by their endpoints; others are silent."""

    def __init__(self, **brokers: FakeBroker | Draining) -> None:
        self.brokers = brokers
        self.connected: list[str] = []

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> Any:
        self.connected.append(endpoint)
        broker = self.brokers.get(endpoint)
        return Silent() if broker is None else broker.connect(reactor, endpoint, receive, room, failed)

    def fault(self, endpoint: str, seconds: float) -> str:
        return "" if endpoint in self.brokers else "nothing is there"

    def close(self) -> None:
        pass


class Silent:
    """A connection to a machine that is not there: libzmq keeps trying, and reports nothing."""

    def send(self, frames: Any) -> bool:
        return True

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, linger: int = 0) -> None: ...


class Draining:
    """A broker that drains."""

    def connect(self, reactor: Any, endpoint: str, receive: Callable[[list[bytes]], object], *_: Any) -> Any:
        refusal = b'{"status": "Unavailable", "reason": "the broker is draining: connect to another one"}'

        class Connection(Silent):
            def send(self, frames: Any) -> bool:
                reactor.callLater(0, receive, [b"", b"503", refusal])
                return True

        return Connection()


def client_of(
    machines: Machines, *endpoints: str, look_up: Any = None, settings: Settings = SETTINGS
) -> tuple[Client, Clock]:
    clock = Clock()
    client = Client(
        clock,
        endpoints[0] if len(endpoints) == 1 else endpoints,
        settings=settings,
        transport=machines,
        in_thread=look_up or (lambda function, *more: succeed(function(*more))),
    )
    return client, clock


def run(clock: Clock, seconds: float) -> None:
    clock.pump([0.05] * round(seconds / 0.05))


def test_the_next_broker_is_tried_when_one_does_not_answer() -> None:
    machines = Machines(**{C: FakeBroker()})
    client, clock = client_of(machines, A, B, C)
    opened = client.open()
    run(clock, 3.5)
    assert not opened.called
    assert machines.connected == [A, B]
    run(clock, 2.0)
    assert opened.called
    assert client.endpoint == C
    client.close()


def test_all_brokers_are_tried_before_the_pause_grows() -> None:
    machines = Machines()
    client, clock = client_of(machines, A, B)
    client.open().addErrback(lambda failure: None)
    run(clock, 30.0)
    assert machines.connected[:6] == [A, B] * 3
    assert len(machines.connected) >= 10
    client.close()


FIRST = attrs.evolve(SETTINGS, first_contact=2.0)


def test_a_client_that_was_cancelled_at_the_second_broker_tries_the_first_one_too() -> None:
    machines = Machines(**{C: FakeBroker()})
    client, clock = client_of(machines, C, B, settings=FIRST)
    one = machines.brokers.pop(C)
    opened = client.open()
    opened.addErrback(lambda failure: None)
    run(clock, 1.5)  # one second for the first broker, and a part of that for the second
    assert machines.connected == [C, B]
    opened.cancel()
    machines.brokers[C] = one
    opened = client.open()
    run(clock, 3.0)
    assert opened.called
    assert client.sessions == 1
    client.close()


@pytest.mark.parametrize("endpoints", [(A, B), (B, A)])
def test_a_broker_that_drains_is_there_whatever_the_others_are(endpoints: tuple[str, str]) -> None:
    machines = Machines(**{A: Draining()})
    client, clock = client_of(machines, *endpoints, settings=FIRST)
    opened = client.open()
    run(clock, 10.0)
    assert not opened.called
    machines.brokers[A] = FakeBroker()  # the drain is undone
    run(clock, 5.0)
    assert opened.called
    assert client.sessions == 1
    client.close()


def test_without_any_broker_each_endpoint_is_named_once() -> None:
    client, clock = client_of(Machines(), A, B, settings=FIRST)
    failures: list[Failure] = []
    client.open().addErrback(failures.append)
    run(clock, 5.0)
    assert isinstance(failures[0].value, Unreachable)
    assert str(failures[0].value) == f"{A}: nothing is there; {B}: nothing is there"
    client.close()


def test_a_flow_moves_to_another_broker_and_offers_its_service_there() -> None:
    one, two = FakeBroker(), FakeBroker()
    machines = Machines(**{A: one, B: two})
    client, clock = client_of(machines, A, B)
    events: list[Event] = []
    offered: Deferred[Any] = Deferred.fromCoroutine(
        registry.offer(client, "bank", "bank:1", on_event=lambda event, why: events.append(event))
    )
    run(clock, 1.0)
    assert offered.called
    watcher, other = client_of(machines, B)
    seen: list[Any] = []
    Deferred.fromCoroutine(registry.services(watcher, "bank", lambda *change: seen.append(change)))
    run(other, 1.0)
    assert seen == []
    one.stop()
    run(clock, 5.0)
    run(other, 1.0)
    assert client.endpoint == B
    assert events == [Event.LOST, Event.BACK]
    assert [service.hostport for _, service in seen] == ["bank:1"]
    # It stays there when the first one is back.
    one.start()
    run(clock, 30.0)
    assert client.endpoint == B
    client.close()
    watcher.close()


def test_a_name_with_several_addresses_stands_for_all() -> None:
    machines = Machines(**{B: FakeBroker()})
    asked: list[Any] = []

    def look_up(function: Any, *arguments: Any) -> Deferred[Any]:
        assert function is socket.getaddrinfo
        asked.append(arguments[:2])
        return succeed([(0, 0, 0, "", (host, 5975)) for host in ("192.0.2.1", "192.0.2.2", "192.0.2.2")])

    client, clock = client_of(machines, "tcp://brokers.example:5975", look_up=look_up)
    opened = client.open()
    run(clock, 5.0)
    assert opened.called
    assert machines.connected == [A, B]
    assert asked == [("brokers.example", 5975)] * 2
    client.close()


def test_a_name_that_cannot_be_looked_up_is_looked_up_again() -> None:
    machines = Machines(**{"tcp://brokers.example:5975": FakeBroker()})
    answers = [fail(OSError("no such host")), succeed([(0, 0, 0, "", ("192.0.2.1", 5975))])]
    client, clock = client_of(machines, "tcp://brokers.example:5975", look_up=lambda *_: answers.pop(0))
    opened = client.open()
    assert not opened.called
    run(clock, 1.0)
    assert opened.called
    # A name with one address is left to libzmq.
    assert machines.connected == ["tcp://brokers.example:5975"]
    client.close()


@pytest.mark.parametrize(
    "endpoint", [A, "ipc:///run/broker", "inproc://x", "tcp://localhost:5975", "tcp://[::1]:5975", "tcp://a;b:1", "odd"]
)
def test_addresses_are_not_looked_up(endpoint: str) -> None:
    def never(*_: Any) -> Deferred[Any]:
        raise AssertionError

    endpoints = Endpoints(endpoint, never)
    looked = Deferred.fromCoroutine(endpoints.look_up())
    assert looked.called
    looked.addErrback(lambda failure: failure.trap(Lost))
    assert endpoints.current == endpoint
    assert endpoints.next()


def test_no_endpoint_is_an_error() -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Client(Clock(), [])
