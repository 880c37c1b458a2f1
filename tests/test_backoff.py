"""Exponential back-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.backoff import Backoff, Pauses


def test_a_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, most=3.0)
    assert [backoff.after(failures) for failures in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_factor_may_be_another() -> None:
    assert [Backoff(1.0, 100.0, factor=3.0).after(failures) for failures in (1, 2, 3)] == [1.0, 3.0, 9.0]


def test_any_number_of_failures_has_a_pause() -> None:
    assert Backoff(1.0, 30.0).after(1_000_000) == 30.0


@pytest.mark.parametrize(("fraction", "pause"), [(0.0, 2.0), (0.5, 3.0), (1.0, 4.0)])
def test_the_jitter_is_left_to_chance(fraction: float, pause: float) -> None:
    assert Backoff(4.0, 4.0, jitter=0.5).after(1, fraction) == pause


def test_pauses_double_up_to_the_most() -> None:
    pauses = Pauses(0.1, 1.0, lambda: 1.0)
    assert [round(pauses.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    pauses.reset()
    assert pauses.next() == 0.1


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2_000))
def test_a_part_of_a_pause_is_chance(fraction: float, attempts: int) -> None:
    pauses = Pauses(0.1, 10.0, lambda: fraction)
    for _ in range(attempts):
        pauses.next()
    whole = min(0.1 * 2 ** min(attempts, 20), 10.0)
    assert whole / 2 <= pauses.next() <= whole


def test_clients_do_not_come_back_together() -> None:
    assert len({Pauses(0.1, 10.0).next() for _ in range(100)}) > 50
