"""Leases: times of checks, effects of stalls of the broker, and cleanup of ended leases.

The file is longer than others: it has all tests of `broker.core.liveness`.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from twisted.internet.task import Clock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent
from zope.interface.verify import verifyObject

from broker.core.interfaces import ILease, ILeases
from broker.core.liveness import (
    AHEAD,
    LATEST,
    LONG_STALL,
    SLACK,
    SLACK_EXACT,
    TICK,
    TOLERANCE,
    WARN_EVERY,
    Lease,
    Leases,
)

DAY = 86_400.0

STEP = 0.005
"""Duration of one turn of the loop in seconds."""


class Thing:
    """Leased object that records the times of its checks, and answers each as scripted."""

    def __init__(self, answer: Callable[[float], float | None] = lambda now: None) -> None:
        self.answer = answer
        self.checks: list[float] = []

    def check(self, now: float) -> float | None:
        self.checks.append(now)
        return self.answer(now)


class Peer:
    """Peer with a heartbeat every ``interval`` seconds, supervised like a session's peer."""

    def __init__(self, leases: Leases, interval: float, slack: float = 0.0) -> None:
        self.leases = leases
        self.interval = interval + slack
        self.heard = leases.moment()
        self.checks = 0
        self.gone = False
        self.lease = leases.hold(self, self.heard + self.interval)

    def hear(self) -> None:
        self.heard = self.leases.moment()

    def check(self, now: float) -> float | None:
        self.checks += 1
        due = self.heard + self.interval
        if now < due:
            return due
        self.gone = True
        return None


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000)  # like the reactor's, which is the time of day
    return clock


@pytest.fixture
def leases(clock: Clock) -> Iterator[Leases]:
    """Leases whose checks must not raise: exceptions would only be logged."""
    with capturedLogs() as logs:
        yield Leases(clock)
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


def turn(clock: Clock, seconds: float, step: float = STEP) -> None:
    """Advance the clock like a loop that is never busy for longer than ``step``."""
    clock.pump([step] * round(seconds / step))


def test_leases_are_what_wires_are_promised(leases: Leases) -> None:
    assert verifyObject(ILeases, leases)
    assert verifyObject(ILease, leases.hold(Thing(), 1.0))


# when


@pytest.mark.parametrize("due", [0.001, 0.05, 0.07, 0.1, 0.149, 1.0, 1.05, 31.5, 100.0])
@pytest.mark.parametrize("phase", [0.0, 0.02, 0.03])
def test_a_lease_is_checked_once_not_before_it_is_due_and_at_most_a_tick_after(
    leases: Leases, clock: Clock, due: float, phase: float
) -> None:
    begin = clock.seconds()
    leases.hold(Thing(), 1_000.0)
    turn(clock, 0.2 + phase)
    seen: list[float] = []
    thing = Thing(lambda now: seen.append(clock.seconds() - begin))
    due += leases.moment()
    leases.hold(thing, due)
    turn(clock, due + 1)
    assert len(thing.checks) == 1
    assert due <= thing.checks[0] <= due + TICK + STEP
    assert seen == [pytest.approx(thing.checks[0])]


def test_life_time_goes_with_the_clock_in_ticks(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(), 100.0)
    begin = clock.seconds()
    for _ in range(500):
        clock.advance(0.01)
        assert clock.seconds() - begin - TICK - 0.011 < leases.moment() <= clock.seconds() - begin
    assert leases.stalled == 0


@pytest.mark.parametrize("due", [-1e9, -1.0, 0.0])
def test_what_is_due_already_is_checked_at_the_next_tick(leases: Leases, clock: Clock, due: float) -> None:
    thing = Thing()
    leases.hold(Thing(), 1_000.0)
    turn(clock, 3)
    leases.hold(thing, due)
    clock.advance(0.01)
    assert thing.checks == []
    turn(clock, TICK)
    assert len(thing.checks) == 1


def test_renewing_is_no_more_than_keeping_when_one_was_heard(leases: Leases, clock: Clock) -> None:
    peer = Peer(leases, 2.0)
    for _ in range(10):
        turn(clock, 1.9)
        assert not peer.gone
        peer.hear()
    assert peer.checks <= 10
    turn(clock, 1.9)
    assert not peer.gone
    turn(clock, 0.1 + 2 * TICK)
    assert peer.gone
    assert clock.getDelayedCalls() == []


