"""Store of queues: restored content, and errors for unusable databases."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core.database import StateFull, StateUnusable
from broker.core.queues.queue_interfaces import Batch, RestoredMessage, Row
from broker.core.queues.queue_messages import Death
from broker.core.queues.sqlite_store import DATABASE, STEPS, QueueStore
from tests.full_disk import no_room, on_a_small_disk

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


def test_queues_without_messages_are_not_kept_over_a_restart(store: QueueStore, directory: Path) -> None:
    store.write(attrs.evolve(NOTHING, queues=QUEUES, rows=[row(1, 2)]))
    reopened(store)
    with closing(sqlite3.connect(directory / DATABASE)) as other:
        assert other.execute("SELECT id FROM queue").fetchall() == [(2,)]


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


OLD_ROWS = """
INSERT INTO queue VALUES (1, '/', 'orders');
INSERT INTO message VALUES (1, 1, 2, 1000010.0, 'expired', x'68', x'00'), (5, 1, 0, NULL, NULL, x'69', x'01');
PRAGMA user_version = 1;
"""


def of_the_first_version(directory: Path) -> list[RestoredMessage]:
    """Create a database as the first version wrote it, without checksums. Returns its messages."""
    directory.mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / DATABASE)) as database:
        database.executescript(STEPS[0] + OLD_ROWS)
    return [
        RestoredMessage("/", "orders", 1, 1, 2, 10.0, Death.EXPIRED, b"h", b"\0"),
        RestoredMessage("/", "orders", 1, 5, 0, inf, None, b"i", b"\1"),
    ]


def test_a_database_of_the_first_version_is_taken_over_and_its_rows_get_checksums(directory: Path) -> None:
    expected = of_the_first_version(directory)
    store = QueueStore(str(directory))
    assert store.open(NOW) == expected
    assert sum(each.damaged for each in store.verify()) == 0
    store.close()
    with closing(sqlite3.connect(directory / DATABASE)) as database, database:
        database.execute("UPDATE message SET body = x'02' WHERE id = 5")
    assert [each.damaged for each in store.open(NOW)] == [False, True]
    store.close()


def test_on_a_full_disk_a_database_of_the_first_version_is_read_as_it_is(directory: Path) -> None:
    expected = of_the_first_version(directory)
    store = QueueStore(str(directory))
    with no_room():
        with pytest.raises(StateFull):
            store.open(NOW)
        assert store.look(NOW) == expected
    store.close()


DAMAGED = RestoredMessage("other", QUEUES[1][2], 2, 2, 0, inf, None, b"head 2", b"\0body", damaged=True)


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("UPDATE message SET count = 'many' WHERE id = 2", {}),
        ("UPDATE message SET count = count + 1 WHERE id = 2", {}),
        ("UPDATE message SET death = 'of boredom' WHERE id = 2", {}),
        ("UPDATE message SET death = NULL WHERE id = 2", {}),
        ("UPDATE message SET head = x'68' WHERE id = 2", {"head": b"h"}),
        ("UPDATE message SET body = x'0062' WHERE id = 2", {"body": b"\0b"}),
        ("UPDATE message SET expires = 'soon' WHERE id = 2", {}),
        ("UPDATE message SET expires = 5.0 WHERE id = 2", {}),
        ("UPDATE message SET queue = 1 WHERE id = 2", {"space": "/", "name": "orders", "number": 1}),
        ("UPDATE message SET id = 3 WHERE id = 2", {"order": 3}),
        ("UPDATE message SET sum = NULL WHERE id = 2", {}),
        ("UPDATE message SET count_sum = 0 WHERE id = 2", {}),
    ],
)
def test_a_message_that_was_changed_is_damaged(directory: Path, statement: str, changes: dict[str, Any]) -> None:
    filled(directory, statement)
    store = QueueStore(str(directory))
    rows = store.open(NOW)
    assert [row.order for row in rows if not row.damaged] == [1]
    assert rows[1:] == [attrs.evolve(DAMAGED, **changes)]
    assert store.found() == []
    assert [name for each in store.verify() for name in each.named] == [
        f"message {rows[1].order} of queue {rows[1].number}"
    ]
    store.close()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE message SET head = 'text' WHERE id = 2", "message 2 cannot be read"),
        ("UPDATE message SET body = 5 WHERE id = 2", "message 2 cannot be read"),
        ("UPDATE message SET head = x'00' WHERE id = 2", "message 2 cannot be read"),
        ("UPDATE message SET id = 1 << 60 WHERE id = 2", f"message {1 << 60} cannot be read"),
        ("UPDATE message SET queue = 9 WHERE id = 2", "the queue of message 2 is unknown"),
        ("UPDATE queue SET name = x'00' WHERE id = 2", "the queue of message 2 is unknown"),
        ("UPDATE queue SET name = 'orders' WHERE id = 2", "the queue of message 2 is unknown"),
        ("UPDATE queue SET name = CAST(x'ff' AS TEXT) WHERE id = 2", "the queue of message 2 is unknown"),
        ("DELETE FROM queue WHERE id = 2", "the queue of message 2 is unknown"),
    ],
)
def test_a_message_without_readable_content_or_queue_is_set_aside(directory: Path, statement: str, reason: str) -> None:
    filled(directory, statement)
    store = QueueStore(str(directory), lambda head: head != b"\0")
    for again in (False, True):
        assert [row.order for row in store.open(NOW)] == [1]
        found = store.found()
        assert [reason in each.reason for each in found][:1] == [True] * (not again), "it is reported once"
        assert next(iter(store.verify())).aside == (2 if "UPDATE queue" in statement else 1)
        store.close()


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


@pytest.mark.parametrize(
    ("statement", "aside"),
    [
        ("UPDATE queue SET name = 'orders' WHERE id = 2", 2),
        ("UPDATE message SET head = x'00' WHERE id = 2", 1),
    ],
)
def test_what_is_unreadable_on_a_full_disk_is_set_aside_by_the_first_write(
    directory: Path, statement: str, aside: int
) -> None:
    filled(directory, statement)
    store = QueueStore(str(directory), lambda head: head != b"\0")
    with no_room():
        with pytest.raises(StateFull):
            store.open(NOW)
        assert [each.order for each in store.look(NOW)] == [1]
        assert sum(each.rows for each in store.found()) == aside
        with pytest.raises(StateFull):
            store.probe()
    # What comes next after the one queue and the one message that could be read.
    store.write(attrs.evolve(NOTHING, queues=[(2, "/", "new")], rows=[row(2, 2)]))
    assert next(iter(store.verify())).aside == aside
    assert [(each.order, each.name, each.damaged) for each in reopened(store)] == [
        (1, "orders", False),
        (2, "new", False),
    ]
    assert store.found() == []
    store.close()


@pytest.mark.long
@pytest.mark.parametrize("size", [100, 20_000])
def test_a_disk_that_is_full_of_messages_has_room_again_when_they_are_taken_out(tmp_path: Path, size: int) -> None:
    """Property of a full disk on which the write-ahead log cannot be checkpointed without the reserve."""
    script = f"""
import os, sys
from broker.core.database import StateFull
from broker.core.queues.queue_interfaces import Batch
from broker.core.queues.sqlite_store import COMMIT_GONE, QueueStore
from broker.core.disk import RESERVE, DiskReserve

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
