"""Waits and monitors: recipients, deadlines, repetition and limits."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.watches import MAX_WAITS, Waits


def ignore(service: Service) -> None:
    pass


def fail() -> None:
    raise AssertionError("must not be called")


def test_those_that_wait_for_a_name_stand_in_the_order_in_which_they_came() -> None:
    waits = Waits(Clock())
    first, other, second = (waits.add(name, None, ignore, fail) for name in ("a", "b", "a"))
    assert list(waits.of("a")) == [first, second]
    assert list(waits.of("b")) == [other]
    assert list(waits.of("c")) == []
    assert len(waits) == 3


def test_a_wait_ends_once_and_is_told_once() -> None:
    clock = Clock()
    waits = Waits(clock)
    ended: list[str] = []
    wait = waits.add("a", 2, ignore, lambda: ended.append("a"))
    clock.advance(2)
    assert ended == ["a"]
    assert (len(waits), list(waits.of("a"))) == (0, [])
    wait.cancel()
    clock.advance(10)
    assert ended == ["a"]
    assert len(waits) == 0


def test_a_cancelled_wait_is_gone_with_its_timer_and_cancelling_twice_is_harmless() -> None:
    clock = Clock()
    waits = Waits(clock)
    wait, other = waits.add("a", 2, ignore, fail), waits.add("a", None, ignore, fail)
    wait.cancel()
    wait.cancel()
    assert list(waits.of("a")) == [other]
    assert len(waits) == 1
    assert clock.getDelayedCalls() == []


def test_a_wait_may_be_renewed_by_what_it_tells_when_it_ends() -> None:
    clock = Clock()
    waits = Waits(clock)
    waits.add("a", 1, ignore, lambda: again.append(waits.add("a", 1, ignore, lambda: None)))
    again: list[object] = []
    clock.advance(1)
    assert list(waits.of("a")) == again
    assert len(waits) == 1


Full = tuple[Registry, list[IWait]]


@pytest.fixture(scope="module")
def full() -> Full:
    clock = Clock()
    registry = Registry(clock, lambda: 1, Restored((), 0.0, clock, lambda ids: None))
    return registry, [registry.monitor(f"service-{n % 1_000}", None, ignore, fail) for n in range(MAX_WAITS)]


def test_a_monitor_too_many_is_refused(full: Full) -> None:
    registry, _ = full
    with pytest.raises(Refusal) as raised:
        registry.monitor("a", 5, ignore, fail)
    assert raised.value.reason is Reason.LIMIT
    assert str(MAX_WAITS) in raised.value.text


def test_a_find_too_many_fails_at_once(full: Full) -> None:
    registry, _ = full
    refused: list[Refusal] = []
    registry.wait("a", 5).addCallbacks(ignore, lambda failure: refused.append(failure.value))
    assert [refusal.reason for refusal in refused] == [Reason.LIMIT]


def test_what_ended_makes_room_for_one(full: Full) -> None:
    registry, waits = full
    waits.pop().cancel()
    waits.append(registry.monitor("a", None, ignore, fail))
    with pytest.raises(Refusal):
        registry.monitor("a", None, ignore, fail)
