"""The cost of many queues that another broker takes in one turn, as when a lease has ended."""

from __future__ import annotations

import pytest

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
