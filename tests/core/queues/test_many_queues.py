"""The cost of many queues that another broker takes in one turn, as at the end of a lease, and what remains of them."""

from __future__ import annotations

import pytest

from broker.core.database import StateUnusable
from tests.core.queues.cluster_broker import Broker
from tests.core.queues.farm import Worker
from tests.core.queues.fenced_store import FencedDatabase, FencedStore
from tests.core.queues.owners import Claims
from tests.opcodes import opcodes


def owner(queues: int, waits: str) -> Broker:
    """A broker with that many queues, of each of which a message, its removal or its count waits to be written."""
    broker = Broker(Claims(), "a", FencedStore(FencedDatabase()), True)
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        broker.ownership.require("/", name)
        broker.thread.work_all()
        broker.send(b"1", name=name)
    if waits == "message":
        return broker
    broker.run()
    for name in names:
        worker = Worker()
        consumer = broker.consume(worker, name)
        if waits == "removal":
            broker.confirm(worker)
        else:
            broker.gone(worker, consumer)
    return broker


@pytest.mark.parametrize("how", ["watched", "fenced"])
@pytest.mark.parametrize("waits", ["message", "removal", "count"])
def test_the_cost_of_queues_that_are_lost_is_in_proportion_to_their_number(waits: str, how: str) -> None:
    def cost(queues: int) -> int:
        broker = owner(queues, waits)
        if how == "fenced":
            database = broker.store._database  # type: ignore[attr-defined]
            database.epochs = {family: epoch + 1 for family, epoch in database.epochs.items()}
            return opcodes(broker.run)
        names = [("/", f"q{number}") for number in range(queues)]
        for name in names:
            broker.owners._claims.owners[name] = "b"

        def told() -> None:
            for name in names:
                broker.owners.tell(name)

        return opcodes(told)

    assert cost(300) < 4.4 * cost(75)


def lose(broker: Broker, name: str) -> None:
    """Another broker takes a queue, and releases it."""
    claims = broker.owners._claims
    claims.set(("/", name), "b")
    claims.set(("/", name), None)
    broker.run()


def test_queues_that_are_lost_again_and_again_leave_nothing_behind() -> None:
    store = FencedStore(FencedDatabase())
    broker = Broker(Claims(), "a", store, True)

    for _ in range(20):
        assert broker.ask() is None
        broker.send(b"1")
        broker.run()
        lose(broker, "q")
    assert len(store) <= 2
    assert store.fenced == 0


@pytest.mark.parametrize("when", ["before the write", "during the write"])
def test_the_count_of_a_message_that_could_not_be_written_does_not_outlive_its_queue(when: str) -> None:
    store = FencedStore(FencedDatabase())
    broker = Broker(Claims(), "a", store, True)
    for name in ("q", "other"):
        assert broker.ask(name) is None
        broker.send(b"1", name=name)
        assert broker.read(name) == [b"1"]
    worker = Worker()
    broker.send(b"2")
    if when == "during the write":
        broker.clock.advance(0)
        assert broker.thread.jobs
    broker.gone(worker, broker.consume(worker))
    if when == "before the write":
        broker.clock.advance(0)
    broker.thread.fail(StateUnusable("the disk fails"))
    assert broker.author.lost == [b"2"]
    for _ in range(20):
        broker.wait(10)
        if broker.thread.jobs:
            broker.thread.fail(StateUnusable("the disk fails"))
    assert broker.queues.present("/", "q") is None
    broker.wait(60)
    broker.run()
    assert broker.ask("other") is None
    broker.send(b"3", name="other")
    broker.run()
    assert broker.author.safe[-1] == b"3"
    assert store.fenced == 0
