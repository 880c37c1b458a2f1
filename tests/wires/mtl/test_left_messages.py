"""Messages that were left in the store of the state directory when another one was configured."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.queues.queue_interfaces import Batch
from broker.core.queues.sqlite_store import DATABASE, QueueStore
from broker.wires.mtl.durable_queues import NAMED, LeftQueues

NOW = 1_000_000.0


def left_behind(directory: str, now: float) -> str:
    """The sentence about the messages in a directory."""
    clock = Clock()
    clock.advance(now)
    return LeftQueues(directory, clock).trouble


def filled(directory: Path, queues: int) -> None:
    """Make a store with that many queues, of as many messages as their numbers."""
    store = QueueStore(str(directory))
    store.open(NOW)
    for queue in range(1, queues + 1):
        messages = [(100 * queue + each, queue, 0, None, None, b"head", b"body") for each in range(queue)]
        store.write(Batch(((queue, "/", f"q{queue}"),), tuple(messages), (), (), ()))
    store.close()


def test_they_are_logged_and_degrade_the_broker(tmp_path: Path) -> None:
    filled(tmp_path, NAMED + 2)
    with capturedLogs() as events:
        left = left_behind(str(tmp_path), NOW)
    assert "q7 (7), q6 (6), q5 (5), q4 (4), q3 (3) and 2 more queues" in left
    assert str(tmp_path) in left
    assert len(events) == 1
    assert left_behind(str(tmp_path), NOW) == left


def test_a_directory_without_messages_has_none(tmp_path: Path) -> None:
    assert left_behind(str(tmp_path), NOW) == ""
    filled(tmp_path, 0)
    assert left_behind(str(tmp_path), NOW) == ""


def test_an_unusable_store_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 1_000)
    assert "cannot be read" in left_behind(str(tmp_path), NOW)
