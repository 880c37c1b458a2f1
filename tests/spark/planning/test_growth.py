"""The growth of weekly peaks."""

from datetime import UTC, datetime, timedelta

import pytest

from spark.capacity.planning.plan import FEWEST, WEEKS, Options, growth, plan_service, weekly_peaks, whole_weeks
from spark.capacity.planning.policy import Assumptions, Policy
from spark.capacity.tables.schema import GOLD_FORECAST

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def weeks(*peaks):
    """Hours of the weeks before now, the last one last; each has one peak."""
    for back, peak in zip(range(len(peaks), 0, -1), peaks, strict=True):
        begin = NOW - timedelta(weeks=back)
        for hour in range(0, 168, 7):
            if peak is not None:
                yield {"h": begin + timedelta(hours=hour), "demand_peak": peak if hour == 70 else 1.0}


def test_the_slope_is_that_of_most_weeks():
    told = growth(weekly_peaks(weeks(100.0, 110.0, 120.0, 500.0, 140.0, 150.0), NOW))
    assert told is not None
    assert [told.slope, told.level] == [pytest.approx(10.0), pytest.approx(150.0)]
    assert told.in_weeks(5) == pytest.approx(200.0)
    assert told.share == pytest.approx(10 / 150)


def test_few_weeks_have_no_slope_and_older_ones_do_not_count():
    assert growth(weekly_peaks(weeks(*[1.0] * (FEWEST - 1)), NOW)) is None
    assert growth(weekly_peaks(weeks(1.0, None, 1.0, None, 1.0), NOW)) is None
    told = growth(weekly_peaks(weeks(*[1e6] * 20, *[10.0] * 13), NOW))
    assert told is not None
    assert (told.slope, told.level) == (0.0, 10.0)


def test_a_part_of_a_first_week_is_no_growth():
    """A flat load with a daily wave, whose history begins on the last evening of a week."""
    flat = [row for row in weeks(*[100.0] * 5) if row["h"] >= NOW - timedelta(weeks=4, hours=7)]
    peaks = weekly_peaks(flat, NOW)
    assert peaks[-5:] == [1.0, 100.0, 100.0, 100.0, 100.0]
    assert whole_weeks(flat, NOW) == 4
    told = growth(peaks, whole_weeks(flat, NOW))
    assert told is not None
    assert told.slope == 0.0
    assert growth(peaks[-4:], 3) is None


def test_the_peaks_of_weeks_are_oldest_first_with_gaps():
    assert weekly_peaks(weeks(3.0, None, 5.0), NOW) == [None] * (WEEKS - 3) + [3.0, None, 5.0]


def test_a_peak_does_not_fall_below_nothing():
    told = growth(weekly_peaks(weeks(40.0, 30.0, 20.0, 10.0), NOW))
    assert told is not None
    assert told.in_weeks(9) == 0.0


@pytest.mark.parametrize(
    ("step", "providers", "week"), [(12.0, 8, 0), (12.0, 9, 1), (12.0, 15, WEEKS - 1), (12.0, 16, None), (0.0, 2, None)]
)
def test_the_trend_says_in_which_week_the_providers_are_too_few(step: float, providers: int, week: int | None) -> None:
    # The bound is 1.5 times the weekly peak: 240 in the coming week, 18 more in each after it, and 456 in the last one.
    # At 70% of 50 each, 7 carry 245 and 13 carry 455; two more are the spares.
    hours = [
        {**row, "full_load": 50.0, "demand_mean": 1.0, "providers_mean": providers}
        for row in weeks(*(100.0 + step * number for number in range(5)))
    ]
    hours.append({**hours[-1], "h": NOW - timedelta(hours=1)})
    known = dict.fromkeys(GOLD_FORECAST.schema.names) | {"service": "s", "flag": "", "headroom": 1.5}
    step_ = {**known, "h": NOW, "p50": 1.0, "hour_bound": 1.0, "peak_bound": 1.0}
    options = Options(Assumptions((Policy(target=0.7, spares=2, n_plus=0),)))
    row = plan_service([step_], hours, NOW, options)
    assert row["exhaust_trend"] == (None if week is None else NOW + timedelta(weeks=week))
