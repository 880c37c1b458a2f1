"""The memory budget: limits for one address and for all, and the choice of the evicted consumer."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs

from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import BY_ADDRESS, BY_ALL, SHORT, SLOW, MemoryBudget, Share
from tests.net.holders import Holding, fill


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> MemoryBudget:
    return MemoryBudget(seconds=clock.seconds)


def evicted(*holders: Holding) -> list[bool]:
    return [holder.evicted for holder in holders]


def test_a_consumer_counts_beyond_a_short_read(memory: MemoryBudget) -> None:
    holder = Holding(memory)
    for size, held in ((SHORT, 0), (SHORT + 1, SHORT + 1), (9_000, 9_000), (5_000, 5_000), (SHORT, 0), (0, 0)):
        holder.hold(size)
        assert memory.held == held
        assert memory.of(holder.host) == held


def test_a_holder_may_be_dropped_at_any_time(memory: MemoryBudget) -> None:
    holder, other = Holding(memory), Holding(memory)
    holder.drop()
    holder.hold(5_000)
    holder.hold(5_000, share=Share.OUTPUT)
    other.hold(6_000)
    for _ in range(2):
        holder.drop()
        assert memory.held == 6_000


def test_all_shares_of_an_address_are_one_account(memory: MemoryBudget) -> None:
    reader, writer = Holding(memory), Holding(memory)
    reader.hold(BY_ADDRESS - 10_000, share=Share.OUTPUT)
    writer.hold(10_000)
    assert memory.shares() == {
        Share.INPUT: 10_000,
        Share.OUTPUT: BY_ADDRESS - 10_000,
        Share.SESSIONS: 0,
        Share.STORED: 0,
    }
    assert evicted(reader, writer) == [False, False]
    writer.hold(10_001)
    assert evicted(reader, writer) == [True, False]
    assert reader.refusals[0].reason is Reason.NOT_READING
    assert memory.evicted == {Share.OUTPUT: 1}


def test_over_the_limit_of_an_address_the_message_that_began_first_goes(memory: MemoryBudget) -> None:
    elsewhere = Holding(memory, "192.0.2.2")
    first, second, newcomer = (Holding(memory) for _ in range(3))
    elsewhere.hold(5_000)
    first.hold(5_000)
    second.hold(5_000)
    newcomer.hold(BY_ADDRESS - 10_000)
    assert not first.evicted
    newcomer.hold(BY_ADDRESS - 9_999)
    [refusal] = first.refusals
    assert refusal.reason is Reason.TOO_LARGE
    assert "this address" in refusal.text
    assert not any(evicted(elsewhere, second, newcomer))
    assert memory.held == BY_ADDRESS - 9_999 + 10_000


def test_over_the_limit_of_all_a_message_of_the_address_that_holds_most_goes(memory: MemoryBudget) -> None:
    small = Holding(memory, "192.0.2.1")
    small.hold(5_000)
    memory.store("192.0.2.4", 2 * BY_ADDRESS)  # what is stored cannot go
    others = fill(memory)
    newcomer = Holding(memory, "192.0.2.3")
    newcomer.hold(SHORT + 1)
    assert evicted(small, newcomer, *others) == [False, False, True] + [False] * (len(others) - 1)
    assert "all peers together" in others[0].refusals[0].text


def test_peers_that_have_not_authenticated_go_first(memory: MemoryBudget) -> None:
    known, stranger, elsewhere = Holding(memory, trusted=True), Holding(memory), Holding(memory, "192.0.2.2", True)
    known.hold(20_000)
    elsewhere.hold(BY_ADDRESS)
    stranger.hold(5_000)
    known.hold(BY_ADDRESS)
    assert evicted(known, stranger, elsewhere) == [False, True, False]
    others = fill(memory)
    Holding(memory, "192.0.2.3", True).hold(SHORT + 1)
    assert evicted(known, elsewhere, others[0]) == [False, False, True]


def test_among_strangers_the_share_that_holds_most_goes_first(memory: MemoryBudget) -> None:
    known, writer, reader = Holding(memory, trusted=True), Holding(memory), Holding(memory)
    for size in (10_000, 11_000, 12_000):
        reader.hold(size, share=Share.OUTPUT)
    writer.hold(30_000)
    known.hold(BY_ADDRESS - 40_000)
    assert evicted(known, writer, reader) == [False, True, False]


def test_among_authenticated_peers_the_slowest_reader_goes_first(memory: MemoryBudget) -> None:
    writer, slow, quick = (Holding(memory, trusted=True) for _ in range(3))
    writer.hold(20_000)
    for reader in (slow, quick, slow):
        reader.hold(6_000, share=Share.OUTPUT)
    slow.hold(5_000, share=Share.OUTPUT)  # it has read something
    writer.hold(BY_ADDRESS - 10_000)
    assert evicted(writer, slow, quick) == [False, False, True]


def test_a_peer_that_authenticates_counts_as_such_from_then_on(memory: MemoryBudget) -> None:
    one, other = Holding(memory), Holding(memory)
    one.hold(5_000)
    one.trusted = True
    one.hold(6_000)
    other.hold(5_000)
    assert memory.held == 11_000
    one.hold(BY_ADDRESS)
    assert evicted(one, other) == [False, True]


def test_stored_bytes_leave_less_for_the_connections_of_its_address(memory: MemoryBudget) -> None:
    holder, elsewhere = Holding(memory), Holding(memory, "192.0.2.2")
    holder.hold(5_000)
    elsewhere.hold(BY_ADDRESS)
    memory.store(holder.host, BY_ADDRESS - 5_000)
    assert not memory.fits(holder.host, 1)
    holder.hold(5_001)
    assert evicted(holder, elsewhere) == [True, False]
    memory.store(holder.host, 5_000)  # as after a restart, with a lower limit
    Holding(memory).hold(5_000)
    memory.store(holder.host, -BY_ADDRESS)
    assert memory.held == BY_ADDRESS


def test_half_of_the_limit_of_an_address_may_be_stored(memory: MemoryBudget) -> None:
    assert memory.may_store("192.0.2.1", BY_ADDRESS // 2)
    assert not memory.may_store("192.0.2.1", BY_ADDRESS // 2 + 1)
    memory.store("192.0.2.1", BY_ADDRESS // 2)
    assert not memory.may_store("::ffff:192.0.2.1", 1)
    assert memory.may_store("192.0.2.2", 1)
    assert memory.denied == 2
    Holding(memory, "192.0.2.3").hold(BY_ADDRESS // 2 + 1)
    assert not memory.may_store("192.0.2.3", BY_ADDRESS // 2)
    assert memory.may_store("", BY_ALL + 1)
    memory.store("", BY_ALL)
    assert memory.held == BY_ADDRESS + 1


def test_as_many_go_as_are_needed(memory: MemoryBudget) -> None:
    holders = [Holding(memory) for _ in range(10)]
    for holder in holders:
        holder.hold(10_000)
    Holding(memory).hold(BY_ADDRESS - 65_000)
    assert evicted(*holders) == [True] * 4 + [False] * 6
    assert memory.held == BY_ADDRESS - 5_000


def test_the_one_that_grows_goes_if_its_message_began_first(memory: MemoryBudget) -> None:
    first, second = Holding(memory), Holding(memory)
    first.hold(5_000)
    second.hold(BY_ADDRESS - 5_000)
    first.hold(5_001)
    assert evicted(first, second) == [True, False]


def test_growth_does_not_make_a_message_younger(memory: MemoryBudget) -> None:
    first, second = Holding(memory), Holding(memory)
    first.hold(5_000)
    second.hold(5_000)
    for size in (6_000, 6_000):
        first.hold(size)
    second.hold(BY_ADDRESS)
    assert evicted(first, second) == [True, False]


def test_another_message_is_a_young_one(memory: MemoryBudget) -> None:
    first, second, third = (Holding(memory) for _ in range(3))
    first.hold(5_000)
    second.hold(5_000)
    first.hold(5_000, another=True)
    third.hold(BY_ADDRESS - 9_000)
    assert evicted(first, second) == [False, True]


def test_a_message_that_was_short_for_long_is_a_young_one(memory: MemoryBudget) -> None:
    first, second, third = (Holding(memory) for _ in range(3))
    first.hold(SHORT)
    second.hold(5_000)
    first.hold(5_000)
    third.hold(BY_ADDRESS - 9_000)
    assert evicted(first, second) == [False, True]


def test_the_same_many_bytes_of_another_message_close_no_peer_within_the_limits(memory: MemoryBudget) -> None:
    holders = fill(memory)
    for holder in holders:
        holder.hold(min(BY_ADDRESS, BY_ALL // (2 * len(holders))), another=True)
    assert not any(evicted(*holders))


def test_output_is_admitted_while_there_is_room(memory: MemoryBudget) -> None:
    reader = Holding(memory)
    reader.hold(BY_ADDRESS - 5_000, share=Share.OUTPUT)
    assert memory.admit(reader.host, 5_000)
    assert not memory.admit(reader.host, 5_001)
    assert memory.admit("192.0.2.9", 5_001)
    assert memory.refused == 1
    assert not reader.evicted


def test_output_of_readers_without_progress_gives_way_to_that_of_others(memory: MemoryBudget, clock: Clock) -> None:
    stuck, slow, writer = Holding(memory), Holding(memory), Holding(memory)
    writer.hold(10_000)
    stuck.hold(10_000, share=Share.OUTPUT)
    slow.hold(BY_ADDRESS - 25_000, share=Share.OUTPUT)
    clock.advance(SLOW - 1)
    slow.hold(BY_ADDRESS - 30_000, share=Share.OUTPUT)
    assert not memory.admit(slow.host, 20_000)
    clock.advance(1)
    assert memory.admit(slow.host, 20_000)
    assert not memory.admit(slow.host, 20_001)
    assert evicted(stuck, slow, writer) == [True, False, False]


class Refused(Holding):
    """A connection that is sent its refusal before it closes."""

    def evict(self, refusal: Refusal) -> None:
        self.hold(SHORT + 1, share=Share.OUTPUT)
        self.drop()
        super().evict(refusal)


def test_the_refusals_of_many_that_go_at_once_evict_no_further_ones(memory: MemoryBudget) -> None:
    size = BY_ADDRESS // 2_000
    holders = [Refused(memory) for _ in range(2_000)]
    for holder in holders:
        holder.hold(size)
    last = Holding(memory)
    last.hold(BY_ADDRESS // 2)
    gone = sum(evicted(*holders))
    assert 1_000 <= gone <= 1_001
    assert not evicted(last)[0]


def test_an_eviction_that_fails_costs_its_own_connection_alone(memory: MemoryBudget) -> None:
    class Failing(Holding):
        def evict(self, refusal: Refusal) -> None:
            raise ZeroDivisionError("as it is meant to")

    failing, newcomer = Failing(memory), Holding(memory)
    failing.hold(5_000)
    with capturedLogs() as logs:
        newcomer.hold(BY_ADDRESS)
    assert (failing.aborted, newcomer.evicted, newcomer.aborted) == (True, False, False)
    assert [event["log_level"] for event in logs] == [LogLevel.critical]
    assert memory.held == BY_ADDRESS


def test_the_fall_since_the_last_look_is_known() -> None:
    budget = MemoryBudget()
    budget.store("h", 10_000)
    assert budget.fallen() == 0
    budget.store("h", 20_000)
    budget.store("h", -25_000)
    assert (budget.fallen(), budget.fallen()) == (25_000, 0)
    assert budget.released == 25_000


def test_what_an_eviction_adds_to_another_address_is_compared_with_its_limit_at_once(memory: MemoryBudget) -> None:
    class Sharing(Holding):
        """Others pay for what it held."""

        def evict(self, refusal: Refusal) -> None:
            super().evict(refusal)
            heir.hold(BY_ADDRESS - 4_000)

    heir, oldest = Holding(memory, "192.0.2.2"), Holding(memory, "192.0.2.2")
    oldest.hold(5_000)
    heir.hold(5_000)
    sharing = Sharing(memory)
    sharing.hold(BY_ADDRESS + 1)
    assert evicted(sharing, oldest, heir) == [True, True, False]
    assert memory.of(heir.host) <= BY_ADDRESS
