"""The gate of logins: guesses by address and name, and by address; and the rates of requests."""

from __future__ import annotations

from contextlib import suppress

import pytest
from twisted.internet.task import Clock

from broker.access.logins import (
    ADDRESS_GUESS_EVERY,
    ADDRESS_GUESSES,
    GUESS_EVERY,
    GUESSES,
    MAX_REMEMBERED,
    LoginGate,
    RequestLimits,
)
from broker.core.errors import Reason, Refusal
from broker.core.rates import Rates

HERE, THERE = "192.0.2.1:4000", "192.0.2.2:4000"

WRONG, EARLY = Reason.WRONG_CREDENTIALS, Reason.TOO_MANY_GUESSES


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> LoginGate:
    return LoginGate(clock.seconds)


def guess(gate: LoginGate, name: str = "ann", address: str = HERE, right: bool = False) -> bool:
    """Return True if an attempt was admitted; it is a wrong password by default."""
    try:
        attempt = gate.begin(address, name)
    except Refusal as refusal:
        assert refusal.reason is EARLY
        return False
    if right:
        attempt.right()
    return True


def spray(gate: LoginGate, count: int, address: str = HERE) -> int:
    """Return the number of admitted guesses at names that are all different."""
    return sum(guess(gate, f"name-{number}", address) for number in range(count))


def test_some_guesses_are_free_and_each_further_one_takes_its_time(clock: Clock, gate: LoginGate) -> None:
    assert [guess(gate) for _ in range(GUESSES + 2)] == [True] * GUESSES + [False] * 2
    for _ in range(3):
        clock.advance(GUESS_EVERY - 0.25)
        assert not guess(gate)
        clock.advance(0.25)
        assert guess(gate)
        assert not guess(gate)


def test_right_passwords_take_nothing_and_pay_nothing_back(clock: Clock, gate: LoginGate) -> None:
    assert all(guess(gate, right=True) for _ in range(1_000))
    for _ in range(GUESSES - 1):
        assert guess(gate)
    assert all(guess(gate, right=True) for _ in range(1_000))
    assert guess(gate)
    assert not guess(gate, right=True)
    clock.advance(GUESS_EVERY)
    assert guess(gate, right=True)
    assert guess(gate)
    assert not guess(gate)


def test_attempts_whose_outcome_is_not_known_count_as_wrong_ones(gate: LoginGate) -> None:
    begun = [gate.begin(HERE, "ann") for _ in range(GUESSES)]
    assert not guess(gate)
    for attempt in begun:
        attempt.right()
    assert guess(gate, right=True)


def test_an_attempt_that_compared_nothing_counts_nothing(gate: LoginGate) -> None:
    for _ in range(100):
        gate.begin(HERE, "ann").void()
    assert not gate.knows(HERE, "ann")
    assert guess(gate)


def test_guesses_at_one_name_refuse_no_other_name_and_no_other_address(gate: LoginGate) -> None:
    for _ in range(GUESSES + 1):
        guess(gate)
    assert guess(gate, "bob", right=True)
    assert guess(gate, address=THERE, right=True)


def test_an_address_has_a_limit_for_all_names_together(clock: Clock, gate: LoginGate) -> None:
    assert spray(gate, 1_000) == ADDRESS_GUESSES
    assert not guess(gate, "newcomer", right=True)
    assert guess(gate, "newcomer", THERE, right=True)
    clock.advance(10 * ADDRESS_GUESS_EVERY)
    assert spray(gate, 1_000) == 10


def test_names_that_logged_in_from_an_address_come_back_while_others_are_guessed_there(gate: LoginGate) -> None:
    farm = [f"server-{number}" for number in range(1_000)]
    assert all(guess(gate, name, right=True) for name in farm)
    spray(gate, 1_000)
    assert all(guess(gate, name, right=True) for name in farm)
    # Their own limit stays.
    assert [guess(gate, "server-1") for _ in range(GUESSES + 1)] == [True] * GUESSES + [False]
    assert not guess(gate, "server-1", right=True)
    assert guess(gate, "server-2", right=True)


def test_names_that_nobody_can_have_are_one_name_of_which_nothing_is_stored(gate: LoginGate) -> None:
    names = ["x" * 1_000_000, "an n", "", "\u00e9", "password 1"]
    assert [guess(gate, name) for name in names] == [True] * GUESSES + [False] * 2
    assert len(gate._names) == 1


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
def test_guesses_count_for_a_host_and_for_a_network_of_ipv6(gate: LoginGate, one: str, other: str, same: bool) -> None:
    for _ in range(GUESSES):
        guess(gate, address=one)
    assert guess(gate, address=other) is not same


@pytest.mark.parametrize("step", [0.0, -3_600.0])
def test_guesses_are_forgotten_also_after_a_step_back_of_the_clock(clock: Clock, gate: LoginGate, step: float) -> None:
    for _ in range(9):
        guess(gate)
    clock.rightNow += step
    assert not guess(gate)
    clock.advance(GUESSES * GUESS_EVERY)
    assert [guess(gate) for _ in range(GUESSES + 1)] == [True] * GUESSES + [False]


def test_the_tables_are_bounded(gate: LoginGate) -> None:
    for number in range(MAX_REMEMBERED + 100):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        guess(gate, address=address)
        guess(gate, "bob", address, right=True)
    assert MAX_REMEMBERED - 1 <= len(gate._names) <= MAX_REMEMBERED
    assert len(gate._addresses) <= MAX_REMEMBERED
    assert not gate.knows("10.0.0.0", "bob")
    assert gate.knows("10.0.0.200", "bob")


# tokens that a person chose


def test_guesses_at_tokens_count_together_and_refuse_no_user(clock: Clock, gate: LoginGate) -> None:
    for _ in range(GUESSES):
        gate.begin_token(HERE)
    with pytest.raises(Refusal):
        gate.begin_token(HERE)
    gate.begin_token(THERE).right()
    assert guess(gate)
    clock.advance(GUESS_EVERY)
    gate.begin_token(HERE).right()
    assert not gate.knows(HERE, "")


def test_requests_have_a_rate_by_network_and_one_by_user() -> None:
    clock = Clock()
    limits = RequestLimits(Rates(clock.seconds), Rates(clock.seconds))

    def taken(user: str, address: str) -> int:
        """The requests of four that are permitted."""
        count = 0
        for _ in range(4):
            with suppress(Refusal):
                limits.take(user, address)
                count += 1
        return count

    assert not limits.on
    assert taken("ann", "192.0.2.1") == 4
    limits.use(0.0, 1.0, 3)
    assert limits.on
    assert (taken("ann", "192.0.2.1"), taken("ann", "192.0.2.2"), taken("bob", "192.0.2.1")) == (3, 0, 3)
    assert taken("", "192.0.2.1") == 4
    clock.advance(1)
    assert taken("ann", "192.0.2.1") == 1
    limits.use(1.0, 0.0, 3)
    assert limits.on
    assert (taken("ann", "2001:db8::1"), taken("bob", "2001:db8::2"), taken("", "2001:db8:1::1")) == (3, 0, 3)
    limits.use(0.0, 0.0, 3)
    assert not limits.on
