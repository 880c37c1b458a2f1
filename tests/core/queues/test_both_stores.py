"""Rules of both stores of queues: what is written comes back, all of a batch or nothing, and survives kills.

``ELKOBROKER_QUEUE_KILLS`` is the number of kills of the child.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import attrs
import pytest

from broker.core.database import StateError, StateUnusable
from broker.core.queues.queue_interfaces import Batch, IQueueStore, RestoredMessage, Row
from broker.core.queues.queue_messages import Death
from broker.core.queues.sqlite_store import ROWS
from tests.cluster.real_postgres import Postgres, server
from tests.core.queues.stores import InPostgres, OnDisk, Stores

KILLS = int(os.environ.get("ELKOBROKER_QUEUE_KILLS", "3"))
"""Few by default, since each costs the start of a child."""

ROOT = Path(__file__).parents[3]

NOW = 1_000_000.0

NOTHING = Batch((), (), (), (), ())

QUEUES = ((1, "/", "orders"), (2, "other", "\u00e9 \u4e2d 'x'; --"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with server() as postgres:
        yield postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "sqlite":
        return OnDisk(str(tmp_path / "state"))
    postgres: Postgres = request.getfixturevalue("postgres")
    return InPostgres(postgres.url(postgres.database()), tuple((space, name) for _, space, name in QUEUES))


@pytest.fixture
def store(stores: Stores) -> Iterator[IQueueStore]:
    store = stores.store()
    yield store
    store.close()


def row(order: int, queue: int = 1, count: int = 0, expires: float | None = None, death: str | None = None) -> Row:
    return order, queue, count, expires, death, b"head %d" % order, b"\0body"


def reopened(store: IQueueStore, stores: Stores, now: float = NOW) -> list[RestoredMessage]:
    """Close the store, and read as the next run does."""
    store.close()
    return stores.messages(now)


def test_all_of_a_message_comes_back(store: IQueueStore, stores: Stores) -> None:
    rows = [row(7, 2, 3, NOW + 60, "too many"), row(5), row(6, expires=NOW - 1)]
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=rows))
    restored = reopened(store, stores, NOW + 10)
    assert [attrs.evolve(each, seconds=0.0) for each in restored] == [
        RestoredMessage("/", "orders", 0, 5, 0, 0.0, None, b"head 5", b"\0body"),
        RestoredMessage("/", "orders", 0, 6, 0, 0.0, None, b"head 6", b"\0body"),
        RestoredMessage("other", "\u00e9 \u4e2d 'x'; --", 0, 7, 3, 0.0, Death.TOO_MANY, b"head 7", b"\0body"),
    ]
    # The server of PostgreSQL has its own clock, on which a moment has passed.
    passed = 10 if isinstance(stores, OnDisk) else 0
    assert [each.seconds for each in restored] == [
        inf,
        pytest.approx(-1 - passed, abs=5),
        pytest.approx(60 - passed, abs=5),
    ]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 63, 64, 65, 255, 256, 257, 2 * sum(ROWS) + 3])
def test_any_number_of_rows_is_written_each_once(store: IQueueStore, stores: Stores, count: int) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(n) for n in range(1, count + 1)]))
    assert [(each.order, each.head) for each in reopened(store, stores)] == [
        (n, b"head %d" % n) for n in range(1, count + 1)
    ]


def test_counts_are_changed_and_messages_and_queues_removed(store: IQueueStore, stores: Stores) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(n, 1 + n % 2) for n in range(1, 9)]))
    store.write(
        Batch(
            (),
            [row(9)],
            counts=[(1, 2, 5), (1, 4, 1), (1, 99, 7)],
            gone=[(2, 1), (2, 3), (2, 5), (2, 7), (1, 98)],
            queues_gone=[2],
        ),
    )
    left = reopened(store, stores)
    assert [(each.order, each.count) for each in left] == [(2, 5), (4, 1), (6, 0), (8, 0), (9, 0)]


def test_a_row_that_is_written_again_is_there_once(store: IQueueStore, stores: Stores) -> None:
    for count in (0, 4):
        store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1, count=count)]))
    assert [(each.order, each.count) for each in reopened(store, stores)] == [(1, 4)]


def test_large_bodies_and_any_bytes(store: IQueueStore, stores: Stores) -> None:
    body = random.Random(1).randbytes(3_000_000)
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[(1, 1, 0, None, None, b"", body)]))
    assert reopened(store, stores)[0].body == body


def test_a_write_that_fails_half_way_leaves_nothing(store: IQueueStore, stores: Stores) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1)]))
    with pytest.raises((OverflowError, StateError)):
        store.write(Batch((), [row(2), row(3), row(4), row(5), row(2**64)], [(1, 1, 9)], [(1, 1)], []))
    store.write(attrs.evolve(NOTHING, rows=[row(3)]))
    assert [(each.order, each.count) for each in reopened(store, stores)] == [(1, 0), (3, 0)]


def test_threads_take_turns(store: IQueueStore, stores: Stores) -> None:
    def write(n: int) -> None:
        store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(n)]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 51)))
    assert [each.order for each in reopened(store, stores)] == list(range(1, 51))


def test_nothing_is_written_after_close(store: IQueueStore, stores: Stores) -> None:
    store.close()
    store.close()
    with pytest.raises(StateUnusable, match="not open"):
        store.write(NOTHING)


# kill -9

CHILD = """
import os, random, sys
from twisted.internet import reactor, task, threads
from broker.core.liveness import Leases
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queue_messages import Death, QueueRule, QueueSettings
from broker.core.queues.queues import Queues
from tests.core.queues.stores import opened

