"""The memory of a membership, and the slices of the mirror."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from broker.cluster.membership import StoredMemory
from broker.cluster.settings import Memory
from broker.core.database import StateError, StateFull
from broker.core.store import Store

SOME = Memory("instance", 77, 10, 500, (600, 700), "epoch", 12345)


class Disk:
    """A thread of the disk whose work ends when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred[Any], Any, tuple[Any, ...]]] = []

    def run(self, work: Any, *args: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append((done, work, args))
        return done

    def step(self, error: Exception | None = None) -> None:
        """End the work that is under way."""
        done, work, args = self.waiting.pop(0)
        if error is not None:
            done.errback(Failure(error))
        else:
            done.callback(work(*args))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "state"))
    store.open()
    return store


def _noting(saved: list[int], number: int) -> Callable[[object], None]:
    return lambda _: saved.append(number)


def reopened(store: Store) -> dict[str, str]:
    store.close(1)
    return dict(store.open().cluster)


def test_a_memory_comes_back_for_its_farm_and_name_only(store: Store) -> None:
    clock, disk = Clock(), Disk()
    memory = StoredMemory(store, {}, "farm", "a", clock, disk.run)
    assert memory.load() == Memory()
    saved: list[object] = []
    memory.save(SOME).addCallback(saved.append)
    assert (memory.load(), saved) == (SOME, [])
    disk.step()
    assert saved == [None]
    known = reopened(store)
    assert StoredMemory(store, known, "farm", "a", clock, disk.run).load() == SOME
    assert StoredMemory(store, known, "farm", "b", clock, disk.run).load() == Memory()
    assert StoredMemory(store, known, "other", "a", clock, disk.run).load() == Memory()
    assert StoredMemory(store, {"farm/a": "no json"}, "farm", "a", clock, disk.run).load() == Memory()
    store.close(1)


def test_one_write_at_a_time_and_the_newest_wins(store: Store) -> None:
    disk = Disk()
    memory = StoredMemory(store, {}, "farm", "a", Clock(), disk.run)
    saved: list[int] = []
    for number in range(5):
        memory.save(Memory(next_id=number)).addCallback(_noting(saved, number))
    assert len(disk.waiting) == 1
    disk.step()
    assert (saved, len(disk.waiting)) == ([0], 1)
    disk.step()
    assert (saved, disk.waiting) == ([0, 1, 2, 3, 4], [])
    assert '"next_id":4' in reopened(store)["farm/a"]
    store.close(1)


def test_a_failed_write_is_repeated_and_nobody_waits_for_it(store: Store) -> None:
    clock, disk = Clock(), Disk()
    memory = StoredMemory(store, {}, "farm", "a", clock, disk.run)
    saved: list[object] = []
    memory.save(SOME).addCallback(saved.append)
    disk.step(StateFull("the disk is full"))
    assert (saved, memory.trouble) == ([None], "the disk is full")
    clock.advance(60)
    disk.step()
    assert memory.trouble == ""
    assert "instance" in reopened(store)["farm/a"]
    store.close(1)


@pytest.mark.parametrize("error", [None, StateError("the disk is broken")])
def test_the_stop_waits_for_the_last_write(store: Store, error: Exception | None) -> None:
    disk = Disk()
    memory = StoredMemory(store, {}, "farm", "a", Clock(), disk.run)
    memory.save(Memory(next_id=1))
    memory.save(SOME)
    stopped: list[object] = []
    memory.stop().addCallback(stopped.append)
    disk.step()
    assert stopped == []
    disk.step(error)
    assert (stopped, disk.waiting) == ([None], [])
    store.close(1)


@pytest.mark.parametrize("error", [None, StateFull("full")])
def test_a_stop_during_a_write_waits_for_that(store: Store, error: Exception | None) -> None:
    clock, disk = Clock(), Disk()
    memory = StoredMemory(store, {}, "farm", "a", clock, disk.run)
    memory.save(SOME)
    ended: list[object] = []
    memory.stop().addCallback(ended.append)
    assert ended == []
    disk.step(error)
    assert (ended, disk.waiting, clock.getDelayedCalls()) == ([None], [], [])


def test_a_record_comes_back_with_its_age_for_its_farm_and_name_only(store: Store) -> None:
    clock, disk = Clock(), Disk()
    memory = StoredMemory(store, {}, "farm", "a", clock, disk.run)
    assert memory.load_record() is None
    saved: list[object] = []
    memory.save_record({"s/one": "1", "s/two": "2"}).addCallback(saved.append)
    memory.save_record({"s/one": None, "s/three": "3"}).addCallback(saved.append)
    disk.step()
    disk.step()
    assert saved == [None, None]
    memory.save(SOME)
    disk.step()
    known = reopened(store)
    again = StoredMemory(store, known, "farm", "a", clock, disk.run)
    record = again.load_record()
    assert record is not None
    assert (record[0] >= 0, record[1]) == (True, {"s/two": "2", "s/three": "3"})
    assert again.load() == SOME
    assert StoredMemory(store, known, "farm", "aa", clock, disk.run).load_record() is None
    assert StoredMemory(store, {"farm/a@": "no time"}, "farm", "a", clock, disk.run).load_record() is None
    store.close(1)


def test_a_record_that_cannot_be_written_is_written_again_by_its_caller(store: Store) -> None:
    disk = Disk()
    memory = StoredMemory(store, {}, "farm", "a", Clock(), disk.run)
    failed: list[object] = []
    with capturedLogs() as events:
        for _ in range(3):
            memory.save_record({"s/one": "1"}).addErrback(failed.append)
            disk.step(StateFull("the disk is full"))
    assert (len(failed), memory.trouble) == (3, "the disk is full")
    assert len(events) == 1, "a full disk has no room for more"
    memory.save_record({"s/one": "1"})
    disk.step()
    assert memory.trouble == ""
    store.close(1)
