"""Scheduler: further work is served in rounds, and gathered output is written once in each turn."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from broker.net.scheduler import CROWD, MESSAGES, MESSAGES_ALONE, QUANTUM, TURN, Scheduler
from tests.ticking_clock import TickingClock


class Work:
    """Something with a number of quanta to do; says in ``log`` when it did one."""

    def __init__(self, name: str, quanta: int, log: list[str]) -> None:
        self.name = name
        self.left = quanta
        self.log = log
        self.flushes = 0
        self.fails = False
        self.aborted = False
        self.lane = "listener"
        self.host = "192.0.2.1"
        self.strikes = 0
        self.took_seconds: list[float] = []

    def serve(self) -> bool:
        self.log.append(self.name)
        if self.fails:
            raise ZeroDivisionError("as it is meant to")
        self.left -= 1
        return self.left > 0

    def took(self, seconds: float) -> None:
        self.took_seconds.append(seconds)

    def flush(self) -> None:
        self.flushes += 1
        if self.fails:
            raise ZeroDivisionError("as it is meant to")

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def clock() -> TickingClock:
    return TickingClock()


@pytest.fixture
def turns(clock: TickingClock) -> Scheduler:
    return Scheduler(clock)


def test_nothing_is_done_at_once(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    work = Work("a", 1, log)
    turns.serve_later(work)
    turns.flush_later(work)
    assert (log, work.flushes) == ([], 0)
    clock.turn()
    assert (log, work.flushes) == (["a"], 1)
    assert clock.getDelayedCalls() == []


def test_the_time_is_looked_at_before_each_quantum(clock: TickingClock) -> None:
    log: list[str] = []
    turns = Scheduler(clock, lambda: log.append("look"))
    turns.serve(Work("a", 1, log), ordinary=True)
    turns.serve_later(Work("b", 2, log))
    clock.turn()
    assert log == ["look", "a", "look", "b", "look", "b"]


def test_each_has_its_quantum_in_rounds(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for name, quanta in (("a", 4), ("b", 1), ("c", 3)):
        turns.serve_later(Work(name, quanta, log))
    clock.turn()
    assert log == ["a", "b", "c", "a", "c", "a", "c", "a"]
    assert clock.getDelayedCalls() == []


def test_a_turn_has_its_time_and_the_next_goes_on_where_it_ended(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for name in ("a", "b", "c"):
        turns.serve_later(Work(name, 100, log))
    clock.tick = TURN / 4
    clock.turn()
    first = len(log)
    assert 2 <= first <= 5
    for _ in range(2):
        clock.turn()
    assert len(log) > first
    assert log == (["a", "b", "c"] * len(log))[: len(log)]
    assert len(clock.getDelayedCalls()) == 1


def test_even_one_that_takes_all_the_time_lets_the_others_have_theirs(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for name in ("a", "b"):
        turns.serve_later(Work(name, 100, log))
    clock.tick = TURN * 10
    for _ in range(4):
        clock.turn()
    assert log == ["a", "b", "a", "b"]


def test_who_comes_while_others_are_served_waits_for_its_round(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    late = Work("late", 2, log)

    class Inviting(Work):
        def serve(self) -> bool:
            if self.left == 2:
                turns.serve_later(late)
            return super().serve()

    turns.serve_later(Inviting("a", 2, log))
    clock.turn()
    assert log == ["a", "late", "a", "late"]
    assert clock.getDelayedCalls() == []


def test_after_a_pause_it_goes_on(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for _ in range(3):
        turns.serve_later(Work("a", 1, log))
        clock.turn()
    assert log == ["a"] * 3


def test_all_are_flushed_once_in_a_turn_and_those_that_come_meanwhile_in_the_next(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    late = Work("late", 0, log)

    class Inviting(Work):
        def flush(self) -> None:
            super().flush()
            turns.flush_later(late)

    first, second = Inviting("a", 0, log), Work("b", 0, log)
    turns.flush_later(first)
    turns.flush_later(second)
    assert len(clock.getDelayedCalls()) == 1
    clock.turn()
    assert (first.flushes, second.flushes, late.flushes) == (1, 1, 0)
    clock.turn()
    assert late.flushes == 1


def test_one_that_fails_does_not_keep_the_others_from_their_turns(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    fails = Work("a", 1, log)
    fails.fails = True
    with capturedLogs() as logs:
        turns.serve_later(fails)
        turns.serve_later(Work("b", 2, log))
        clock.turn()
        turns.serve_later(Work("c", 1, log))
        clock.turn()
    assert log == ["a", "b", "b", "c"]
    assert fails.aborted
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError]


def test_one_that_fails_does_not_keep_the_others_from_being_flushed(clock: TickingClock, turns: Scheduler) -> None:
    fails, works = Work("a", 1, []), Work("b", 1, [])
    fails.fails = True
    with capturedLogs():
        turns.flush_later(fails)
        turns.flush_later(works)
        clock.turn()
    assert (fails.aborted, works.flushes, works.aborted) == (True, 1, False)


def test_what_many_share_is_served_at_once_and_what_is_left_once_in_each_turn(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    turns.serve_shared(Work("socket", 3, log))
    assert log == ["socket"]
    clock.turn()
    assert log == ["socket"] * 2
    clock.turn()
    assert log == ["socket"] * 3
    assert clock.getDelayedCalls() == []


def test_what_many_share_is_served_once_in_a_turn_also_if_others_take_all_the_time(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    turns.serve_later(Work("a", 100, log))
    turns.serve_later(Work("b", 100, log))
    turns.serve_shared(Work("socket", 100, log))
    log.clear()
    clock.tick = TURN * 10
    for _ in range(4):
        clock.turn()
    assert log == ["socket", "a", "socket", "b", "socket", "a", "socket", "b"]


def test_what_many_share_goes_before_the_ordinary_ones_and_those_before_the_others(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    turns.serve_later(Work("other", 1, log))
    turns.serve_later(Work("ordinary", 1, log), ordinary=True)
    turns.serve_shared(Work("socket", 2, log))
    log.clear()
    clock.turn()
    assert log == ["socket", "ordinary", "other"]


def test_of_several_that_are_shared_each_has_its_quantum_in_each_turn(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    clock.tick = TURN * 10
    for name, quanta in (("a", 5), ("b", 2), ("c", 3)):
        turns.serve_shared(Work(name, quanta, log))
    log.clear()
    for _ in range(4):
        clock.turn()
        log.append("-")
    assert "".join(log) == "abc-abc-ac-a-"
    assert clock.getDelayedCalls() == []


def test_what_many_share_waits_for_the_next_turn_when_the_time_of_this_one_is_spent(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    clock.tick = TURN
    turns.serve(Work("peer", 1, log), ordinary=True)
    turns.serve_shared(Work("socket", 1, log))
    assert log == ["peer"]
    clock.turn()
    assert log == ["peer", "socket"]
    turns.serve_shared(Work("socket", 1, log))
    assert log == ["peer", "socket", "socket"]


def test_what_many_share_spends_the_time_of_the_turn_like_others(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    clock.tick = TURN
    turns.serve_shared(Work("socket", 1, log))
    turns.serve(Work("peer", 1, log), ordinary=True)
    assert log == ["socket"]
    clock.turn()
    assert log == ["socket", "peer"]


def test_a_shared_one_that_fails_is_aborted_and_keeps_nobody_waiting(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    at_once, later = Work("at once", 2, log), Work("later", 3, log)
    at_once.fails = True
    with capturedLogs() as logs:
        turns.serve_shared(later)
        turns.serve_shared(at_once)
        later.fails = True
        turns.serve_shared(Work("works", 2, log))
        turns.serve_later(Work("peer", 1, log))
        clock.turn()
        clock.turn()
    assert log == ["later", "at once", "works", "later", "works", "peer"]
    assert (at_once.aborted, later.aborted) == (True, True)
    assert len(logs) == 2
    assert clock.getDelayedCalls() == []


def test_a_shared_one_may_bring_in_another_one(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    late = Work("late", 2, log)

    class Inviting(Work):
        def serve(self) -> bool:
            more = super().serve()
            if self.left == 1:
                turns.serve_shared(late)
            return more

    turns.serve_shared(Inviting("a", 3, log))
    clock.turn()
    assert sorted(log) == ["a", "a", "late"]
    clock.turn()
    assert sorted(log) == ["a", "a", "a", "late", "late"]
    assert clock.getDelayedCalls() == []


def test_after_a_pause_a_shared_one_is_served_at_once_again(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for count in range(1, 4):
        turns.serve_shared(Work("socket", 1, log))
        assert log == ["socket"] * count
        clock.turn()
    assert log == ["socket"] * 3


def test_the_quantum_of_what_many_share_is_smaller_while_others_have_something_to_do(
    clock: TickingClock, turns: Scheduler
) -> None:
    assert turns.messages() == MESSAGES_ALONE
    turns.serve_later(Work("peer", 1, []))
    assert turns.messages() == MESSAGES
    clock.turn()
    assert turns.messages() == MESSAGES_ALONE


# fair queueing


def at(name: str, quanta: int, log: list[str], lane: str = "listener", host: str = "192.0.2.1") -> Work:
    """Work of a connection from there."""
    work = Work(name, quanta, log)
    work.lane, work.host = lane, host
    return work


def test_listeners_take_turns_however_many_connections_one_has(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for _ in range(50):
        turns.serve_later(at("flood", 10, log, lane="http"), ordinary=True)
    turns.serve_later(at("good", 1, log, lane="elko"), ordinary=True)
    clock.tick = QUANTUM
    clock.turn()
    assert log[:2] == ["flood", "good"]


def test_addresses_of_a_listener_take_turns_however_many_connections_one_has(
    clock: TickingClock, turns: Scheduler
) -> None:
    log: list[str] = []
    for number in range(50):
        turns.serve_later(at("flood", 10, log, host=f"198.51.100.{number % 2}"))
    turns.serve_later(at("good", 1, log))
    clock.tick = QUANTUM / 10
    clock.turn()
    assert log[:3] == ["flood", "flood", "good"]


def test_connections_of_one_address_come_in_the_order_in_which_they_came(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for name in "abcd":
        turns.serve_later(at(name, 1, log))
    clock.turn()
    assert log == ["a", "b", "c", "d"]


# one connection within another's quantum


def test_what_a_connection_hands_on_is_served_within_its_quantum(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    inner = Work("inner", 1, log)

    class Carrying(Work):
        def serve(self) -> bool:
            super().serve()
            turns.serve(inner, ordinary=True)
            return False

    turns.serve_later(Carrying("outer", 1, log))
    clock.turn()
    assert log == ["outer", "inner"]
    assert clock.getDelayedCalls() == []


def test_but_not_when_that_is_over(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    inner = Work("inner", 1, log)

    class Carrying(Work):
        def serve(self) -> bool:
            super().serve()
            clock.advance(TURN)
            turns.serve(inner, ordinary=True)
            return False

    turns.serve(Carrying("outer", 1, log), ordinary=True)
    assert log == ["outer"]
    clock.turn()
    assert log == ["outer", "inner"]


def test_strangers_wait_behind_peers_that_are_known(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    clock.tick = TURN
    turns.serve(Work("first", 1, log), ordinary=True)
    for _ in range(3):
        turns.serve(Work("stranger", 1, log), ordinary=True, stranger=True)
    turns.serve(Work("known", 1, log), ordinary=True)
    clock.tick = 0
    clock.turn()
    assert log == ["first", "known", "stranger", "stranger", "stranger"]


def test_it_is_crowded_while_many_connections_wait(clock: TickingClock, turns: Scheduler) -> None:
    log: list[str] = []
    for number in range(CROWD):
        turns.serve_later(Work(str(number), 1, log))
    assert not turns.crowded
    turns.serve_later(Work("last", 1, log), True)
    assert turns.crowded
    while len(log) <= CROWD:
        clock.turn()
    assert not turns.crowded
