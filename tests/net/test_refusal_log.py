"""Deadlines and the refusal log: their effect, and bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs, formatEvent

from broker.core.errors import Reason, Refusal
from broker.core.rates import LINE_EVERY
from broker.net.refusal_log import LINES, MAX_SHOWN, Counters, Deadlines, RefusalLog

SYNTAX = Refusal(Reason.SYNTAX, "no message")
LIMIT = Refusal(Reason.LIMIT, "too much")


# refusal_log


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def refusal_log(counters: Counters, clock: Clock) -> RefusalLog:
    return RefusalLog(counters, clock)


def logged(what: Callable[[], object]) -> list[dict[str, object]]:
    with capturedLogs() as events:
        what()
    return list(events)


def test_all_are_counted_and_one_a_minute_is_logged(refusal_log: RefusalLog, counters: Counters, clock: Clock) -> None:
    def complain() -> None:
        for _ in range(50):
            refusal_log.add("elko", "192.0.2.1", SYNTAX)

    [event] = logged(complain)
    assert event["log_level"] is LogLevel.warn
    assert (event["wire"], event["address"], event["reason"], event["text"]) == (
        "elko",
        "192.0.2.1",
        "syntax",
        "no message",
    )
    clock.advance(LINE_EVERY - 0.01)
    assert logged(complain) == []
    clock.advance(0.02)
    assert len(logged(complain)) == 1
    clock.advance(LINE_EVERY - 0.01)
    assert logged(complain) == []
    assert counters.get("elko_refused", "syntax") == 200


def test_each_address_and_reason_has_its_own_minute(refusal_log: RefusalLog, counters: Counters) -> None:
    def complain() -> None:
        for address in ("a", "b"):
            for refusal in (SYNTAX, LIMIT):
                refusal_log.add("elko", address, refusal)

    assert len(logged(complain)) == 4
    assert logged(complain) == []
    assert counters.all() == {"elko_refused.syntax": 4, "elko_refused.limit": 4}


def test_a_long_text_is_cut(refusal_log: RefusalLog) -> None:
    [event] = logged(lambda: refusal_log.add("elko", "a", Refusal(Reason.SYNTAX, "x" * 1_000_000)))
    assert event["text"] == "x" * MAX_SHOWN


def test_braces_in_a_text_are_no_format(refusal_log: RefusalLog) -> None:
    [event] = logged(lambda: refusal_log.add("elko", "a", Refusal(Reason.SYNTAX, "near: {to}{0!r} {x")))
    assert formatEvent(event) == "elko peer a: syntax: near: {to}{0!r} {x"


def flood(refusal_log: RefusalLog, wire: str = "dbp", reason: Refusal = SYNTAX, size: int = 30_000) -> list[str]:
    """The lines on so many datagrams, each of another address."""

    def complain() -> None:
        for number in range(size):
            refusal_log.add(wire, f"{wire} {number}", reason)

    return [str(formatEvent(event)) for event in logged(complain)]


@pytest.mark.long
def test_forged_addresses_make_a_bounded_number_of_lines_and_all_are_counted(
    refusal_log: RefusalLog, counters: Counters, clock: Clock
) -> None:
    lines = flood(refusal_log)
    assert lines == [f"dbp peer dbp {number}: syntax: no message" for number in range(LINES)]
    assert counters.get("dbp_refused", "syntax") == 30_000
    assert logged(lambda: clock.advance(LINE_EVERY - 0.01)) == []
    [event] = logged(lambda: clock.advance(0.01))
    assert formatEvent(event) == (
        f"dbp: syntax: {30_000 - LINES} more lines, of other addresses, were left out in the last 60 s"
    )
    assert clock.getDelayedCalls() == []
    assert len(flood(refusal_log)) == LINES, "a minute later there is room for as many again"


@pytest.mark.long
def test_lines_that_are_left_out_are_told_of_each_minute_while_it_lasts(refusal_log: RefusalLog, clock: Clock) -> None:
    told = 0

    def attack() -> None:
        for second in range(600):
            for number in range(100):
                refusal_log.add("dbp", f"{second} {number}", SYNTAX)
            clock.advance(1)
        clock.advance(LINE_EVERY)

    lines = logged(attack)
    for event in lines:
        count = event.get("count", 1)
        assert isinstance(count, int)
        told += count
    assert told == 60_000
    assert len(lines) <= 11 * LINES + 11


def test_a_flood_on_one_wire_or_of_one_reason_leaves_out_no_others(refusal_log: RefusalLog) -> None:
    flood(refusal_log)
    assert len(flood(refusal_log, "elko", LIMIT, 1)) == 1
    assert len(flood(refusal_log, "dbp", LIMIT, LINES)) == LINES
    assert len(logged(lambda: refusal_log.add("elko", "192.0.2.1", SYNTAX))) == 1


def test_failures_are_bounded_as_well(refusal_log: RefusalLog, clock: Clock) -> None:
    def fail() -> None:
        for number in range(1_000):
            try:
                raise ZeroDivisionError("as it is meant to")
            except ZeroDivisionError:
                refusal_log.failed("dbp", f"a{number}")

    assert len(logged(fail)) == LINES
    [event] = logged(lambda: clock.advance(LINE_EVERY))
    assert event["count"] == 1_000 - LINES


def test_what_needs_no_line_is_only_counted(refusal_log: RefusalLog, counters: Counters) -> None:
    assert logged(lambda: refusal_log.count("elko_accept", "paused")) == []
    assert counters.get("elko_accept", "paused") == 1


# deadlines


class Due:
    """Deadlines, and who missed one."""

    def __init__(self, then: Callable[[str], None] = lambda key: None) -> None:
        self.clock = Clock()
        self.missed: list[str] = []
        self.then = then
        self.deadlines: Deadlines[str] = Deadlines(self.clock, self._miss)

    def _miss(self, key: str) -> None:
        self.missed.append(key)
        self.then(key)


def test_a_deadline_is_missed_once_within_a_second_of_its_time() -> None:
    due = Due()
    due.deadlines.add("a", 2.5)
    due.clock.pump([1, 1])
    assert due.missed == []
    due.clock.advance(1)
    assert due.missed == ["a"]
    due.clock.pump([1] * 10)
    assert due.missed == ["a"]
    assert due.clock.getDelayedCalls() == []


def test_what_is_discarded_in_time_is_not_missed() -> None:
    due = Due()
    due.deadlines.add("a", 2)
    due.deadlines.add("b", 2)
    due.clock.advance(1)
    due.deadlines.discard("a")
    due.deadlines.discard("never there")
    due.clock.pump([1, 1])
    assert due.missed == ["b"]


def test_a_deadline_can_be_put_off() -> None:
    due = Due()
    due.deadlines.add("a", 2)
    due.clock.advance(1)
    due.deadlines.add("a", 5)
    due.clock.pump([1] * 4)
    assert due.missed == []
    due.clock.pump([1] * 2)
    assert due.missed == ["a"]


def test_there_is_one_timer_however_many_there_are() -> None:
    due = Due()
    for number in range(1_000):
        due.deadlines.add(str(number), 5)
    assert len(due.clock.getDelayedCalls()) == 1
    due.clock.advance(1)
    assert len(due.clock.getDelayedCalls()) == 1


def test_a_new_deadline_may_be_set_when_one_is_missed() -> None:
    due = Due(lambda key: due.deadlines.add("b", 1) if key == "a" else None)
    due.deadlines.add("a", 1)
    due.clock.pump([1, 1, 1])
    assert due.missed == ["a", "b"]
    assert due.clock.getDelayedCalls() == []


def test_stopped_deadlines_are_not_missed() -> None:
    due = Due()
    due.deadlines.add("a", 1)
    due.deadlines.stop()
    due.deadlines.stop()
    assert due.clock.getDelayedCalls() == []
    assert due.missed == []


def test_one_that_is_missed_may_discard_another_that_is_due() -> None:
    due = Due(lambda key: due.deadlines.discard("b"))
    for key in ("a", "b", "c"):
        due.deadlines.add(key, 1)
    due.clock.advance(1)
    assert due.missed == ["a", "c"]


def test_one_that_fails_does_not_keep_the_others_from_being_noticed() -> None:
    def fail(key: str) -> None:
        if key == "a":
            raise ZeroDivisionError("as it is meant to")

    due = Due(fail)
    for key in ("a", "b"):
        due.deadlines.add(key, 1)
    due.deadlines.add("c", 3)
    with capturedLogs() as logs:
        due.clock.pump([1] * 5)
    assert due.missed == ["a", "b", "c"]
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError]


def test_many_that_are_missed_at_once_are_divided_between_turns() -> None:
    def work(key: str) -> None:
        due.clock.rightNow += 0.0005

    def turn() -> None:
        turns.append(len(due.missed))
        due.deadlines.discard("500")
        due.deadlines.add("600", 100)
        if len(due.missed) < 998:
            due.clock.callLater(0, turn)

    due, turns = Due(work), [0]
    for number in range(1_000):
        due.deadlines.add(str(number), 1)
    due.clock.callLater(1, turn)
    due.clock.advance(1)
    assert due.missed == [str(number) for number in range(1_000) if number not in (500, 600)]
    assert max(after - before for before, after in pairwise(turns)) <= 5
    assert len(due.clock.getDelayedCalls()) == 1


def test_a_refusal_on_one_wire_hides_none_on_another(clock: Clock) -> None:
    refusal_log = RefusalLog(Counters(), clock)
    with capturedLogs() as logs:
        for wire in ("elko", "console", "elko"):
            refusal_log.add(wire, "192.0.2.1", Refusal(Reason.SYNTAX, "no"))
    assert [event["wire"] for event in logs] == ["elko", "console"]
