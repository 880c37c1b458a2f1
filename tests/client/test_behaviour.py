"""Behaviour of a broker as its clients see it: one suite over the real daemon and over the in-memory fake.

A difference between the two is a defect of the fake, so each test runs over both.

The file is longer than others: its suite runs as a whole over both brokers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import pytest

from broker.client.blocking import Caller, Change, Client, Request, Worker
from broker.client.credentials import Anonymous, External, Password
from broker.client.errors import AuthenticationFailed, NotTaken, Refused, Rejected, Unsettled
from broker.client.mtl import Delivery, Settings
from broker.client.profiles import registry, test, topic
from broker.client.profiles.service import RequestFailed
from broker.client.settings import Event
from broker.client.testing import FakeBroker
from tests.access.users import ACCESS
from tests.client.farm import Farm
from tests.patience import PATIENCE, until

QUICK = Settings(timeout=20.0, heartbeat=0.2, least_pause=0.01, most_pause=0.1, least_resend_pause=0.01)

USERS = "plain = true" + ACCESS
DURABLE = '[[mtl.queues]]\nqueues = ["durable"]\ndurable = true'


class Broker(Protocol):
    """A broker under test."""

    def client(self, *credentials: Any) -> Client:
        """Return a client."""

    def restart(self) -> None:
        """Stop and start the broker."""

    def close(self) -> None:
        """Stop the broker."""


class Real:
    """The daemon."""

    def __init__(self, directory: Path, configuration: str) -> None:
        self.farm = Farm(directory, configuration)
        if ACCESS in configuration:
            self.farm.password("anna", "pencil")
        self.farm.start()

    def client(self, *credentials: Any) -> Client:
        return Client(self.farm.places[0], *credentials, settings=QUICK)

    def restart(self) -> None:
        self.farm.restart()

    def close(self) -> None:
        self.farm.stop()
        assert "Traceback" not in "".join(self.farm.daemon.log)


class Fake:
    """The fake."""

    def __init__(self, configuration: str) -> None:
        users = {"anna": "pencil"} if ACCESS in configuration else None
        self.fake = FakeBroker(users, durable=["durable"])

    def client(self, *credentials: Any) -> Client:
        return self.fake.blocking_client(*credentials, settings=QUICK)

    def restart(self) -> None:
        self.fake.restart()

    def close(self) -> None:
        pass


def make(kind: str, directory: Path, configuration: str) -> Broker:
    return Real(directory, configuration) if kind == "daemon" else Fake(configuration)


KINDS = ["fake", "daemon"]


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that all tests of the module share: each uses names of its own."""
    broker = make(request.param, tmp_path_factory.mktemp("broker"), "")
    yield broker
    broker.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.client() as client:
        yield client


_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"name-{next(_numbers)}"


@attrs.define
class Events:
    """Events of a flow."""

    seen: list[Event] = attrs.field(factory=list)

    def __call__(self, event: Event, why: str) -> None:
        self.seen.append(event)


# sessions and leases


def test_a_session_offers_all_profiles_and_the_window(client: Client) -> None:
    ready = client.open(PATIENCE)
    assert set(ready.profiles) == {"test", "registry", "topic", "queue", "service"}
    assert (ready.limits["window"], ready.limits["most-window"]) == (100, 1_000)


@pytest.mark.parametrize(
    ("side", "profile", "resource", "confirm", "code"),
    [
        ("read", "nonsense", "x", "none", 400),
        ("read", "test", "resource", "full", 501),
        ("read", "test", "other", "none", 400),
        ("write", "test", "resource", "full", 501),
        ("read", "topic", "x", "full", 501),
        ("write", "topic", "elkobroker.mine", "none", 403),
        ("read", "registry", "nothing", "none", 400),
        ("read", "registry", "services", "full", 501),
        ("write", "registry", "services", "full", 400),
        ("write", "registry", "load/x", "full", 400),
        ("read", "service", "load", "full", 400),
        ("read", "service", "x", "full", 400),
        ("read", "service", "reply/x", "full", 400),
        ("read", "queue", "x" * 251, "full", 400),
    ],
)
def test_a_lease_that_is_refused(
    client: Client, side: str, profile: str, resource: str, confirm: Any, code: int
) -> None:
    function: Callable[..., Any] = client.read if side == "read" else client.write
    with pytest.raises(Refused) as caught:
        function(profile, [resource], confirm=confirm, timeout=PATIENCE)
    assert caught.value.code == code


