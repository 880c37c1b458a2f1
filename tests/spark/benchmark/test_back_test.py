"""Quality of the forecasts on known series."""

import gzip

import numpy as np
import pytest

from spark.capacity.planning.peak_bound import headroom_of
from tests.spark.benchmark import back_test as bt
from tests.spark.benchmark import bound_tables
from tests.spark.benchmark.traces import TraceError, read_trace
from tests.spark.series import daily, write


def test_a_folder_is_walked_through_and_what_cannot_be_used_is_named(tmp_path):
    rng = np.random.default_rng(8)
    (tmp_path / "deeper").mkdir()
    for number in range(3):
        write(tmp_path / "deeper" / f"web_{number}.csv.gz", daily(12, rng))
    write(tmp_path / "noise_1.csv", rng.gamma(2, 50, 12 * 24))
    write(tmp_path / "gaps_1.csv", [value if hour % 3 else "x" for hour, value in enumerate(daily(9, rng))])
    write(tmp_path / "hole_1.csv", [1.0] * 24 + [np.nan] * 8 * 24)
    write(tmp_path / "deeper" / "short.csv", range(60))
    write(tmp_path / "days.csv", range(60), step=86_400)
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"timestamp,value\n1,2\n" * 9_999)[:-20])
    told = []
    walked = bt.walk_all(tmp_path, lambda done, total: told.append((done, total)))
    assert told == [(number, 9) for number in range(9)]
    result = bt.summary(walked.walks)
    counts = [(group.name, group.series, group.forecasts) for group in result.groups]
    assert counts == [("gaps", 1, 4), ("noise", 1, 8), ("web", 3, 24)]
    assert result.total.mase == pytest.approx(np.mean([group.mase for group in result.groups]))
    assert dict(walked.left_out) == {
        "days.csv": "has a step of 24 hours, more than 6",
        "deeper/short.csv": "is too short: 2.5 days, where a forecast and its proof need 4",
        "hole_1.csv": "has too few hours of which anything is known, in 9 days",
        "torn.csv.gz": "cannot be read: Compressed file ended before the end-of-stream marker was reached",
    }
    assert dict(walked.strange).keys() == {"gaps_1.csv"}
    assert [what for _, what in walked.strange] == [
        "but for lines without a time or a value: 72",
        "though nothing is known of 33% of its hours",
    ]
    assert result.kept
    assert "| web | 3 | 24 |" in bt.markdown(result)


def test_one_file_may_be_named(tmp_path):
    path = write(tmp_path / "web_1.csv", daily(12, np.random.default_rng(8)))
    assert list(bt.walk_all(path).walks) == ["web"]


def test_a_promise_that_is_not_kept_is_said():
    group = bt.Group("g", 1, 10, 2.0, 1.0, 1.0, 0.5, 0.5, 1.0)
    result = bt.Result((group,), group)
    assert not result.kept
    assert [kept for _, kept in result.goals] == [False, False, False]


def test_where_nothing_is_to_be_won_no_promise_is_broken():
    result = bt.summary({"zeros": [bt.walk(np.zeros(240))], "constant": [bt.walk(np.full(240, 7.5))]})
    assert result.kept
    assert [group.ratio for group in result.groups] == [1.0, 1.0]
    assert "| zeros | 1 | 6 | 0.00 | 0.00 | 1.00 | 0.00 | 0% | 0% |  |" in bt.markdown(result)


