"""The forecasting models, and which of them is believed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spark.capacity.planning import models
from spark.capacity.planning.models import DAY, forecast
from tests.examples import examples

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
def test_the_choice_is_no_worse_than_the_floor(family):
    rng = np.random.default_rng(2026)
    chosen, floors = 0.0, 0.0
    for days, horizon in ((15, DAY), (16, DAY), (14, DAY), (17, DAY), (70, WEEK), (77, WEEK)):
        series = FAMILIES[family](rng, days)
        # Several futures of each, so that one lucky day does not decide.
        for origin in range(len(series) - 4 * horizon, len(series) - horizon + 1, horizon):
            told, actual = forecast(series[:origin], horizon), series[origin : origin + horizon]
            scale = models.naive_scale(series[:origin], told.season)
            chosen += np.abs(actual - told.p50).mean() / scale
            floors += np.abs(actual - np.resize(series[origin - told.season : origin], horizon)).mean() / scale
    assert chosen <= 1.05 * floors


def test_what_repeats_exactly_is_forecast_exactly_by_the_floor():
    told = forecast(shape(49), WEEK)
    assert told.model == "naive-week"
    np.testing.assert_allclose(told.p50, shape(56)[-WEEK:])
    assert told.mase == told.mase_naive == 0.0
    assert (told.coverage, told.flag) == (1.0, "")


def test_noise_on_a_daily_curve_is_averaged_away_by_a_model_that_won():
    rng = np.random.default_rng(1)
    told = forecast(daily(14) + rng.normal(0, 15, 14 * DAY), DAY)
    assert not told.model.startswith("naive")
    assert told.mase <= (1.0 - models.MARGIN) * told.mase_naive
    assert np.abs(told.p50 - daily(1)).mean() < 10


def test_growth_goes_on_and_fades():
    levels = np.repeat(np.arange(10) * 10.0, DAY)
    said = models.trend(daily(10) + levels, DAY, 3 * DAY).reshape(3, DAY).mean(axis=1)
    np.testing.assert_allclose(said, [100 + 90 + 8, 100 + 90 + 8 + 6.4, 100 + 90 + 8 + 6.4 + 5.12])


def test_one_spike_in_the_history_does_not_bend_the_trend_or_the_median():
    series = daily(10)
    series[5 * DAY : 5 * DAY + 6] += 10_000
    for model in (models.median_profile, models.trend):
        np.testing.assert_allclose(model(series, DAY, DAY), daily(1), atol=1.0)


def fold(number: int, **errors: float) -> models.Fold:
    """A fold in which the models were wrong by so much."""
    zeros = np.zeros(4)
    return models.Fold(number, zeros, {name: zeros + error for name, error in errors.items()}, 1.0)


def test_a_model_that_wins_by_less_than_the_margin_is_not_taken():
    assert models.choose([fold(i, naive=1.0, other=0.91) for i in range(10)], "naive") == "naive"
    assert models.choose([fold(i, naive=1.0, other=0.89) for i in range(10)], "naive") == "other"


def test_a_model_that_wins_big_but_seldom_is_not_taken():
    folds = [fold(i, naive=1.0, other=1.01) for i in range(9)] + [fold(9, naive=50.0, other=1.0)]
    assert models.choose(folds, "naive") == "naive"


def test_three_folds_prove_nothing():
    assert models.choose([fold(i, naive=1.0, other=0.1) for i in range(3)], "naive") == "naive"
    assert models.choose([fold(i, naive=1.0, other=0.1) for i in range(4)], "naive") == "other"


def test_a_model_that_was_worse_of_late_is_not_taken_whatever_it_did_before():
    folds = [fold(i, naive=1.0, other=0.1, next=0.2) for i in range(9)]
    looks = [fold(9, naive=1.0, other=0.5, next=0.5), fold(10, naive=1.0, other=1.6, next=1.4)]
    assert models.choose(folds, "naive", looks) == "next"
    # A single look is half a day, and may deceive.
    assert models.choose(folds, "naive", [fold(9, naive=1.0, other=1.15, next=1.0)]) == "other"
    assert models.choose(folds, "naive", [fold(9, naive=1.0, other=1.25, next=1.25)]) == "naive"


def test_the_latest_looks_end_with_the_history():
    looks = models.latest_looks(shape(49), WEEK, WEEK)
    assert [look.origin // DAY for look in looks] == [43, 44, 45, 46, 47, 48]
    assert [len(look.actual) // DAY for look in looks] == [6, 5, 4, 3, 2, 1]
    assert [look.origin for look in models.latest_looks(daily(10), DAY, DAY)] == [10 * DAY - DAY // 2]


def test_a_load_that_fell_for_good_is_not_forecast_from_the_weeks_before():
    series = FAMILIES["weekly"](np.random.default_rng(6), 56)
    series[42 * DAY :] *= 0.3
    told = forecast(series, WEEK)
    assert np.abs(told.p50 - 0.3 * shape(63)[-WEEK:]).mean() < 0.1 * shape(7).mean()


def test_a_model_that_some_folds_do_not_know_is_not_taken():
    folds = [fold(0, naive=1.0)] + [fold(i, naive=1.0, other=0.1) for i in range(1, 9)]
    assert models.choose(folds, "naive") == "naive"


def test_a_fold_sees_nothing_of_its_future():
    series = FAMILIES["weekly"](np.random.default_rng(3), 35)
    changed = series.copy()
    changed[30 * DAY :] *= 7.0
    told = {f.origin: f.said for f in models.past_folds(series, WEEK, DAY)}
    for other in models.past_folds(changed, WEEK, DAY):
        if other.origin <= 30 * DAY:
            for model, said in other.said.items():
                np.testing.assert_array_equal(said, told[other.origin][model])


def test_the_p95_of_a_fold_is_judged_by_folds_that_had_ended():
    # The one surprise: nothing before it could tell, and what came after must not help it.
    folds = [
        models.Fold(i * 4, np.array([1.0, 1.0, 1.0, 9.0 if i == 3 else 1.0]), {"m": np.ones(4)}, 1.0) for i in range(6)
    ]
    # Of six folds the first has none before it; one of the five others is the surprise, in one of its four steps.
    assert models.coverage(folds, "m") == pytest.approx(19 / 20)


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
    assert (told.model, told.flag, told.folds) == (model, flag, 0)
    assert np.isnan(told.mase)
    assert len(told.p50) == len(told.p95) == 48


def test_three_weeks_make_the_season_a_week():
    assert forecast(shape(20), DAY).season == DAY
    assert forecast(shape(21), DAY).season == WEEK


def test_folds_that_look_less_far_than_the_forecast_are_flagged():
    assert models.FLAG_SHORT_FOLDS in forecast(daily(6), WEEK).flag
    assert models.FLAG_SHORT_FOLDS not in forecast(shape(49), WEEK).flag


def test_no_history_at_all():
    for series in (np.array([]), np.full(100, np.nan)):
        told = forecast(series, 24)
        assert (told.model, told.flag) == ("none", models.FLAG_EMPTY)
        assert not told.p95.any()


@pytest.mark.parametrize("value", [0.0, 7.5])
def test_a_constant_stays_constant_and_says_so(value):
    told = forecast(np.full(30 * DAY, value), WEEK)
    assert told.flag == models.FLAG_CONSTANT
    for steps in (told.p50, told.p95):
        np.testing.assert_array_equal(steps, np.full(WEEK, value))
    assert (told.mase, told.mase_naive) == (0.0, 0.0)


def test_load_does_not_fall_below_nothing():
    falling = np.maximum(daily(10) - np.repeat(np.arange(10) * 25.0, DAY), 0.0)
    assert min(said.min() for said in models.candidates(falling, DAY, WEEK).values()) >= 0.0


def test_every_model_is_mixed_with_the_floor():
    series = FAMILIES["noise"](np.random.default_rng(5), 10)
    floor, alone = series[-DAY:], models.median_profile(series, DAY, DAY)
    said = models.candidates(series, DAY, DAY)
    np.testing.assert_array_equal(said["naive-day"], floor)
    np.testing.assert_allclose(said["median-day"], (2 * alone + floor) / 3)


def test_gaps_are_filled_for_the_models_only():
    series = daily(20)
    series[5 * DAY + 3 : 5 * DAY + 9] = np.nan
    series[:2] = np.nan
    told = forecast(series, DAY)
    assert told.flag == ""
    assert told.mase == pytest.approx(0.0, abs=0.05)
    np.testing.assert_allclose(told.p50, np.roll(daily(1), 0), atol=1.0)
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
def test_whatever_the_history_there_is_an_answer_in_order(series, horizon):
    told = forecast(series, horizon)
    assert len(told.p50) == len(told.p95) == horizon
    for steps in (told.p50, told.p95):
        assert np.isfinite(steps).all()
        assert (steps >= 0.0).all()
    assert (told.p95 >= told.p50).all()


def test_an_endless_value_is_as_good_as_none():
    series = daily(10)
    series[100] = np.inf
    assert np.isfinite(forecast(series, DAY).p95).all()


def test_only_the_last_weeks_of_a_long_history_count():
    series = FAMILIES["weekly"](np.random.default_rng(4), models.HISTORY_DAYS + 70)
    recent = forecast(series[-models.HISTORY_DAYS * DAY :], WEEK)
    np.testing.assert_array_equal(forecast(series, WEEK).p95, recent.p95)


@pytest.mark.parametrize(("horizon", "day"), [(0, 24), (24, 0)])
def test_a_horizon_or_a_day_of_nothing_is_an_error(horizon, day):
    with pytest.raises(ValueError, match="one step"):
        forecast(daily(3), horizon, day)
