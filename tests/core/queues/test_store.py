"""Store of queues: restored content, errors for unusable databases, and durability across kills.

``ELKOBROKER_QUEUE_KILLS`` is the number of kills of the child.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core import database
from broker.core.database import StateFull, StateUnusable
from broker.core.queues.interfaces import Batch, RestoredMessage, Row
from broker.core.queues.settings import Death
from broker.core.queues.store import DATABASE, ROWS, SCHEMA, QueueStore
from tests.full_disk import no_room, on_a_small_disk

KILLS = int(os.environ.get("ELKOBROKER_QUEUE_KILLS", "3"))
"""Few by default, since each costs the start of a child."""

NOW = 1_000_000.0

NOTHING = Batch((), (), (), (), ())

QUEUES = ((1, "/", "orders"), (2, "other", "\u00e9 \u4e2d 'x'; --"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(directory: Path) -> Iterator[QueueStore]:
    store = QueueStore(str(directory))
    assert store.open(NOW) == []
    yield store
    store.close()


def row(order: int, queue: int = 1, count: int = 0, expires: float | None = None, death: str | None = None) -> Row:
    return order, queue, count, expires, death, b"head %d" % order, b"\0body"


def reopened(store: QueueStore, now: float = NOW) -> list[RestoredMessage]:
    store.close()
    return store.open(now)


def orders(store: QueueStore) -> list[int]:
    return [each.order for each in reopened(store)]


# restored content


def test_the_file_is_private(store: QueueStore, directory: Path) -> None:
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == dict.fromkeys(
        (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"), 0o600
    )
    store.close()
    (directory / DATABASE).chmod(0o644)
    store.open(NOW)
    assert stat.S_IMODE((directory / DATABASE).stat().st_mode) == 0o600


def test_all_of_a_message_comes_back(store: QueueStore) -> None:
    rows = [row(7, 2, 3, NOW + 60, "too many"), row(5), row(6, expires=NOW - 1)]
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=rows))
    assert reopened(store, NOW + 10) == [
        RestoredMessage("/", "orders", 1, 5, 0, inf, None, b"head 5", b"\0body"),
        RestoredMessage("/", "orders", 1, 6, 0, -11.0, None, b"head 6", b"\0body"),
        RestoredMessage("other", "\u00e9 \u4e2d 'x'; --", 2, 7, 3, 50.0, Death.TOO_MANY, b"head 7", b"\0body"),
    ]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 63, 64, 65, 255, 256, 257, 2 * sum(ROWS) + 3])
def test_any_number_of_rows_is_written_each_once(store: QueueStore, count: int) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(n) for n in range(1, count + 1)]))
    assert [(each.order, each.head) for each in reopened(store)] == [(n, b"head %d" % n) for n in range(1, count + 1)]


def test_counts_are_changed_and_messages_and_queues_removed(store: QueueStore) -> None:
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
    left = reopened(store)
    assert [(each.order, each.count) for each in left] == [(2, 5), (4, 1), (6, 0), (8, 0), (9, 0)]


def test_a_row_that_is_written_again_is_there_once(store: QueueStore) -> None:
    for count in (0, 4):
        store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1, count=count)]))
    assert [(each.order, each.count) for each in reopened(store)] == [(1, 4)]


def test_queues_without_messages_are_not_kept_over_a_restart(store: QueueStore, directory: Path) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1, 2)]))
    reopened(store)
    with closing(sqlite3.connect(directory / DATABASE)) as other:
        assert other.execute("SELECT id FROM queue").fetchall() == [(2,)]


def test_large_bodies_and_any_bytes(store: QueueStore) -> None:
    body = random.Random(1).randbytes(3_000_000)
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[(1, 1, 0, None, None, b"", body)]))
    assert reopened(store)[0].body == body


def test_a_write_that_fails_half_way_leaves_nothing(store: QueueStore) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1)]))
    with pytest.raises(OverflowError):
        store.write(Batch((), [row(2), row(3), row(4), row(5), row(2**64)], [(1, 1, 9)], [(1, 1)], []))
    store.write(attrs.evolve(NOTHING, rows=[row(3)]))
    assert [(each.order, each.count) for each in reopened(store)] == [(1, 0), (3, 0)]


def test_a_write_is_on_the_disk_when_it_returns(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own settings are the only evidence that writes are synced to the disk."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    store = QueueStore(str(directory))
    store.open(NOW)
    [connection] = made
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_busy_database_is_an_error_and_not_a_hang(
    store: QueueStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.01)
    reopened(store)
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for write in (lambda: store.write(NOTHING), store.probe):
            with pytest.raises(StateUnusable, match="locked"):
                write()
    store.probe()
    assert orders(store) == []


def test_threads_take_turns(store: QueueStore) -> None:
    def write(n: int) -> None:
        store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(n)]))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 51)))
    assert orders(store) == list(range(1, 51))


def test_nothing_is_written_after_close(store: QueueStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StateUnusable, match="not open"):
        store.write(NOTHING)


# databases that cannot be used


def filled(directory: Path, *statements: str) -> None:
    """Create a database with two messages, and apply a foreign change to it."""
    store = QueueStore(str(directory))
    store.open(NOW)
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1), row(2, 2, death="expired")]))
    store.close()
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        for statement in statements:
            database.execute(statement)


def refused(directory: Path) -> str:
    before = (directory / DATABASE).read_bytes()
    with pytest.raises(StateUnusable) as error:
        QueueStore(str(directory)).open(NOW)
    assert str(directory / DATABASE) in str(error.value)
    assert "mv queues.sqlite3* kept/" in str(error.value)
    assert (directory / DATABASE).read_bytes() == before
    return str(error.value)


def test_a_newer_schema(directory: Path) -> None:
    filled(directory, f"PRAGMA user_version = {SCHEMA + 1}")
    assert f"written by a newer elkobroker (schema {SCHEMA + 1}, this one knows {SCHEMA})" in refused(directory)


def test_a_database_of_something_else(directory: Path) -> None:
    directory.mkdir()
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        database.execute("CREATE TABLE letters (text)")
    assert "is not one of elkobroker's" in refused(directory)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE message SET count = 'many' WHERE id = 2",
        "UPDATE message SET death = 'of boredom' WHERE id = 2",
        "UPDATE message SET head = 'text' WHERE id = 2",
        "UPDATE message SET body = 5 WHERE id = 2",
        "UPDATE message SET expires = 'soon' WHERE id = 2",
        "UPDATE queue SET name = x'00' WHERE id = 2",
        "DELETE FROM queue WHERE id = 2",
    ],
)
def test_what_was_stored_is_checked(directory: Path, statement: str) -> None:
    filled(directory, statement)
    assert "is damaged (message 2 cannot be understood)" in refused(directory)


def test_a_damaged_database_is_kept_and_can_be_moved_away(directory: Path) -> None:
    filled(directory)
    path = directory / DATABASE
    content = bytearray(path.read_bytes())
    content[100:8000] = random.Random(1).randbytes(7900)
    path.write_bytes(content)
    text = refused(directory)
    assert "is damaged" in text
    command = text[text.index("(cd") + 1 : text.index("kept/)") + 5]
    subprocess.run(["sh", "-c", command], check=True)
    assert (directory / "kept" / DATABASE).read_bytes() == content
    store = QueueStore(str(directory))
    assert store.open(NOW) == []
    store.close()


def test_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StateUnusable, match="is not a directory"):
        QueueStore(str(tmp_path / "file")).open(NOW)


# a full disk


def test_on_a_full_disk_it_is_read_and_opened_by_the_first_write_that_has_room(directory: Path) -> None:
    store = QueueStore(str(directory))
    store.open(NOW)
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1), row(2)]))
    store.close()
    with no_room():
        with pytest.raises(StateFull):
            store.open(NOW)
        assert [each.order for each in store.look(NOW)] == [1, 2]
        for write in (store.probe, lambda: store.write(attrs.evolve(NOTHING, gone=[(1, 1)]))):
            with pytest.raises(StateFull, match="the disk is full"):
                write()
    store.write(attrs.evolve(NOTHING, gone=[(1, 1)]))
    assert [each.order for each in reopened(store)] == [2]
    store.close()


@pytest.mark.parametrize("size", [100, 20_000])
def test_a_disk_that_is_full_of_messages_has_room_again_when_they_are_taken_out(tmp_path: Path, size: int) -> None:
    """Property of a full disk on which the write-ahead log cannot be checkpointed without the reserve."""
    script = f"""