def test_a_virtual_host_that_is_not_there(broker: Broker) -> None:
    with broker.client() as client:
        endpoint, transport = client.client.endpoint, client.client.transport
        with (
            Client(endpoint, virtual_host="nowhere", transport=transport) as other,
            pytest.raises(Refused, match="403"),
        ):
            other.open(PATIENCE)


@pytest.mark.parametrize("kind", KINDS)
def test_authentication(kind: str, tmp_path: Path) -> None:
    broker = make(kind, tmp_path, USERS)
    try:
        with broker.client(Password("anna", "pencil")) as client:
            client.write("queue", ["jobs"], timeout=PATIENCE).send(b"x", timeout=PATIENCE)
            content = client.read("queue", ["jobs"], confirm="full", timeout=PATIENCE).take(PATIENCE)
            assert content.properties["user-id"] == "anna"
        for credentials in (Password("anna", "pen"), Password("ben", "pencil"), Anonymous(), External(), None):
            with broker.client(credentials) as client, pytest.raises(AuthenticationFailed):
                client.open(PATIENCE)
    finally:
        broker.close()


# queues


def put(client: Client, queue: str, *bodies: bytes, **properties: Any) -> None:
    writer = client.write("queue", [queue], timeout=PATIENCE)
    for body in bodies:
        writer.post(body, queue, properties, timeout=PATIENCE)
    writer.flush(PATIENCE)
    writer.close()


def test_messages_come_in_order_with_their_properties(client: Client, name: str) -> None:
    put(client, name, b"1", b"2", colour="red")
    reader = client.read("queue", [name], confirm="full", timeout=PATIENCE)
    first, second = reader.take(PATIENCE), reader.take(PATIENCE)
    assert [first.body, second.body, first.resource] == [b"1", b"2", name]
    assert first.properties == {"colour": "red", "redelivered": False, "delivery-count": 1}


def test_a_confirmed_message_is_gone_and_an_unanswered_one_is_returned(
    broker: Broker, client: Client, name: str
) -> None:
    put(client, name, b"1", b"2", b"3")
    with broker.client() as other:
        lazy = other.read("queue", [name], confirm="full", timeout=PATIENCE)
        lazy.take(PATIENCE).confirm()
        lazy.take(PATIENCE)
    reader = client.read("queue", [name], confirm="full", timeout=PATIENCE)
    contents = [reader.take(PATIENCE) for _ in range(2)]
    assert [content.body for content in contents] == [b"2", b"3"]
    assert contents[0].properties["redelivered"] is True


