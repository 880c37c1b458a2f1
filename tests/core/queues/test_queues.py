"""Queues: recipients and order of deliveries, returns, deaths, and conservation of messages.

The file is longer than others: it has all tests of `broker.core.queues.queues`.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from twisted.logger import capturedLogs

from broker.core.errors import Reason, Refusal
from broker.core.liveness import AHEAD, TICK
from broker.core.memory_budget import BY_ADDRESS, STORED_PART, MemoryBudget
from broker.core.queues import queues as core
from broker.core.queues.queue_interfaces import QueueInfo
from broker.core.queues.queue_messages import (
    DEFAULTS,
    DUPLICATES_FOR,
    EXPIRES,
    ID_BYTES,
    MAX_DELIVERIES,
    MAX_REMEMBERED,
    OVERHEAD,
    AsideMessages,
    Death,
    Message,
    QueueRule,
    QueueSettings,
    RecentIds,
    settings_of,
)
from broker.core.queues.work_queue import EXPIRE_AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, Queue
from tests.core.queues.farm import QueuesFarm, Worker


@pytest.fixture(autouse=True)
def no_defects() -> Iterator[None]:
    """Leases and queues in which nothing may raise: exceptions would only be logged."""
    with capturedLogs() as logs:
        yield
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


@pytest.fixture
def farm() -> QueuesFarm:
    return QueuesFarm()


def refusal_of(queue: Queue, body: bytes = b"x", **more: Any) -> Reason:
    with pytest.raises(Refusal) as refused:
        queue.put(b"head", body, **more)
    return refused.value.reason


# deliveries


def test_messages_wait_for_a_consumer_in_their_order(farm: QueuesFarm) -> None:
    farm.put(b"1", b"2", b"3")
    worker = Worker()
    farm.consume(worker)
    farm.put(b"4")
    assert worker.got == [b"1", b"2", b"3", b"4"]
    assert farm.info() == QueueInfo("/", "q", ready=0, out=4, bytes=4 * (OVERHEAD + 5), consumers=1, durable=False)


def test_a_message_has_what_it_was_put_with(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    body = memoryview(b"long")
    farm.queue().put(b"the head", body)
    [message] = worker.held
    assert (message.head, message.body, message.count, message.death) == (b"the head", body, 1, None)
    assert message.body is body


def test_K08_each_message_goes_to_one_consumer_and_they_take_turns(farm: QueuesFarm) -> None:
    workers = [Worker() for _ in range(3)]
    for worker in workers:
        farm.consume(worker)
    farm.put(*(b"%d" % n for n in range(9)))
    assert [worker.got for worker in workers] == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]


def test_K10_who_has_no_room_is_passed_over_and_each_confirm_makes_room(farm: QueuesFarm) -> None:
    narrow, wide = Worker(1), Worker(3)
    farm.consume(narrow)
    farm.consume(wide)
    farm.put(*(b"%d" % n for n in range(6)))
    assert narrow.has == [b"0"]
    assert wide.has == [b"1", b"2", b"3"]
    farm.confirm(narrow)
    assert narrow.has == [b"4"]
    farm.confirm(wide, 1)
    assert wide.has == [b"1", b"3", b"5"]
    assert farm.load() == (0, 4)


def test_one_room_for_several_queues_is_shared_in_turns(farm: QueuesFarm) -> None:
    worker = Worker(1)
    farm.put(b"a1", b"a2", b"a3", name="a")
    farm.put(b"b1", b"b2", b"b3", name="b")
    farm.consume(worker, "a")
    farm.consume(worker, "b")
    for _ in range(5):
        farm.confirm(worker)
    assert worker.got == [b"a1", b"a2", b"b1", b"a3", b"b2", b"b3"]


def test_a_queue_that_has_nothing_takes_no_turn(farm: QueuesFarm) -> None:
    worker = Worker(1)
    for name in ("empty", "full"):
        farm.consume(worker, name)
    farm.put(b"1", b"2", name="full")
    farm.confirm(worker)
    farm.confirm(worker)
    farm.put(b"3", name="empty")
    assert worker.got == [b"1", b"2", b"3"]


def test_spaces_have_nothing_to_do_with_each_other(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.queues.open("other", "q").join(worker)
    farm.put(b"here")
    assert worker.got == []
    assert farm.queues.open("/", "q") is not farm.queues.open("other", "q")
    farm.queues.open("other", "q").put(b"", b"there")
    assert worker.got == [b"there"]


def test_the_first_consumer_of_a_single_queue_gets_all_until_it_leaves() -> None:
    farm = QueuesFarm(QueueSettings(single=True))
    first, second, third = Worker(2), Worker(2), Worker(2)
    one = farm.consume(first)
    two = farm.consume(second)
    farm.consume(third)
    farm.put(b"1", b"2", b"3")
    assert (first.got, second.got) == ([b"1", b"2"], [])
    farm.queue().leave(two)
    farm.queue().leave(one)
    assert (first.has, second.got, third.got) == ([b"1", b"2"], [], [b"3"])


def test_a_single_queue_whose_first_consumer_has_no_room_waits_for_it() -> None:
    farm = QueuesFarm(QueueSettings(single=True))
    first, second = Worker(1), Worker()
    one = farm.consume(first)
    farm.consume(second)
    farm.put(b"1", b"2")
    farm.confirm(first)
    assert (first.got, second.got) == ([b"1", b"2"], [])
    farm.gone(first, one)
    assert second.got == [b"2"]


# returns


def test_K09_who_consumes_no_longer_keeps_what_it_was_given(farm: QueuesFarm) -> None:
    first, second = Worker(2), Worker()
    consumer = farm.consume(first)
    farm.put(b"1", b"2", b"3")
    farm.queue().leave(consumer)
    farm.consume(second)
    assert (first.has, second.got) == ([b"1", b"2"], [b"3"])
    farm.confirm(first)
    farm.confirm(second)
    assert farm.load() == (0, 1)
    farm.gone(first)
    assert second.got == [b"3", b"2"]


def test_K09_who_left_while_it_had_no_room_is_given_nothing_when_it_has_some(farm: QueuesFarm) -> None:
    worker = Worker(1)
    consumer = farm.consume(worker)
    farm.put(b"1", b"2")
    farm.queue().leave(consumer)
    farm.confirm(worker)
    assert worker.got == [b"1"]
    assert farm.load() == (1, 0)


def test_a_message_that_is_gone_keeps_no_bytes(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1", b"2")
    gone = list(worker.held)
    farm.confirm(worker)
    farm.reject(worker)
    assert [(message.head, message.body) for message in gone] == [(b"", b"")] * 2


def test_K11_what_a_dead_consumer_had_goes_to_others_before_all_that_came_after(farm: QueuesFarm) -> None:
    first, second = Worker(3), Worker(3)
    consumer = farm.consume(first)
    farm.put(*(b"%d" % n for n in range(6)))
    farm.confirm(first, 1)
    farm.gone(first, consumer)
    assert farm.load() == (5, 0)
    farm.consume(second)
    assert second.got == [b"0", b"2", b"3"]
    assert [message.count for message in second.held] == [2, 2, 2]  # 3 was in the place of 1
    for _ in range(3):
        farm.confirm(second)
    assert second.got == [b"0", b"2", b"3", b"4", b"5"]


def test_K05_what_is_rejected_goes_to_another_consumer_at_once(farm: QueuesFarm) -> None:
    first, second = Worker(), Worker()
    farm.consume(first)
    farm.consume(second)
    farm.put(b"1", b"2")
    farm.reject(first, recycle=True)
    assert second.has == [b"2", b"1"]
    assert [message.count for message in second.held] == [1, 2]
    assert first.has == []


def test_K05_what_the_only_consumer_rejects_comes_back_after_a_pause_that_doubles(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1")
    waits = []
    for _ in range(MAX_DELIVERIES - 1):
        farm.reject(worker, recycle=True)
        started = farm.leases.now
        while not worker.held:
            farm.clock.advance(TICK)
        waits.append(farm.leases.now - started)
    expected = [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(MAX_DELIVERIES - 1)]
    assert all(wanted <= wait <= wanted + 2 * TICK for wait, wanted in zip(waits, expected, strict=True))
    assert worker.held[0].count == MAX_DELIVERIES


def test_others_overtake_a_message_that_is_set_aside(farm: QueuesFarm) -> None:
    worker = Worker(1)
    farm.consume(worker)
    farm.put(b"1", b"2", b"3")
    farm.reject(worker, recycle=True)
    assert worker.has == [b"2"]
    farm.wait(FIRST_PAUSE + 2 * TICK)
    farm.confirm(worker)
    farm.confirm(worker)
    assert worker.got == [b"1", b"2", b"1", b"3"]


def test_a_message_that_is_set_aside_goes_to_another_consumer_that_gets_room(farm: QueuesFarm) -> None:
    rejecting, busy = Worker(), Worker(1)
    farm.consume(busy)
    farm.consume(rejecting)
    farm.put(b"1", b"2")
    farm.reject(rejecting, recycle=True)
    assert rejecting.has == []
    farm.confirm(busy)
    assert busy.has == [b"2"]


def test_a_message_that_is_set_aside_goes_to_a_new_consumer(farm: QueuesFarm) -> None:
    rejecting, new = Worker(), Worker()
    farm.consume(rejecting)
    farm.put(b"1", b"2")
    for _ in range(2):
        farm.reject(rejecting, recycle=True)
    farm.consume(new)
    assert new.got == [b"1", b"2"]


def test_a_message_that_is_set_aside_does_not_overtake_one_that_came_back(farm: QueuesFarm) -> None:
    rejecting, other = Worker(), Worker()
    consumer = farm.consume(rejecting)
    farm.put(b"1", b"2", b"3")
    farm.reject(rejecting, 1, recycle=True)
    farm.gone(rejecting, consumer)
    farm.consume(other)
    assert other.got == [b"1", b"2", b"3"]


def test_a_message_expires_while_it_is_set_aside(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1", ttl=20.0)
    for _ in range(8):
        farm.reject(worker, recycle=True)
        while not worker.held and farm.load() != (0, 0):
            farm.wait(TICK)
        if not worker.held:
            break
    assert farm.leases.now < 20.0 + 3 * TICK
    assert farm.queues.deaths[Death.EXPIRED] == 1


@pytest.mark.parametrize(("before", "left"), [(TICK / 2, 1), (0.0, 2), (-TICK / 2, 2)])
def test_a_pause_and_a_deadline_in_one_tick_take_effect_in_order(farm: QueuesFarm, before: float, left: int) -> None:
    worker = Worker(1)
    farm.consume(worker)
    farm.put(b"older")
    message = worker.release()
    worker.stuck = True
    message.queue.recycle(message, worker)
    farm.put(b"newer", ttl=FIRST_PAUSE - before)
    farm.clock.advance(FIRST_PAUSE - AHEAD)  # the first of two wake-ups, which checks nothing
    farm.clock.advance(AHEAD + TICK)
    assert farm.load() == (left, 0)
    assert farm.queues.deaths[Death.EXPIRED] == 2 - left


def test_after_the_pause_another_one_still_comes_first(farm: QueuesFarm) -> None:
    one, two = Worker(3), Worker(3)
    farm.consume(one)
    farm.consume(two)
    farm.put(*(b"%d" % n for n in range(1, 8)))
    farm.reject(one, recycle=True)
    two.stuck = True
    farm.reject(two, recycle=True)
    farm.confirm(one)  # it gets nothing: the oldest that is set aside was its own
    two.stuck, two.room = False, True
    farm.queues.serve(two)
    farm.confirm(two)
    farm.put(b"8")
    farm.confirm(one)
    assert (one.has, two.has) == ([b"7", b"8"], [b"6", b"1"])
    farm.wait(FIRST_PAUSE + 2 * TICK)
    assert (one.has, two.has) == ([b"7", b"8", b"2"], [b"6", b"1"])


def test_what_is_rejected_by_who_consumes_no_longer_waits_for_others_without_a_pause(farm: QueuesFarm) -> None:
    first, second = Worker(), Worker()
    consumer = farm.consume(first)
    farm.put(b"1")
    farm.queue().leave(consumer)
    farm.reject(first, recycle=True)
    farm.consume(first)
    assert first.got == [b"1", b"1"]
    farm.consume(second)
    assert second.got == []


def test_a_consumer_that_is_stuck_gives_way_and_its_message_keeps_place_and_count(farm: QueuesFarm) -> None:
    stuck, other = Worker(), Worker(1)
    farm.consume(stuck)
    stuck.stuck = True
    farm.put(b"1", b"2")
    assert stuck.tried == 1
    farm.consume(other)
    assert other.has == [b"1"]
    assert other.held[0].count == 1
    stuck.stuck, stuck.room = False, True
    farm.queues.serve(stuck)
    assert stuck.has == [b"2"]
    assert stuck.tried == 1


def test_a_taker_that_fails_costs_no_message(farm: QueuesFarm) -> None:
    class Broken(Worker):
        def take(self, message: Message) -> bool:
            raise ZeroDivisionError

    broken, sound = Broken(), Worker()
    consumer = farm.consume(broken)
    with pytest.raises(ZeroDivisionError):
        farm.put(b"1")
    farm.queue().leave(consumer)
    farm.put(b"2")
    farm.consume(sound)
    assert sound.got == [b"1", b"2"]
    assert [message.count for message in sound.held] == [1, 1]


def test_a_taker_that_confirms_while_it_takes_is_given_everything(farm: QueuesFarm) -> None:
    class Swallowing(Worker):
        def take(self, message: Message) -> bool:
            self.got.append(bytes(message.body))
            message.queue.settle(message)
            return True

    farm.put(b"1", b"2")
    worker = Swallowing()
    farm.consume(worker)
    farm.put(b"3")
    assert worker.got == [b"1", b"2", b"3"]
    assert farm.load() == (0, 0)
    assert farm.queues.bytes == 0


def test_a_taker_that_puts_while_it_takes_is_given_that_later(farm: QueuesFarm) -> None:
    class Echo(Worker):
        def take(self, message: Message) -> bool:
            super().take(message)
            if len(self.got) < 3:
                farm.put(b"again")
            return True

    worker = Echo()
    farm.consume(worker)
    farm.put(b"1", b"2")
    assert worker.got == [b"1", b"again", b"again", b"2"]


# deaths


def all_deaths(**more: Any) -> QueuesFarm:
    return QueuesFarm(QueueSettings(dead_letters=frozenset(Death), **more))


def letters(farm: QueuesFarm, name: str = "q.dead") -> list[tuple[bytes, Death | None]]:
    """Return the messages of a dead-letter queue."""
    worker = Worker(1_000_000)
    farm.consume(worker, name)
    return [(bytes(message.body), message.death) for message in worker.held]


def test_K06_what_is_rejected_for_good_is_gone(farm: QueuesFarm) -> None:
    first, second = Worker(), Worker()
    farm.consume(first)
    farm.consume(second)
    farm.put(b"1")
    farm.reject(first)
    farm.wait(LONGEST_PAUSE + 1)
    assert (first.got, second.got) == ([b"1"], [])
    assert farm.load() == (0, 0)
    assert farm.queues.bytes == 0
    assert farm.info("q.dead") is None
    assert farm.queues.counts()["lost.rejected"] == 1


def test_each_death_leads_to_the_dead_letter_queue_if_that_is_set() -> None:
    farm = all_deaths(max_deliveries=1, max_messages=2, drop_oldest=True)
    worker = Worker(1)
    consumer = farm.consume(worker)
    farm.put(b"a")
    farm.reject(worker)
    farm.put(b"b")
    farm.reject(worker, recycle=True)
    farm.queue().leave(consumer)
    farm.put(b"c", ttl=1.0)
    farm.wait(1.1)
    assert farm.load()[0] == 0
    farm.put(b"d", b"e", b"f")
    expected = [(b"c", Death.EXPIRED), (b"d", Death.TOO_MANY)]  # it has room for two as well
    assert letters(farm) == expected
    assert farm.queues.counts()["lost.too_many"] == 2
    assert {death: farm.queues.deaths[death] for death in Death} == {
        Death.REJECTED: 1, Death.DELIVERIES: 1, Death.EXPIRED: 1, Death.TOO_MANY: 3, Death.DAMAGED: 0,
    }  # fmt: skip
    assert farm.waiting() == [b"e", b"f"]


def test_a_message_that_nobody_can_work_with_dies_after_its_deliveries_whatever_brought_it_back() -> None:
    farm = QueuesFarm(QueueSettings(max_deliveries=3))
    farm.put(b"poison")
    first, second, third = Worker(), Worker(), Worker()
    one = farm.consume(first)
    farm.consume(second)
    farm.reject(first, recycle=True)
    farm.gone(second, farm.queue().consumers[second])
    assert first.got == [b"poison"] * 2
    farm.gone(first, one)
    farm.consume(third)
    assert third.got == []
    assert letters(farm) == [(b"poison", Death.DELIVERIES)]


def test_dead_messages_are_counted_afresh_and_never_die_of_deliveries() -> None:
    farm = QueuesFarm(QueueSettings(max_deliveries=1))
    worker, keeper = Worker(), Worker()
    farm.consume(worker)
    farm.put(b"poison")
    farm.reject(worker, recycle=True)
    farm.consume(keeper, "q.dead")
    for count in range(1, 30):
        assert [message.count for message in keeper.held] == [count]
        farm.reject(keeper, recycle=True)
        farm.wait(LONGEST_PAUSE + 1)
    farm.reject(keeper)
    assert farm.load("q.dead") == (0, 0)
    assert farm.info("q.dead.dead") is None


def test_any_number_of_deliveries_if_that_is_set() -> None:
    farm = QueuesFarm(QueueSettings(max_deliveries=0))
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1")
    for _ in range(2 * MAX_DELIVERIES):
        farm.reject(worker, recycle=True)
        farm.wait(LONGEST_PAUSE + 1)
    assert worker.held[0].count == 2 * MAX_DELIVERIES + 1


def test_a_message_whose_time_is_over_is_not_given_out(farm: QueuesFarm) -> None:
    farm.put(b"1", ttl=1.0)
    farm.put(b"2", ttl=3.0)
    farm.put(b"3")
    farm.wait(2.0)
    assert farm.load()[0] == 2
    assert farm.waiting() == [b"2", b"3"]


def test_a_message_expires_when_it_is_its_turn(farm: QueuesFarm) -> None:
    worker = Worker(1)
    farm.put(b"1")
    farm.put(b"2", ttl=1.0)
    farm.wait(2.0)
    assert farm.load()[0] == 2
    farm.consume(worker)
    farm.wait(2 * TICK)
    assert worker.has == [b"1"]
    assert farm.load() == (0, 1)


def test_what_was_given_out_does_not_expire_before_it_comes_back(farm: QueuesFarm) -> None:
    worker = Worker()
    consumer = farm.consume(worker)
    farm.put(b"1", ttl=1.0)
    farm.wait(5.0)
    assert worker.has == [b"1"]
    farm.gone(worker, consumer)
    farm.wait(2 * TICK)
    assert farm.load() == (0, 0)


def test_what_comes_back_from_who_consumes_no_longer_expires_in_time(farm: QueuesFarm) -> None:
    worker = Worker()
    consumer = farm.consume(worker)
    farm.put(b"1", ttl=1.0)
    farm.queue().leave(consumer)
    farm.reject(worker, recycle=True)
    assert farm.load() == (1, 0)
    farm.wait(1.1)
    assert farm.load() == (0, 0)


def test_a_delayed_message_is_given_out_from_its_time_on(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.put(b"late", delay=10.0)
    farm.put(b"later", delay=20.0)
    farm.put(b"now")
    farm.consume(worker)
    assert worker.has == [b"now"]
    assert [message.body for message in farm.queue().waiting()] == [b"late", b"later"]
    farm.wait(10.0 + 2 * TICK)
    assert worker.has == [b"now", b"late"]
    farm.reject(worker, 1, recycle=True)
    farm.wait(10.0 + 2 * TICK)
    assert worker.has == [b"now", b"late", b"later"]


def test_the_time_to_live_of_a_delayed_message_begins_when_it_is_due(farm: QueuesFarm) -> None:
    farm.put(b"1", delay=10.0, ttl=5.0)
    farm.wait(12.0)
    assert farm.load() == (1, 0)
    farm.wait(4.0)
    assert farm.load() == (0, 0)


def test_delayed_messages_move_with_their_times_and_can_be_purged(farm: QueuesFarm) -> None:
    worker = Worker()
    farm.put(b"1", b"2", delay=10.0)
    farm.consume(worker, "other")
    assert farm.queue().move(farm.queue("other"), lambda message: message.head)
    assert farm.queue().discard()
    assert not farm.queue().discard()
    assert worker.has == []
    farm.wait(10.0 + 2 * TICK)
    assert worker.has == [b"1"]


def test_a_message_that_is_moved_into_a_dead_letter_queue_has_no_time_to_live_there(farm: QueuesFarm) -> None:
    farm.put(b"1", ttl=5.0)
    farm.put(b"2", name="other", ttl=5.0)
    assert farm.queue().move(farm.queue("q.dead"), lambda message: message.head)
    assert farm.queue("other").move(farm.queue("another"), lambda message: message.head)
    farm.wait(5.0 + 2 * TICK)
    assert (farm.load("q.dead"), farm.load("another")) == ((1, 0), (0, 0))


def test_a_move_that_is_refused_leaves_a_delayed_message_delayed() -> None:
    farm, worker = QueuesFarm(QueueSettings(max_messages=1)), Worker()
    farm.put(b"full", name="other")
    farm.put(b"1", delay=10.0)
    with pytest.raises(Refusal):
        farm.queue().move(farm.queue("other"), lambda message: message.head)
    farm.consume(worker)
    assert worker.has == []
    farm.wait(10.0 + 2 * TICK)
    assert worker.has == [b"1"]


def test_a_message_with_no_time_at_all_is_given_out_at_once_or_never(farm: QueuesFarm) -> None:
    worker = Worker()
    consumer = farm.consume(worker)
    farm.put(b"1", ttl=0.0)
    farm.queue().leave(consumer)
    farm.put(b"2", ttl=0.0)
    farm.wait(2 * TICK)
    farm.consume(worker)
    assert worker.got == [b"1"]


def test_the_shorter_time_counts() -> None:
    farm = QueuesFarm(QueueSettings(ttl=2.0))
    farm.put(b"queue")
    farm.put(b"own", ttl=1.0)
    farm.put(b"longer", ttl=9.0)
    farm.wait(1.5)
    assert farm.load() == (3, 0)  # the first one is not over yet
    farm.wait(1.0)
    assert farm.load()[0] == 0


def test_many_messages_that_expire_at_once_let_others_have_their_turn(farm: QueuesFarm) -> None:
    farm.put(*[b"x"] * (2 * EXPIRE_AT_ONCE + 1), ttl=1.0)
    farm.put(b"last")
    worker = Worker()
    seen = []
    farm.clock.advance(1.0)
    for _ in range(60):
        farm.clock.advance(TICK)
        info = farm.info()
        assert info is not None
        seen.append(info.ready)
    assert EXPIRE_AT_ONCE + 2 in seen
    assert 2 in seen
    assert seen[-1] == 1
    farm.consume(worker)
    assert worker.got == [b"last"]


def test_a_consumer_that_meets_many_that_are_over_gets_the_others_a_moment_later(farm: QueuesFarm) -> None:
    worker = Worker(1)
    farm.put(b"first")
    farm.put(*[b"x"] * (EXPIRE_AT_ONCE + 1), ttl=1.0)
    farm.put(b"last")
    farm.wait(2.0)
    farm.consume(worker)
    farm.confirm(worker)
    farm.wait(4 * TICK)
    assert worker.got == [b"first", b"last"]


# limits


def test_a_full_queue_refuses_until_there_is_room_again() -> None:
    farm = QueuesFarm(QueueSettings(max_messages=2))
    worker = Worker()
    farm.put(b"1")
    farm.consume(worker)
    farm.put(b"2")
    assert refusal_of(farm.queue()) is Reason.LIMIT
    farm.confirm(worker)
    farm.put(b"3")
    assert worker.got == [b"1", b"2", b"3"]
    assert farm.queues.counts()["refused.full"] == 1


def test_bytes_are_limited_too_and_what_never_fits_is_refused_for_good() -> None:
    farm = QueuesFarm(QueueSettings(max_bytes=1_000 + OVERHEAD))
    assert refusal_of(farm.queue(), bytes(997)) is Reason.PARAMETER
    farm.put(bytes(996))
    assert refusal_of(farm.queue(), b"") is Reason.LIMIT
    assert farm.queues.bytes == 1_000 + OVERHEAD


@pytest.mark.parametrize("by_address", [True, False])
def test_messages_of_one_address_fill_a_queue_with_an_operators_own_bound(by_address: bool) -> None:
    farm = QueuesFarm(QueueSettings(max_bytes=BY_ADDRESS, by_address=by_address))
    half = bytes(int(BY_ADDRESS * STORED_PART) - OVERHEAD - len(b"head"))
    farm.put(half, payer="192.0.2.1")
    if by_address:
        with pytest.raises(Refusal, match="too much memory is stored for this address"):
            farm.put(half, payer="192.0.2.1")
    else:
        farm.put(half, payer="192.0.2.1")


def test_a_message_that_is_moved_into_a_queue_with_an_operators_own_bound_counts_for_no_address() -> None:
    farm = QueuesFarm()
    farm.queue("bounded").use(QueueSettings(by_address=False))
    farm.put(b"1", payer="192.0.2.1")
    assert farm.memory.of("192.0.2.1")
    assert farm.queue().move(farm.queue("bounded"), lambda message: message.head)
    assert not farm.memory.of("192.0.2.1")


def test_the_oldest_makes_room_if_that_is_set() -> None:
    farm = QueuesFarm(QueueSettings(max_messages=3, drop_oldest=True))
    worker = Worker(1)
    farm.consume(worker)
    farm.put(b"1", b"2", b"3", b"4", b"5")
    assert worker.has == [b"1"]
    farm.confirm(worker)
    assert worker.has == [b"4"]
    assert farm.queues.counts()["lost.too_many"] == 2


def test_what_is_set_aside_makes_room_too() -> None:
    farm = QueuesFarm(QueueSettings(max_messages=2, drop_oldest=True))
    worker = Worker(1)
    farm.consume(worker)
    farm.put(b"1", b"2")
    farm.reject(worker, recycle=True)
    farm.put(b"3", b"4")
    farm.wait(1)
    farm.confirm(worker)
    assert worker.got == [b"1", b"2", b"4"]
    assert farm.load() == (0, 1)


def test_what_is_given_out_makes_no_room() -> None:
    farm = QueuesFarm(QueueSettings(max_messages=2, drop_oldest=True))
    farm.consume(Worker())
    farm.put(b"1", b"2")
    assert refusal_of(farm.queue()) is Reason.LIMIT


def test_all_queues_together_are_limited(monkeypatch: pytest.MonkeyPatch, farm: QueuesFarm) -> None:
    monkeypatch.setattr(core, "MAX_ALL_MESSAGES", 2)
    farm.put(b"1", name="a")
    farm.put(b"2", name="b")
    assert refusal_of(farm.queue("c")) is Reason.LIMIT
    assert farm.waiting("a") == [b"1"]
    farm.put(b"3", name="c")
    monkeypatch.setattr(core, "MAX_ALL_MESSAGES", 100)
    monkeypatch.setattr(core, "MAX_ALL_BYTES", farm.queues.bytes + OVERHEAD + 4 + 10)
    assert refusal_of(farm.queue("d"), bytes(11)) is Reason.LIMIT
    farm.put(bytes(10), name="d")
    assert farm.queues.counts()["refused.all"] == 2


def test_the_number_of_queues_is_limited_but_the_dead_are_always_buried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "MAX_QUEUES", 2)
    farm = all_deaths()
    worker = Worker()
    farm.consume(worker)
    farm.queue("b")
    with pytest.raises(Refusal) as refused:
        farm.queue("c")
    assert refused.value.reason is Reason.LIMIT
    farm.put(b"1")
    farm.reject(worker)
    assert letters(farm) == [(b"1", Death.REJECTED)]
    with pytest.raises(Refusal):
        farm.queue("c")
    farm.wait(EXPIRES + 1)
    farm.queue("c")


@pytest.mark.long
def test_a_message_takes_no_more_memory_than_it_is_counted_for(farm: QueuesFarm) -> None:
    count = 20_000
    worker = Worker(count)
    heads = [b"head%d" % n for n in range(count)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        queue = farm.queue()
        for n, head in enumerate(heads):
            queue.put(head, bytes(50 + n % 50))
        farm.consume(worker)
        worker.got.clear()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    info = farm.info()
    assert info is not None
    assert after - before < info.bytes


# ids


def test_a_message_with_the_id_of_one_before_is_not_queued_again() -> None:
    farm = QueuesFarm(QueueSettings(duplicates=True))
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1", user="ann", id="x")
    farm.confirm(worker)
    farm.put(b"2", user="ann", id="x")
    farm.put(b"3", user="bob", id="x")
    farm.put(b"4", user="ann", id="y")
    farm.put(b"5", user="ann")
    farm.put(b"6", name="other", user="ann", id="x")
    assert worker.got == [b"1", b"3", b"4", b"5"]
    assert farm.queues.counts()["duplicates"] == 1
    assert farm.waiting("other") == [b"6"]


def test_after_two_minutes_an_id_may_be_used_again() -> None:
    farm = QueuesFarm(QueueSettings(duplicates=True))
    worker = Worker()
    farm.consume(worker)
    farm.put(b"1", user="ann", id="x")
    farm.wait(DUPLICATES_FOR - 1)
    farm.put(b"2", user="ann", id="x")  # does not count from here
    farm.wait(2)
    farm.put(b"3", user="ann", id="x")
    assert worker.got == [b"1", b"3"]


def test_ids_do_not_matter_unless_that_is_set(farm: QueuesFarm) -> None:
    farm.put(b"1", b"2", user="ann", id="x")
    assert farm.waiting() == [b"1", b"2"]
    assert farm.queues.remembered == 0


def test_the_id_of_a_message_that_was_refused_is_not_remembered() -> None:
    farm = QueuesFarm(QueueSettings(duplicates=True, max_messages=1))
    farm.put(b"1")
    assert refusal_of(farm.queue(), user="ann", id="x") is Reason.LIMIT
    assert farm.waiting() == [b"1"]
    farm.put(b"2", user="ann", id="x")
    assert farm.waiting() == [b"2"]


def test_an_id_counts_for_the_address_until_it_is_forgotten() -> None:
    budget, stranger = MemoryBudget(), "192.0.2.1"
    ids = RecentIds(budget)
    for n in range(10):
        ids.add(RecentIds.key("", str(n)), 1.0, None, 1_000_000, stranger)
    ids.add(RecentIds.key("", "0"), 2.0, None, 1_000_000)
    ids.add(RecentIds.key("ann", "x"), 2.0, None, 1_000_000)
    assert budget.of(stranger) == budget.held == 9 * ID_BYTES
    ids.add(RecentIds.key("", "1"), 2.0 + DUPLICATES_FOR, None, 1_000_000, stranger)
    assert budget.of(stranger) == 7 * ID_BYTES
    assert (ids.clear(), budget.of(stranger)) == (9, 0)


def test_a_message_with_an_id_is_refused_without_room_for_the_id() -> None:
    farm = QueuesFarm(QueueSettings(duplicates=True, max_bytes=BY_ADDRESS))
    body = bytes(int(BY_ADDRESS * STORED_PART) - OVERHEAD - len(b"head"))
    with pytest.raises(Refusal, match="too much memory is stored for this address"):
        farm.put(body, payer="192.0.2.1", id="x")
    farm.put(body, payer="192.0.2.1")


def test_ids_are_bounded_and_forgotten_in_time() -> None:
    ids = RecentIds(MemoryBudget())
    for n in range(MAX_REMEMBERED + 10):
        ids.add(RecentIds.key("ann", str(n)), 1.0, None, 1_000_000)
    assert len(ids) == MAX_REMEMBERED
    assert ids.find(RecentIds.key("ann", "9"), 1.0) is None
    assert ids.find(RecentIds.key("ann", "10"), 1.0) == (1.0, None)
    assert ids.until() == 1.0 + DUPLICATES_FOR
    for n in range(MAX_REMEMBERED):
        ids.add(RecentIds.key("bob", str(n)), 2.0 + DUPLICATES_FOR, None, 1_000_000)
        assert len(ids) <= MAX_REMEMBERED
    assert ids.find(RecentIds.key("bob", "0"), 2.0 + DUPLICATES_FOR) is not None
    ids.add(RecentIds.key("eve", "1"), 2.0 + DUPLICATES_FOR, None, 0)
    assert len(ids) == MAX_REMEMBERED


def test_ids_of_all_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MAX_ALL_REMEMBERED", 3)
    farm = QueuesFarm(QueueSettings(duplicates=True))
    for n in range(3):
        farm.put(b"x", id=f"{n}", name="a")
    farm.put(b"x", id="1", name="b")
    assert farm.queues.remembered == 3
    farm.put(b"x", id="3", name="a")
    assert farm.queues.remembered == 3
    farm.put(b"x", id="1", name="a")
    assert farm.queues.duplicates == 1
    for name in ("a", "b"):
        farm.waiting(name)
    farm.wait(EXPIRES + 1)
    assert (len(farm.queues), farm.queues.remembered) == (0, 0)


def test_long_ids_take_no_more_than_short_ones() -> None:
    assert len(RecentIds.key("ann", "x" * 60_000)) == len(RecentIds.key("ann", "x")) == 16
    assert RecentIds.key("a", "bc") != RecentIds.key("ab", "c")


# deletion of queues, and settings


def test_a_queue_that_is_empty_and_unused_is_forgotten() -> None:
    farm = QueuesFarm(QueueSettings(expires=10.0))
    farm.put(b"1")
    farm.wait(30)
    worker = Worker()
    consumer = farm.consume(worker)
    farm.confirm(worker)
    farm.wait(30)
    assert len(farm.queues) == 1
    farm.queue().leave(consumer)
    farm.wait(9.9)
    assert len(farm.queues) == 1
    farm.wait(0.2)
    assert len(farm.queues) == 0
    assert farm.clock.getDelayedCalls() == []
    assert len(farm.leases) == 0


def test_a_queue_may_be_kept_for_ever() -> None:
    farm = QueuesFarm(QueueSettings(expires=inf))
    farm.put(b"1")
    assert farm.waiting() == [b"1"]
    assert farm.clock.getDelayedCalls() == []  # and it costs nothing
    farm.queues.use([QueueRule(("*",), QueueSettings(expires=1.0))])
    farm.wait(1.1)
    assert len(farm.queues) == 0


def test_each_use_starts_the_time_again() -> None:
    farm = QueuesFarm(QueueSettings(expires=10.0))
    for _ in range(5):
        farm.put(b"1")
        assert farm.waiting() == [b"1"]
        farm.wait(9)
    assert len(farm.queues) == 1
    farm.wait(1.1)
    assert len(farm.queues) == 0


def test_new_rules_are_no_use_of_a_queue() -> None:
    rules = [QueueRule(("*",), QueueSettings(expires=10.0))]
    farm = QueuesFarm(rules[0].settings)
    farm.put(b"1")
    assert farm.waiting() == [b"1"]
    for _ in range(3):
        farm.wait(3)
        farm.queues.use(rules)
    assert len(farm.queues) == 1
    farm.wait(1.1)
    assert len(farm.queues) == 0


@pytest.mark.parametrize("expires", [3.0, 7.0, 20.0])
def test_a_time_that_changes_counts_from_the_last_use(expires: float) -> None:
    farm = QueuesFarm(QueueSettings(expires=10.0))
    farm.put(b"1")
    assert farm.waiting() == [b"1"]
    farm.wait(5)
    farm.queues.use([QueueRule(("*",), QueueSettings(expires=expires))])
    farm.wait(max(0.0, expires - 5.1))
    assert len(farm.queues) == 1
    farm.wait(0.2)
    assert len(farm.queues) == 0


def test_a_queue_with_something_given_out_is_not_forgotten() -> None:
    farm = QueuesFarm(QueueSettings(expires=1.0))
    worker = Worker()
    consumer = farm.consume(worker)
    farm.put(b"1")
    farm.queue().leave(consumer)
    farm.wait(5)
    farm.gone(worker)
    assert farm.waiting() == [b"1"]


def test_a_queue_that_remembers_ids_is_not_forgotten_before_them() -> None:
    farm = QueuesFarm(QueueSettings(expires=1.0, duplicates=True))
    farm.put(b"1", id="x")
    assert farm.waiting() == [b"1"]
    farm.wait(DUPLICATES_FOR - 1)
    farm.put(b"2", id="x")
    assert farm.waiting() == []
    farm.wait(2.1)
    assert len(farm.queues) == 0


def test_the_first_rule_that_fits_counts() -> None:
    first, second = QueueSettings(max_messages=1), QueueSettings(max_messages=2)
    rules = [QueueRule(("a*", "b"), first), QueueRule(("*",), second)]
    assert [settings_of(name, rules) for name in ("a", "abc", "b", "bb", "A")] == [first, first, first, second, second]
    assert settings_of("a", []) == DEFAULTS


def test_a_dead_letter_queue_has_the_settings_of_its_queue_except_its_own() -> None:
    set_so = QueueSettings(
        durable=True, max_messages=7, max_bytes=700, max_deliveries=5, dead_letters=frozenset(Death), ttl=1.0,
        expires=2.0, single=True, duplicates=True,
    )  # fmt: skip
    assert settings_of("a.dead", [QueueRule(("a",), set_so)]) == QueueSettings(
        durable=True, max_messages=7, max_bytes=700, max_deliveries=0, dead_letters=frozenset(), ttl=None,
        expires=2.0, single=False, duplicates=False, drop_oldest=True,
    )  # fmt: skip


def test_new_rules_are_for_queues_that_are_there_too() -> None:
    farm = QueuesFarm(QueueSettings(max_messages=1))
    first, second = Worker(1), Worker(1)
    farm.put(b"1")
    assert refusal_of(farm.queue()) is Reason.LIMIT
    farm.queues.use([QueueRule(("*",), QueueSettings(single=True))])
    farm.put(b"2", b"3")
    one = farm.consume(first)
    farm.consume(second)
    assert (first.has, second.has) == ([b"1"], [])
    farm.queues.use([QueueRule(("*",), QueueSettings(single=False))])
    assert (first.has, second.has) == ([b"1"], [b"2"])
    farm.queues.use([QueueRule(("*",), QueueSettings(single=True))])
    farm.confirm(second)
    assert (first.has, second.has) == ([b"1"], [])
    farm.confirm(first)
    assert first.has == [b"3"]
    farm.put(b"4")
    farm.queue().leave(one)
    assert second.has == [b"4"]


def test_without_a_keeper_no_queue_is_called_durable() -> None:
    farm = QueuesFarm(QueueSettings(durable=True))
    farm.put(b"1")
    info = farm.info()
    assert info is not None
    assert info.durable is False


def test_queues_are_described_in_order(farm: QueuesFarm) -> None:
    farm.put(b"x", name="b")
    farm.queues.open("z", "a")
    farm.queues.open("/", "a")
    assert [(info.space, info.name) for info in farm.queues.describe()] == [("/", "a"), ("/", "b"), ("z", "a")]


def test_what_is_set_aside_over_and_over_takes_no_more_room() -> None:
    aside = AsideMessages()
    message = Message(None, 7, b"", b"")
    other = Message(None, 3, b"", b"")
    aside.add(other, "ann", 10.0)
    for n in range(10_000):
        aside.add(message, "bob", 20.0 + n)
        assert aside.oldest() is other
        aside.discard(message)
    assert len(aside._by_order) < 200
    assert len(aside._by_time) < 200
    assert (aside.due(), aside.over(9.0), aside.over(10.0)) == (10.0, None, other)
    aside.discard(other)
    assert (aside.due(), aside.oldest(), len(aside)) == (inf, None, 0)


def test_what_is_set_aside_again_waits_for_its_new_time() -> None:
    aside = AsideMessages()
    message, other = Message(None, 7, b"", b""), Message(None, 3, b"", b"")
    aside.add(message, "ann", 11.0)
    aside.discard(message)
    aside.add(message, "ann", 13.0)
    aside.add(other, "ann", 12.0)
    assert (aside.due(), aside.over(11.5), aside.over(12.5)) == (12.0, None, other)
    aside.discard(other)
    assert (aside.due(), aside.over(12.5), aside.over(13.0)) == (13.0, None, message)


def test_a_reload_gives_out_no_message_whose_time_passed() -> None:
    farm = QueuesFarm(QueueSettings(single=True))
    first, second = Worker(), Worker()
    farm.consume(first)
    farm.consume(second)
    first.stuck = True
    farm.put(b"lasting")
    farm.put(b"late", ttl=1.0)
    farm.clock.advance(2.0)
    farm.queues.use([QueueRule(("*",), QueueSettings())])
    assert second.got == [b"lasting"]