import os, sys
from broker.core.database import StateFull
from broker.core.queues.interfaces import Batch
from broker.core.queues.store import COMMIT_GONE, QueueStore
from broker.core.disk_reserve import RESERVE, DiskReserve

DiskReserve(sys.argv[1]).take()
store = QueueStore(sys.argv[1])
store.open(0.0)
store.write(Batch([(1, "/", "q")], [], [], [], []))
last = 0

def fill():
    global last
    try:
        while True:
            rows = [(order, 1, 0, None, None, b"", bytes({size})) for order in range(last + 1, last + 101)]
            store.write(Batch([], rows, [], [], []))
            last += 100
    except StateFull:
        pass

def drain(first, last):
    for begin in range(first, last + 1, COMMIT_GONE):
        store.write(Batch([], [], [], [(1, n) for n in range(begin, min(begin + COMMIT_GONE, last + 1))], []))

fill()
full = last
print(os.path.exists(os.path.join(sys.argv[1], RESERVE)))
drain(1, full // 2)
fill()
print((last - full) / (full // 2) > 0.8)
drain(full // 2 + 1, last)
print(os.path.exists(os.path.join(sys.argv[1], RESERVE)))
store.close()
print(QueueStore(sys.argv[1]).open(0.0))
"""
    assert on_a_small_disk(tmp_path, 64, script).split() == ["True", "True", "True", "[]"]


# kill -9

CHILD = """
import os, random, sys
from twisted.internet import reactor, task, threads
from broker.core.liveness import Leases
from broker.core.queues.recorder import QueueRecorder
from broker.core.queues.settings import Death, QueueRule, QueueSettings
from broker.core.queues.store import QueueStore
from broker.core.queues.queues import Queues

directory, number, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
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

store = QueueStore(directory)
rows = store.open(reactor.seconds())
leases = Leases(reactor)
recorder = QueueRecorder(store, leases, reactor, threads.deferToThread, rows)
settings = QueueSettings(durable=True, max_deliveries=3, dead_letters=frozenset(Death), max_messages=1_000_000)
queues = Queues(leases, [QueueRule(("*",), settings)], recorder)
queues.restore(rows)
author, workers = Author(), [Worker(), Worker()]
for worker in workers:
    queues.open("/", "q").join(worker)
task.LoopingCall(write).start(0.001)
reactor.run()
"""


def test_K03_a_message_that_was_confirmed_survives_a_kill(directory: Path) -> None:
    """Kill a child that puts, confirms, rejects and dead-letters messages; the next one continues from there."""
    chance = random.Random(3)
    put, kept, settled = 0, set[int](), set[int]()
    for seed in range(KILLS):
        command = [sys.executable, "-c", CHILD, str(directory), str(put), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
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
        store = QueueStore(str(directory))
        rows = store.open(NOW)
        store.close()
        stored = [int(each.body) for each in rows]
        assert len(stored) == len(set(stored)), "a message that is in two places"
        assert not kept - settled - set(stored), "a message that was confirmed and is lost"
        assert max(stored, default=0) <= put
        alive = [int(each.body) for each in rows if each.death is None]
        assert alive == sorted(alive), "not in the order in which they came"
        assert {each.name for each in rows if each.death is not None} <= {"q.dead"}
    assert len(kept) > 50 * KILLS
    assert len(settled) > 10 * KILLS