def test_a_check_that_returns_nothing_ends_the_lease(leases: Leases, clock: Clock) -> None:
    thing = Thing()
    lease = leases.hold(thing, 1.0)
    assert len(leases) == 1
    turn(clock, 5)
    assert len(thing.checks) == 1
    assert len(leases) == 0
    lease.cancel()
    assert len(leases) == 0


def test_one_that_is_always_due_is_checked_once_in_each_tick(leases: Leases, clock: Clock) -> None:
    thing = Thing(lambda now: now - 1)
    leases.hold(thing, 0.0)
    clock.pump([TICK] * 20)
    assert len(thing.checks) == 20


# cancelling


def test_a_cancelled_lease_is_not_checked_and_cancelling_twice_is_harmless(leases: Leases, clock: Clock) -> None:
    thing, other = Thing(), Thing()
    lease = leases.hold(thing, 1.0)
    leases.hold(other, 1.0)
    lease.cancel()
    lease.cancel()
    assert len(leases) == 1
    turn(clock, 2)
    assert (len(thing.checks), len(other.checks)) == (0, 1)


def test_a_lease_that_is_cancelled_in_its_own_check_is_over_whatever_the_check_returns(
    leases: Leases, clock: Clock
) -> None:
    def cancel(now: float) -> float:
        lease.cancel()
        return now + 1

    thing = Thing(cancel)
    lease = leases.hold(thing, 1.0)
    turn(clock, 5)
    assert len(thing.checks) == 1
    assert (len(leases), clock.getDelayedCalls()) == (0, [])
    assert leases.slots == 0


def test_a_check_may_cancel_another_that_is_due_at_the_same_tick(leases: Leases, clock: Clock) -> None:
    def cancel(now: float) -> None:
        for lease in held:
            lease.cancel()

    things = [Thing(cancel) for _ in range(3)]
    held = [leases.hold(thing, 1.0) for thing in things]
    turn(clock, 2)
    assert sum(len(thing.checks) for thing in things) == 1
    assert (len(leases), clock.getDelayedCalls()) == (0, [])


@pytest.mark.parametrize("due", [0.0, 1.0, DAY])
def test_holding_and_cancelling_in_turn_piles_up_nothing(leases: Leases, due: float) -> None:
    leases.hold(Thing(), 1.0)
    held: list[weakref.ref[Thing]] = []
    for number in range(1_000):
        thing = Thing()
        held.append(weakref.ref(thing))
        leases.hold(thing, due + number / 100).cancel()
    del thing
    gc.collect()
    assert [thing() for thing in held] == [None] * 1_000
    assert len(leases) == 1
    assert leases.slots == 1


def test_what_is_over_is_not_kept(leases: Leases, clock: Clock) -> None:
    thing = Thing()
    kept = weakref.ref(thing)
    leases.hold(Thing(), 10.0)
    lease = leases.hold(thing, 1.0)
    del thing
    turn(clock, 2)
    gc.collect()
    assert kept() is None
    lease.cancel()


# holding in a check


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.01])
def test_what_a_check_holds_is_checked_at_a_later_tick(leases: Leases, clock: Clock, seconds: float) -> None:
    second = Thing()

    def hold(now: float) -> None:
        leases.hold(second, now + seconds)

    first = Thing(hold)
    leases.hold(first, 0.0)
    clock.advance(TICK)
    assert (len(first.checks), len(second.checks)) == (1, 0)
    clock.advance(TICK)
    assert len(second.checks) == 1
    assert second.checks[0] > first.checks[0]
    assert clock.getDelayedCalls() == []


def test_the_last_check_may_end_all_and_begin_again(leases: Leases, clock: Clock) -> None:
    def again(now: float) -> None:
        lease.cancel()
        leases.hold(second, now + 1)

    second = Thing()
    lease = leases.hold(Thing(again), 1.0)
    turn(clock, 1.06)
    assert (len(leases), len(clock.getDelayedCalls())) == (1, 1)
    turn(clock, 2)
    assert len(second.checks) == 1
    assert clock.getDelayedCalls() == []


# stalls of the broker


