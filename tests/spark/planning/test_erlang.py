"""Number of providers with which requests do not wait."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.planning.needs import MOST_ERLANGS, providers_for, waiting


@pytest.mark.parametrize(("erlangs", "providers"), [(1, 4), (5, 10), (20, 29), (64, 79), (200, 226)])
def test_the_known_numbers_for_a_twentieth_that_waits(erlangs, providers):
    assert providers_for(erlangs) == providers
    assert waiting(providers, erlangs) <= 0.05 < waiting(providers - 1, erlangs)


def test_two_erlangs_on_three_providers_make_four_in_nine_wait():
    assert waiting(3, 2.0) == pytest.approx(4 / 9)


@given(st.integers(1, 40), st.floats(0.01, 30))
def test_it_is_what_the_formula_with_factorials_says(providers, erlangs):
    if providers <= erlangs:
        assert waiting(providers, erlangs) == 1.0
        return
    last = erlangs**providers / math.factorial(providers) * providers / (providers - erlangs)
    below = sum(erlangs**k / math.factorial(k) for k in range(providers))
    assert waiting(providers, erlangs) == pytest.approx(last / (below + last), rel=1e-9)


@given(st.floats(0.0, 500.0))
def test_more_providers_make_fewer_wait(erlangs):
    shares = [waiting(k, erlangs) for k in range(0, 700, 50)]
    assert all(fewer >= more for fewer, more in pairwise(shares))
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_a_huge_farm_neither_overflows_nor_takes_long():
    assert MOST_ERLANGS < providers_for(MOST_ERLANGS) < MOST_ERLANGS * 1.01


def test_no_traffic_needs_nobody():
    assert providers_for(0.0) == 0
    assert waiting(0, 0.0) == 0.0
    assert waiting(0, 0.5) == 1.0