def test_a_returned_message_goes_back_to_its_place(broker: Broker, client: Client, name: str) -> None:
    put(client, name, b"1", b"2", b"3")
    with broker.client() as other:
        assert other.read("queue", [name], confirm="full", window=1, timeout=PATIENCE).take(PATIENCE).body == b"1"
    reader = client.read("queue", [name], confirm="full", timeout=PATIENCE)
    assert [reader.take(PATIENCE).body for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_window_limits_unconfirmed_messages(broker: Broker, client: Client, name: str) -> None:
    put(client, name, b"1", b"2", b"3")
    narrow = client.read("queue", [name], confirm="full", window=1, timeout=PATIENCE)
    first = narrow.take(PATIENCE)
    with broker.client() as other:
        wide = other.read("queue", [name], confirm="full", timeout=PATIENCE)
        assert [wide.take(PATIENCE).body, wide.take(PATIENCE).body] == [b"2", b"3"]
        assert narrow.reader.busy == 1
        assert first.body == b"1"


def test_readers_with_room_take_turns(broker: Broker, client: Client, name: str) -> None:
    with broker.client() as other:
        readers = [each.read("queue", [name], confirm="full", timeout=PATIENCE) for each in (client, other)]
        put(client, name, b"1", b"2", b"3", b"4")
        taken = [[reader.take(PATIENCE).body for _ in range(2)] for reader in readers]
        assert sorted(taken) == [[b"1", b"3"], [b"2", b"4"]]


def test_a_rejected_message_is_delivered_again_or_discarded(client: Client, name: str) -> None:
    seen: list[tuple[bytes, Any]] = []

    def work(content: Any) -> None:
        seen.append((content.body, content.properties["delivery-count"]))
        if content.body == b"shy" and content.properties["delivery-count"] < 3:
            raise NotTaken(recycle=True)
        if content.body == b"poison":
            raise NotTaken
        if content.body == b"shy":
            reader.drain()

    put(client, name, b"poison", b"shy")
    reader = client.read("queue", [name], confirm="full", timeout=PATIENCE)
    reader.work(work)
    assert seen == [(b"poison", 1), (b"shy", 1), (b"shy", 2), (b"shy", 3)]


def test_a_rejected_message_goes_to_another_reader_at_once(broker: Broker, client: Client, name: str) -> None:
    with broker.client() as other:
        first = client.read("queue", [name], confirm="full", timeout=PATIENCE)
        second = other.read("queue", [name], confirm="full", timeout=PATIENCE)
        put(client, name, b"x")
        first.take(PATIENCE).reject(recycle=True)
        assert second.take(PATIENCE).properties["delivery-count"] == 2


def test_a_message_that_fails_too_often_is_a_dead_letter(broker: Broker, client: Client, name: str) -> None:
    put(client, name, b"poison")
    for _ in range(20):
        # A reader that leaves returns the message without a delay.
        with broker.client() as other:
            other.read("queue", [name], confirm="full", timeout=PATIENCE).take(PATIENCE)
    dead = client.read("queue", [f"{name}.dead"], confirm="full", timeout=PATIENCE).take(PATIENCE)
    assert (dead.body, dead.properties["death-reason"]) == (b"poison", "deliveries")
    assert dead.properties["delivery-count"] == 1


def test_an_expired_message_is_not_delivered(client: Client, name: str) -> None:
    put(client, name, b"late", ttl=1)
    put(client, name, b"good")
    end = time.monotonic() + 0.05  # the ttl has a known end: what is waited for here is the clock itself
    until(lambda: time.monotonic() > end)
    assert client.read("queue", [name], confirm="full", timeout=PATIENCE).take(PATIENCE).body == b"good"


def test_readers_without_confirmation(client: Client, name: str) -> None:
    put(client, name, b"1", b"2")
    reader = client.read("queue", [name], confirm="none", timeout=PATIENCE)
    assert [reader.take(PATIENCE).body for _ in range(2)] == [b"1", b"2"]
    reader.close()
    put(client, name, b"3")
    again = client.read("queue", [name], confirm="full", timeout=PATIENCE).take(PATIENCE)
    assert (again.body, again.properties["delivery-count"]) == (b"3", 1)


def test_draining_finishes_what_has_arrived(broker: Broker, client: Client, name: str) -> None:
    put(client, name, b"1", b"2")
    reader = client.read("queue", [name], confirm="full", timeout=PATIENCE)
    until(lambda: reader.reader.busy == 2)
    reader.drain()
    until(lambda: not reader.reader.summoned)
    put(client, name, b"3")
    done = []
    reader.work(lambda content: done.append(content.body))
    assert done == [b"1", b"2"]
    assert client.read("queue", [name], confirm="full", timeout=PATIENCE).take(PATIENCE).body == b"3"


# topics, and the test profile


def test_topics_fan_out_to_all_subscribers_and_retain_the_last_value(broker: Broker, client: Client, name: str) -> None:
    news: list[tuple[str, bytes, dict[str, Any]]] = []

    def receive(delivery: Delivery) -> None:
        news.append((delivery.resource, delivery.body, dict(delivery.properties)))

    publisher = client.wait(topic.publisher, client.client, confirm="full", timeout=PATIENCE)
    publish = partial(client.wait, topic.publish, publisher, timeout=PATIENCE)
    publish(name, b"rain", retain=True)
    client.wait(topic.subscribe, client.client, [name, f"{name}.x"], receive, timeout=PATIENCE)
    with broker.client() as other:
        other.wait(topic.subscribe, other.client, [f"{name}.x"], receive, timeout=PATIENCE)
        publish(f"{name}.x", b"1:0", {"X-Home": "us"})
        until(lambda: len(news) == 3)
    assert news == [
        (name, b"rain", {"retain": True, "retained": True}),
        (f"{name}.x", b"1:0", {"X-Home": "us"}),
        (f"{name}.x", b"1:0", {"X-Home": "us"}),
    ]
    publish(name, b"", retain=True)
    # The confirmation and the delivery are independent: the delivery of the empty value may come after it.
    until(lambda: len(news) == 4)
    news.clear()
    with broker.client() as other:
        other.wait(topic.subscribe, other.client, [name], receive, timeout=PATIENCE)
        publish(name, b"sun")
        until(lambda: len(news) == 2)
        assert {body for _, body, _ in news} == {b"sun"}


def test_the_test_profile(client: Client) -> None:
    bodies: list[bytes] = []
    client.wait(test.reader, client.client, lambda delivery: bodies.append(delivery.body), timeout=PATIENCE)
    writer = client.wait(test.writer, client.client, timeout=PATIENCE)
    client.wait(writer.send, b"x", timeout=PATIENCE)
    until(lambda: bodies == [b"x"])


# the registry


def test_a_watch_sees_offers_changes_and_withdrawals(broker: Broker, client: Client, name: str) -> None:
    with broker.client() as other:
        first = other.offer(name, "h:1", label="First", timeout=PATIENCE)
        watch = client.watch(name, timeout=PATIENCE)
        service = registry.Service(name, "h:1", "tcp", watch.services[0].provider, "First")
        assert watch.take(PATIENCE) == Change("up", service)
        second = client.offer(name, "h:2", protocol="http", timeout=PATIENCE)
        change = watch.take(PATIENCE)
        assert (change.event, change.service.hostport, change.service.protocol) == ("up", "h:2", "http")
        assert {each.hostport for each in client.services(name, PATIENCE)} == {"h:1", "h:2"}
        second.withdraw(PATIENCE)
        assert watch.take(PATIENCE).event == "down"
        first.withdraw(PATIENCE)
        assert watch.take(PATIENCE) == Change("down", service)
    assert client.services(name, PATIENCE) == []


def test_offers_end_with_their_client(broker: Broker, client: Client, name: str) -> None:
    with broker.client() as other:
        other.offer(name, "h:1", timeout=PATIENCE)
        watch = client.watch(name, timeout=PATIENCE)
        assert watch.take(PATIENCE).event == "up"
    assert watch.take(PATIENCE).event == "down"


def test_loads(client: Client, name: str) -> None:
    offer = client.offer(name, "h:1", load=0.25, timeout=PATIENCE)
    loads = client.wait(registry.loads, client.client, name, timeout=PATIENCE)
    assert [(load.label, load.load) for load in loads.entries.values()] == [("mtl", 0.25)]
    offer.load(0.5, PATIENCE)
    until(lambda: [load.load for load in loads.entries.values()] == [0.5])
    offer.load(0.75, PATIENCE, requests=120, errors=2, in_flight=3, latency_ms=41.5)
    told = (0.75, 120, 2, 3, 41.5)
    until(lambda: [(e.load, e.requests, e.errors, e.in_flight, e.latency_ms) for e in loads.entries.values()] == [told])
    with pytest.raises(Rejected):
        offer.load(-1.0, PATIENCE)
    with pytest.raises(Rejected):
        offer.load(1.0, PATIENCE, requests=-1)
    offer.withdraw(PATIENCE)
    until(lambda: loads.entries == {})


def test_an_offer_without_a_hostport_is_rejected(client: Client, name: str) -> None:
    with pytest.raises(Rejected):
        client.offer(name, "", timeout=PATIENCE)


# services


def serving(worker: Worker, function: Callable[[Request], bytes]) -> threading.Thread:
    thread = threading.Thread(target=worker.work, args=(function,))
    thread.start()
    return thread


@pytest.fixture
def caller(client: Client) -> Caller:
    return client.caller(timeout=PATIENCE)


def test_requests_replies_and_failures(client: Client, caller: Caller, name: str) -> None:
    def serve(request: Request) -> bytes:
        if request.body == b"bad":
            raise NotTaken
        if request.body == b"worse":
            raise RuntimeError
        return request.body.upper()

    worker = client.serve(name, timeout=PATIENCE)
    thread = serving(worker, serve)
    assert caller.call(name, b"hello", timeout=PATIENCE).body == b"HELLO"
    assert [each.protocol for each in client.services(name, PATIENCE)] == ["mtl"]
    for body in (b"bad", b"worse"):
        with pytest.raises(RequestFailed) as caught:
            caller.call(name, body, timeout=PATIENCE)
        assert (caught.value.code, caught.value.reason) == (500, "the worker refused the request")
    worker.drain()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert client.services(name, PATIENCE) == []


def test_a_request_waits_for_a_worker_and_not_for_ever(client: Client, caller: Caller, name: str) -> None:
    replies: list[bytes] = []
    early = threading.Thread(
        target=lambda: replies.append(caller.call(name, b"early", wait=True, timeout=PATIENCE).body)
    )
    early.start()
    until(lambda: caller.caller.waiting == 1)
    worker = client.serve(name, timeout=PATIENCE)
    worker.take(PATIENCE).reply(b"there")
    early.join(PATIENCE)
    assert replies == [b"there"]
    with pytest.raises((RequestFailed, TimeoutError)) as caught:
        caller.call(f"{name}-nobody", b"", wait=True, timeout=0.2)
    assert not isinstance(caught.value, RequestFailed) or caught.value.code == 504


def test_a_request_without_any_worker_fails_at_once(caller: Caller, name: str) -> None:
    with pytest.raises(RequestFailed, match="no responders") as caught:
        caller.call(name, b"", timeout=PATIENCE)
    assert caught.value.code == 503


def test_a_request_without_patience_finds_no_worker(client: Client, caller: Caller, name: str) -> None:
    with pytest.raises((RequestFailed, TimeoutError)) as caught:
        caller.call(name, b"", wait=True, timeout=0.0004)  # a ttl of 0 ms
    assert not isinstance(caught.value, RequestFailed) or caught.value.code == 503


@pytest.mark.parametrize(
    ("properties", "recycle"),
    [
        ({}, True),
        ({"reply-to": "reply/nobody"}, False),
        ({"ttl": -1}, False),
        ({"retry": 1}, False),
        ({"wait": 1}, False),
    ],
)
def test_a_request_that_the_broker_does_not_accept(
    client: Client, name: str, properties: dict[str, Any], recycle: bool
) -> None:
    writer = client.write("service", [f"service/{name}"], resend=False, timeout=PATIENCE)
    with pytest.raises(Rejected) as caught:
        writer.send(b"", properties=properties, timeout=PATIENCE)
    assert caught.value.recycle is recycle


def test_a_worker_that_is_gone(broker: Broker, client: Client, caller: Caller, name: str) -> None:
    outcomes: dict[bool, Any] = {}

    def call(retry: bool) -> None:
        try:
            outcomes[retry] = caller.call(name, b"%d" % retry, retry=retry, timeout=PATIENCE).body
        except RequestFailed as error:
            outcomes[retry] = error.code

    threads = [threading.Thread(target=call, args=(retry,)) for retry in (False, True)]
    with broker.client() as other:
        worker = other.serve(name, timeout=PATIENCE)
        for thread in threads:
            thread.start()
        assert {worker.take(PATIENCE).body for _ in threads} == {b"0", b"1"}
    second = client.serve(name, timeout=PATIENCE)
    again = second.take(PATIENCE)
    assert (again.body, again.properties["redelivered"], again.properties["delivery-count"]) == (b"1", True, 2)
    again.reply(b"done")
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes == {False: 503, True: b"done"}


def test_requests_go_to_the_least_busy_worker_and_then_to_the_least_loaded(
    broker: Broker, client: Client, caller: Caller, name: str
) -> None:
    with broker.client() as other:
        loaded = other.serve(name, loads=True, timeout=PATIENCE)
        loaded.load(0.9, PATIENCE)
        idle = client.serve(name, loads=True, timeout=PATIENCE)
        idle.load(0.1, PATIENCE)
        replies: list[bytes] = []

        def call() -> None:
            replies.append(caller.call(name, b"x", timeout=PATIENCE).body)

        # Of two idle workers the less loaded one is first; then it is the busier one.
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread, worker in zip(threads, (idle, loaded), strict=True):
            thread.start()
            request = worker.take(PATIENCE)
            if worker is loaded:
                request.reply(b"loaded")
            else:
                kept = request
        kept.reply(b"idle")
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(replies) == [b"idle", b"loaded"]


# restarts


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_is_survived_and_durable_messages_are_kept(kind: str, tmp_path: Path) -> None:
    broker = make(kind, tmp_path, DURABLE)
    events, ends = Events(), Events()
    try:
        with broker.client() as client, broker.client() as other:
            reader = client.read("queue", ["durable"], confirm="full", window=1, on_event=events, timeout=PATIENCE)
            watch = client.watch("bank", on_event=ends, timeout=PATIENCE)
            other.offer("bank", "h:1", timeout=PATIENCE)
            assert watch.take(PATIENCE).event == "up"
            put(other, "durable", b"1", b"2")
            put(other, "fleeting", b"lost")
            stale = reader.take(PATIENCE)
            assert stale.body == b"1"
            caller = other.caller(timeout=PATIENCE)
            worker = client.serve("slow", timeout=PATIENCE)
            errors: list[Exception] = []

            def call() -> None:
                try:
                    caller.call("slow", b"", timeout=PATIENCE)
                except Exception as error:
                    errors.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            worker.take(PATIENCE)
            broker.restart()
            until(lambda: events.seen == [Event.LOST, Event.BACK])
            thread.join(PATIENCE)
            assert [type(error) for error in errors] == [Unsettled]
            stale.confirm()  # void: the message comes again
            content = reader.take(PATIENCE)
            assert (content.body, content.properties["redelivered"]) == (b"1", True)
            content.confirm()
            assert reader.take(PATIENCE).body == b"2"
            until(lambda: ends.seen == [Event.LOST, Event.BACK])
            until(lambda: [service.hostport for service in watch.services] == ["h:1"])
            put(other, "fleeting", b"kept")
            fleeting = client.read("queue", ["fleeting"], confirm="full", timeout=PATIENCE)
            assert fleeting.take(PATIENCE).body == b"kept"
            assert client.client.sessions == 2
    finally:
        broker.close()