def test_an_error_where_the_floor_has_none_is_endlessly_worse():
    group = bt.Group("g", 1, 1, 0.1, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert group.ratio == np.inf


def test_a_folder_without_series_is_an_error_that_names_some_reasons(tmp_path):
    for number in range(9):
        write(tmp_path / f"{number}.csv", range(30))
    with pytest.raises(TraceError, match=r"no series that is long enough .*; 0\.csv is too short: 1\.2 days") as caught:
        bt.walk_all(tmp_path)
    assert str(caught.value).count("too short") == bt.SHOWN


def test_a_longer_step_is_walked_through_as_well(tmp_path):
    trace = read_trace(write(tmp_path / "a.csv", np.tile([1.0, 2.0, 3.0, 4.0], 30), step=6 * 3600))
    assert all(step.mase == 0.0 for step in bt.walk(trace.values, trace.day))


def test_a_forecast_is_judged_by_what_came():
    values = np.tile(np.arange(1.0, 25.0), 10)
    values[-24:] *= 2.0
    good, bad = bt.walk(values)[-2:]
    assert (good.mase, good.missed) == (0.0, False)
    assert good.over_provision == pytest.approx(headroom_of(8 * 24, horizon=24))
    assert bad.missed
    assert bad.over_provision == pytest.approx(headroom_of(9 * 24, horizon=24) / 2)
    assert bad.mase == bad.mase_naive > 0.0


def test_a_peak_within_an_hour_is_what_the_bound_is_judged_by(tmp_path):
    rng = np.random.default_rng(5)
    minutes = np.repeat(daily(10, rng), 12)
    minutes[9 * 288 + 7] = 900.0
    trace = read_trace(write(tmp_path / "a.csv", minutes, step=300))
    assert np.nanmax(trace.values) < 300.0
    steps = bt.walk(trace.values, trace.day, trace.peaks, trace.half_hours)
    assert [step.missed for step in steps] == [False] * 5 + [True]
    assert [step.part for step in steps] == ["seen", "seen", "held out", "held out", "held out", "held out"]
    assert all(step.rivals["highest five minutes, by the history (ours)"] == step.over_provision for step in steps)
    assert "| held out | like VPA, 90 % | " in bound_tables.costs(steps)
    assert "| held out | 35% to 60% | " in bound_tables.calibration(steps)


def test_a_long_series_is_forecast_a_week_ahead():
    rng = np.random.default_rng(5)
    assert len(bt.walk(daily(42, rng))) == 2
    assert len(bt.walk(daily(41, rng))) == 41 - 4
    assert len(bt.walk(daily(4, rng))) == 1
    assert bt.walk(daily(3, rng)) == []


def test_where_nothing_was_known_for_months_nothing_is_judged():
    rng = np.random.default_rng(5)
    silent = np.full(200 * 24, np.nan)
    steps = bt.walk(np.concatenate([daily(56, rng), silent, daily(56, rng)]))
    # Four weeks before the silence; after it, from the second week on (the silence ends in the middle of one).
    assert 8 <= len(steps) <= 13
    assert all(step.mase <= 2.0 * step.mase_naive for step in steps)


KINDS = {
    "weeks with a trend": lambda rng, t: (99 + 50 * np.sin(t / 3.82)) * (1 - 0.4 * (t // 24 % 7 > 4)) * (1 + t / 4e3),
    "fell for good": lambda rng, t: (100 + 50 * np.sin(t / 3.82)) * np.where(t < 0.6 * len(t), 1.0, 0.4),
    "below nothing": lambda rng, t: 30 * np.sin(t / 3.82) - 50,
    "spikes": lambda rng, t: 10 + (rng.random(len(t)) < 0.02) * rng.pareto(1.5, len(t)) * 30,
    "seldom": lambda rng, t: (rng.random(len(t)) < 0.1) * rng.gamma(1, 20, len(t)),
    "on and off": lambda rng, t: 100.0 * (np.cumsum(rng.random(len(t)) < 0.08) % 2),
    "gaps": lambda rng, t: np.where(rng.random(len(t)) < 0.25, np.nan, 100 + 50 * np.sin(t / 3.82)),
    "a walk": lambda rng, t: 200 + np.cumsum(rng.normal(0, 2, len(t))),
    "saw teeth": lambda rng, t: t % 31 * 3.0,
}
"""Kinds of series that the forecasts were not made for."""


@pytest.mark.long
def test_on_other_kinds_of_series_the_promises_are_kept_as_well():
    rng = np.random.default_rng(77)
    walks = {}
    for name, kind in KINDS.items():
        series = [kind(rng, np.arange(days * 24.0)) for days in (8, 10, 12, 14, 49)]
        walks[name] = [bt.walk(values + rng.normal(0, 4, len(values))) for values in series]
    result = bt.summary(walks)
    assert result.kept, result.goals
