"""States of a service: the measured ones before those of the policy."""

import pytest

from spark.capacity.planning.needs import FEWEST, Needs, State, state_of
from spark.capacity.planning.policy import Policy

NEEDS = Needs(100.0)
"""Providers of a full load of 100: for 80 at the target, and one that may fail."""


@pytest.mark.parametrize(
    ("providers", "now", "day", "bound", "hours", "state"),
    [
        (4, 401.0, 401.0, 600.0, FEWEST, State.OVERLOADED),
        # A farm of a few minutes is overloaded as well, if it is.
        (4, 401.0, 401.0, 600.0, 1, State.OVERLOADED),
        (4, 300.0, 301.0, 600.0, 1, State.NO_SPARE),
        (4, 300.0, 300.0, 400.0, FEWEST, State.BELOW),
        (4, 300.0, 300.0, 400.0, FEWEST - 1, State.TOO_LITTLE),
        (4, 100.0, 300.0, 300.0, FEWEST, State.ENOUGH),
        (8, 100.0, 300.0, 400.0, FEWEST, State.FREE),
        # Without load one is enough, and a second one may go.
        (1, 0.0, 0.0, 0.0, FEWEST, State.ENOUGH),
        (2, 0.0, 0.0, 0.0, FEWEST, State.FREE),
        # The only one: its failure is an overload.
        (1, 1.0, 1.0, 1.0, FEWEST, State.NO_SPARE),
        (0, None, None, 10.0, FEWEST, State.BELOW),
        # Without a bound only what was measured counts.
        (4, 401.0, 401.0, None, FEWEST, State.OVERLOADED),
        (4, 100.0, 301.0, None, FEWEST, State.NO_SPARE),
        (4, 100.0, 300.0, None, FEWEST, State.TOO_LITTLE),
        (14, 804.0, 804.0, 1_045.0, FEWEST, State.ENOUGH),
    ],
)
def test_a_service_has_the_worst_of_its_states(providers, now, day, bound, hours, state):
    assert state_of(NEEDS, providers, now, day, bound, hours) is state


def test_a_policy_without_failures_is_not_asked_for_a_spare_one():
    needs = Needs(100.0, Policy(n_plus=0))
    assert state_of(needs, 4, 390.0, 390.0, 300.0, FEWEST) is State.ENOUGH


def test_nothing_is_known_without_a_full_load():
    assert state_of(Needs(None), 4, 1e9, 1e9, 1e9, FEWEST) is State.UNKNOWN
