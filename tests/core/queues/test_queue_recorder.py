"""Recorder of queues: content of the disk at each moment, confirms of authors and their time, and failing disks.

The file is longer than others: it has all tests of `broker.core.queues.queue_recorder`.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from math import inf
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs

from broker.core.damage import Damage
from broker.core.database import StateUnusable
from broker.core.disk import RETRY_SECONDS, RETRY_SECONDS_MOST
from broker.core.errors import Reason, Refusal
from broker.core.queues import queue_recorder
from broker.core.queues.queue_interfaces import OutcomeUnknown, RestoredMessage
from broker.core.queues.queue_messages import DUPLICATES_FOR, OVERHEAD, RESTORED, Death, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import COMMIT_MESSAGES, COMMIT_SECONDS, FEW_MESSAGES, FOLLOW_SECONDS
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import DATABASE
from tests.core.queues.farm import DURABLE, Author, DurableFarm, QueuesFarm, Worker, wait
from tests.examples import examples
from tests.full_disk import no_room

FULL = StateUnusable("the disk is full")


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def farm(directory: str) -> Iterator[DurableFarm]:
    with capturedLogs() as logs:
        farm = DurableFarm(directory)
        yield farm
        farm.store.close()
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


def restarted(farm: DurableFarm, settings: QueueSettings = DURABLE) -> DurableFarm:
    """Start the next run after a kill of this one."""
    farm.store.close()
    return DurableFarm(farm.directory, settings)


def refusal_of(farm: QueuesFarm, body: bytes = b"x", name: str = "q", **more: object) -> Reason:
    with pytest.raises(Refusal) as refused:
        farm.queue(name).put(b"head", body, **more)  # type: ignore[arg-type]
    return refused.value.reason


# time of writes


def test_K03_an_author_hears_of_a_durable_message_when_it_is_on_the_disk(farm: DurableFarm) -> None:
    farm.send(b"1", b"2")
    assert farm.thread.jobs == []  # never while an author puts
    farm.clock.advance(0)
    assert len(farm.thread.jobs) == 1
    assert farm.bodies() == []
    tell = farm.thread.do()
    assert farm.bodies() == [b"1", b"2"]
    assert farm.author.safe == []
    tell()
    assert farm.author.safe == [b"1", b"2"]


def test_a_durable_message_is_given_out_before_it_is_on_the_disk(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1")
    assert worker.got == [b"1"]


def test_many_messages_wait_for_those_that_follow(farm: DurableFarm) -> None:
    farm.send(*[b"x"] * (FEW_MESSAGES + 1))
    farm.clock.advance(0)
    farm.send(b"x")
    farm.clock.advance(FOLLOW_SECONDS)
    assert farm.thread.jobs == []
    farm.clock.advance(FOLLOW_SECONDS)
    assert len(farm.thread.jobs) == 1
    farm.thread.work()
    assert len(farm.author.safe) == FEW_MESSAGES + 2
    farm.send(b"x")
    farm.clock.advance(0)
    assert len(farm.thread.jobs) == 1, "those before have no influence"
    farm.thread.work()


def test_messages_that_keep_coming_do_not_delay_a_write_for_long(farm: DurableFarm) -> None:
    farm.send(*[b"x"] * (FEW_MESSAGES + 1))
    looks = 0
    while not farm.thread.jobs:
        farm.clock.advance(FOLLOW_SECONDS if looks else 0)
        farm.send(b"x")
        looks += 1
    assert looks == round(COMMIT_SECONDS / FOLLOW_SECONDS) + 1
    farm.commit()


def test_removals_wait_and_go_with_the_next_message(farm: DurableFarm) -> None:
    worker = Worker()
    farm.send(b"1")
    farm.commit()
    farm.consume(worker)
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS * 0.9)
    assert farm.thread.jobs == []
    farm.send(b"2")
    farm.clock.advance(0)
    farm.thread.work()
    assert farm.bodies() == [b"2"]
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.work()
    assert farm.bodies() == []


def test_a_hundred_messages_do_not_wait_for_more(farm: DurableFarm) -> None:
    farm.send(*[b"x"] * (COMMIT_MESSAGES - 1))
    farm.clock.advance(0)
    assert farm.thread.jobs == []
    farm.send(b"x", b"x")
    assert farm.thread.jobs == []  # never while an author puts
    farm.clock.advance(0)
    assert len(farm.thread.jobs) == 1
    farm.thread.work()
    assert len(farm.author.safe) == COMMIT_MESSAGES + 1


def test_one_write_at_a_time_and_what_came_meanwhile_is_the_next(farm: DurableFarm) -> None:
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    farm.send(*[b"x"] * (2 * COMMIT_MESSAGES))
    farm.clock.advance(COMMIT_SECONDS * 3)
    assert len(farm.thread.jobs) == 1
    farm.thread.work()
    assert farm.author.safe == [b"1"]
    assert len(farm.thread.jobs) == 1  # there are enough
    farm.send(b"2")
    farm.thread.work()
    assert len(farm.author.safe) == 1 + 2 * COMMIT_MESSAGES
    assert farm.thread.jobs == []
    farm.commit()
    assert farm.author.safe[-1] == b"2"
    assert farm.recorder.counts() == {"batches": 3, "kept": 202, "not_kept": 0, "failures": 0}
    assert farm.timers() == []


def test_each_author_hears_of_its_own_and_all_of_a_write_at_once(farm: DurableFarm) -> None:
    class Counting(Author):
        calls = 0

        def kept(self, tokens: object) -> None:
            self.calls += 1
            super().kept(tokens)  # type: ignore[arg-type]

    authors = [Counting(), Counting()]
    for n in range(6):
        farm.queue("ab"[n % 2]).put(b"", b"x", author=authors[n % 2], token=n)
    farm.commit()
    assert [(author.safe, author.calls) for author in authors] == [([0, 2, 4], 1), ([1, 3, 5], 1)]


def test_what_is_confirmed_before_it_was_written_is_never_written_and_safe(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", b"2")
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.work()
    assert farm.bodies() == [b"2"]
    assert farm.author.safe == [b"1", b"2"]


@pytest.mark.parametrize("earlier", [[], [b"0"]], ids=["new queue", "stored queue"])
def test_where_all_was_confirmed_before_there_is_no_write_at_all(farm: DurableFarm, earlier: list[bytes]) -> None:
    farm.send(*earlier)
    farm.commit()
    assert farm.waiting() == earlier
    farm.commit()
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", b"2")
    farm.confirm(worker)
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS)
    assert farm.thread.jobs == []
    assert farm.author.safe == [*earlier, b"1", b"2"]


def test_what_is_confirmed_while_it_is_written_is_removed_by_the_next_write(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", b"2")
    farm.clock.advance(COMMIT_SECONDS)
    farm.confirm(worker)
    farm.thread.work()
    assert farm.author.safe == [b"1", b"2"]
    farm.commit()
    assert farm.bodies() == [b"2"]


def test_what_is_confirmed_later_is_removed_by_the_next_write(farm: DurableFarm) -> None:
    worker = Worker()
    farm.send(b"1", b"2", b"3")
    farm.commit()
    farm.consume(worker)
    farm.confirm(worker)
    farm.confirm(worker)
    assert farm.bodies() == [b"1", b"2", b"3"]
    farm.commit()
    assert farm.bodies() == [b"3"]


def test_queues_that_are_not_durable_cost_no_write(directory: str) -> None:
    farm = DurableFarm(directory, QueueSettings(durable=False))
    farm.put(b"1")
    assert farm.timers() == []
    farm.store.close()


def test_bodies_of_other_kinds_than_bytes_are_written(farm: DurableFarm) -> None:
    farm.queue().put(b"head", memoryview(b"long"), author=farm.author, token=1)
    farm.commit()
    assert farm.bodies() == [b"long"]


# after a restart


def test_a_restart_gives_back_queues_places_and_counts(farm: DurableFarm) -> None:
    worker = Worker(3)
    consumer = farm.consume(worker)
    for _ in range(10):  # so that places are not counted from 1 on
        farm.send(b"before")
        farm.confirm(worker)
    farm.send(b"1", b"2", b"3", b"4")
    farm.send(b"other", name="p")
    farm.commit()
    farm.gone(worker, consumer)
    farm.commit()
    again = restarted(farm)
    new = Worker()
    again.consume(new)
    again.send(b"5")
    assert new.got == [b"1", b"2", b"3", b"4", b"5"]
    assert [message.count for message in new.held] == [2, 2, 2, 1, 1]
    assert [message.order for message in new.held] == sorted(message.order for message in new.held)
    assert new.held[-1].order > max(row.order for row in again.stored())
    assert again.waiting("p") == [b"other"]
    again.commit()
    assert again.bodies("p") == []
    again.store.close()


def test_deliveries_that_did_not_come_back_are_not_counted_after_a_kill(farm: DurableFarm) -> None:
    """So the counts may be a little too low."""
    worker = Worker()
    farm.send(b"1")
    farm.commit()
    farm.consume(worker)
    farm.commit()
    again = restarted(farm)
    again.consume(worker)
    assert worker.held[-1].count == 1
    again.store.close()


def test_the_numbers_of_queues_are_not_used_twice(farm: DurableFarm) -> None:
    farm.send(b"1", name="a")
    farm.send(b"2", name="b")
    farm.commit()
    again = restarted(farm)
    again.send(b"3", name="c")
    again.send(b"4", name="a")
    again.commit()
    assert [(row.name, row.body) for row in again.stored()] == [("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4")]
    again.store.close()


def test_time_goes_on_while_the_broker_is_down(directory: str) -> None:
    farm = DurableFarm(directory)
    farm.send(b"short", ttl=10.0)
    farm.send(b"long", ttl=1_000.0)
    farm.wait(5)
    farm.commit()
    rows = farm.stored()
    assert [row.seconds for row in rows] == pytest.approx([5, 995], abs=0.1)
    again = restarted(farm)  # its clock begins where the first one did
    again.wait(9)
    assert again.load() == (2, 0)
    again.wait(2)
    assert again.waiting() == [b"long"]
    again.commit()
    assert again.bodies("q.dead") == [b"short"]
    again.store.close()


def test_messages_of_a_queue_that_is_durable_no_longer_are_still_removed(farm: DurableFarm) -> None:
    farm.send(b"1", b"2")
    farm.commit()
    again = restarted(farm, QueueSettings(durable=False))
    worker = Worker()
    again.consume(worker)
    again.confirm(worker)
    again.put(b"3")
    again.commit()
    assert again.bodies() == [b"2"]
    again.store.close()


def test_more_than_a_queue_may_hold_is_still_restored(farm: DurableFarm) -> None:
    farm.send(b"1", b"2", b"3")
    farm.commit()
    again = restarted(farm, QueueSettings(durable=True, max_messages=1))
    assert refusal_of(again) is Reason.LIMIT
    assert again.waiting() == [b"1", b"2", b"3"]
    again.store.close()


def test_a_delayed_message_is_delayed_after_a_restart_too(farm: DurableFarm) -> None:
    due = farm.clock.seconds() + 10.0
    farm.queue().put(b"head@%f" % due, b"late", delay=10.0)
    wait(farm.clock)
    farm.thread.work()
    later = restarted(farm)
    worker = Worker()
    later.consume(worker)
    assert worker.got == []
    later.wait(due - later.clock.seconds() + 1)
    assert worker.got == [b"late"]
    later.store.close()


def test_restored_messages_of_strangers_count_as_memory_until_they_are_settled(farm: DurableFarm) -> None:
    farm.send(b"1", b"2")
    farm.queue().put(b"head:user", b"3", author=farm.author, token=b"3")
    farm.commit()
    again = restarted(farm)
    assert again.memory.of(RESTORED) == 2 * (OVERHEAD + len(b"head") + 1)
    worker = Worker()
    again.consume(worker)
    for _ in range(3):
        again.confirm(worker)
    assert again.memory.held == 0
    again.store.close()


def test_a_queue_that_was_forgotten_is_removed(directory: str) -> None:
    farm = DurableFarm(directory, QueueSettings(durable=True, expires=1.0))
    farm.send(b"1")
    farm.commit()
    assert farm.waiting() == [b"1"]
    farm.wait(2)
    farm.commit()
    farm.send(b"2")
    farm.commit()
    assert [(row.number, row.body) for row in farm.stored()] == [(2, b"2")]
    farm.store.close()


def test_a_queue_is_forgotten_whose_moved_message_was_confirmed_before_any_write(directory: str) -> None:
    farm = DurableFarm(directory, QueueSettings(durable=True, expires=1.0))
    worker = Worker()
    farm.send(b"1")
    assert farm.queue().move(farm.queue("other"), lambda message: message.head)
    farm.consume(worker, "other")
    farm.confirm(worker)
    farm.commit()
    assert farm.author.safe == [b"1"]
    farm.wait(2)
    assert (farm.info(), farm.recorder.batches) == (None, 0)
    farm.store.close()


def test_a_queue_is_forgotten_whose_moved_message_is_in_memory_now(directory: str) -> None:
    settings = QueueSettings(durable=True, expires=1.0)
    farm = DurableFarm(directory, settings)
    farm.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), settings)])
    farm.send(b"1")
    for source, target in (("q", "other"), ("other", "memory")):
        assert farm.queue(source).move(farm.queue(target), lambda message: message.head)
    farm.commit()
    farm.wait(2)
    assert (farm.info(), farm.load("memory")) == (None, (1, 0))
    farm.store.close()


# the dead


def test_a_dead_message_is_in_one_place_or_the_other_at_each_moment(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", b"2")
    farm.commit()
    farm.reject(worker)
    assert (farm.bodies(), farm.bodies("q.dead")) == ([b"1", b"2"], [])
    farm.commit()
    assert (farm.bodies(), farm.bodies("q.dead")) == ([b"2"], [b"1"])
    assert [row.death for row in farm.stored()] == [None, Death.REJECTED]
    again = restarted(farm)
    grave = Worker()
    again.consume(grave, "q.dead")
    assert [(message.death, message.count) for message in grave.held] == [(Death.REJECTED, 1)]
    again.store.close()


def test_a_message_that_dies_while_it_is_written_is_buried_by_the_next_write(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    farm.reject(worker)
    farm.thread.work()
    assert farm.author.safe == [b"1"]
    assert (farm.bodies(), farm.bodies("q.dead")) == ([b"1"], [])
    farm.commit()
    assert (farm.bodies(), farm.bodies("q.dead")) == ([], [b"1"])


@pytest.mark.parametrize("how", ["rejected", "moved"])
def test_a_confirm_waits_for_the_successor_of_a_large_message_in_another_queue(
    farm: DurableFarm, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(queue_recorder, "COMMIT_BYTES", 250)
    farm.send(b"slow")
    wait(farm.clock)
    large = [b"%d" % number + bytes(999) for number in range(3)]
    farm.send(large[0])
    if how == "rejected":
        worker = Worker()
        farm.consume(worker)
        farm.reject(worker, 1)
    else:
        farm.queue().discard()
        assert farm.queue().move(farm.queue("q.dead"), lambda message: message.head)
    farm.send(*large[1:])
    while farm.thread.jobs:
        farm.thread.work()
        wait(farm.clock)
        assert set(farm.author.safe) - {b"slow"} <= {*farm.bodies(), *farm.bodies("q.dead")}
    assert sorted(farm.author.safe) == [*large, b"slow"]
    assert farm.bodies("q.dead") == large[:1]


def test_a_duplicate_of_a_moved_message_is_confirmed_once_the_moved_one_is_written(directory: str) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, duplicates=True))
    farm.send(b"1", id="x")
    assert farm.queue().move(farm.queue("other"), lambda message: message.head)
    assert refusal_of(farm, id="x") is Reason.LIMIT
    farm.commit()
    assert farm.queue().put(b"", b"again", id="x")
    assert farm.bodies("other") == [b"1"]
    farm.store.close()


def test_the_author_of_a_message_that_was_moved_unwritten_sends_it_again_if_the_moved_one_is_not_written(
    farm: DurableFarm,
) -> None:
    farm.send(b"1")
    assert farm.queue().move(farm.queue("other"), lambda message: message.head)
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.fail(FULL)
    assert (farm.author.safe, farm.author.lost) == ([], [b"1"])


def test_a_dead_letter_that_is_moved_before_its_time_is_delayed_before_and_after_a_restart(directory: str) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, max_messages=1, drop_oldest=True))
    due = farm.clock.seconds() + 10.0
    farm.queue().put(b"head@%f" % due, b"late", delay=10.0)
    farm.send(b"1")
    farm.queue().discard()
    assert farm.queue("q.dead").move(farm.queue(), lambda message: message.head)
    farm.commit()
    again = restarted(farm)
    for each in (farm, again):
        worker = Worker()
        each.consume(worker)
        assert worker.got == []
        each.wait(due - each.clock.seconds() + 1)
        assert worker.got == [b"late"]
    again.store.close()


# failing disks


def test_what_cannot_be_written_is_taken_back_and_its_author_told(farm: DurableFarm) -> None:
    farm.send(b"1", b"2")
    farm.clock.advance(COMMIT_SECONDS)
    farm.send(b"3")  # for the next write
    with capturedLogs() as logged:
        farm.thread.fail(FULL)
    assert farm.author.lost == [b"1", b"2", b"3"]
    assert [(event["log_level"], str(event["why"])) for event in logged] == [(LogLevel.error, "the disk is full")]
    assert farm.load()[0] == 0
    assert farm.queues.bytes == 0
    assert refusal_of(farm) is Reason.LIMIT
    assert farm.waiting() == []


def test_it_resumes_by_itself_and_memory_queues_go_on_meanwhile(farm: DurableFarm) -> None:
    farm.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), DURABLE)])
    waits = []
    farm.send(b"1")
    with capturedLogs() as logged:
        farm.clock.advance(COMMIT_SECONDS)
        for _ in range(8):
            farm.thread.fail(FULL)
            farm.put(b"m", name="memory")
            assert refusal_of(farm) is Reason.LIMIT
            waits += farm.timers()
            farm.clock.advance(waits[-1])
            assert len(farm.thread.jobs) == 1
        farm.thread.work()
    assert waits == pytest.approx([min(RETRY_SECONDS * 2**n, RETRY_SECONDS_MOST) for n in range(8)])
    assert [event["log_level"] for event in logged if "why" in event or "failures" in event] == [
        LogLevel.error,
        LogLevel.info,
    ]
    assert farm.waiting("memory") == [b"m"] * 8
    farm.send(b"2")
    farm.commit()
    assert (farm.author.safe, farm.author.lost) == ([b"2"], [b"1"])
    assert farm.queues.counts()["refused.store"] == 8


def test_failures_that_go_on_are_told_of_even_if_they_began_just_after_others_had_ended(farm: DurableFarm) -> None:
    with capturedLogs() as logged:
        for failures in (1, 8):
            farm.send(b"1")
            farm.clock.advance(COMMIT_SECONDS)
            for _ in range(failures):
                farm.thread.fail(FULL)
                farm.clock.advance(farm.timers()[0])
            farm.thread.work_all()
    assert len([event for event in logged if "why" in event]) == 2
    assert [event["failures"] for event in logged if "failures" in event] == [1, 8]


def test_queues_say_that_they_are_durable_by_their_own_settings(farm: DurableFarm) -> None:
    farm.queues.use([QueueRule(("memory",), QueueSettings()), QueueRule(("*",), DURABLE)])
    farm.put(b"m", name="memory")
    farm.send(b"d")
    assert {info.name: info.durable for info in farm.queues.describe()} == {"memory": False, "q": True}


def test_more_than_a_transaction_holds_is_written_by_several_and_what_is_gone_after_it(
    farm: DurableFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_recorder, "COMMIT_BYTES", 250)
    monkeypatch.setattr(queue_recorder, "COMMIT_GONE", 3)
    bodies = [b"%03d" % number + bytes(97) for number in range(10)]
    farm.send(*bodies)
    wait(farm.clock)
    parts = []
    while farm.thread.jobs:
        before = len(farm.author.safe)
        farm.thread.work()
        parts.append(len(farm.author.safe) - before)
        wait(farm.clock)
    assert sum(parts) == 10
    assert max(parts) <= 3
    assert farm.author.safe == bodies
    worker = Worker()
    farm.consume(worker)
    for _ in bodies:
        farm.confirm(worker)
    writes = 0
    while farm.timers() or farm.thread.jobs:
        farm.clock.advance(COMMIT_SECONDS)
        writes += len(farm.thread.jobs)
        farm.thread.work_all()
    assert writes >= 4
    assert farm.bodies() == []


def test_removals_go_on_beside_messages_that_keep_coming_but_not_before_their_dead_letters(
    farm: DurableFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_recorder, "COMMIT_BYTES", 250)
    worker = Worker(2)
    farm.consume(worker)
    farm.send(b"confirmed", b"rejected")
    farm.commit()
    farm.send(*(bytes(100) for _ in range(10)))
    farm.confirm(worker)
    farm.reject(worker)
    sent = 10
    while {b"confirmed", b"rejected"} & set(farm.bodies()):
        wait(farm.clock)
        farm.send(*(bytes(100) for _ in range(5)))
        sent += 5
        farm.thread.work()
        assert (b"rejected" in farm.bodies()) is (farm.bodies("q.dead") == [])
        assert len(farm.bodies()) <= 12
    assert sent > 30


def test_what_a_reader_has_meanwhile_may_be_confirmed_but_does_not_come_back(farm: DurableFarm) -> None:
    worker, other = Worker(2), Worker()
    consumer = farm.consume(worker)
    farm.send(b"1", b"2", b"3")
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.fail(FULL)
    assert farm.author.lost == [b"1", b"2", b"3"]
    farm.confirm(worker)
    farm.gone(worker, consumer)
    farm.consume(other)
    assert other.got == []
    assert farm.load() == (0, 0)
    assert farm.queues.bytes == 0
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    farm.commit()
    assert farm.stored() == []


def test_what_a_reader_has_confirmed_is_safe_whatever_the_disk_does(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", b"2", b"3")
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS)
    farm.confirm(worker)
    farm.thread.fail(FULL)
    assert (farm.author.safe, farm.author.lost) == ([b"1", b"2"], [b"3"])


@pytest.mark.parametrize("when", ["meanwhile", "afterwards", "after another failure"])
def test_a_dead_letter_that_was_perhaps_written_does_not_come_back_once_confirmed(farm: DurableFarm, when: str) -> None:
    worker, grave = Worker(), Worker()
    farm.consume(worker)
    farm.send(b"1")
    farm.commit()
    farm.reject(worker)
    farm.consume(grave, "q.dead")
    farm.clock.advance(COMMIT_SECONDS)
    if when == "meanwhile":
        farm.confirm(grave)
    farm.thread.doubt(OutcomeUnknown("the connection was lost"))
    if when == "after another failure":
        farm.clock.advance(RETRY_SECONDS)
        farm.thread.fail(FULL)
    if when != "meanwhile":
        farm.confirm(grave)
    farm.clock.advance(RETRY_SECONDS_MOST)
    farm.commit()
    farm.commit()
    assert farm.stored() == []


def test_what_is_set_aside_is_taken_back_too(farm: DurableFarm) -> None:
    worker, other = Worker(), Worker(1)
    farm.consume(worker)
    farm.consume(other)
    farm.send(b"1", b"2")
    farm.clock.advance(COMMIT_SECONDS)
    farm.reject(worker, recycle=True)
    farm.thread.fail(FULL)
    farm.confirm(other)
    farm.wait(1)
    assert (worker.got, other.got) == ([b"1"], [b"2"])
    assert farm.load() == (0, 0)


def test_what_comes_after_a_message_that_is_taken_back_expires_in_time(directory: str) -> None:
    farm = DurableFarm(directory)
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    farm.queues.use([QueueRule(("*",), QueueSettings(durable=False))])
    farm.put(b"2", ttl=0.5)
    farm.thread.fail(FULL)
    assert farm.load() == (1, 0)
    farm.wait(0.6)
    assert farm.load() == (0, 0)
    farm.store.close()


def test_what_changed_while_the_disk_was_bad_is_written_afterwards(farm: DurableFarm) -> None:
    worker = Worker()
    farm.send(b"1", b"2", b"3", b"4")
    farm.commit()
    consumer = farm.consume(worker)
    farm.confirm(worker)
    farm.clock.advance(COMMIT_SECONDS)
    farm.reject(worker)
    farm.thread.fail(FULL)
    farm.gone(worker, consumer)
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.fail(FULL)
    assert farm.bodies() == [b"1", b"2", b"3", b"4"]
    farm.clock.advance(2 * RETRY_SECONDS)
    farm.thread.work()
    assert [(row.name, row.body, row.count) for row in farm.stored()] == [
        ("q", b"3", 1),
        ("q", b"4", 1),
        ("q.dead", b"2", 0),
    ]


def test_the_newer_of_two_counts_is_written_after_a_failure(farm: DurableFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1")
    farm.commit()
    farm.reject(worker, recycle=True)
    farm.clock.advance(COMMIT_SECONDS)
    farm.wait(0.2)
    farm.reject(worker, recycle=True)
    farm.thread.fail(FULL)
    farm.wait(RETRY_SECONDS)
    farm.thread.work()
    assert [row.count for row in farm.stored()] == [2]


def test_the_author_of_a_message_that_died_unwritten_sends_it_again_if_its_grave_is_not_written(
    farm: DurableFarm,
) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1")
    farm.reject(worker)
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.fail(FULL)
    assert farm.author.lost == [b"1"]
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    assert farm.bodies("q.dead") == [b"1"]


def test_a_disk_that_is_really_full(farm: DurableFarm) -> None:
    farm.send(b"before")
    farm.commit()
    with capturedLogs() as logged, no_room(os.path.getsize(os.path.join(farm.directory, f"{DATABASE}-wal")) + 5_000):
        farm.send(b"1", bytes(100_000))
        farm.clock.advance(COMMIT_SECONDS)
        farm.thread.work()
    assert farm.author.lost == [b"1", bytes(100_000)]
    assert "cannot be used" in str(logged[0]["why"])
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    farm.send(b"after")
    farm.commit()
    assert farm.author.safe == [b"before", b"after"]
    assert farm.bodies() == [b"before", b"after"]


def test_while_a_write_takes_long_no_more_is_gathered_than_is_bounded(
    farm: DurableFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_recorder, "MOST_GATHERED", 5)
    worker = Worker(1_000)
    farm.consume(worker)
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    for _ in range(5):
        farm.send(b"x")
        farm.confirm(worker, -1)
    assert refusal_of(farm) is Reason.LIMIT
    farm.thread.work()
    farm.commit()
    farm.send(b"2")
    farm.clock.advance(COMMIT_SECONDS)
    monkeypatch.setattr(queue_recorder, "MOST_GATHERED_BYTES", 2_000)
    farm.send(bytes(2_000))
    assert refusal_of(farm) is Reason.LIMIT
    farm.commit()
    farm.send(b"3")


def test_a_duplicate_is_not_called_safe_before_the_first_one_is(directory: str) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, duplicates=True))
    farm.send(b"1", id="x")
    assert refusal_of(farm, id="x") is Reason.LIMIT
    farm.clock.advance(COMMIT_SECONDS)
    assert refusal_of(farm, id="x") is Reason.LIMIT
    farm.thread.work()
    assert farm.queue().put(b"", b"again", id="x")
    farm.send(b"2", id="y")
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.fail(FULL)
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    farm.send(b"3", id="y")  # a message with a negative confirm is no reason to call another one a duplicate
    farm.commit()
    assert farm.bodies() == [b"1", b"3"]
    farm.wait(DUPLICATES_FOR + 1)
    farm.send(b"4", id="y")
    farm.store.close()


@pytest.mark.parametrize("confirmed", [True, False], ids=["confirmed", "given back"])
def test_what_a_reader_has_is_not_delivered_twice_since_it_could_not_be_kept(directory: str, confirmed: bool) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, duplicates=True))
    worker = Worker()
    consumer = farm.consume(worker)
    farm.send(b"1", id="x")
    farm.clock.advance(COMMIT_SECONDS)
    farm.thread.fail(FULL)
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    assert farm.author.lost == [b"1"]
    assert refusal_of(farm, id="x") is Reason.LIMIT
    assert worker.has == [b"1"]
    if confirmed:
        farm.confirm(worker)
        assert farm.queue().put(b"", b"again", id="x")
        assert worker.has == []
    else:
        farm.gone(worker, consumer)
        farm.send(b"again", id="x")
        farm.commit()
        assert farm.bodies() == [b"again"]
    farm.store.close()


def test_a_duplicate_of_what_died_unwritten_is_not_called_safe_before_its_grave_is(directory: str) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, duplicates=True))
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", id="x")
    farm.send(b"2", id="y")
    farm.reject(worker)
    farm.confirm(worker)
    assert refusal_of(farm, id="x") is Reason.LIMIT
    assert farm.queue().put(b"", b"again", id="y")
    farm.commit()
    assert farm.queue().put(b"", b"again", id="x")
    assert farm.bodies("q.dead") == [b"1"]
    farm.store.close()


def test_a_repetition_of_what_died_unwritten_and_without_a_dead_letter_is_a_duplicate(directory: str) -> None:
    farm = DurableFarm(directory, attrs.evolve(DURABLE, duplicates=True, dead_letters=frozenset()))
    worker = Worker()
    farm.consume(worker)
    farm.send(b"1", id="x")
    farm.reject(worker)
    farm.commit()
    assert farm.author.safe == [b"1"]
    assert farm.queue().put(b"", b"again", id="x")
    farm.store.close()


def test_a_defect_is_logged_and_does_not_end_it(directory: str) -> None:
    farm = DurableFarm(directory)
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    with capturedLogs() as logged:
        farm.thread.fail(ZeroDivisionError())
    assert [event["log_failure"].type for event in logged if "log_failure" in event] == [ZeroDivisionError]
    assert farm.author.lost == [b"1"]
    farm.clock.advance(RETRY_SECONDS)
    farm.thread.work()
    farm.send(b"2")
    farm.commit()
    assert farm.bodies() == [b"2"]
    farm.store.close()


def test_an_author_that_fails_keeps_nothing_from_the_others(directory: str) -> None:
    class Broken(Author):
        def kept(self, tokens: object) -> None:
            raise ZeroDivisionError

    farm = DurableFarm(directory)
    farm.queue().put(b"", b"1", author=Broken(), token=1)
    farm.send(b"2")
    with capturedLogs() as logged:
        farm.commit()
    assert len([event for event in logged if "log_failure" in event]) == 1
    assert farm.author.safe == [b"2"]
    farm.store.close()


# all of it, in any order


class Fate:
    """Count the outcomes of the messages over several runs of a broker, each of which was killed."""

    def __init__(self, directory: str) -> None:
        self.farm = DurableFarm(directory, SMALL)
        self.sent = 0
        self.safe: set[bytes] = set()
        self.settled: set[bytes] = set()
        self.begin()

    def begin(self) -> None:
        self.worker = Worker(4)
        self.farm.consume(self.worker)

    def do(self, what: str, number: int) -> None:
        farm, held = self.farm, self.worker.held
        if what == "send":
            for _ in range(number):
                self.sent += 1
                try:
                    farm.queue().put(b"head", b"%d" % self.sent, author=farm.author, token=b"%d" % self.sent)
                except Refusal:
                    assert not farm.recorder.takes
        elif what == "wait":
            farm.wait([COMMIT_SECONDS, 0.2, RETRY_SECONDS, 5.0][number % 4])
        elif what == "work" and farm.thread.jobs:
            farm.thread.work()
        elif what == "fail" and farm.thread.jobs:
            farm.thread.fail(FULL)
        elif what == "confirm" and held:
            self.settled.add(bytes(held[number % len(held)].body))
            farm.confirm(self.worker, number % len(held))
        elif what in ("reject", "recycle") and held:
            farm.reject(self.worker, number % len(held), recycle=what == "recycle")
        elif what == "kill":
            if number % 2 and farm.thread.jobs:
                farm.thread.do()  # it was written, and its author not notified
            self.look()
            farm.store.close()
            self.farm = DurableFarm(farm.directory, SMALL)
            self.begin()

    def look(self) -> None:
        """Return the state that the next run reads."""
        self.safe.update(self.farm.author.safe)
        stored = [row.body for row in self.farm.stored()]
        assert len(stored) == len(set(stored)), "a message in two places"
        assert self.safe - self.settled <= set(stored), "a message that was called safe is lost"
        alive = [int(row.body) for row in self.farm.stored() if row.death is None]
        assert alive == sorted(alive)


SMALL = attrs.evolve(DURABLE, max_deliveries=3)


@hypothesis_settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["send", "send", "wait", "wait", "work", "work", "fail", "confirm", "reject", "recycle", "kill"]
            ),
            st.integers(1, 8),
        ),
        max_size=50,
    )
)
def test_what_was_called_safe_is_there_whatever_happens(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory, capturedLogs() as logs:
        fate = Fate(directory)
        for what, number in steps:
            fate.do(what, number)
        fate.look()
        fate.farm.store.close()
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


# the stop


def test_a_stop_writes_all_and_closes(farm: DurableFarm) -> None:
    worker = Worker()
    farm.send(b"0")
    farm.commit()
    consumer = farm.consume(worker)
    farm.send(b"1")
    farm.clock.advance(COMMIT_SECONDS)
    farm.send(b"2")
    farm.confirm(worker)
    farm.gone(worker, consumer)
    stopped: list[None] = []
    farm.recorder.stop().addCallback(stopped.append)
    assert refusal_of(farm) is Reason.LIMIT
    while farm.thread.jobs:
        assert not stopped
        farm.thread.work()
    assert stopped == [None]
    assert farm.author.safe == [b"0", b"1", b"2"]
    assert [(row.body, row.count) for row in farm.stored()] == [(b"1", 1), (b"2", 1)]
    assert farm.timers() == []


def test_a_stop_ends_when_the_store_fails_too(farm: DurableFarm) -> None:
    farm.send(b"1")
    stopped: list[None] = []
    farm.recorder.stop().addCallback(stopped.append)
    with capturedLogs() as logged:
        farm.thread.fail(FULL)
        farm.thread.fail(FULL)
    assert stopped == [None]
    assert [event["log_level"] for event in logged] == [LogLevel.error] * 2
    assert farm.author.lost == [b"1"]


def test_a_stop_without_anything_to_write(farm: DurableFarm) -> None:
    stopped: list[None] = []
    farm.recorder.stop().addCallback(stopped.append)
    farm.thread.work()
    assert stopped == [None]


def test_a_queue_rests_from_the_moment_at_which_its_last_message_could_not_be_written(farm: DurableFarm) -> None:
    farm.queues.use(
        [QueueRule(("q",), attrs.evolve(DURABLE, expires=3.0)), QueueRule(("*",), attrs.evolve(DURABLE, expires=100.0))]
    )
    farm.queue("other")
    farm.send(b"1")
    farm.wait(4.0)
    farm.clock.advance(5.0)
    farm.thread.fail(FULL)
    farm.wait(1.0)
    assert farm.info() is not None
    farm.wait(3.0)
    assert farm.info() is None


# damage


def test_a_damaged_message_is_a_dead_letter_after_the_restart_and_the_one_after_it(farm: DurableFarm) -> None:
    settings = attrs.evolve(DURABLE, dead_letters=frozenset())
    farm.send(b"first", b"second", b"third")
    farm.send(b"letter", name="q.dead")
    farm.commit()
    for old, new, restarts in ((b"first", b"fizst", 2), (b"fizst", b"worst", 2)):
        farm.store.close()
        with closing(sqlite3.connect(os.path.join(farm.directory, DATABASE))) as database, database:
            assert database.execute("UPDATE message SET body = ? WHERE body = ?", (new, old)).rowcount == 1
        for again in range(restarts):
            farm = restarted(farm, settings)
            assert farm.queues.counts().get("dead.damaged", 0) == (not again)
            farm.commit()
            rows = farm.stored()
            assert [row.damaged for row in rows] == [False] * 4
            assert [row.body for row in rows if row.name == "q"] == [b"second", b"third"]
            dead = [(row.body, row.death) for row in rows if row.name == "q.dead"]
            assert dead == [(b"letter", None), (new, Death.DAMAGED)]
    worker = Worker()
    farm.consume(worker)
    assert worker.has == [b"second", b"third"]
    farm.store.close()


def test_findings_of_damage_are_reported_by_queue(farm: DurableFarm) -> None:
    found: list[Damage] = []
    queues = Queues(farm.leases, keeper=farm.recorder, report=found.extend)
    row = RestoredMessage("/", "q", 1, 1, 0, inf, None, b"head", b"body", damaged=True)
    queues.restore([row, attrs.evolve(row, order=2), attrs.evolve(row, order=3, name="other")])
    assert [(each.what, each.rows) for each in found] == [("queue 'q' of '/'", 2), ("queue 'other' of '/'", 1)]
    assert all("damaged" in each.reason for each in found)
