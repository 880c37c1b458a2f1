"""The peak bound, and the record of its misses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spark.capacity.planning.peak_bound import (
    A_DAY,
    A_WEEK,
    MOST_HEADROOM,
    OWN_WEIGHT_DAYS,
    SPAN_DAYS,
    WEIGHT_DAYS,
    basis,
    bound,
    by_hour,
    headroom_of,
    odds,
    past_odds,
    record,
    schedule_record,
    upper_limit,
)
from tests.examples import examples

DAY, WEEK = 24, 168


def test_the_bound_is_the_peak_of_the_last_week_with_headroom_and_at_least_that_of_eight_weeks():
    peaks = np.ones(70 * DAY)
    peaks[-SPAN_DAYS * DAY - 1] = 90.0
    assert bound(peaks) == pytest.approx(A_WEEK.least)
    peaks[-SPAN_DAYS * DAY] = 50.0
    assert (bound(peaks), basis(peaks)) == (50.0, (len(peaks) - SPAN_DAYS * DAY, 1.0))
    assert bound(peaks, headroom=1.3) == pytest.approx(1.3 * 50.0)
    # With its headroom the last week is above it.
    peaks[-WEEK] = 45.0
    assert bound(peaks) == pytest.approx(A_WEEK.least * 45.0)
    assert basis(peaks) == (len(peaks) - WEEK, A_WEEK.least)
    peaks[-WEEK:] = np.nan
    assert bound(peaks) == pytest.approx(A_WEEK.least * 50.0)
    assert bound(np.concatenate([peaks, np.full(60 * DAY, np.nan)])) == pytest.approx(A_WEEK.least * 90.0)
    nothing = np.full(5, np.nan)
    assert np.isnan([bound(nothing), *by_hour(nothing, DAY)]).all()
    assert basis(nothing) is None


def test_the_headroom_falls_with_the_length_of_the_history():
    days = (0, 1, 7, 14, 21, 28, 56, 400)
    assert [headroom_of(day * DAY) for day in days] == pytest.approx(
        [MOST_HEADROOM, MOST_HEADROOM, 1.6, 1.3, A_WEEK.least, A_WEEK.least, A_WEEK.least, A_WEEK.least]
    )
    # A day ahead it is lower.
    assert [headroom_of(day * DAY, horizon=DAY) for day in days] == pytest.approx(
        [MOST_HEADROOM, MOST_HEADROOM, 1.6, 1.3, 1.2, A_DAY.least, A_DAY.least, A_DAY.least]
    )
    # A day of four steps, as of a series with one value each six hours.
    assert headroom_of(14 * 4, 4) == pytest.approx(1.3)


def test_an_hour_is_bounded_by_its_own_peaks_and_those_beside_it():
    peaks = np.tile(np.arange(24.0), 10)
    told = by_hour(peaks, 2 * DAY)
    assert told[5] == pytest.approx(headroom_of(10 * DAY) * 6.0)
    assert told[0] == pytest.approx(headroom_of(10 * DAY) * 23.0)
    assert told.max() == pytest.approx(bound(peaks))
    # With three weeks of history a quiet Sunday is one: the history ends with it.
    weekly = np.tile(np.repeat([10.0] * 6 + [1.0], DAY), 4)
    told = by_hour(weekly, WEEK)
    assert told[6 * DAY + 12] == pytest.approx(A_WEEK.least)
    assert told[12] == pytest.approx(A_WEEK.least * 10.0)


def test_the_record_counts_the_misses_of_moments_that_saw_the_past_only():
    peaks = np.ones(10 * DAY)
    peaks[7 * DAY + 3] = 2.0
    told = record(peaks, DAY, headroom=1.3)
    # From the fifth day to the tenth; the eighth was a surprise, after which the bound is higher.
    assert (told.trials, told.missed, told.ahead) == (6, 1, DAY)
    assert told.over == pytest.approx(np.median([1.3, 1.3, 1.3, 0.65, 2.6, 2.6]))
    assert told.at_most == upper_limit(1, 6)


def test_a_short_history_is_tried_a_day_ahead_or_not_at_all():
    assert record(np.ones(35 * DAY - 1), WEEK).ahead == DAY
    assert record(np.ones(35 * DAY), WEEK).ahead == WEEK
    short = record(np.ones(4 * DAY), DAY)
    assert (short.trials, short.at_most) == (0, 1.0)
    assert np.isnan(short.over)


@pytest.mark.parametrize(
    ("missed", "trials", "most"),
    [
        (0, 16, 1 - 0.05 ** (1 / 16)),
        (0, 0, 1.0),
        (3, 3, 1.0),
        # Of a table of Clopper and Pearson's limits.
        (1, 10, 0.3942),
        (3, 86, 0.0878),
        # Many services together: mean + 1.645 standard deviations, to the first digits.
        (300, 3_600, 0.0913),
        (10_000, 120_000, 0.0847),
    ],
)
def test_the_upper_limit_is_that_of_clopper_and_pearson(missed, trials, most):
    assert upper_limit(missed, trials) == pytest.approx(most, abs=2e-4)


@pytest.mark.long
def test_what_is_printed_covers_what_happens():
    # Services of all kinds, each with a record, and what came in the horizon after it.
    rng = np.random.default_rng(12)
    printed, missed = [], []
    for _ in range(400):
        scale = rng.uniform(0.1, 2.0)
        peaks = rng.lognormal(0.0, scale, 16 * DAY) * (1 + 0.5 * np.sin(np.arange(16 * DAY) / 3.82))
        past, came = peaks[:-DAY], peaks[-DAY:]
        printed.append(record(past, DAY).at_most)
        missed.append(bound(past) < came.max())
    assert sum(missed) > 5
    for low, high in ((0.0, 0.25), (0.25, 0.4), (0.4, 1.0)):
        mine = [(told, miss) for told, miss in zip(printed, missed, strict=True) if low < told <= high]
        assert mine
        assert np.mean([miss for _, miss in mine]) <= np.mean([told for told, _ in mine])


@settings(max_examples=examples(60), deadline=None)
@given(arrays(np.float64, st.integers(1, 40 * DAY), elements=st.floats(0, 1e12) | st.just(np.nan)))
def test_whatever_the_history_the_bounds_are_in_order(peaks):
    told = by_hour(peaks, WEEK)
    assert len(told) == WEEK
    if np.isnan(peaks).all():
        assert np.isnan(told).all()
    else:
        assert np.isfinite(told).all()
        assert (told <= bound(peaks)).all()
        assert bound(peaks) >= np.nanmax(peaks[-SPAN_DAYS * DAY :])


def test_odds_begin_with_two_weeks_of_history_and_fall_and_rise_with_its_days():
    assert np.isnan(odds(np.ones(2 * WEEK - 1)).now)
    prior = A_WEEK.day_priors[-1][1]
    assert odds(np.ones(2 * WEEK)).now == pytest.approx(prior)
    flat = odds(np.ones(24 * DAY))
    assert (flat.trials, flat.missed) == (10, 0)
    assert flat.now == pytest.approx(prior * WEIGHT_DAYS / (WEIGHT_DAYS + 10))
    assert flat.said is not None
    assert prior > flat.said > flat.now
    # A day with twice the peak counts for the days after it.
    peaks = np.ones(60 * DAY)
    peaks[30 * DAY + 5] = 2.0
    risen = odds(peaks)
    assert risen.missed == 1
    assert risen.now == pytest.approx((prior * WEIGHT_DAYS + 1) / (WEIGHT_DAYS + 46))
    assert [day for day, (_, missed) in enumerate(past_odds(peaks), 14) if missed] == [30]


def test_odds_of_the_bound_of_a_day_are_those_of_as_long_a_history():
    for days, prior in ((15, A_DAY.day_priors[0][1]), (60, A_DAY.day_priors[-1][1])):
        weight = WEIGHT_DAYS / (WEIGHT_DAYS + days - 14)
        assert odds(np.ones(days * DAY), horizon=DAY).now == pytest.approx(prior * weight)


def test_odds_of_a_week_ahead_count_by_weeks():
    prior = A_WEEK.week_prior
    assert prior is not None
    assert np.isnan(odds(np.ones(2 * WEEK - 1), days=7).now)
    # A bound of a day says nothing of a week, and more of a day.
    assert np.isnan(odds(np.ones(2 * WEEK), days=7, horizon=DAY).now)
    assert odds(np.ones(2 * WEEK), horizon=DAY).now > odds(np.ones(2 * WEEK)).now
    assert odds(np.ones(2 * WEEK), days=7).now == pytest.approx(prior)
    peaks = np.ones(6 * WEEK)
    peaks[4 * WEEK + 5] = 2.0
    told = odds(peaks, days=7)
    assert (told.trials, told.missed) == (4, 1)
    weight = WEIGHT_DAYS / 7
    assert told.now == pytest.approx((prior * weight + 1) / (weight + 4))


def test_the_schedule_has_a_record_of_hours_and_of_weeks():
    peaks = np.tile(np.repeat([10.0] * 6 + [1.0], DAY), 5)
    told = schedule_record(peaks)
    assert (told.hours_tried, told.hours_missed, told.weeks_tried, told.weeks_missed) == (4 * WEEK, 0, 4, 0)
    # Three hours of a Sunday: above the bound of these hours, and far below that of the week.
    peaks[4 * WEEK + 6 * DAY + 10 : 4 * WEEK + 6 * DAY + 13] = 5.0
    told = schedule_record(peaks)
    assert (told.hours_tried, told.hours_missed, told.weeks_tried, told.weeks_missed) == (4 * WEEK, 3, 4, 1)
    assert record(peaks, WEEK).missed == 0
    # Unknown hours are no trials, and less than two weeks have none.
    peaks[WEEK : WEEK + 10] = np.nan
    assert schedule_record(peaks).hours_tried == 4 * WEEK - 10
    assert schedule_record(peaks[: 2 * WEEK - 1]).weeks_tried == 0


def test_a_headroom_of_its_own_has_odds_of_its_own():
    peaks = np.ones(34 * DAY)
    peaks[24 * DAY] = 1.7
    assert (odds(peaks).missed, odds(peaks, headroom=2.0).missed) == (1, 0)
    # No prior was measured for it: the service's own days soon count for more.
    own = odds(peaks, headroom=1.5)
    assert own.now == pytest.approx((A_WEEK.day_priors[0][1] * OWN_WEIGHT_DAYS + 1) / (OWN_WEIGHT_DAYS + 20))
    assert own.now > 1.5 * odds(peaks).now


def test_unknown_days_have_no_odds():
    peaks = np.ones(18 * DAY)
    peaks[16 * DAY : 17 * DAY] = np.nan
    assert odds(peaks).trials == 3