@pytest.mark.parametrize("seconds", [1.0, 10.0, DAY])
def test_nobody_is_gone_because_the_broker_stood_still(leases: Leases, clock: Clock, seconds: float) -> None:
    peers = [Peer(leases, interval) for interval in (0.5, 1.05, 5.0)]
    turn(clock, 0.3)
    leases.look()
    clock.advance(seconds)
    assert [peer.gone for peer in peers] == [False] * 3
    assert leases.stalled == pytest.approx(seconds - LATEST, abs=TICK)


def test_after_a_stall_a_silent_peer_has_all_the_time_that_it_had_left(leases: Leases, clock: Clock) -> None:
    peer = Peer(leases, 5.0)
    turn(clock, 2.0)
    leases.look()
    clock.advance(10.0)
    counted = leases.moment() - 2.0
    assert 0 < counted <= LATEST + 1e-3
    turn(clock, 3.0 - counted - 0.01)
    assert not peer.gone
    turn(clock, 2 * TICK)
    assert peer.gone


def test_a_little_lateness_counts(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(), 100.0)
    begin = clock.seconds()
    for late in (0.0, 0.005, TOLERANCE - 0.001, 0.015, TOLERANCE + 0.015, 0.1, LATEST - TICK):
        clock.advance(TICK + late)
    assert leases.moment() == pytest.approx(clock.seconds() - begin, abs=1e-6)
    assert leases.stalled == 0


def test_in_a_loop_that_is_always_late_life_time_goes_slower_than_the_clock(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(lambda now: now), 0.0)
    peer = Peer(leases, 20.0)
    clock.pump([1.0] * 60)
    assert not peer.gone
    assert leases.moment() == pytest.approx(60 * LATEST)
    assert leases.stalled == pytest.approx(60 * (1 - LATEST))


def test_a_stop_that_ends_before_anything_is_due_counts_and_what_lay_unread_is_read_first(
    leases: Leases, clock: Clock
) -> None:
    late, silent = Peer(leases, 5.0), Peer(leases, 5.0)
    turn(clock, 1.0)
    clock.advance(5.0 + TICK - 1.0)
    assert (late.gone, silent.gone) == (False, False)
    late.hear()
    turn(clock, TICK + STEP)
    assert (late.gone, silent.gone) == (False, True)
    assert leases.stalled == 0


