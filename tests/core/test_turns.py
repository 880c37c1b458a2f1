"""Turns: background work shares one account of time, and each kind of it goes on."""

from collections.abc import Iterator

import pytest
from twisted.internet.defer import CancelledError

from broker.core.turns import PIECE, SHARE, Turns, removed
from tests.ticking_clock import TickingClock


class Rig:
    def __init__(self) -> None:
        self.clock = TickingClock()
        self.turns = Turns(self.clock)
        self.made: list[str] = []

    def steps(self, name: str, count: int, seconds: float = 1.001 * SHARE / 4) -> Iterator[None]:
        for _ in range(count):
            self.clock.rightNow += seconds
            self.made.append(name)
            yield


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_work_is_made_at_once_as_far_as_the_turn_has_time(rig: Rig) -> None:
    done = rig.turns.run(rig.steps("a", 6))
    assert rig.made == ["a"] * 4
    rig.clock.turn()
    assert rig.made == ["a"] * 6
    assert done.called


def test_all_work_of_a_turn_shares_its_time_and_each_makes_a_step(rig: Rig) -> None:
    rig.turns.run(rig.steps("a", 100))
    rig.turns.run(rig.steps("b", 100))
    assert "".join(rig.made) == "aaaab"
    rig.made.clear()
    rig.clock.turn()
    assert "".join(rig.made) == "aaaab"


def test_work_within_work_counts_once(rig: Rig) -> None:
    with rig.turns:
        rig.clock.rightNow += SHARE / 2
        with rig.turns:
            rig.clock.rightNow += SHARE / 4
            assert not rig.turns.over()
        assert not rig.turns.over()
        rig.clock.rightNow += SHARE / 4
        assert rig.turns.over()
    with rig.turns:
        assert rig.turns.over()
    rig.clock.turn()
    with rig.turns:
        assert not rig.turns.over()


def test_little_work_needs_no_timer(rig: Rig) -> None:
    assert rig.turns.run(rig.steps("a", 2, SHARE / 100)).called
    assert rig.clock.getDelayedCalls() == []


def test_a_failure_ends_the_work_and_is_passed_on(rig: Rig) -> None:
    def steps() -> Iterator[None]:
        yield
        raise ValueError("a defect")

    failed: list[object] = []
    rig.turns.run(steps()).addErrback(lambda failure: failed.append(failure.check(ValueError)))
    assert failed == [ValueError]
    assert rig.turns.run(rig.steps("a", 1)).called, "the account goes on"


def test_work_that_ends_late_in_a_turn_is_done_in_the_next_one(rig: Rig) -> None:
    def steps() -> Iterator[None]:
        yield
        rig.clock.rightNow += SHARE

    done = rig.turns.run(steps())
    assert not done.called
    rig.clock.turn()
    assert done.called


def test_a_list_is_taken_apart_from_its_end() -> None:
    items = list(range(PIECE + 2))
    assert [(piece, list(items)) for piece in removed(items)] == [(list(range(2, PIECE + 2)), [0, 1]), ([0, 1], [])]


def test_cancelled_work_makes_no_further_step(rig: Rig) -> None:
    work = rig.turns.run(rig.steps("a", 100))
    work.addErrback(lambda failure: failure.trap(CancelledError) and None)
    work.cancel()
    rig.clock.turn()
    assert rig.made == ["a"] * 4


def test_a_step_may_cancel_its_own_work(rig: Rig) -> None:
    def steps() -> Iterator[None]:
        yield from rig.steps("a", 5)
        work.addErrback(lambda failure: failure.trap(CancelledError) and None)
        work.cancel()
        yield
        raise AssertionError("a step after the cancellation")

    work = rig.turns.run(steps())
    rig.clock.turn()
    assert rig.made == ["a"] * 5
