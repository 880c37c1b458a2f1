"""Bits that were changed at random in the files of the stores: what is read is as it was written, or is set aside.

`tests/integration/test_damage.py` does the same with the daemon.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from broker.core.database import StateError
from broker.core.model import KnownSession, Provider, Service
from broker.core.queues.queue_interfaces import Batch
from broker.core.queues.sqlite_store import QueueStore
from broker.core.store import Store

PROVIDERS = [Provider(n, f"label {n}", "elko", "h:1", 0.5, 1.5, (Service("bank", f"h:{n}", n),)) for n in range(1, 9)]
SESSIONS = [KnownSession(b"node %d" % n, "key", "h", 30.0, b"0.2", (b"topic",)) for n in range(8)]
BODIES = {n: b"body %d " % n * 40 for n in range(1, 41)}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory after a clean stop, and one as after a kill, with the logs of the databases."""
    directory = tmp_path_factory.mktemp("intact")
    state = directory / "stopped"
    store, queues = Store(str(state)), QueueStore(str(state))
    store.open()
    queues.open(0.0)
    store.record(PROVIDERS, [], 100, SESSIONS)
    store.switch("gate", True)
    rows = [(n, 1 + n % 2, n, None, "expired" if n % 3 else None, b"head %d" % n, body) for n, body in BODIES.items()]
    queues.write(Batch([(1, "/", "jobs"), (2, "/", "jobs.dead")], rows, [], [], []))
    shutil.copytree(state, directory / "killed", ignore=shutil.ignore_patterns("*-shm", "reserve"))
    store.close(100)
    queues.close()
    return directory


def changed(state: Path, rng: random.Random) -> str:
    """Change a bit of one of the databases or their logs. Returns which."""
    file = rng.choice([each for each in sorted(state.glob("*.sqlite3*")) if each.stat().st_size])
    content = bytearray(file.read_bytes())
    place, bit = rng.choice([at for at, byte in enumerate(content) if byte]), rng.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {place} of {file.name}"


def check_store(state: Path) -> bool:
    """Open the store. Returns True if all is as it was written."""
    store = Store(str(state))
    try:
        snapshot = store.open()
    except StateError as error:
        assert "\n" not in str(error)
        return False
    assert all(provider == PROVIDERS[provider.id - 1] for provider in snapshot.providers)
    assert all(session in SESSIONS for session in snapshot.sessions)
    assert snapshot.launchers_on in ({}, {"gate": True})
    found = store.found()
    whole = len(snapshot.providers) == 8 and len(snapshot.sessions) == 8 and len(snapshot.launchers_on) == 1
    store.close(100)
    return whole and not found


def check_queues(state: Path) -> bool:
    """Open the store of queues. Returns True if all is as it was written."""
    queues = QueueStore(str(state))
    try:
        rows = queues.open(0.0)
    except StateError as error:
        assert "\n" not in str(error)
        return False
    for row in rows:
        if not row.damaged:
            written = (("jobs.dead", "jobs")[row.order % 2 == 0], row.order, b"head %d" % row.order, BODIES[row.order])
            assert (row.name, row.count, row.head, row.body) == written
            assert row.death == ("expired" if row.order % 3 else None)
    aside = sum(each.rows for each in queues.found())
    queues.close()
    if state.name == "stopped":
        assert len(rows) == len(BODIES) or aside, "nothing vanishes without a word"
    return len(rows) == len(BODIES) and not any(row.damaged for row in rows)


@pytest.mark.parametrize("count", [40, pytest.param(1_500, marks=pytest.mark.long)])
def test_rows_are_read_as_they_were_written(intact: Path, tmp_path: Path, count: int) -> None:
    harmless = 0
    for seed in range(count):
        rng = random.Random(seed)
        kind = rng.choice(("stopped", "killed"))
        state = tmp_path / kind
        shutil.copytree(intact / kind, state)
        place = changed(state, rng)
        try:
            harmless += check_store(state) & check_queues(state)
        except BaseException:
            print(f"seed {seed}: {place}")
            raise
        shutil.rmtree(state)
    assert harmless < count / 2, "most bits of the files matter"


def test_each_changed_bit_of_a_row_is_found(intact: Path, tmp_path: Path) -> None:
    """All bits of one message: of its numbers, its texts and its bytes."""
    rng = random.Random(1)
    for column, value in (("head", b"head 7"), ("body", BODIES[7])):
        for _ in range(20):
            state = tmp_path / "state"
            shutil.copytree(intact / "stopped", state)
            data = bytearray(value)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            with closing(sqlite3.connect(state / "queues.sqlite3")) as database, database:
                database.execute(f"UPDATE message SET {column} = ? WHERE id = 7", (bytes(data),))
            queues = QueueStore(str(state))
            assert [row.order for row in queues.open(0.0) if row.damaged] == [7]
            queues.close()
            shutil.rmtree(state)