@pytest.mark.parametrize("interval", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("step", [0.06, 0.1, 0.2, LATEST])
def test_a_loop_that_turns_four_times_a_second_ends_a_silent_peer_within_five_intervals(
    leases: Leases, clock: Clock, interval: float, step: float
) -> None:
    peer = Peer(leases, 3 * interval, SLACK_EXACT)
    clock.pump([step] * int(5 * interval / step))
    assert peer.gone
    assert leases.stalled == pytest.approx(0)


def test_at_a_late_tick_what_may_lie_unread_is_not_held_against_a_peer(leases: Leases, clock: Clock) -> None:
    late, silent = Peer(leases, 1.0), Peer(leases, 1.0)
    turn(clock, 0.8)
    now = leases.moment()
    clock.advance(LATEST)
    assert leases.moment() == pytest.approx(now + LATEST)
    assert not late.gone
    late.hear()  # it came before the tick, and is read now
    clock.advance(TICK)
    assert (late.gone, silent.gone) == (False, True)


def stalls(leases: Leases, clock: Clock, *seconds: float) -> Sequence[LogEvent]:
    """Return the log of a broker that stalls so often, for so long, with a second between."""
    if not len(leases):
        leases.hold(Thing(lambda now: now), 0.0)
    with capturedLogs() as logs:
        for each in seconds:
            leases.look()
            clock.advance(LATEST + each)
            turn(clock, 1.0)
    return logs


def test_a_long_stall_is_logged(leases: Leases, clock: Clock) -> None:
    [event] = stalls(leases, clock, 12.3)
    assert event["log_level"] is LogLevel.warn
    text = formatEvent(event)
    assert text is not None
    assert "12.3 s" in text


def test_short_stalls_are_not_logged_but_added_up(leases: Leases, clock: Clock) -> None:
    assert stalls(leases, clock, *[LONG_STALL - 0.01] * 10) == []
    assert leases.stalled == pytest.approx(10 * (LONG_STALL - 0.01), abs=1e-4)


def test_stalls_are_logged_once_a_minute_with_their_sum(leases: Leases, clock: Clock) -> None:
    assert len(stalls(leases, clock, *[2.0] * 10)) == 1
    turn(clock, WARN_EVERY - 33)
    assert stalls(leases, clock, 2.0) == []
    turn(clock, 3)
    [event] = stalls(leases, clock, 2.0)
    assert event["all"] == pytest.approx(24.0, abs=1e-3)


def test_a_clock_that_was_set_back_does_not_silence_the_log(leases: Leases, clock: Clock) -> None:
    assert len(stalls(leases, clock, 2.0)) == 1
    clock.rightNow -= DAY
    leases.look()
    assert len(stalls(leases, clock, 2.0)) == 1


# the slack


def in_time(turns: list[tuple[float, float]], interval: float, slack: float) -> bool:
    """Return whether a peer with exact heartbeats every ``interval`` seconds is considered alive to the end.

    In each turn of the loop time passes, then the timers run, then time passes again, then the input is read.
    """
    clock = Clock()
    leases = Leases(clock)
    clock.advance(0.03)
    leases.hold(Thing(lambda now: now + 1), 1.0)
    begin = clock.seconds()
    peer = Peer(leases, interval, slack)
    arrived = 0
    for before, between in turns:
        clock.advance(before)
        clock.rightNow += between
        leases.look()
        sent = int((clock.seconds() - begin) / interval)
        if sent > arrived:
            arrived = sent
            peer.heard = leases.now
    return not peer.gone


PAUSES = st.sampled_from(
    [0.0, 0.001, 0.005, 0.015, 0.0249, 0.0251, 0.035, 0.0499, 0.05, 0.1, 0.2, 0.2499, 0.2501, 1.0, 5.0]
)


@given(st.lists(st.tuples(PAUSES, PAUSES), min_size=50), st.sampled_from([0.2, 0.5, 1.0, 1.05]))
def test_with_the_slack_no_peer_that_is_in_time_is_thought_gone(
    turns: list[tuple[float, float]], interval: float
) -> None:
    assert in_time(turns, interval, SLACK_EXACT)
    assert in_time(turns, interval, SLACK)


def test_without_it_one_can_be() -> None:
    unread = [*[(TICK, 0.0)] * 38, (0.035, 0.0), (0.0499, 0.0)]
    assert in_time(unread, 1.0, Leases(Clock()).slack_exact)
    assert not in_time(unread, 1.0, 0.0)


# the clock


def test_ticks_do_not_drift_from_the_clock_over_hours(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(lambda now: now + 100), 100.0)
    begin = clock.seconds()
    hours = 2 * 3_600
    clock.pump([0.0257, 0.0251, 0.0356, 0.006, 0.0307, 0.0494] * round(hours / 0.1725))
    assert leases.stalled == 0
    assert clock.seconds() - begin == pytest.approx(hours, abs=1)
    assert leases.moment() == pytest.approx(clock.seconds() - begin, abs=TICK + TOLERANCE)


@pytest.mark.parametrize("back", [0.5, 3_600.0, 10 * DAY])
@pytest.mark.parametrize("how", ["look", "hold"])
def test_a_clock_that_is_set_back_is_noticed_and_life_goes_on(
    leases: Leases, clock: Clock, back: float, how: str
) -> None:
    peer = Peer(leases, 5.0)
    turn(clock, 2.0)
    now = leases.moment()
    clock.rightNow -= back
    turn(clock, 0.2)
    assert leases.moment() == now, "no timer runs"
    if how == "look":
        leases.look()
    else:
        leases.hold(Thing(), now + 100)
    assert leases.moment() == now
    turn(clock, 1.0)
    assert leases.moment() == pytest.approx(now + 1.0, abs=TICK + 0.01)
    assert not peer.gone
    turn(clock, 3.0)
    assert peer.gone
    assert leases.stalled == 0


class OneLook(Clock):
    """Clock that is read once in a turn to find the due timers, as the reactor does."""

    def advance(self, amount: float) -> None:
        self.rightNow += amount
        self._sortCalls()
        for call in [call for call in self.calls if call.getTime() <= self.rightNow]:
            self.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)


