"""Messages that were left in the store of the state directory when another one was configured."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.queues.queue_interfaces import Batch
from broker.core.queues.queue_messages import Death
from broker.core.queues.sqlite_store import DATABASE, QueueStore
from broker.wires.mtl.codec.data_messages import make_tail
from broker.wires.mtl.codec.field_table import encode
from broker.wires.mtl.durable_queues import BATCH, NAMED, LeftQueues
from broker.wires.mtl.profiles.queue_profile import DELIVER_AT
from tests.core.queues.farm import DurableFarm, Worker
from tests.threads import immediately

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


class Here:
    """Ownership of a broker that has all queues."""

    def require(self, space: str, name: str, payer: str = "") -> None:
        return None


def test_messages_that_are_moved_keep_their_deaths_and_deliveries(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    tail = make_tail("q")
    rows = [(1, 1, 2, None, None, tail, b"1"), (2, 2, 3, None, Death.REJECTED, tail, b"2")]
    former.write(Batch([(1, "/", "q"), (2, "/", "q.dead")], rows, [], [], []))
    former.close()
    farm = DurableFarm(str(tmp_path / "present"))
    left = LeftQueues(str(tmp_path / "former"), farm.clock)
    moving = left.move(farm.queues, Here(), immediately)  # type: ignore[arg-type]
    told: list[object] = []
    for _ in range(len(rows)):
        farm.commit()
    moving.addCallback(told.append)
    assert told == [(2, {})]
    moved = sorted(farm.stored(), key=lambda each: each.body)
    assert [(each.name, each.count, each.death) for each in moved] == [("q", 2, None), ("q.dead", 3, Death.REJECTED)]
    assert left.trouble == ""
    farm.store.close()


def test_a_delayed_message_that_is_moved_expires_when_it_did_before(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    tail = make_tail("q", encode({DELIVER_AT: round((NOW + 100.0) * 1000)}))
    former.write(Batch([(1, "/", "q")], [(1, 1, 0, NOW + 130.0, None, tail, b"1")], [], [], []))
    former.close()
    farm = DurableFarm(str(tmp_path / "present"))
    left = LeftQueues(str(tmp_path / "former"), farm.clock)
    left.move(farm.queues, Here(), immediately)  # type: ignore[arg-type]
    farm.commit()
    assert [round(each.seconds) for each in farm.stored()] == [130]
    farm.store.close()


def test_a_delayed_message_that_is_moved_waits_still_and_a_letter_does_not(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    tail = make_tail("q", encode({DELIVER_AT: round((NOW + 100.0) * 1000)}))
    rows = [(1, 1, 0, None, None, tail, b"delayed"), (2, 2, 0, None, Death.REJECTED, tail, b"letter")]
    former.write(Batch([(1, "/", "q"), (2, "/", "q.dead")], rows, [], [], []))
    former.close()
    farm = DurableFarm(str(tmp_path / "present"))
    LeftQueues(str(tmp_path / "former"), farm.clock).move(farm.queues, Here(), immediately)  # type: ignore[arg-type]
    for _ in range(len(rows)):
        farm.commit()
    assert farm.waiting("q") == []
    assert farm.waiting("q.dead") == [b"letter"]
    farm.wait(100.0)
    assert farm.waiting("q") == [b"delayed"]
    farm.store.close()


def test_an_expired_message_that_is_moved_is_not_delivered(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    former.write(Batch([(1, "/", "q")], [(1, 1, 0, NOW - 10.0, None, make_tail("q"), b"1")], [], [], []))
    former.close()
    farm = DurableFarm(str(tmp_path / "present"))
    worker = Worker()
    farm.consume(worker)
    moving = LeftQueues(str(tmp_path / "former"), farm.clock).move(farm.queues, Here(), immediately)  # type: ignore[arg-type]
    farm.commit()
    told: list[object] = []
    moving.addCallback(told.append)
    assert told == [(1, {})]
    assert worker.got == []
    assert farm.bodies("q.dead") == [b"1"]
    farm.store.close()


def test_messages_behind_many_damaged_ones_are_moved(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    rows = [(each, 1, 0, None, None, make_tail("q"), b"%d" % each) for each in range(1, BATCH + 3)]
    former.write(Batch([(1, "/", "q")], rows, [], [], []))
    former.close()
    with closing(sqlite3.connect(tmp_path / "former" / DATABASE)) as database, database:
        database.execute("UPDATE message SET body = x'00' WHERE id <= ?", (BATCH,))
    farm = DurableFarm(str(tmp_path / "present"))
    left = LeftQueues(str(tmp_path / "former"), farm.clock)
    results: list[object] = []
    left.move(farm.queues, Here(), immediately).addBoth(results.append)  # type: ignore[arg-type]
    farm.commit()
    assert farm.bodies() == [b"%d" % (BATCH + 1), b"%d" % (BATCH + 2)]
    assert results == [(2, {"q": f"{BATCH} of its messages are damaged"})]
    assert f"q ({BATCH})" in left.trouble
    farm.store.close()


def test_the_queues_of_one_name_in_two_virtual_hosts_have_their_own_reasons(tmp_path: Path) -> None:
    former = QueueStore(str(tmp_path / "former"))
    former.open(NOW)
    queues = [(1, "/", "q"), (2, "/b", "q"), (3, "/b", "r")]
    rows = [(1, 1, 0, None, None, make_tail("q"), b"1")]
    rows += [(order, 2, 0, None, None, make_tail("q"), b"2") for order in (2, 3)]
    rows += [(4, 3, 0, None, None, make_tail("r"), b"3")]
    former.write(Batch(queues, rows, [], [], []))
    former.close()
    with closing(sqlite3.connect(tmp_path / "former" / DATABASE)) as database, database:
        database.execute("UPDATE message SET body = x'00'")
    farm = DurableFarm(str(tmp_path / "present"))
    left = LeftQueues(str(tmp_path / "former"), farm.clock)
    results: list[object] = []
    left.move(farm.queues, Here(), immediately).addBoth(results.append)  # type: ignore[arg-type]
    reasons = {
        "q of /": "1 of its messages are damaged",
        "q of /b": "2 of its messages are damaged",
        "r": "1 of its messages are damaged",
    }
    assert results == [(0, reasons)]
    assert "q of /b (2), q of / (1), r (1)" in left.trouble
    farm.store.close()


def test_a_directory_without_messages_has_none(tmp_path: Path) -> None:
    assert left_behind(str(tmp_path), NOW) == ""
    filled(tmp_path, 0)
    assert left_behind(str(tmp_path), NOW) == ""


def test_an_unusable_store_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"no database" * 1_000)
    assert "cannot be read" in left_behind(str(tmp_path), NOW)