place, number, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Author:
    def kept(self, tokens):
        say("kept", *tokens)
    def not_kept(self, tokens):
        say("failed", *tokens)

class Worker:
    room = True
    def __init__(self):
        self.parked = {}
        self.held = []
    def take(self, message):
        self.held.append(message)
        self.room = len(self.held) < 40
        return True
    def answer(self):
        chance.shuffle(self.held)
        for _ in range(chance.randrange(len(self.held) + 1)):
            message = self.held.pop()
            self.room = True
            queue, body = message.queue, bytes(message.body)
            what = chance.random()
            if what < 0.6:
                say("settled", body.decode())  # before it is: whatever happens then is in order
                queue.settle(message)
            elif what < 0.7:
                queue.reject(message)
            else:
                queue.recycle(message, self)
        queues.serve(self)

def write():
    global number
    for _ in range(chance.randrange(1, 20)):
        number += 1
        say("put", number)
        queues.open("/", "q").put(b"head", b"%d" % number, author=author, token=number)
    for worker in workers:
        worker.answer()

store, rows = opened(place, reactor.seconds())
leases = Leases(reactor)
recorder = QueueRecorder(store, leases, reactor, threads.deferToThread, rows)
settings = QueueSettings(durable=True, max_deliveries=3, dead_letters=frozenset(Death), max_messages=1_000_000)
queues = Queues(leases, [QueueRule(("*",), settings)], recorder)
queues.restore(rows)
for queue in queues.family("/", "q"):
    recorder.number(queue)
author, workers = Author(), [Worker(), Worker()]
for worker in workers:
    queues.open("/", "q").join(worker)
task.LoopingCall(write).start(0.001)
reactor.run()
"""


@pytest.mark.long
def test_K03_a_message_that_was_confirmed_survives_a_kill(stores: Stores) -> None:
    """Kill a child that puts, confirms, rejects and dead-letters messages; the next one continues from there."""
    chance = random.Random(3)
    put, kept, settled = 0, set[int](), set[int]()
    for seed in range(KILLS):
        command = [sys.executable, "-c", CHILD, stores.place, str(put), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(chance.randrange(100, 3_000))]
            child.kill()
            # what it said between that and its death is still in the pipe
            said += child.stdout.readlines()
        for word, *numbers in (line.split() for line in said if line.endswith("\n")):
            if word == "put":
                put = int(numbers[0])
            else:
                assert word in ("kept", "settled")
                (kept if word == "kept" else settled).update(map(int, numbers))
        rows = stores.messages(NOW)
        stored = [int(each.body) for each in rows]
        assert len(stored) == len(set(stored)), "a message that is in two places"
        assert not kept - settled - set(stored), "a message that was confirmed and is lost"
        assert max(stored, default=0) <= put
        alive = [int(each.body) for each in rows if each.death is None]
        assert alive == sorted(alive), "not in the order in which they came"
        assert {each.name for each in rows if each.death is not None} <= {"q.dead"}
    assert len(kept) > 50 * KILLS
    assert len(settled) > 10 * KILLS
