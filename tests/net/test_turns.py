"""Turns: whoever has more to do gets it in rounds, and gathered output goes out once in each turn."""

from __future__ import annotations

import pytest
from twisted.logger import capturedLogs

from broker.net.turns import TURN, Turns
from tests.net.words import TickingClock


class Work:
    """Something with a number of quanta to do; says in ``log`` when it did one."""

    def __init__(self, name: str, quanta: int, log: list[str]) -> None:
        self.name = name
        self.left = quanta
        self.log = log
        self.flushes = 0
        self.fails = False
        self.aborted = False

    def serve(self) -> bool:
        self.log.append(self.name)
        if self.fails:
            raise ZeroDivisionError("as it is meant to")
        self.left -= 1
        return self.left > 0

    def took(self, seconds: float) -> None:
        pass

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
def turns(clock: TickingClock) -> Turns:
    return Turns(clock)


def test_nothing_is_done_at_once(clock: TickingClock, turns: Turns) -> None:
    log: list[str] = []
    work = Work("a", 1, log)
    turns.serve_later(work)
    turns.flush_later(work)
    assert (log, work.flushes) == ([], 0)
    clock.turn()
    assert (log, work.flushes) == (["a"], 1)
    assert clock.getDelayedCalls() == []


def test_each_has_its_quantum_in_rounds(clock: TickingClock, turns: Turns) -> None:
    log: list[str] = []
    for name, quanta in (("a", 4), ("b", 1), ("c", 3)):
        turns.serve_later(Work(name, quanta, log))
    clock.turn()
    assert log == ["a", "b", "c", "a", "c", "a", "c", "a"]
    assert clock.getDelayedCalls() == []


def test_a_turn_has_its_time_and_the_next_goes_on_where_it_ended(clock: TickingClock, turns: Turns) -> None:
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


def test_even_one_that_takes_all_the_time_lets_the_others_have_theirs(clock: TickingClock, turns: Turns) -> None:
    log: list[str] = []
    for name in ("a", "b"):
        turns.serve_later(Work(name, 100, log))
    clock.tick = TURN * 10
    for _ in range(4):
        clock.turn()
    assert log == ["a", "b", "a", "b"]


def test_who_comes_while_others_are_served_waits_for_its_round(clock: TickingClock, turns: Turns) -> None:
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


def test_after_a_pause_it_goes_on(clock: TickingClock, turns: Turns) -> None:
    log: list[str] = []
    for _ in range(3):
        turns.serve_later(Work("a", 1, log))
        clock.turn()
    assert log == ["a"] * 3


def test_all_are_flushed_once_in_a_turn_and_those_that_come_meanwhile_in_the_next(
    clock: TickingClock, turns: Turns
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


def test_one_that_fails_does_not_keep_the_others_from_their_turns(clock: TickingClock, turns: Turns) -> None:
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


def test_one_that_fails_does_not_keep_the_others_from_being_flushed(clock: TickingClock, turns: Turns) -> None:
    fails, works = Work("a", 1, []), Work("b", 1, [])
    fails.fails = True
    with capturedLogs():
        turns.flush_later(fails)
        turns.flush_later(works)
        clock.turn()
    assert (fails.aborted, works.flushes, works.aborted) == (True, 1, False)
