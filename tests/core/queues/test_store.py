"""Store of queues: restored content, errors for unusable databases, and durability across kills.

``ELKOBROKER_QUEUE_KILLS`` is the number of kills of the child.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker.core import database
from broker.core.database import StateFull, StateUnusable
from broker.core.queues.interfaces import Batch, RestoredMessage, Row
from broker.core.queues.store import DATABASE, SCHEMA, QueueStore
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


@pytest.mark.long
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
