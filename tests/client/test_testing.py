"""The fake broker's own interface for tests: a clock as reactor, inspection of queues, stop and start, users.

Its behaviour as a broker is tested in `test_behaviour`, together with the daemon.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from broker.client.credentials import Password
from broker.client.errors import AuthenticationFailed
from broker.client.mtl import MAX_BROKERS, Delivery, Settings
from broker.client.profiles import queue, service
from broker.client.profiles.service import RequestFailed
from broker.client.settings import Event
from broker.client.testing import FakeBroker
from tests.patience import PATIENCE, until

NOW = Settings(least_pause=0.001, most_pause=0.001)


class Timeline:
    """A clock that is advanced until a Deferred has its result."""

    def __init__(self) -> None:
        self.clock = Clock()

    def result(self, waiting: Any, seconds: float = 0.0) -> Any:
        """Return the result of a Deferred or coroutine, after at most so many seconds of the clock."""
        deferred = waiting if isinstance(waiting, Deferred) else Deferred.fromCoroutine(waiting)
        results: list[Any] = []
        deferred.addBoth(results.append)
        end = self.clock.seconds() + seconds
        # Messages are calls without a delay: ten exchanges need no more turns than this.
        for _ in range(50):
            self.clock.advance(0)
        while not results and self.clock.seconds() < end:
            self.clock.advance(0.05)
        assert results, "there is no result"
        return results[0]


def test_a_clock_will_do_as_a_reactor() -> None:
    broker, time = FakeBroker(), Timeline()
    client = broker.client(time.clock)
    writer = time.result(queue.writer(client, ["jobs"]))
    time.result(queue.put(writer, "jobs", b"x"))
    done: list[bytes] = []
    time.result(queue.worker(client, ["jobs"], lambda piece: done.append(piece.body)))
    assert done == [b"x"]
    client.close()


def test_time_passes_by_the_clients_clock() -> None:
    broker, time = FakeBroker(), Timeline()
    client = broker.client(time.clock)
    caller = time.result(service.caller(client))
    failure = time.result(caller.call("nobody", b"", wait=True, timeout=10.0), 10.1)
    # The broker's error and the caller's own timeout are due at the same moment.
    assert failure.check(RequestFailed, TimeoutError), failure
    assert time.clock.seconds() >= 10.0 - 0.05
    client.close()
    assert time.clock.getDelayedCalls() == []


def test_a_client_that_stays_silent_sends_heartbeats_to_the_fake() -> None:
    broker, time = FakeBroker(), Timeline()
    events: list[Event] = []
    client = broker.client(time.clock)
    time.result(queue.worker(client, ["jobs"], print, on_event=lambda event, why: events.append(event)))
    for _ in range(1_000):
        time.clock.advance(0.1)
    assert events == []
    client.close()


def test_queues_can_be_inspected() -> None:
    broker = FakeBroker()
    with broker.blocking_client() as client:
        writer = client.write("queue", ["jobs"], timeout=PATIENCE)
        for body in (b"1", b"2", b"3"):
            writer.send(body, timeout=PATIENCE)
        assert (broker.queued("jobs"), broker.unsettled("jobs"), broker.queued("other")) == ([b"1", b"2", b"3"], [], [])
        reader = client.read("queue", ["jobs"], confirm="full", window=2, timeout=PATIENCE)
        first = reader.take(PATIENCE)
        assert (broker.queued("jobs"), broker.unsettled("jobs")) == ([b"3"], [b"1", b"2"])
        first.confirm()
        until(lambda: broker.unsettled("jobs") == [b"2", b"3"])
    assert broker.queued("jobs") == [b"2", b"3"]


def test_stopping_and_starting() -> None:
    broker = FakeBroker(durable=["kept"])
    events: list[Event] = []
    with broker.blocking_client(settings=NOW) as client:
        writer = client.write(
            "queue", ["kept", "lost"], on_event=lambda event, why: events.append(event), timeout=PATIENCE
        )
        writer.send(b"x", "kept", timeout=PATIENCE)
        writer.send(b"x", "lost", timeout=PATIENCE)
        broker.stop()
        until(lambda: events == [Event.LOST])
        with pytest.raises(TimeoutError):
            client.open(0.05)
        writer.post(b"y", "kept", timeout=PATIENCE)
        broker.start()
        writer.flush(PATIENCE)
        assert events == [Event.LOST, Event.BACK]
    assert (broker.queued("kept"), broker.queued("lost")) == ([b"x", b"y"], [])


def test_users() -> None:
    broker = FakeBroker({"anna": "pencil"})
    with broker.blocking_client(Password("anna", "pencil")) as client:
        client.open(PATIENCE)
    for credentials in (Password("anna", "pen"), Password("ben", "pencil"), None):
        with broker.blocking_client(credentials) as client, pytest.raises(AuthenticationFailed):
            client.open(PATIENCE)


def test_clients_in_many_threads_share_a_fake() -> None:
    broker = FakeBroker()
    done: list[bytes] = []
    lock = threading.Lock()

    def put(number: int) -> None:
        with broker.blocking_client() as client:
            writer = client.write("queue", ["jobs"], timeout=PATIENCE)
            for each in range(50):
                writer.post(b"%d-%d" % (number, each), timeout=PATIENCE)
            writer.flush(PATIENCE)

    def work(delivery: Delivery) -> None:
        with lock:
            done.append(delivery.body)

    workers = [broker.blocking_client() for _ in range(2)]
    for client in workers:
        client.wait(queue.worker, client.client, ["jobs"], work, timeout=PATIENCE)
    writers = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(PATIENCE)
    until(lambda: len(done) == 200)
    for client in workers:
        client.close()
    assert len(set(done)) == 200
    assert broker.queued("jobs") == broker.unsettled("jobs") == []


def test_a_client_follows_a_queue_that_moves_and_repeats_what_was_not_confirmed() -> None:
    here, there = FakeBroker(), FakeBroker(endpoint="inproc://there")
    time = Timeline()
    client = here.client(time.clock, settings=NOW)
    done: list[bytes] = []
    writer = time.result(queue.writer(client, ["jobs"]))
    time.result(queue.put(writer, "jobs", b"before", id="1"))
    here.move_queue("jobs", there)
    put = queue.put(writer, "jobs", b"after", id="2")
    time.result(put, 1)
    assert there.queued("jobs") == [b"before", b"after"]
    time.result(queue.worker(client, ["jobs"], lambda piece: done.append(piece.body)), 1)
    time.result(writer.settled())
    assert done == [b"before", b"after"]
    assert here.queued("jobs") == []
    # and back, while the reader has nothing to do
    there.move_queue("jobs", here)
    time.result(queue.put(writer, "jobs", b"again", id="3"), 1)
    for _ in range(50):
        time.clock.advance(0.05)
    assert done == [b"before", b"after", b"again"]
    client.close()


def test_the_credentials_go_along_to_the_other_broker() -> None:
    users = {"ann": "secret"}
    here, there = FakeBroker(users), FakeBroker(users, endpoint="inproc://there")
    here.move_queue("jobs", there)
    time = Timeline()
    client = here.client(time.clock, Password("ann", "secret"), settings=NOW)
    writer = time.result(queue.writer(client, ["jobs"]), 1)
    time.result(queue.put(writer, "jobs", b"x"))
    assert there.queued("jobs") == [b"x"]
    client.close()


def test_queues_of_two_brokers_in_one_lease_are_not_followed_for_ever() -> None:
    here, there = FakeBroker(), FakeBroker(endpoint="inproc://there")
    there.move_queue("one", here)
    here.move_queue("two", there)
    time = Timeline()
    client = here.client(time.clock, settings=NOW)
    opening = Deferred.fromCoroutine(queue.writer(client, ["one", "two"]))
    for _ in range(100):
        time.clock.advance(0.05)
    assert not opening.called
    client.close()
    opening.addErrback(lambda failure: None)


def test_a_queue_is_followed_however_many_brokers_had_it() -> None:
    here = owner = FakeBroker()
    time = Timeline()
    client = here.client(time.clock, settings=NOW)
    for number in range(MAX_BROKERS + 2):
        owner, before = FakeBroker(endpoint=f"inproc://{number}"), owner
        before.move_queue("jobs", owner)
        time.result(queue.writer(client, ["jobs"]), 1).close()
    writer = time.result(queue.writer(client, ["jobs"]), 1)
    time.result(queue.put(writer, "jobs", b"x"))
    assert owner.queued("jobs") == [b"x"]
    client.close()


def test_an_owner_that_is_gone_is_asked_for_again_at_the_own_broker() -> None:
    here, there = FakeBroker(), FakeBroker(endpoint="inproc://there")
    here.move_queue("jobs", there)
    time = Timeline()
    client = here.client(time.clock, settings=NOW)
    writer = time.result(queue.writer(client, ["jobs"]), 1)
    there.stop()
    put = queue.put(writer, "jobs", b"x")
    for _ in range(20):
        time.clock.advance(0.05)
    assert not put.called
    there.move_queue("jobs", here)  # what the cluster does after the end of its lease
    time.result(put, 2)
    assert here.queued("jobs") == [b"x"]
    client.close()


def test_an_endpoint_that_makes_no_sense_is_not_the_end_of_a_flow() -> None:
    class Picky(FakeBroker):
        def connect(self, reactor: Any, endpoint: str, *callbacks: Any) -> Any:
            if endpoint == "nowhere":
                raise ValueError("nowhere is no endpoint")
            return super().connect(reactor, endpoint, *callbacks)

    here, there = Picky(), FakeBroker(endpoint="nowhere")
    here.move_queue("jobs", there)
    time = Timeline()
    client = here.client(time.clock, settings=NOW)
    opening = Deferred.fromCoroutine(queue.writer(client, ["jobs"]))
    for _ in range(20):
        time.clock.advance(0.05)
    assert not opening.called
    there.move_queue("jobs", here)
    time.result(opening, 1)
    client.close()