def test_life_time_never_falls_when_the_clock_is_set_back_just_before_a_tick() -> None:
    def set_back() -> None:
        turned.rightNow -= 30.0

    turned = OneLook()
    leases = Leases(turned)
    thing = Thing(lambda now: now)
    leases.hold(thing, 0.0)
    turned.advance(TICK)
    turned.callLater(TICK - 0.001, set_back)
    turned.advance(TICK)
    assert turned.seconds() < 0
    assert thing.checks == [TICK, TICK]
    turn(turned, 1.0)
    assert leases.moment() == pytest.approx(TICK + 1.0, abs=TICK)
    assert all(one <= two for one, two in pairwise(thing.checks))


def test_looking_changes_nothing_while_the_clock_goes_forward(leases: Leases, clock: Clock) -> None:
    leases.look()
    assert clock.getDelayedCalls() == []
    thing = Thing()
    leases.hold(thing, 1.0)
    for _ in range(104):
        clock.advance(0.01)
        leases.look()
    assert len(clock.getDelayedCalls()) == 1 - len(thing.checks)
    clock.advance(0.02)
    assert len(thing.checks) == 1


# between ticks


def test_a_moment_is_exact_between_ticks(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(), 100.0)
    begin = clock.seconds()
    for _ in range(500):
        clock.advance(0.01)
        assert leases.moment() == pytest.approx(clock.seconds() - begin, abs=1e-6)
    assert leases.now == leases.moment()


def test_a_moment_counts_no_more_of_a_stall_than_a_tick(leases: Leases, clock: Clock) -> None:
    leases.hold(Thing(lambda now: now), 0.0)
    turn(clock, 1.0)
    now = leases.moment()
    clock.rightNow += 10.0  # and the timers have not run yet
    moment = leases.moment()
    assert moment == pytest.approx(now + LATEST)
    clock.advance(0)
    assert leases.now == moment


def test_while_nothing_is_held_a_moment_is_the_time_at_which_life_stands_still(leases: Leases, clock: Clock) -> None:
    assert leases.moment() == leases.moment() == 0.0
    lease = leases.hold(Thing(), 100.0)
    turn(clock, 1.0)
    clock.advance(TICK / 2)
    moment = leases.moment()
    lease.cancel()
    turn(clock, 100.0, 1.0)
    assert leases.moment() == leases.moment() == moment
    leases.hold(Thing(), 100.0)
    assert leases.moment() == leases.moment() == moment


@pytest.mark.parametrize("back", [0.1, 0.5, 10 * DAY])
def test_a_moment_does_not_fall_when_the_clock_is_set_back(leases: Leases, clock: Clock, back: float) -> None:
    leases.hold(Thing(), 100.0)
    turn(clock, 1.0)
    clock.rightNow += TICK * 1.9
    moment = leases.moment()
    clock.rightNow -= back
    assert leases.moment() == moment
    leases.look()
    assert leases.moment() == moment
    turn(clock, 1.0)
    assert leases.moment() == pytest.approx(moment + 1.0, abs=1e-4)


def at_a_tick_nothing_falls(leases: Leases, moments: list[float]) -> Callable[[float], float]:
    """Check that is repeated at every tick, and asserts that lifetime never decreases."""

    def check(now: float) -> float:
        assert leases.moment() >= moments[-1]
        assert now <= leases.moment() <= leases.moment()
        return now

    return check


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["turn", "pass", "back"]), PAUSES),
            st.tuples(st.sampled_from(["look", "hold", "cancel", "moment"]), st.just(0.0)),
        ),
        min_size=20,
    )
)
def test_moments_never_fall_and_are_never_further_apart_than_the_time_that_passed(
    steps: list[tuple[str, float]],
) -> None:
    clock = Clock()
    leases = Leases(clock)
    passed = 0.0
    moments, times = [leases.moment()], [0.0]
    held: list[Lease] = []
    with capturedLogs() as logs:
        for what, seconds in steps:
            if what in ("turn", "pass"):
                passed += seconds
            if what == "turn":
                clock.advance(seconds)
            elif what == "pass":  # without the timers: something keeps the loop busy
                clock.rightNow += seconds
            elif what == "back":
                clock.rightNow -= seconds
            elif what == "look":
                leases.look()
            elif what == "hold":
                held.append(leases.hold(Thing(at_a_tick_nothing_falls(leases, moments)), 0.0))
            elif what == "cancel" and held:
                held.pop().cancel()
            elif what == "moment":
                moments.append(leases.moment())
                times.append(passed)
                assert leases.now == moments[-1]
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []
    for (before, after), (began, ended) in zip(pairwise(moments), pairwise(times), strict=True):
        assert before <= after <= before + ended - began + 1e-6


