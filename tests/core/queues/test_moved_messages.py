"""Messages that move between queues, return or die: what the store has of them after each transaction."""

from __future__ import annotations

import pytest

from broker.core.database import StateUnusable
from broker.core.queues import queue_recorder
from tests.core.queues.cluster_broker import Broker
from tests.core.queues.farm import Worker
from tests.core.queues.fenced_store import FencedDatabase, FencedStore
from tests.core.queues.owners import Claims


def broker_with(store: FencedStore, *names: str) -> Broker:
    """A broker over a shared store, which owns these queues."""
    broker = Broker(Claims(), "a", store, True)
    for name in names:
        assert broker.ask(name) is None
    return broker


def test_a_message_is_removed_after_its_dead_letter_is_written_also_behind_one_that_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_recorder, "COMMIT_BYTES", 250)
    database = FencedDatabase()
    broker = broker_with(FencedStore(database), "q", "dying", "other")
    broker.send(b"returns")
    broker.run()
    worker = Worker()
    broker.consume(worker, "dying")
    broker.send(b"rejected", name="dying")
    broker.clock.advance(0)
    assert len(broker.thread.jobs) == 1, "it is being written"
    broker.send(*(b"%d" % number + bytes(999) for number in range(2)))
    broker.reject(worker)
    assert broker.queue().move(broker.queue("other"), lambda message: message.head)
    broker.owners._claims.set(("/", "other"), "b")
    while broker.thread.jobs:
        broker.thread.work()
        assert b"rejected" in database.bodies()
        broker.clock.advance(0.005)
    assert [message.name for message in database.messages.values() if message.body == b"rejected"] == ["dying.dead"]


def test_a_message_that_is_moved_twice_is_removed_after_its_last_place_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_recorder, "COMMIT_BYTES", 250)
    database = FencedDatabase()
    broker = broker_with(FencedStore(database), "q", "other", "third")
    broker.send(b"moved")
    broker.run()
    broker.send(b"slow", name="third")
    broker.clock.advance(0)
    assert len(broker.thread.jobs) == 1, "it is being written"
    assert broker.queue().move(broker.queue("other"), lambda message: message.head)
    broker.send(*(b"%d" % number + bytes(999) for number in range(2)))
    assert broker.queue("other").move(broker.queue("third"), lambda message: message.head)
    while broker.thread.jobs:
        broker.thread.work()
        assert b"moved" in database.bodies()
        broker.clock.advance(0.005)
    assert [message.name for message in database.messages.values() if message.body == b"moved"] == ["third"]


def test_a_message_without_a_row_that_returns_and_is_confirmed_at_once_needs_no_removal() -> None:
    store = FencedStore(FencedDatabase())
    broker = broker_with(store, "q", "other")
    broker.send(b"1")
    assert broker.queue().move(broker.queue("other"), lambda message: message.head)
    broker.clock.advance(0)
    broker.thread.fail(StateUnusable("the disk fails"))
    broker.owners._claims.set(("/", "other"), "b")
    assert broker.waiting() == [b"1"]
    broker.clock.advance(30.0)
    broker.run()
    assert store.fenced == 0
