"""The forecast of a series."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spark.capacity.planning import models
from spark.capacity.planning.models import DAY, forecast
from tests.examples import examples
from tests.spark.benchmark.back_test import naive_scale

WEEK = 7 * DAY


def shape(days: int) -> np.ndarray:
    """A day's curve, lower at the weekend."""
    hours = np.arange(days * DAY)
    weekend = np.where(hours // DAY % 7 >= 5, 0.6, 1.0)
    return 100.0 * (1.0 + 0.6 * np.sin(2.0 * np.pi * (hours % DAY - 8) / DAY)) * weekend


def daily(days: int) -> np.ndarray:
    """A day's curve, each day the same."""
    return 100.0 + 60.0 * np.sin(2.0 * np.pi * np.arange(days * DAY) / DAY)


FAMILIES = {
    "weekly": lambda rng, days: shape(days) * rng.lognormal(0, 0.08, days * DAY),
    "daily": lambda rng, days: daily(days) * rng.lognormal(0, 0.15, days * DAY),
    "growing": lambda rng, days: shape(days) * np.linspace(1, 2, days * DAY) * rng.lognormal(0, 0.08, days * DAY),
    "noise": lambda rng, days: rng.gamma(2, 50, days * DAY),
    "walk": lambda rng, days: 100 * np.exp(np.cumsum(rng.normal(0, 0.03, days * DAY))),
    "spikes": lambda rng, days: 20 + (rng.random(days * DAY) < 0.03) * rng.gamma(4, 20, days * DAY),
}
"""Kinds of load that farms have, of each as many series as one likes."""


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_forecast_is_no_worse_than_the_seasonal_naive_model(family):
    rng = np.random.default_rng(2026)
    ours, naive = 0.0, 0.0
    for days, horizon in ((15, DAY), (16, DAY), (14, DAY), (17, DAY), (70, WEEK), (77, WEEK)):
        series = FAMILIES[family](rng, days)
        # Several futures of each, so that one lucky day does not decide.
        for origin in range(len(series) - 4 * horizon, len(series) - horizon + 1, horizon):
            told, actual = forecast(series[:origin], horizon), series[origin : origin + horizon]
            scale = naive_scale(series[:origin], told.season)
            ours += np.abs(actual - told.p50).mean() / scale
            naive += np.abs(actual - np.resize(series[origin - told.season : origin], horizon)).mean() / scale
    # Of a random walk the last season says all that is known, of growth most.
    assert ours <= (1.1 if family == "walk" else 1.05) * naive


def test_what_repeats_exactly_is_forecast_exactly():
    told = forecast(shape(49), WEEK)
    assert told.model == "profile-week"
    np.testing.assert_allclose(told.p50, shape(56)[-WEEK:])
    assert told.flag == ""


def test_noise_on_a_daily_curve_is_averaged():
    rng = np.random.default_rng(1)
    series = daily(14) + rng.normal(0, 15, 14 * DAY)
    told = forecast(series, DAY)
    usual = np.median(series[-4 * DAY :].reshape(4, DAY), axis=0)
    level = (series[-DAY:] - usual).mean()
    np.testing.assert_allclose(told.p50, (series[-DAY:] + usual + (usual + level)) / 3)
    assert np.abs(told.p50 - daily(1)).mean() < 0.9 * np.abs(series[-DAY:] - daily(1)).mean()


def test_one_outage_in_the_history_is_left_out_of_the_usual_season():
    series = daily(10)
    series[8 * DAY : 8 * DAY + 6] = 0.0
    np.testing.assert_allclose(models.profile(series, DAY, DAY), daily(1), atol=1.0)


def test_a_load_that_fell_for_good_is_not_forecast_from_the_weeks_before():
    series = FAMILIES["weekly"](np.random.default_rng(6), 56)
    series[42 * DAY :] *= 0.3
    told = forecast(series, WEEK)
    assert np.abs(told.p50 - 0.3 * shape(63)[-WEEK:]).mean() < 0.3 * shape(7).mean()


def test_load_does_not_fall_below_nothing():
    falling = np.maximum(daily(10) - np.repeat(np.arange(10) * 25.0, DAY), 0.0)
    assert models.profile(falling, DAY, WEEK).min() >= 0.0


@pytest.mark.parametrize(
    ("hours", "model", "flag"),
    [
        (1, "last", models.FLAG_TINY),
        (23, "last", models.FLAG_TINY),
        (24, "naive-day", models.FLAG_SHORT),
        (71, "naive-day", models.FLAG_SHORT),
    ],
)
def test_a_short_history_is_flagged(hours, model, flag):
    told = forecast(daily(3)[:hours], 48)
    assert (told.model, told.flag) == (model, flag)
    assert len(told.p50) == 48


def test_three_weeks_make_the_season_a_week():
    assert forecast(shape(20), DAY).season == DAY
    assert forecast(shape(21), DAY).season == WEEK


def test_no_history_at_all():
    for series in (np.array([]), np.full(100, np.nan)):
        told = forecast(series, 24)
        assert (told.model, told.flag) == ("none", models.FLAG_EMPTY)
        assert np.isnan(told.p50).tolist() == [True] * 24


@pytest.mark.parametrize("value", [0.0, 7.5])
def test_a_constant_stays_constant_and_says_so(value):
    told = forecast(np.full(30 * DAY, value), WEEK)
    assert told.flag == models.FLAG_CONSTANT
    np.testing.assert_array_equal(told.p50, np.full(WEEK, value))


def test_gaps_are_filled_and_many_of_them_are_flagged():
    series = daily(20)
    series[5 * DAY + 3 : 5 * DAY + 9] = np.nan
    series[:2] = np.nan
    told = forecast(series, DAY)
    assert told.flag == ""
    np.testing.assert_allclose(told.p50, daily(1), atol=1.0)
    many = daily(20)
    many[::5] = np.nan
    assert forecast(many, DAY).flag == models.FLAG_GAPS


def test_a_gap_at_the_beginning_is_not_history():
    series = np.concatenate([np.full(40 * DAY, np.nan), daily(2)])
    assert forecast(series, DAY).flag == models.FLAG_SHORT


def test_a_gap_is_filled_from_the_day_before_else_by_a_line():
    series = np.arange(4.0 * DAY)
    series[DAY + 5] = np.nan
    series[3] = np.nan
    full = models.filled(series)
    assert full[DAY + 5] == 5.0
    assert full[3] == 3.0


@settings(max_examples=examples(60), deadline=None)
@given(
    arrays(np.float64, st.integers(1, 30 * DAY), elements=st.floats(0, 1e12) | st.just(np.nan)),
    st.sampled_from([1, 24, 168]),
)
def test_whatever_the_history_there_is_an_answer(series, horizon):
    told = forecast(series, horizon)
    assert len(told.p50) == horizon
    if np.isfinite(series).any():
        assert np.isfinite(told.p50).all()
        assert (told.p50 >= 0.0).all()
    else:
        assert np.isnan(told.p50).all()


def test_an_endless_value_is_as_good_as_none():
    series = daily(10)
    series[100] = np.inf
    assert np.isfinite(forecast(series, DAY).p50).all()


@pytest.mark.parametrize("days", [1, 2, 10, 30])
def test_the_largest_numbers_have_a_forecast(days):
    largest = np.finfo(np.float64).max
    series = np.resize([largest, largest / 2, 1.0], days * DAY)
    with np.errstate(all="raise"):
        told = forecast(series, WEEK).p50
        assert (forecast(np.full(days * DAY, largest), DAY).p50 == largest).all()
    assert (told >= 0.0).all()
    assert told.max() == largest


def test_only_the_last_weeks_of_a_long_history_count():
    series = FAMILIES["weekly"](np.random.default_rng(4), models.HISTORY_DAYS + 70)
    recent = forecast(series[-models.HISTORY_DAYS * DAY :], WEEK)
    np.testing.assert_array_equal(forecast(series, WEEK).p50, recent.p50)
