"""Rate limit of log lines: one in a while for each key, whatever the clock does, in bounded memory."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.core.rates import KEYS, LINE_EVERY, LogLimit


def test_each_key_has_one_line_in_a_while() -> None:
    clock = Clock()
    limit: LogLimit[str] = LogLimit(clock)
    assert [limit.due(key) for key in ("a", "a", "b", "b")] == [True, False, True, False]
    clock.advance(LINE_EVERY - 0.01)
    assert not limit.due("a")
    clock.advance(0.01)
    assert limit.due("a")
    assert not limit.due("a")


def test_a_clock_that_is_set_back_begins_again() -> None:
    clock = Clock()
    clock.advance(1_000.0)
    limit: LogLimit[str] = LogLimit(clock)
    assert limit.due("a")
    clock.rightNow = 10.0
    assert limit.due("a")
    assert not limit.due("a")


def test_the_table_of_logged_keys_is_bounded() -> None:
    limit: LogLimit[int] = LogLimit(Clock())
    assert all(limit.due(number) for number in range(KEYS))
    assert not limit.due(0)
    assert limit.due(KEYS)
    assert not limit.due(KEYS - 1)
    assert limit.due(0), "the oldest was forgotten"
    assert len(limit) == KEYS
