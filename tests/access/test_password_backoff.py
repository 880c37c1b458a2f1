"""Back-off after wrong passwords: of replies, and of attempts."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from broker.access.password_backoff import BACKOFF, FORGET, FREE, MAX_REMEMBERED, GuessLimit, ReplyDelays
from broker.core.errors import Reason, Refusal

# the replies of MTL


def replies(delays: ReplyDelays, user: str, address: str, count: int, now: float = 0.0) -> list[float]:
    """Seconds that so many failures wait."""
    return [delays.reply(user, address, False, now) for _ in range(count)]


def test_the_first_failures_cost_no_time_and_the_next_ones_more_and_more() -> None:
    assert replies(ReplyDelays(), "anna", "", 7) == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 4.0]
    assert replies(ReplyDelays(), "", "10.0.0.1", 7) == [0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 4.0]


def test_what_is_no_verdict_does_not_wait() -> None:
    delays = ReplyDelays()
    replies(delays, "anna", "10.0.0.1", 9)
    assert delays.reply("anna", "10.0.0.1", None, 0.0) == 0.0


def test_a_success_waits_as_a_failure_would() -> None:
    delays = ReplyDelays()
    replies(delays, "anna", "10.0.0.1", FREE)
    assert delays.reply("anna", "10.0.0.2", True, 0.0) == BACKOFF.first


def test_a_success_clears_the_user_but_not_the_address() -> None:
    delays = ReplyDelays()
    replies(delays, "anna", "10.0.0.1", 9)
    delays.reply("anna", "10.0.0.1", True, 0.0)
    assert delays.reply("anna", "10.0.0.2", False, 0.0) == 0.0
    assert delays.reply("bert", "10.0.0.1", False, 0.0) == BACKOFF.most


def test_neither_many_users_nor_many_addresses_help() -> None:
    delays = ReplyDelays()
    for number in range(9):
        delays.reply("anna", f"10.0.0.{number}", False, 0.0)
        delays.reply(f"user{number}", "10.1.0.0", False, 0.0)
    assert delays.reply("anna", "10.2.0.0", False, 0.0) == BACKOFF.most
    assert delays.reply("bert", "10.1.0.0", False, 0.0) == BACKOFF.most
    assert delays.reply("bert", "10.2.0.0", False, 0.0) == 0.0


def test_who_and_where_are_told_apart() -> None:
    delays = ReplyDelays()
    replies(delays, "x", "", 9)
    assert delays.reply("", "x", False, 0.0) == 0.0


def test_what_is_not_known_is_not_taken_for_one() -> None:
    assert replies(ReplyDelays(), "", "", 9) == [0.0] * 9


@pytest.mark.parametrize("later", [FORGET, -1.0])
def test_failures_are_forgotten(later: float) -> None:
    delays = ReplyDelays()
    replies(delays, "anna", "10.0.0.1", 9, 1_000.0)
    assert delays.reply("anna", "10.0.0.1", False, 1_000.0 + FORGET - 1) == BACKOFF.most
    assert delays.reply("anna", "10.0.0.1", False, 1_000.0 + FORGET - 1 + later) == 0.0


def test_only_so_many_are_remembered() -> None:
    delays = ReplyDelays()
    replies(delays, "anna", "", 9)
    for number in range(MAX_REMEMBERED - 1):
        delays.reply(f"user{number}", f"address{number}", False, 0.0)
    assert delays.reply("anna", "", True, 0.0) == BACKOFF.most
    replies(delays, "anna", "", 9)
    for number in range(MAX_REMEMBERED):
        delays.reply(f"user{number}", f"address{number}", False, 0.0)
    assert delays.reply("anna", "", False, 0.0) == 0.0


# attempts


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_000_000.0)
    return clock


@pytest.fixture
def guesses(clock: Clock) -> GuessLimit:
    return GuessLimit(clock.seconds)


def attempt(guesses: GuessLimit, code: str, address: str = "192.0.2.1:4000") -> Reason | None:
    """The reason for which this code is refused; None if it is right."""
    try:
        guesses.check(address, code, "figleaf")
    except Refusal as refusal:
        return refusal.reason
    return None


WRONG, EARLY = Reason.WRONG_CREDENTIALS, Reason.TOO_MANY_GUESSES


def test_the_first_failures_are_free_and_the_next_ones_hold_attempts_up(clock: Clock, guesses: GuessLimit) -> None:
    for step in (*[0.0] * (FREE - 1), 1.0, 2.0, 4.0, 4.0):
        assert attempt(guesses, "wrong") is WRONG
        assert guesses.wait("192.0.2.1") == step
        if step:
            clock.advance(step - 0.25)
            assert attempt(guesses, "wrong") is EARLY
            assert guesses.wait("192.0.2.1") == 0.25
            clock.advance(0.25)


def test_the_right_password_is_not_compared_either_while_the_address_backs_off(
    clock: Clock, guesses: GuessLimit
) -> None:
    for _ in range(FREE):
        attempt(guesses, "wrong")
    assert attempt(guesses, "figleaf") is EARLY
    clock.advance(BACKOFF.first)
    assert attempt(guesses, "figleaf") is None
    assert attempt(guesses, "wrong") is WRONG
    assert guesses.wait("192.0.2.1") == BACKOFF.after(2), "a success forgets no failure"


def test_another_address_is_not_affected(guesses: GuessLimit) -> None:
    for port in range(9):
        attempt(guesses, "wrong", f"192.0.2.1:{port}")
    assert attempt(guesses, "figleaf", "192.0.2.1:9") is EARLY
    assert attempt(guesses, "figleaf", "192.0.2.2:9") is None
    assert attempt(guesses, "figleaf", "unix") is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1:5", "192.0.2.1", True),
        ("192.0.2.1:5", "::ffff:192.0.2.1:6", True),
        ("192.0.2.1:5", "192.0.2.15:5", False),
        ("2001:db8:1:2:3:4:5:6:4000", "2001:db8:1:2::1:4001", True),
        ("2001:db8:1:2::1:4000", "2001:db8:1:3::1:4000", False),
        ("unix", "unix", True),
        ("::1:4000", "::1:4001", True),
    ],
)
def test_failures_count_for_a_host_and_for_a_network_of_ipv6(
    guesses: GuessLimit, one: str, other: str, same: bool
) -> None:
    for _ in range(FREE):
        guesses.failed(one)
    assert (guesses.wait(other) > 0) is same


@pytest.mark.parametrize("later", [FORGET, -1.0])
def test_failed_attempts_are_forgotten(clock: Clock, guesses: GuessLimit, later: float) -> None:
    for _ in range(9):
        guesses.failed("192.0.2.1")
    clock.rightNow += later
    assert guesses.wait("192.0.2.1") == 0
    assert attempt(guesses, "wrong") is WRONG
    assert guesses.wait("192.0.2.1") == 0


def test_the_table_of_addresses_is_bounded(guesses: GuessLimit) -> None:
    for _ in range(FREE):
        guesses.failed("192.0.2.1")
    for number in range(MAX_REMEMBERED - 1):
        guesses.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert guesses.wait("192.0.2.1") == BACKOFF.first
    guesses.failed("198.51.100.1")
    assert guesses.wait("192.0.2.1") == 0


@pytest.mark.parametrize("code", ["", "Figleaf", "figleaf ", "\u00e9", "figlea"])
def test_only_the_very_password_is_right(guesses: GuessLimit, code: str) -> None:
    assert attempt(guesses, code) is WRONG
