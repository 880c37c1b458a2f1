"""Ownership of queues: two brokers with hand-driven claims, over a real PostgreSQL or their own disks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from broker.core.database import StateUnusable
from broker.core.errors import Elsewhere, Reason, Refusal
from broker.core.queues.ownership import REQUIRE_SECONDS
from broker.core.queues.postgres_store import PIECE_MESSAGES
from broker.core.queues.queue_messages import EXPIRES, QueueSettings
from broker.core.queues.queues import QUEUE_BYTES
from broker.core.queues.sqlite_store import QueueStore
from tests.cluster.real_postgres import PASSWORD, Postgres, server
from tests.core.queues.cluster_broker import DURABLE, Broker
from tests.core.queues.farm import Worker
from tests.core.queues.owners import Claims


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with server() as postgres:
        yield postgres


def _refused_into(ready: Any, found: list[Any]) -> None:
    """Append the reason of the refusal, once there is one."""
    ready.addErrback(lambda failure: found.append(failure.value.reason))


class Cluster:
    """Brokers over one database."""

    def __init__(self, postgres: Postgres) -> None:
        self.claims = Claims()
        self.postgres = postgres
        self.database = postgres.database()
        self.brokers: list[Broker] = []

    def broker(self, name: str, settings: QueueSettings = DURABLE) -> Broker:
        from broker.core.queues.postgres_store import PostgresStore

        def now() -> float:
            return broker.clock.seconds()

        store = PostgresStore(self.postgres.url(self.database), PASSWORD, now)
        broker = Broker(self.claims, name, store, True, settings)
        self.brokers.append(broker)
        return broker

    def stored(self) -> list[tuple[Any, ...]]:
        return self.postgres.sql("SELECT dead, id, count FROM elkobroker.message ORDER BY dead, id", self.database)


@pytest.fixture
def cluster(postgres: Postgres) -> Iterator[Cluster]:
    cluster = Cluster(postgres)
    yield cluster
    for broker in cluster.brokers:
        broker.store.close()


def test_the_first_broker_owns_a_queue_and_the_other_names_it(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    assert a.ask() is None
    for name in ("q", "q.dead", "q.dead.dead"):
        refusal = b.ask(name)
        assert isinstance(refusal, Elsewhere)
        assert (refusal.owner, refusal.endpoint) == ("a", "tcp://a:5975")
        with pytest.raises(Elsewhere):
            b.queue(name)
    a.send(b"1")
    a.run()
    assert (a.author.safe, a.author.lost) == ([b"1"], [])


def test_a_queue_is_claimed_by_its_first_use_and_then_refused_once(cluster: Cluster) -> None:
    a = cluster.broker("a")
    with pytest.raises(Refusal) as refused:
        a.queue()
    assert refused.value.reason is Reason.UNAVAILABLE
    a.run()
    a.send(b"1")


def test_after_the_lease_of_the_owner_another_broker_goes_on(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(*(b"%d" % n for n in range(1_200)))  # several pieces
    a.run()
    worker = Worker(3)
    a.consume(worker)
    a.confirm(worker)
    a.reject(worker, recycle=False)
    a.run()
    held = worker.has
    assert len(held) == 3
    cluster.claims.die("a")
    assert b.ask() is None
    bodies = b.read()
    assert bodies == [b"%d" % n for n in range(2, 1_200)], "the order, without what was confirmed or rejected"
    assert b.read("q.dead") == [b"1"]
    assert cluster.stored() == []


def partly_loaded(broker: Broker) -> Deferred[None]:
    """Require a queue whose messages are several pieces, and read the first one."""
    ready = broker.ownership.require("/", "q")
    assert isinstance(ready, Deferred)
    while broker.info() is None:
        broker.thread.work()
    return ready


def test_a_queue_takes_no_message_before_all_of_it_is_loaded(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    bodies = [b"%d" % n for n in range(1_200)]
    a.send(*bodies)
    a.run()
    cluster.claims.die("a")
    partly_loaded(b)
    with pytest.raises(Refusal) as refused:
        b.send(b"new")
    assert refused.value.reason is Reason.UNAVAILABLE
    b.run()
    b.send(b"new")
    b.run()
    cluster.claims.die("b")
    c = cluster.broker("c")
    assert c.ask() is None
    assert c.read() == [*bodies, b"new"]


def test_a_dead_letter_replaces_none_that_is_not_loaded_yet(cluster: Cluster) -> None:
    a, b, c = (cluster.broker(name) for name in "abc")
    assert a.ask() is None
    a.send(b"rejected")
    a.send(b"short", ttl=5.0)
    a.send(*[b"x"] * (PIECE_MESSAGES - 1))
    worker = Worker(1)
    consumer = a.consume(worker)
    a.queue().leave(consumer)
    a.reject(worker)
    a.run()
    cluster.claims.die("a")
    partly_loaded(b)
    b.wait(20)
    assert b.load("q.dead") == (1, 0)
    b.run()
    worker = Worker()
    consumer = b.consume(worker, "q.dead")
    assert worker.has == [b"rejected", b"short"]
    b.gone(worker, consumer)
    cluster.claims.die("b")
    assert c.ask() is None
    assert c.read("q.dead") == [b"rejected", b"short"]


def test_a_message_that_dies_while_its_queue_is_loaded_is_not_removed_after_the_queue_was_given_up(
    cluster: Cluster,
) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"short", ttl=5.0)
    a.send(*[b"x"] * PIECE_MESSAGES)
    a.run()
    cluster.claims.die("a")
    partly_loaded(b).addErrback(lambda failure: failure.trap(Refusal))
    b.wait(20)
    b.thread.work()  # the next piece
    b.thread.fail(StateUnusable("the server stops"))  # the write of the removal and of the dead letter
    b.thread.work_all()
    cluster.claims.set(("/", "q"), "c")
    cluster.claims.set(("/", "q"), None)
    ready = b.ownership.require("/", "q")
    assert ready is not None
    b.clock.advance(5)  # the next attempt to write follows the claim
    b.run()
    assert ready.called
    b.wait(20)
    assert b.read("q.dead") == [b"short"]


def test_deliveries_and_deaths_go_along(cluster: Cluster) -> None:
    settings = QueueSettings(durable=True, max_deliveries=2)
    a, b = cluster.broker("a", settings), cluster.broker("b", settings)
    assert a.ask() is None
    a.send(b"poison")
    worker = Worker()
    consumer = a.consume(worker)
    a.gone(worker, consumer)
    a.run()
    assert cluster.stored() == [("", 1, 1)]
    cluster.claims.die("a")
    assert b.ask() is None
    worker = Worker()
    b.gone(worker, b.consume(worker))
    b.run()
    assert b.load() == (0, 0)
    assert b.load("q.dead") == (1, 0)


def test_a_fenced_owner_writes_nothing_more_and_says_so(cluster: Cluster) -> None:
    """A partition: the first owner does not know that its lease has ended."""
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"1", b"2")
    a.run()
    worker = Worker(1)
    a.consume(worker)
    assert worker.has == [b"1"]
    cluster.claims.away.add("a")
    cluster.claims.expire("a")
    assert b.ask() is None
    assert b.load() == (2, 0)
    a.send(b"3")
    a.confirm(worker)  # of a message that b has now
    a.run()
    assert (a.author.safe, a.author.lost) == ([b"1", b"2"], [b"3"])
    assert a.lost == [("/", "q")]
    assert b.read() == [b"1", b"2"]
    b.send(b"3")
    b.run()
    cluster.claims.back("a")
    assert isinstance(a.ask(), Elsewhere)
    assert b.read() == [b"3"]
    a.gone(worker)
    a.run()
    assert (a.queues.messages, a.queues.bytes) == (0, 0)
    assert b.author.lost == []


@pytest.mark.parametrize("known", [False, True])
def test_messages_that_are_moved_into_a_queue_of_another_broker_return(cluster: Cluster, known: bool) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    assert a.ask("other") is None
    a.send(b"1", b"2", b"3")
    a.run()
    worker = Worker()
    consumer = a.consume(worker)
    a.gone(worker, consumer)  # delivered once
    if not known:
        cluster.claims.away.add("a")
        cluster.claims.set(("/", "other"), None)
        assert b.ask("other") is None
    for _ in range(2):
        assert a.queue().move(a.queue("other"), lambda message: message.head)
    if known:
        cluster.claims.set(("/", "other"), "b")
    a.run()
    assert a.lost == [("/", "other")]
    assert a.load() == (3, 0)
    assert cluster.stored() == [("", 1, 1), ("", 2, 1), ("", 3, 1)]
    assert a.read() == [b"1", b"2", b"3"]
    a.run()
    assert cluster.stored() == []
    assert (a.queues.messages, a.queues.bytes) == (0, 0)


def test_a_message_that_returned_and_is_confirmed_at_once_leaves_the_store(cluster: Cluster) -> None:
    a = cluster.broker("a")
    assert a.ask() is None
    assert a.ask("other") is None
    a.send(b"1")
    a.run()
    assert a.queue().move(a.queue("other"), lambda message: message.head)
    cluster.claims.set(("/", "other"), "b")
    assert a.waiting() == [b"1"]
    a.run()
    assert cluster.stored() == []


def test_messages_return_that_were_moved_out_of_a_queue_that_nothing_else_uses(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    assert a.ask("other") is None
    a.send(b"1")
    a.run()
    cluster.claims.away.add("a")
    cluster.claims.set(("/", "other"), None)
    assert b.ask("other") is None
    assert a.queue().move(a.queue("other"), lambda message: message.head)
    a.wait(DURABLE.expires + 1)  # the store does not answer for so long
    a.run()
    assert a.lost == [("/", "other")]
    assert a.read() == [b"1"]
    a.wait(DURABLE.expires + 1)
    assert a.info() is None, "it is deleted in the end"


def test_a_message_that_was_moved_during_a_failed_write_is_written_when_it_returns(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    assert a.ask("other") is None
    a.send(b"1")
    a.clock.advance(0.005)
    assert a.queue().move(a.queue("other"), lambda message: message.head)
    a.thread.fail(StateUnusable("the disk fails"))
    assert a.author.lost == [b"1"]
    cluster.claims.set(("/", "other"), "b")
    assert a.load() == (1, 0)
    a.clock.advance(30.0)
    a.run()
    cluster.claims.die("a")
    assert b.ask() is None
    assert b.read() == [b"1"]


def test_a_moved_message_whose_queues_are_both_lost_is_at_the_other_broker(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    assert a.ask("other") is None
    a.send(b"1")
    a.run()
    cluster.claims.away.add("a")
    cluster.claims.expire("a")
    assert b.ask() is None
    assert b.ask("other") is None
    assert a.queue().move(a.queue("other"), lambda message: message.head)
    with capturedLogs() as logs:
        a.run()
    assert sorted(a.lost) == [("/", "other"), ("/", "q")]
    assert [event for event in logs if event["log_level"] > LogLevel.warn] == []
    assert (b.read(), b.read("other")) == ([b"1"], [])
    assert (a.queues.messages, a.queues.bytes) == (0, 0)


@pytest.mark.parametrize(("lost", "place"), [(["third"], "second"), (["second", "third"], "q"), (["second"], "third")])
def test_a_message_that_is_moved_twice_is_in_one_queue(cluster: Cluster, lost: list[str], place: str) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    for name in ("q", "second", "third"):
        assert a.ask(name) is None
    a.send(b"1")
    a.run()
    cluster.claims.away.add("a")
    for name in lost:
        cluster.claims.set(("/", name), None)
        assert b.ask(name) is None
    assert a.queue().move(a.queue("second"), lambda message: message.head)
    assert a.queue("second").move(a.queue("third"), lambda message: message.head)
    if "second" in lost:
        a.send(b"2", name="second")  # a write by which the loss of that queue is found
    a.run()
    assert sorted(a.lost) == [("/", name) for name in lost]
    kept = [name for name in ("q", "second", "third") if name not in lost]
    assert {name: a.read(name) for name in kept} == {name: [b"1"] if name == place else [] for name in kept}
    assert [b.load(name) for name in lost] == [(0, 0)] * len(lost)
    assert (a.queues.messages, a.queues.bytes) == (0, 0)


@pytest.mark.parametrize("loaded", [False, True])
def test_the_store_forgets_a_queue_that_was_given_up(cluster: Cluster, loaded: bool) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    ready = a.ownership.require("/", "q")
    assert isinstance(ready, Deferred)
    _refused_into(ready, [])
    if loaded:
        a.run()
        a.send(b"1")
    cluster.claims.set(("/", "q"), "b")
    a.run()
    shared: Any = a.store
    with pytest.raises(StateUnusable, match="not taken"):
        shared.read("/", "q", None)
    assert b.ask() is None
    cluster.claims.die("b")
    assert a.ask() is None
    a.send(b"2")
    a.run()
    assert a.author.safe[-1:] == [b"2"]


def test_the_store_forgets_a_queue_that_could_not_be_read(cluster: Cluster) -> None:
    a = cluster.broker("a")
    ready = a.ownership.require("/", "q")
    assert isinstance(ready, Deferred)
    _refused_into(ready, [])
    a.thread.work()  # it is taken
    a.thread.fail(StateUnusable("the server stops"))
    a.run()
    shared: Any = a.store
    with pytest.raises(StateUnusable, match="not taken"):
        shared.read("/", "q", None)
    assert a.ask() is None


def test_only_the_lost_queue_of_a_transaction_is_refused(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask("one") is None
    assert a.ask("two") is None
    cluster.claims.away.add("a")
    cluster.claims.expire("a")
    assert b.ask("one") is None
    a.send(b"1", name="one")
    a.send(b"2", name="two")
    a.run()
    assert (a.author.safe, a.author.lost) == ([b"2"], [b"1"])
    assert a.recorder.trouble == ""
    assert a.recorder.takes


def test_an_owner_that_hears_of_another_one_gives_the_queue_up_at_once(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"1")
    a.run()
    worker = Worker()
    consumer = a.consume(worker)
    a.send(b"2")
    cluster.claims.away.add("a")
    cluster.claims.expire("a")
    assert b.ask() is None
    cluster.claims.back("a")
    assert a.lost == [("/", "q")]
    assert a.author.lost == [b"2"]
    assert (a.ownership.taken, a.ownership.given_up) == (1, 1)
    a.gone(worker, consumer)
    a.run()
    assert (a.queues.messages, a.queues.bytes, len(a.queues)) == (0, 0, 0)
    assert b.read() == [b"1"]


def test_an_owner_whose_lease_ended_goes_on_if_nobody_else_came(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"1")
    cluster.claims.expire("a")  # it claims again at once
    assert cluster.claims.owners == {("/", "q"): "a"}
    a.send(b"2")
    a.run()
    assert a.author.safe == [b"1", b"2"]
    assert a.lost == []
    assert isinstance(b.ask(), Elsewhere)


def test_the_claim_of_an_unused_queue_is_released_when_all_is_written(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"1")
    a.run()
    assert a.read() == [b"1"]
    a.wait(DURABLE.expires + 1)
    a.run()
    assert cluster.claims.owners == {}
    assert cluster.postgres.sql("SELECT * FROM elkobroker.queue", cluster.database) == []
    assert b.ask() is None
    b.send(b"2")
    b.run()
    assert b.read() == [b"2"]


def test_without_etcd_a_queue_without_an_owner_is_refused_for_now(cluster: Cluster) -> None:
    a = cluster.broker("a")
    cluster.claims.away.add("a")
    assert a.ask().reason is Reason.UNAVAILABLE
    cluster.claims.back("a")
    assert a.ask() is None


def test_a_database_that_is_away_is_a_trouble_and_its_queues_are_refused(cluster: Cluster) -> None:
    a = cluster.broker("a")
    cluster.postgres.stop()
    try:
        refusal = a.ask()
        assert refusal.reason is Reason.UNAVAILABLE
        assert "no server listens there" in a.ownership.trouble
        assert cluster.claims.owners == {}, "another broker may reach it"
    finally:
        cluster.postgres.start()
    assert a.ask() is None
    assert a.ownership.trouble == ""


def test_a_broker_can_be_stopped_while_the_names_of_queues_are_read_again(cluster: Cluster) -> None:
    a = cluster.broker("a")
    a.ownership.start(True)
    a.thread.fail(StateUnusable("it is away"))
    a.clock.advance(1.0)
    assert len(a.thread.jobs) == 1
    a.ownership.stop()
    a.thread.work()
    assert a.clock.getDelayedCalls() == []


def test_a_failed_request_does_not_replace_the_claim_of_all_queues(cluster: Cluster) -> None:
    a = cluster.broker("a")
    assert a.ask("one") is None
    a.send(b"1", name="one")
    a.run()
    cluster.claims.die("a")
    b = cluster.broker("b")
    b.ownership.start(True)
    ready = b.ownership.require("/", "two")
    assert isinstance(ready, Deferred)
    ready.addErrback(lambda failure: failure.trap(Refusal))
    starting = b.thread.jobs.pop(0)
    b.thread.fail(StateUnusable("it is away"))
    starting[0].errback(StateUnusable("it is away"))
    b.clock.advance(30.0)
    b.run()
    assert b.read("one") == [b"1"]


@pytest.mark.parametrize("when", ["load", "release"])
def test_the_trouble_of_a_store_ends_when_it_answers_again(cluster: Cluster, when: str) -> None:
    a = cluster.broker("a")
    if when == "load":
        ready = a.ownership.require("/", "q")
        assert isinstance(ready, Deferred)
        ready.addErrback(lambda failure: failure.trap(Refusal))
    else:
        assert a.ask() is None
        a.wait(DURABLE.expires + 1)
    a.thread.fail(StateUnusable("it is away"))
    assert a.ownership.trouble == "it is away"
    a.thread.work_all()  # the store forgets what was not loaded
    a.clock.advance(1.0)
    a.thread.fail(StateUnusable("it is still away"))
    assert a.ownership.trouble == "it is still away"
    a.clock.advance(30.0)
    a.run()
    assert a.ownership.trouble == ""
    assert a.ask() is None


def test_a_write_over_a_lost_connection_is_repeated_with_the_same_effect(cluster: Cluster) -> None:
    a = cluster.broker("a")
    assert a.ask() is None
    a.send(b"1")
    a.run()
    cluster.postgres.restart()
    a.send(b"2")
    a.run()
    assert a.author.safe == [b"1", b"2"]
    cluster.postgres.stop()
    try:
        a.send(b"3")
        a.run()
        assert a.author.lost == [b"3"]
        assert a.recorder.trouble
    finally:
        cluster.postgres.start()
    a.clock.advance(2)
    a.run()
    assert a.recorder.trouble == ""
    a.send(b"3")
    a.run()
    assert [id for _, id, _ in cluster.stored()] == [1, 2, 4]
    assert a.read() == [b"1", b"2", b"3"]


def test_a_broker_without_a_cluster_takes_all_queues_at_its_start(cluster: Cluster) -> None:
    a = cluster.broker("a")
    for name in ("one", "two"):
        assert a.ask(name) is None
        a.send(name.encode(), name=name)
    a.run()
    cluster.claims.die("a")
    b = cluster.broker("b")
    b.ownership.start(True)
    b.run()
    assert b.read("one") == [b"one"]
    assert b.read("two") == [b"two"]


def test_a_request_during_the_release_of_a_queue_is_answered_when_it_is_here_again(cluster: Cluster) -> None:
    a = cluster.broker("a", QueueSettings(expires=60.0))
    assert a.ask() is None
    a.owners.releasing = Deferred()
    a.wait(61)
    found: list[Any] = []
    ready = a.ownership.require("/", "q", "192.0.2.7")
    assert isinstance(ready, Deferred)
    ready.addBoth(found.append)
    assert found == []
    a.owners.releasing.callback(None)
    a.run()
    assert found == [None]
    assert a.queue().put(b"head", b"1")
    assert a.queues.memory.held == QUEUE_BYTES, "of the address of that request"  # type: ignore[attr-defined]


def test_the_time_to_live_is_kept(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    b.clock.advance(5_000)  # its clock differs
    assert a.ask() is None
    a.send(b"short", ttl=5.0)
    a.send(b"long", ttl=500.0)
    a.run()
    cluster.claims.die("a")
    assert b.ask() is None
    assert b.load() == (2, 0)
    b.wait(20)
    assert b.read() == [b"long"]


def test_a_request_does_not_wait_for_ever(cluster: Cluster) -> None:
    a = cluster.broker("a")
    ready = a.ownership.require("/", "q")
    assert isinstance(ready, Deferred)
    found: list[Any] = []
    _refused_into(ready, found)
    a.clock.advance(REQUIRE_SECONDS)
    assert found == [Reason.UNAVAILABLE]
    a.run()
    assert a.ask() is None


def test_a_queue_that_is_not_durable_is_owned_too_and_needs_no_store(cluster: Cluster) -> None:
    settings = QueueSettings()
    a, b = cluster.broker("a", settings), cluster.broker("b", settings)
    cluster.postgres.stop()
    try:
        assert a.ask() is None
        assert a.queue().put(b"head", b"1")
        assert isinstance(b.ask(), Elsewhere)
        cluster.claims.away.add("a")
        cluster.claims.expire("a")
        assert b.ask() is None
        assert b.load() == (0, 0)
        cluster.claims.back("a")
        assert (a.queues.messages, a.queues.bytes) == (0, 0)
    finally:
        cluster.postgres.start()


def left_in_the_store(cluster: Cluster) -> None:
    """Messages of a durable queue, and of its dead-letter queue, whose broker is gone."""
    a = cluster.broker("a")
    assert a.ask() is None
    a.send(b"1", b"2", b"3")
    worker = Worker(1)
    consumer = a.consume(worker)
    a.queue().leave(consumer)
    a.reject(worker)
    a.run()
    cluster.claims.die("a")


@pytest.mark.parametrize("alone", [True, False])
def test_messages_in_the_store_are_served_if_their_queue_is_durable_no_more(cluster: Cluster, alone: bool) -> None:
    left_in_the_store(cluster)
    b = cluster.broker("b", QueueSettings())
    b.ownership.start(alone)
    b.run()
    if not alone:
        assert b.ask() is None
    assert b.load() == (2, 0)
    assert b.queue().put(b"head", b"4")
    assert (b.read(), b.read("q.dead")) == ([b"2", b"3", b"4"], [b"1"])
    assert cluster.stored() == []
    b.wait(EXPIRES + 1)
    b.run()
    cluster.postgres.stop()
    try:
        assert b.ask() is None, "it needs no store again"
    finally:
        cluster.postgres.start()


def test_messages_in_the_store_are_served_if_a_reload_makes_their_queue_not_durable(cluster: Cluster) -> None:
    b = cluster.broker("b")
    b.ownership.start(False)
    b.run()
    left_in_the_store(cluster)
    b.queues.use([])
    b.run()
    assert b.ask() is None
    assert (b.read(), b.read("q.dead")) == ([b"2", b"3"], [b"1"])


def test_messages_that_are_stored_after_the_reload_of_another_broker_are_served_there(cluster: Cluster) -> None:
    b = cluster.broker("b", QueueSettings())
    b.ownership.start(False)
    b.run()
    left_in_the_store(cluster)
    assert b.ask() is None
    assert (b.read(), b.read("q.dead")) == ([b"2", b"3"], [b"1"])


def test_a_broker_that_does_not_store_a_queue_fences_the_former_owner_that_does(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b", QueueSettings())
    assert a.ask() is None
    cluster.claims.away.add("a")
    cluster.claims.expire("a")
    assert b.ask() is None
    a.send(b"1")
    a.run()
    assert (a.author.safe, a.author.lost) == ([], [b"1"])


def test_a_queue_that_is_not_durable_is_claimed_without_the_messages_of_a_store_that_is_away(cluster: Cluster) -> None:
    left_in_the_store(cluster)
    b = cluster.broker("b", QueueSettings())
    cluster.postgres.stop()
    try:
        assert b.ask() is None
        assert b.load() == (0, 0)
        trouble = b.ownership.trouble
        assert "no server listens there" in trouble
        assert b.ask("other") is None
        assert b.ownership.trouble == trouble, "a queue in memory says nothing about the store"
    finally:
        cluster.postgres.start()
    with capturedLogs() as events:
        b.clock.advance(30.0)
        b.run()
    assert b.ownership.trouble == ""
    assert [event["name"] for event in events if event["log_level"] is LogLevel.warn] == ["q"]
    b.wait(EXPIRES + 1)
    b.run()
    assert b.ask() is None
    assert b.read() == [b"2", b"3"]


def test_the_loss_of_a_queue_that_is_durable_no_more_counts_its_new_messages(cluster: Cluster) -> None:
    left_in_the_store(cluster)
    b, c = cluster.broker("b", QueueSettings()), cluster.broker("c")
    b.ownership.start(False)
    b.run()
    assert b.ask() is None
    assert b.queue().put(b"head", b"4")
    cluster.claims.away.add("b")
    cluster.claims.expire("b")
    assert c.ask() is None
    with capturedLogs() as events:
        cluster.claims.back("b")
    [text] = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
    assert text.endswith("; 4 messages left this one; lost, since they are not durable: 1")
    assert (c.read(), c.read("q.dead")) == ([b"2", b"3"], [b"1"])


def test_a_stopped_broker_answers_what_waits(cluster: Cluster) -> None:
    a = cluster.broker("a")
    ready = a.ownership.require("/", "q")
    assert isinstance(ready, Deferred)
    found: list[Any] = []
    _refused_into(ready, found)
    a.ownership.stop()
    assert found == [Reason.UNAVAILABLE]
    a.run()
    assert a.ask("other").reason is Reason.UNAVAILABLE


@pytest.mark.parametrize("state", ["claimed", "loaded", "released"])
def test_a_stopped_broker_refuses_a_request_for_a_queue_that_is_not_here_yet(cluster: Cluster, state: str) -> None:
    a = cluster.broker("a")
    if state == "claimed":
        cluster.claims.waiting = []
    if state == "released":
        assert a.ask() is None
        a.run()
        a.owners.releasing = Deferred()
        a.wait(61)
        a.run()
    else:
        ready = a.ownership.require("/", "q")
        assert isinstance(ready, Deferred)
        _refused_into(ready, [])
    a.ownership.stop()
    found: list[Any] = []
    late = a.ownership.require("/", "q")
    assert isinstance(late, Deferred)
    _refused_into(late, found)
    assert found == [Reason.UNAVAILABLE]


# messages on the disks of their brokers


def on_disk(claims: Claims, name: str, directory: str, settings: QueueSettings = DURABLE) -> Broker:
    broker = Broker(claims, name, QueueStore(directory), False, settings)
    broker.ownership.start(False)
    broker.run()
    return broker


def keep_one(claims: Claims, name: str, directory: str) -> None:
    """Have a broker store a message on its disk, and end."""
    broker = on_disk(claims, name, directory)
    assert broker.ask() is None
    broker.send(b"1")
    broker.run()
    broker.store.close()


def test_a_queue_on_a_disk_stays_with_its_broker_while_that_is_away() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        a, b = on_disk(claims, "a", here), on_disk(claims, "b", there)
        assert a.ask() is None
        a.send(b"1")
        a.run()
        a.store.close()
        claims.expire("a")
        assert claims.owners == {("/", "q"): "a"}
        assert isinstance(b.ask(), Elsewhere)
        a = on_disk(claims, "a", here)
        assert a.read() == [b"1"]
        a.wait(DURABLE.expires + 1)
        a.run()
        assert claims.owners == {}
        assert b.ask() is None
        a.store.close()
        b.store.close()


def test_the_claim_of_an_empty_queue_on_a_disk_ends_at_the_restart_of_its_broker() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        keep_one(claims, "a", here)
        a = on_disk(claims, "a", here)
        assert a.ask("empty") is None
        a.run()
        a.store.close()
        assert sorted(claims.owners) == [("/", "empty"), ("/", "q")]
        claims.away.add("a")
        a = on_disk(claims, "a", here)
        claims.back("a")
        a.clock.advance(30)
        a.run()
        assert (list(claims.owners), a.read()) == ([("/", "q")], [b"1"])
        a.ownership.stop()
        a.store.close()


@pytest.mark.parametrize("durable", [True, False])
def test_the_claim_of_a_queue_that_was_deleted_while_etcd_was_away_is_released_later(durable: bool) -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        a = on_disk(claims, "a", here, attrs.evolve(DURABLE, durable=durable))
        assert a.ask() is None
        claims.away.add("a")
        a.wait(DURABLE.expires + 1)
        a.run()
        assert (a.info(), list(claims.owners)) == (None, [("/", "q")])
        claims.back("a")
        a.wait(30)
        assert claims.owners == {}
        a.ownership.stop()
        a.store.close()
        assert a.clock.getDelayedCalls() == []


def with_a_busy_queue(claims: Claims, here: str) -> Broker:
    """A broker with a queue that has a stored message, and with a busy one."""
    broker = on_disk(claims, "a", here)
    for name in ("q", "busy"):
        assert broker.ask(name) is None
    broker.send(b"1")
    broker.run()
    return broker


def test_the_claim_of_an_unused_queue_is_released_beside_messages_that_keep_coming() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        a = with_a_busy_queue(claims, here)
        worker = Worker()
        consumer = a.consume(worker)
        a.wait(DURABLE.expires)
        a.confirm(worker)
        a.queue().leave(consumer)
        a.send(b"x", name="busy")
        a.wait(DURABLE.expires + 1)
        assert a.info() is None, "it was deleted"
        for _ in range(4):
            told = a.thread.do()
            a.send(b"x", name="busy")  # each transaction ends with more to write
            told()
            a.clock.advance(0)
        assert list(claims.owners) == [("/", "busy")]
        a.ownership.stop()
        a.run()
        a.store.close()


def test_the_claim_of_an_unused_queue_is_kept_until_its_last_removal_is_written() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        a = with_a_busy_queue(claims, here)
        a.send(b"x", name="busy")
        a.wait(1.0)  # a transaction without the removal is in progress
        assert a.waiting() == [b"1"]
        a.wait(DURABLE.expires + 1)
        assert a.info() is None, "it was deleted"
        a.thread.work()
        assert sorted(claims.owners) == [("/", "busy"), ("/", "q")]
        a.run()
        assert list(claims.owners) == [("/", "busy")]
        a.ownership.stop()
        a.run()
        a.store.close()


def test_messages_on_a_disk_are_served_once_etcd_can_be_reached() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        keep_one(claims, "a", here)
        claims.away.add("a")
        a = on_disk(claims, "a", here)
        assert a.info() is None
        claims.back("a")
        a.clock.advance(30)
        a.run()
        assert a.read() == [b"1"]
        a.ownership.stop()
        a.store.close()


def test_a_new_message_does_not_replace_one_on_the_disk_whose_queue_cannot_be_claimed_yet() -> None:
    claims = Claims()
    with tempfile.TemporaryDirectory() as here:
        keep_one(claims, "a", here)
        claims.set(("/", "q"), "b")
        a = on_disk(claims, "a", here)
        assert a.ask("other") is None
        a.send(b"2", name="other")
        a.run()
        a.ownership.stop()
        a.store.close()
        store = QueueStore(here)
        assert [(row.name, row.body) for row in store.open(0.0)] == [("q", b"1"), ("other", b"2")]
        store.close()


def test_a_damaged_message_of_a_shared_store_is_a_dead_letter_behind_the_others(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(*(b"%d" % n for n in range(1, 4)))
    a.run()
    worker = Worker(1)
    a.consume(worker)
    a.reject(worker)
    a.run()
    cluster.claims.die("a")
    sql = "UPDATE elkobroker.message SET body = 'altered' WHERE body = '2'"
    cluster.postgres.sql(sql, cluster.database)
    assert b.ask() is None
    b.run()
    assert [dead for dead, _, _ in cluster.stored()] == ["", ".dead", ".dead"]
    assert b.queues.counts()["dead.damaged"] == 1
    assert (b.read(), b.read("q.dead")) == ([b"3"], [b"1", b"altered"])
    assert cluster.stored() == []


def test_damaged_messages_are_dead_letters_also_where_no_more_queues_can_be_made(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(b"1", b"2", b"3")
    worker = Worker(1)
    a.consume(worker)
    a.reject(worker)
    a.run()
    cluster.claims.die("a")
    cluster.postgres.sql("UPDATE elkobroker.message SET body = 'altered' WHERE dead = '.dead'", cluster.database)
    for module in ("queues", "ownership"):
        monkeypatch.setattr(f"broker.core.queues.{module}.MAX_QUEUES", 1)
    assert b.ask() is None
    assert (b.read(), b.read("q.dead")) == ([b"2", b"3"], [b"altered"])


def test_a_dead_letter_of_a_shared_store_whose_queue_was_altered_is_set_aside(cluster: Cluster) -> None:
    a, b = cluster.broker("a"), cluster.broker("b")
    assert a.ask() is None
    a.send(*(b"%d" % n for n in range(1, 4)))
    a.run()
    worker = Worker(1)
    a.consume(worker)
    a.reject(worker)
    a.run()
    cluster.claims.die("a")
    cluster.postgres.sql("UPDATE elkobroker.message SET dead = '.deaf' WHERE body = '1'", cluster.database)
    cluster.postgres.sql("UPDATE elkobroker.message SET body = 'altered' WHERE body = '2'", cluster.database)
    assert b.ask() is None
    b.run()
    assert (b.read(), b.read("q.dead")) == ([b"3"], [b"altered"])
    assert cluster.stored() == []
    assert cluster.postgres.sql("SELECT dead, body FROM elkobroker.damaged", cluster.database) == [(".deaf", b"1")]
