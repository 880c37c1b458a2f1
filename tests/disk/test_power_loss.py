"""Power loss at any moment: the real stores and the journal over a record of their writes, syncs and renames.

Nothing that was confirmed is lost, and nothing is there by half. The record is replayed up to each moment, with some of
the changes since the last sync, in any order, and opened by the real code.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.core.queues.sqlite_store import QueueStore
from broker.core.store import Store
from broker.export.segments import JournalLimits, Segments
from tests.disk.power_loss import MARKS, Disk, Step, recorded

PROGRAM = """
import json, os, sys
from broker.core.model import Provider, Service
from broker.core.queues.queue_interfaces import Batch
from broker.core.queues.sqlite_store import QueueStore
from broker.core.store import Store
from broker.export.segments import JournalLimits, Segments

state = sys.argv[1]
marks = os.open(os.path.join(state, "marks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def confirm(**what):
    os.write(marks, json.dumps(what).encode() + b"\\n")

for run in range(2):
    store, queues = Store(state), QueueStore(state)
    store.open()
    queues.open(0.0)
    confirm(open=True)
    segments = Segments(os.path.join(state, "journal"), "b", f"r{run}", JournalLimits())
    segments.open()
    segments.recover()
    for n in range(run * 30 + 1, run * 30 + 31):
        rows = [(3 * n + k, 1, 0, None, None, b"head", b"%d " % (3 * n + k) * (3_000 * (k == n % 5))) for k in range(3)]
        gone = [(1, 3 * (n - 4) + k) for k in range(3)] if n > 4 else []
        counts = [(1, 3 * n - 1, n)] if n > 1 else []
        confirm(begin="queues", n=n)
        queues.write(Batch([(1, "/", "q")], rows, counts, gone, []))
        confirm(queues=n)
        providers = [Provider(k, f"run {n}", "elko", "h:1", 0.0, 0.0, (Service("s" * n, "h:1", k),)) for k in (1, 2, 3)]
        confirm(begin="store", n=n)
        store.record(providers, [], 1000 * n)
        confirm(store=n)
        segments.append([b'{"ts":%d}\\n' % (10 * n + k) for k in range(10)], n, 0.0)
        if n % 3 == 0:
            segments.sync()
            confirm(journal=n)
        if n % 10 == 0:
            segments.rotate()
            confirm(journal=n)
        if n % 20 == 0:
            segments.seal()
    segments.close()
    if run:
        queues.close()
        store.close(1000 * n)
        confirm(closed=True)
    else:  # killed: the next run finds the logs of SQLite as they are
        os.close(store._lock)
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    """All changes of one run of `PROGRAM`."""
    return recorded(tmp_path_factory.mktemp("power"), PROGRAM)


def check(directory: Path, marks: bytes) -> None:
    """Open the state, and compare it with what was confirmed, and with what had begun."""
    confirmed: dict[str, Any] = {"queues": 0, "store": 0, "journal": 0}
    begun = {"queues": 0, "store": 0}
    for line in marks.splitlines():
        told = json.loads(line)
        if "begin" in told:
            begun[told["begin"]] = told["n"]
        else:
            confirmed.update(told)
    store = Store(str(directory))
    snapshot = store.open()
    assert store.found() == []
    store.close(1)
    labels = {provider.label for provider in snapshot.providers}
    n = int(labels.pop().removeprefix("run ")) if labels else 0
    assert not labels, "a transaction is there by half"
    assert confirmed["store"] <= n <= begun["store"]
    assert len(snapshot.providers) == (3 if n else 0)
    assert all(provider.services[0].name == "s" * n for provider in snapshot.providers)
    assert snapshot.next_provider >= 1000 * n
    queues = QueueStore(str(directory))
    rows = queues.open(0.0)
    assert queues.found() == []
    queues.close()
    assert not any(row.damaged for row in rows)
    n = (rows[-1].order - 2) // 3 if rows else 0
    assert confirmed["queues"] <= n <= begun["queues"]
    assert [row.order for row in rows] == list(range(3 * max(1, n - 3), 3 * n + 3)) if n else not rows
    for row in rows:
        block, k = divmod(row.order, 3)
        assert row.body == b"%d " % row.order * (3_000 * (k == block % 5))
        assert row.count == (block + 1 if k == 2 and block < n else 0)
    journal(directory / "journal", confirmed["journal"])


def journal(directory: Path, confirmed: int) -> None:
    """Recover the journal, and compare its lines."""
    segments = Segments(str(directory), "b", "next", JournalLimits())
    segments.open()
    segments.recover()
    segments.seal()
    segments.close()
    lines: set[int] = set()
    for file in (directory / "segments").rglob("*.gz"):
        found = [json.loads(line)["ts"] for line in gzip.decompress(file.read_bytes()).splitlines()]
        assert lines.isdisjoint(found)
        lines.update(found)
    assert not [file for file in (directory / "open").iterdir() if file.stat().st_size]
    assert lines >= {10 * n + k for n in range(1, confirmed + 1) for k in range(10)}


def moments(steps: list[Step], rng: random.Random, share: float) -> set[int]:
    """Choose steps after which the power is lost."""
    return {at for at in range(len(steps)) if rng.random() < share}


def lose(steps: list[Step], tmp_path: Path, chosen: set[int], rng: random.Random, more: int) -> int:
    """Lose power after each of the chosen steps, in several ways. Returns the number of states."""
    disk, states = Disk(), 0
    for at, step in enumerate(steps):
        disk.do(step)
        if at not in chosen or step.path == MARKS:
            continue
        ways: list[tuple[random.Random | None, float]] = [(None, 0.0), (None, 1.0), (None, rng.random())]
        ways += [(rng, rng.choice((0.2, 0.5, 0.8))) for _ in range(more)]
        for way, share in ways if disk.unsynced else ways[:1]:
            directory = tmp_path / "state"
            disk.lose_power(directory, way, share)
            try:
                check(directory, disk.marks)
            except BaseException:
                print(f"after step {at} of {len(steps)}, {step.kind} of {step.path}")
                raise
            shutil.rmtree(directory)
            states += 1
    return states


def test_the_record_has_syncs_of_all_parts_and_gives_the_final_state(steps: list[Step], tmp_path: Path) -> None:
    synced = {step.path for step in steps if step.kind == "sync"}
    assert {"elkobroker.sqlite3-wal", "queues.sqlite3-wal", "queues.sqlite3", ".", "journal/open"} <= synced
    assert any(step.kind == "rename" for step in steps)
    disk = Disk()
    for step in steps:
        disk.do(step)
    disk.lose_power(tmp_path / "state", None, 1.0)
    check(tmp_path / "state", disk.marks)


def test_a_write_that_was_confirmed_without_a_sync_is_found(steps: list[Step], tmp_path: Path) -> None:
    """The model itself: without the syncs of one log its confirmed transactions are lost."""
    unsynced = [step for step in steps if not (step.kind == "sync" and step.path.startswith("queues.sqlite3"))]
    with pytest.raises(BaseException):  # noqa: B017
        lose(unsynced, tmp_path, set(range(len(unsynced) // 2, len(unsynced), 50)), random.Random(1), 2)


@pytest.mark.long
def test_after_a_power_loss_all_that_was_confirmed_is_there_and_nothing_by_half(
    steps: list[Step], tmp_path: Path
) -> None:
    rng = random.Random(28)
    assert lose(steps, tmp_path, moments(steps, rng, 12 / len(steps)), rng, 1) > 20


@pytest.mark.long
def test_a_power_loss_at_a_quarter_of_all_steps(steps: list[Step], tmp_path: Path) -> None:
    rng = random.Random()
    assert lose(steps, tmp_path, moments(steps, rng, 0.25), rng, 2) > 1_000
