"""Unfinished input: how much is held, by one address and by all, and which connection is closed for it."""

from __future__ import annotations

import pytest
from twisted.logger import LogLevel, capturedLogs

from broker.core.errors import Reason, Refusal
from broker.net.unfinished_input import SHORT, UNFINISHED, UNFINISHED_BY_ADDRESS, UnfinishedInput
from tests.net.holders import Holding, fill


@pytest.fixture
def unfinished() -> UnfinishedInput:
    return UnfinishedInput()


def test_what_counts_is_more_than_a_short_read(unfinished: UnfinishedInput) -> None:
    holder = Holding(unfinished)
    for size, held in ((SHORT, 0), (SHORT + 1, SHORT + 1), (9_000, 9_000), (5_000, 5_000), (SHORT, 0), (0, 0)):
        holder.hold(size)
        assert unfinished.held == held


def test_a_holder_may_be_dropped_at_any_time(unfinished: UnfinishedInput) -> None:
    holder, other = Holding(unfinished), Holding(unfinished)
    holder.drop()
    holder.hold(5_000)
    other.hold(6_000)
    for _ in range(2):
        holder.drop()
        assert unfinished.held == 6_000


def test_over_the_bound_of_an_address_the_message_that_began_first_goes(unfinished: UnfinishedInput) -> None:
    elsewhere = Holding(unfinished, "192.0.2.2")
    first, second, newcomer = (Holding(unfinished) for _ in range(3))
    elsewhere.hold(5_000)
    first.hold(5_000)
    second.hold(5_000)
    newcomer.hold(UNFINISHED_BY_ADDRESS - 10_000)
    assert not first.evicted
    newcomer.hold(UNFINISHED_BY_ADDRESS - 9_999)
    [refusal] = first.refusals
    assert refusal.reason is Reason.TOO_LARGE
    assert "this address" in refusal.text
    assert not any(holder.evicted for holder in (elsewhere, second, newcomer))
    assert unfinished.held == UNFINISHED_BY_ADDRESS - 9_999 + 10_000


def test_over_the_bound_of_all_the_message_that_began_first_goes_whatever_its_address(
    unfinished: UnfinishedInput,
) -> None:
    first, second = Holding(unfinished, "192.0.2.1"), Holding(unfinished, "192.0.2.2")
    first.hold(5_000)
    second.hold(5_000)
    others = fill(unfinished)
    newcomer = Holding(unfinished, "192.0.2.3")
    newcomer.hold(SHORT + 1)
    [refusal] = first.refusals
    assert "all peers together" in refusal.text
    assert not any(holder.evicted for holder in (second, newcomer, *others))


def test_as_many_go_as_are_needed(unfinished: UnfinishedInput) -> None:
    holders = [Holding(unfinished) for _ in range(10)]
    for holder in holders:
        holder.hold(10_000)
    Holding(unfinished).hold(UNFINISHED_BY_ADDRESS - 65_000)
    assert [holder.evicted for holder in holders] == [True] * 4 + [False] * 6
    assert unfinished.held == UNFINISHED_BY_ADDRESS - 5_000


def test_the_one_that_grows_goes_if_its_message_began_first(unfinished: UnfinishedInput) -> None:
    first, second = Holding(unfinished), Holding(unfinished)
    first.hold(5_000)
    second.hold(UNFINISHED_BY_ADDRESS - 5_000)
    first.hold(5_001)
    assert (first.evicted, second.evicted) == (True, False)


def test_growth_does_not_make_a_message_younger(unfinished: UnfinishedInput) -> None:
    first, second = Holding(unfinished), Holding(unfinished)
    first.hold(5_000)
    second.hold(5_000)
    first.hold(6_000)
    second.hold(UNFINISHED_BY_ADDRESS)
    assert (first.evicted, second.evicted) == (True, False)


def test_another_message_is_a_young_one(unfinished: UnfinishedInput) -> None:
    first, second, third = (Holding(unfinished) for _ in range(3))
    first.hold(5_000)
    second.hold(5_000)
    first.hold(5_000, another=True)
    third.hold(UNFINISHED_BY_ADDRESS - 9_000)
    assert (first.evicted, second.evicted) == (False, True)


def test_a_message_that_was_short_for_long_is_a_young_one(unfinished: UnfinishedInput) -> None:
    first, second, third = (Holding(unfinished) for _ in range(3))
    first.hold(SHORT)
    second.hold(5_000)
    first.hold(5_000)
    third.hold(UNFINISHED_BY_ADDRESS - 9_000)
    assert (first.evicted, second.evicted) == (False, True)


def test_the_same_many_bytes_of_another_message_close_nobody_within_the_bounds(unfinished: UnfinishedInput) -> None:
    holders = fill(unfinished)
    for holder in holders:
        holder.hold(UNFINISHED // 4, another=True)
    assert not any(holder.evicted for holder in holders)


def test_an_eviction_that_fails_costs_its_own_connection_alone(unfinished: UnfinishedInput) -> None:
    class Failing(Holding):
        def evict(self, refusal: Refusal) -> None:
            raise ZeroDivisionError("as it is meant to")

    failing, newcomer = Failing(unfinished), Holding(unfinished)
    failing.hold(5_000)
    with capturedLogs() as logs:
        newcomer.hold(UNFINISHED_BY_ADDRESS)
    assert (failing.aborted, newcomer.evicted, newcomer.aborted) == (True, False, False)
    assert [event["log_level"] for event in logs] == [LogLevel.critical]
    assert unfinished.held == UNFINISHED_BY_ADDRESS
