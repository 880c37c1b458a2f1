"""Recorder of last values: what the next start finds, and the work of the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from broker.core.database import StateFull
from broker.core.disk import RETRY_SECONDS
from broker.core.last_values import Key, LastValues, LastValuesBounds
from broker.core.memory_budget import MemoryBudget
from broker.core.model import LastValue, PublishedHeaders
from broker.core.recorder import FLUSH_BYTES, FLUSH_ROWS, FLUSH_SECONDS, ValueRecorder
from broker.core.store import Store
from broker.core.topics import Topics, TopicsBounds
from tests.threads import Thread, TimedThread


class CountingStore(Store):
    """The store, with the topics of each write, on a disk that fails while ``error`` is set."""

    error: Exception | None = None

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.writes: list[Sequence[bytes]] = []

    def record_values(self, changes: Mapping[Key, LastValue | None]) -> None:
        self.writes.append([topic for _, topic in changes])
        if self.error is not None:
            raise self.error
        super().record_values(changes)


class Run:
    """One run of a broker's topics on a state directory."""

    def __init__(
        self, directory: Path, stored: bool = True, bounds: LastValuesBounds | None = None, every: bool = True
    ) -> None:
        self.clock = Clock()
        self.thread = Thread()
        self.store = CountingStore(str(directory))
        known = self.store.open().last_values
        self.memory = MemoryBudget()
        self.values = LastValues(self.memory, bounds or LastValuesBounds())
        self.values.every = every
        self.topics = Topics(TopicsBounds(), self.memory, self.values)
        self.recorder = ValueRecorder(self.store, self.clock, TimedThread(self.clock, self.thread))
        self.recorder.restore(known, self.values if stored else None)

    def publish(self, topic: str, body: str, retain: bool = False, payer: str = "") -> None:
        headers = PublishedHeaders((b"X-Unit", b"m"))
        headers.retain = retain
        self.topics.publish(topic.encode(), headers, (body.encode(),), payer=payer)

    def flush(self) -> None:
        self.clock.advance(FLUSH_SECONDS)
        self.thread.work_all()

    def kept(self) -> dict[str, str]:
        return {topic.decode(): b"".join(value.body).decode() for (_, topic), value in self.values._values.items()}

    def killed(self) -> None:
        self.store.close(1)

    def stop(self) -> None:
        stopped: list[Any] = []
        self.recorder.stop().addBoth(stopped.append)
        self.thread.work_all()
        assert stopped == [None]
        self.store.close(1)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_the_newest_values_come_back_after_a_kill_as_far_as_they_were_written(state: Path) -> None:
    run = Run(state)
    run.publish("a", "old")
    run.publish("a", "new")
    run.publish("b", "kept", retain=True, payer="192.0.2.7")
    run.publish("c", "removed", retain=True)
    run.publish("c", "", retain=True)
    assert run.thread.jobs == [], "nothing is written in the turn of a message"
    run.flush()
    assert run.store.writes == [[b"a", b"b"]], "a value that came and went is not written"
    run.publish("a", "lost by the kill")
    run.killed()
    again = Run(state)
    assert again.kept() == {"a": "new", "b": "kept"}
    assert again.values.bytes == run.values.bytes - len("lost by the kill") + len("new")
    assert again.topics.last(b"b") == run.topics.last(b"b")
    again.publish("b", "", retain=True)
    again.stop()
    assert Run(state).kept() == {"a": "new"}


def test_a_start_without_the_key_deletes_the_values_of_earlier_ones(state: Path) -> None:
    run = Run(state)
    run.publish("a", "old")
    run.stop()
    off = Run(state, stored=False)
    off.publish("a", "newer")
    off.stop()
    assert Run(state).kept() == {}


def test_values_that_nobody_retained_end_when_the_newest_of_every_topic_is_not_kept_any_more(state: Path) -> None:
    """They would become outdated: no later message of their topic replaces them."""
    run = Run(state)
    run.publish("a", "unasked")
    run.publish("b", "retained", retain=True)
    run.stop()
    off = Run(state, every=False)
    assert off.kept() == {"b": "retained"}
    off.values.every = True
    off.publish("c", "unasked")
    off.flush()
    off.values.every = False  # a reload
    off.publish("c", "newer")
    assert off.kept() == {"b": "retained"}
    off.stop()
    assert Run(state).kept() == {"b": "retained"}


def test_values_that_find_no_room_any_more_are_deleted(state: Path) -> None:
    run = Run(state)
    for topic in "abc":
        run.publish(topic, topic)
    run.stop()
    less = Run(state, bounds=LastValuesBounds(values=2))
    assert len(less.values) == 2
    less.stop()
    assert len(Run(state).values) == 2


def test_a_busy_topic_costs_one_row_and_a_write_has_a_bounded_size(state: Path) -> None:
    run = Run(state)
    for number in range(FLUSH_ROWS + 1):
        run.publish("busy", str(number))
        run.publish(str(number), "x")
    for topic in ("large", "larger"):
        run.publish(topic, "x" * (FLUSH_BYTES // 2 + 1))
    run.flush()
    assert [len(write) for write in run.store.writes] == [FLUSH_ROWS]
    run.flush()
    run.flush()
    assert [len(write) for write in run.store.writes] == [FLUSH_ROWS, 3, 1]
    run.flush()
    assert len(run.store.writes) == 3, "nothing is left"


def test_a_disk_that_fails_is_tried_again_and_a_later_value_wins(state: Path) -> None:
    run = Run(state)
    run.publish("a", "first")
    run.publish("b", "only")
    run.store.error = StateFull("the disk is full")
    with capturedLogs() as logs:
        run.flush()
        assert run.recorder.trouble == "the disk is full"
        run.publish("a", "second")
        run.clock.advance(FLUSH_SECONDS)
        assert run.thread.jobs == [], "the next attempt waits"
        run.store.error = None
        run.clock.advance(RETRY_SECONDS)
        run.thread.work_all()
        assert run.recorder.trouble == ""
    assert [each["log_level"] for each in logs] == [LogLevel.error, LogLevel.info]
    run.killed()
    assert Run(state).kept() == {"a": "second", "b": "only"}


def test_a_stop_writes_the_rest_and_ends_on_a_disk_that_fails(state: Path) -> None:
    run = Run(state)
    for number in range(FLUSH_ROWS + 1):
        run.publish(str(number), "x")
    run.clock.advance(FLUSH_SECONDS)  # one write is in progress
    run.stop()
    again = Run(state)
    assert len(again.values) == FLUSH_ROWS + 1
    again.publish("0", "lost")
    again.store.error = StateFull("the disk is full")
    again.stop()
    assert Run(state).kept()["0"] == "x"
