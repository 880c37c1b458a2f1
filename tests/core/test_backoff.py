"""Exponential back-off."""

from __future__ import annotations

import pytest

from broker.core.limits import Backoff


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