# nothing held


def test_while_nothing_is_held_there_is_no_timer_and_life_stands_still(leases: Leases, clock: Clock) -> None:
    assert clock.getDelayedCalls() == []
    leases.hold(Thing(), 1.0)
    turn(clock, 2)
    now = leases.moment()
    assert clock.getDelayedCalls() == []
    turn(clock, 100)
    assert leases.moment() == now
    leases.hold(Thing(), now + 1).cancel()
    assert clock.getDelayedCalls() == []
    assert leases.moment() == now


@pytest.mark.parametrize("idle", [0.02, 1.0, DAY])
def test_what_is_held_after_a_while_of_nothing_has_its_full_time(leases: Leases, clock: Clock, idle: float) -> None:
    leases.hold(Thing(), 0.0)
    turn(clock, 1)
    clock.advance(idle)
    stamp = leases.moment()
    peer = Peer(leases, 1.0)
    assert peer.heard == stamp
    turn(clock, 0.99)
    assert not peer.gone
    turn(clock, 0.01 + TICK)
    assert peer.gone
    assert leases.stalled == 0


# cost


def test_the_broker_wakes_twice_for_a_lease_and_not_before(clock: Clock) -> None:
    leases = Leases(clock)
    thing = Thing()
    begin = clock.seconds()
    leases.hold(thing, 30.0)
    woken: list[float] = []
    while clock.getDelayedCalls():
        [timer] = clock.getDelayedCalls()
        clock.advance(timer.getTime() - clock.seconds())
        woken.append(clock.seconds() - begin)
    assert woken == [pytest.approx(30.0 + TICK - AHEAD, abs=1e-3), pytest.approx(30.0 + TICK, abs=1e-3)]
    assert len(thing.checks) == 1


def test_a_lease_that_is_due_sooner_sets_the_timer_again(leases: Leases, clock: Clock) -> None:
    late, soon = Thing(), Thing()
    leases.hold(late, 30.0)
    turn(clock, 1.0)
    leases.hold(soon, leases.moment() + 1.0)
    assert len(clock.getDelayedCalls()) == 1
    turn(clock, 1.0 + TICK + STEP)
    assert (len(soon.checks), len(late.checks)) == (1, 0)
    turn(clock, 28.0 + TICK + STEP)
    assert len(late.checks) == 1


def test_between_their_times_leases_cost_nothing_but_one_timer(leases: Leases, clock: Clock) -> None:
    peers = [Peer(leases, 30.0) for _ in range(10_000)]
    turn(clock, 29.0, TICK)
    assert sum(peer.checks for peer in peers) == 0
    assert len(clock.getDelayedCalls()) == 1
    for peer in peers:
        peer.hear()
    turn(clock, 2.0, TICK)
    assert [peer.checks for peer in peers] == [1] * 10_000
    turn(clock, 27.0, TICK)
    assert sum(peer.checks for peer in peers) == 10_000
    turn(clock, 2.0, TICK)
    assert [(peer.checks, peer.gone) for peer in peers] == [(2, True)] * 10_000
    assert clock.getDelayedCalls() == []


def test_messages_of_a_held_peer_cost_no_checks(leases: Leases, clock: Clock) -> None:
    peer = Peer(leases, 10.0)
    for _ in range(1_000):
        peer.hear()
        turn(clock, 0.1, TICK)
    assert peer.checks <= 11
    assert not peer.gone


# defects


@pytest.mark.parametrize("answer", [float("inf"), float("nan"), ZeroDivisionError("as it is meant to")])
def test_a_check_that_fails_ends_its_lease_and_no_other(clock: Clock, answer: float | Exception) -> None:
    def fail(now: float) -> float:
        if isinstance(answer, Exception):
            raise answer
        return answer

    leases = Leases(clock)
    bad, good = Thing(fail), [Thing(lambda now: now + 1) for _ in range(2)]
    for thing in (good[0], bad, good[1]):
        leases.hold(thing, 1.0)
    with capturedLogs() as logs:
        turn(clock, 2.3)
    assert [len(thing.checks) for thing in (bad, *good)] == [1, 2, 2]
    assert len(leases) == 2
    [event] = logs
    assert event["log_level"] is LogLevel.critical
    assert formatEvent(event) == "the check of a Thing failed; its lease ends"


