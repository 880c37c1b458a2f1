"""The memory of a member in its file: round trips, order, failures of the disk, files of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from broker.cluster.memory import FILE, FileMemory
from broker.cluster.settings import Memory

SOME = Memory("i1", 77, 100, 65_536, (131_072, 196_608), "e", 9)


class Thread:
    """A thread that works when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Deferred[Any], Callable[[], object]]] = []

    def __call__(self, function: Callable[..., object], *arguments: object) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append((done, lambda: function(*arguments)))
        return done

    def work(self, error: Exception | None = None) -> None:
        """Do the first waiting work, or fail it."""
        done, work = self.waiting.pop(0)
        if error is not None:
            done.errback(Failure(error))
        else:
            done.callback(work())


def memory(folder: Path, thread: Thread, clock: Clock | None = None, farm: str = "f", name: str = "a") -> FileMemory:
    return FileMemory(str(folder), farm, name, clock or Clock(), thread)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    thread = Thread()
    assert memory(tmp_path, thread).load() == Memory()
    memory(tmp_path, thread).save(SOME)
    thread.work()
    assert memory(tmp_path, thread).load() == SOME
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_values_saved_during_a_write_are_replaced_by_the_last_one(tmp_path: Path) -> None:
    thread = Thread()
    kept = memory(tmp_path, thread)
    for revision in range(5):
        kept.save(attrs.evolve(SOME, revision=revision))
    assert len(thread.waiting) == 1
    thread.work()
    assert memory(tmp_path, thread).load().revision == 0
    thread.work()
    assert memory(tmp_path, thread).load().revision == 4
    assert not thread.waiting


def test_a_failed_write_is_retried_with_the_newest_value(tmp_path: Path) -> None:
    thread, clock = Thread(), Clock()
    kept = memory(tmp_path, thread, clock)
    kept.save(SOME)
    thread.work(OSError("no room"))
    assert kept.trouble == "no room"
    kept.save(attrs.evolve(SOME, revision=10))
    assert not thread.waiting
    clock.advance(1)
    thread.work()
    assert kept.trouble == ""
    assert memory(tmp_path, thread).load().revision == 10
    assert not clock.getDelayedCalls()


def test_a_failed_write_without_a_newer_value_is_repeated(tmp_path: Path) -> None:
    thread, clock = Thread(), Clock()
    kept = memory(tmp_path, thread, clock)
    kept.save(SOME)
    thread.work(OSError("no room"))
    clock.advance(1)
    thread.work()
    assert memory(tmp_path, thread).load() == SOME


@pytest.mark.parametrize("fails", [False, True])
def test_the_stop_waits_for_the_last_write_and_tries_it_once(tmp_path: Path, fails: bool) -> None:
    thread, clock = Thread(), Clock()
    kept = memory(tmp_path, thread, clock)
    kept.save(attrs.evolve(SOME, revision=1))
    kept.save(SOME)
    ended: list[object] = []
    kept.stop().addCallback(ended.append)
    thread.work()
    assert not ended
    thread.work(OSError("no room") if fails else None)
    assert ended
    assert not clock.getDelayedCalls()
    assert memory(tmp_path, thread).load().revision == (1 if fails else 9)


def test_the_stop_repeats_a_failed_write_at_once(tmp_path: Path) -> None:
    thread, clock = Thread(), Clock()
    kept = memory(tmp_path, thread, clock)
    kept.save(SOME)
    thread.work(OSError("no room"))
    ended: list[object] = []
    kept.stop().addCallback(ended.append)
    assert not ended
    thread.work()
    assert ended
    assert memory(tmp_path, thread).load() == SOME


def test_a_stop_without_pending_writes_ends_at_once(tmp_path: Path) -> None:
    assert memory(tmp_path, Thread()).stop().called


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"farm": 1}', b"\xff\xfe", b'{"farm":"f","name":"a","lease":"x"}']
)
def test_a_damaged_file_is_an_empty_memory(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert memory(tmp_path, Thread()).load() == Memory()


def test_the_file_of_a_newer_version_may_have_more_members(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"farm":"f","name":"a","lease":5,"more":[1]}')
    assert memory(tmp_path, Thread()).load() == Memory(lease=5)


def test_the_memory_of_another_farm_is_ignored_and_of_another_name_has_no_lease(tmp_path: Path) -> None:
    thread = Thread()
    memory(tmp_path, thread).save(SOME)
    thread.work()
    assert memory(tmp_path, thread, farm="g").load() == Memory()
    assert memory(tmp_path, thread, name="b").load() == attrs.evolve(SOME, instance="", lease=0)