@pytest.mark.parametrize("due", [float("inf"), float("nan")])
def test_a_time_that_is_none_cannot_be_held(leases: Leases, clock: Clock, due: float) -> None:
    with pytest.raises((OverflowError, ValueError)):
        leases.hold(Thing(), due)
    assert (len(leases), clock.getDelayedCalls()) == (0, [])


# in any order

STEPS = st.one_of(
    st.sampled_from([0.0, 0.001, 0.01, TICK / 2, TICK, TICK * 1.5, TICK + TOLERANCE, 0.11, LATEST, 1.0, 30.0]),
    st.floats(0, 1),
)
TIMES = st.one_of(st.sampled_from([-1.0, 0.0, TICK, 0.1, 1.0, 30.0]), st.floats(-1, 3))


class Planned:
    """Leased object that answers its checks as planned: with a time from now, an exception, or its end."""

    def __init__(self, plan: list[float | str]) -> None:
        self.plan = deque(plan)
        self.checks: list[float] = []

    def check(self, now: float) -> float | None:
        self.checks.append(now)
        answer = self.plan.popleft() if self.plan else "end"
        if isinstance(answer, float):
            return now + answer
        if answer == "fail":
            raise ZeroDivisionError("as it is meant to")
        return None


class AnyOrder(RuleBasedStateMachine):
    """Property: leases in any order of hold, cancel and check, in clock steps of any size."""

    held: Bundle[tuple[Lease, Planned]] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.clock.advance(1_700_000_000)
        self.leases = Leases(self.clock)
        self.passed = 0.0
        self.due: dict[Planned, float] = {}
        self.plans: dict[Planned, deque[float | str]] = {}
        self.seen: dict[Planned, int] = {}
        self.last = 0.0

    @rule(target=held, seconds=TIMES, plan=st.lists(st.one_of(TIMES, st.just("fail")), max_size=4))
    def hold(self, seconds: float, plan: list[float | str]) -> tuple[Lease, Planned]:
        thing = Planned(plan)
        due = self.leases.moment() + seconds
        self.due[thing] = due
        self.plans[thing] = deque(plan)
        self.seen[thing] = 0
        return self.leases.hold(thing, due), thing

    @rule(one=consumes(held))
    def cancel(self, one: tuple[Lease, Planned]) -> None:
        lease, thing = one
        lease.cancel()
        self.due.pop(thing, None)

    @rule(seconds=STEPS)
    def advance(self, seconds: float) -> None:
        with capturedLogs():
            self.clock.advance(seconds)
        self.passed += seconds
        self.compare()

    @rule(turns=st.integers(20, 60))
    def turn_on_time(self, turns: int) -> None:
        """Assert that a punctual loop checks everything a tick after it was due, or two after a stall."""
        self.look()
        until = self.leases.now + (turns - 20) * STEP
        before = {thing: len(thing.checks) for thing in self.due}
        for _ in range(turns):
            with capturedLogs():
                self.clock.advance(STEP)
            self.passed += STEP
            self.compare()
        assert all(due > until or len(thing.checks) > before.get(thing, 0) for thing, due in self.due.items())

    @rule(seconds=STEPS)
    def set_back(self, seconds: float) -> None:
        self.clock.rightNow -= seconds

    @rule()
    def look(self) -> None:
        self.leases.look()

    def compare(self) -> None:
        """Assert that the checks since then were due, and at most one at a tick."""
        for thing in self.seen:
            for until in thing.checks[self.seen[thing] :]:
                assert self.due[thing] <= until <= self.leases.now
                plan = self.plans[thing]
                answer = plan.popleft() if plan else "end"
                if isinstance(answer, float):
                    self.due[thing] = until + answer
                else:
                    del self.due[thing]
            self.seen[thing] = len(thing.checks)

    @invariant()
    def life_goes_on_and_nothing_piles_up(self) -> None:
        assert len(self.leases) == len(self.due)
        assert len(self.clock.getDelayedCalls()) == (1 if self.due else 0)
        assert self.last <= self.leases.now <= self.passed + 1e-3
        self.last = self.leases.now


TestAnyOrder = AnyOrder.TestCase
