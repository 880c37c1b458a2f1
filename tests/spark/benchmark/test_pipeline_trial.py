"""The trial of all jobs on journals of known truth, on a small scale."""

import io
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.progress import Progress
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_PROVIDER_DAY, GOLD_SERVICE_1H
from spark.capacity.tables.store import Tables
from tests.spark.benchmark import pipeline_trial, summary
from tests.spark.benchmark.back_test import Walked
from tests.spark.benchmark.flaky_detection import FLAPPING, GOOD
from tests.spark.benchmark.pipeline_trial import RATIOS, Outcome, Scale
from tests.spark.farm import put_dates
from tests.spark.generator import END

pytestmark = pytest.mark.long

SMALL = Scale(seeds=(5,), days=1, sizes=(4,), intervals=(60.0,), weeks=6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_farm_that_beats_has_flaky_ones_of_every_ratio_and_more_good_ones(seed):
    services = pipeline_trial.beating(seed, Scale())
    assert Counter(service.providers for service in services) == {3: 2, 10: 3, 50: 2}
    planted = Counter(ratio for service in services for ratio in service.flaky)
    assert set(planted) == set(RATIOS)
    least = planted[min(RATIOS)]
    assert 0.4 <= least / planted.total() <= 0.6
    beating = [service for service in services if service.interval]
    assert planted.total() <= 0.25 * sum(service.providers for service in beating)
    assert sum(service.flapping for service in services) == 7
    assert all(service.losses > 0 for service in beating)


def test_services_of_different_seeds_have_different_names_and_kinds():
    names = [
        service.name
        for seed in (1, 2)
        for service in (*pipeline_trial.beating(seed, Scale()), *pipeline_trial.loaded(seed))
    ]
    assert len(names) == len(set(names))
    assert len({(one.daily, one.weekend, one.trend, one.noise, one.outages) for one in pipeline_trial.loaded(1)}) > 8


def test_weeks_of_load_are_walked_through_without_a_journal():
    steps = pipeline_trial.walked(SMALL)
    assert len(steps) == len(pipeline_trial.loaded(5))
    assert {len(one) for one in steps} == {2}


def test_farms_of_different_seeds_beat_on_different_days(tmp_path):
    farms = pipeline_trial.make(tmp_path, Scale((5, 6), 1, (3,), (600.0,)), Progress(io.StringIO()))
    (first, _), (second, _) = farms.beating
    assert (first.end, first.late) == (second.start, ())
    assert len(second.late) == pipeline_trial.LATE
    assert [(one.start, one.end) for one in farms.loaded] == [(first.start, second.end)] * 2
    assert farms.records == sum(truth.records for truth in (first, second, *farms.loaded))


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Tables that say the truth: but for one good provider, and a demand that is measured 2 % too low."""
    folder: Path = tmp_path_factory.mktemp("trial")
    farms = pipeline_trial.make(folder, SMALL, Progress(io.StringIO()))
    day = END.date() - timedelta(days=1)
    [(beating, _)], [loaded] = farms.beating, farms.loaded
    slandered = next(one for one in beating.providers if one.judged == "beats" and not one.flaky)
    flaky = [
        {
            "date": day,
            "service": one.service,
            "instance": one.instance,
            "flaky": one.flaky or one.flapping or one is slandered,
        }
        for one in beating.providers
    ]
    hours = [END + timedelta(hours=hour) for hour in range(-24, 24)]
    demand = [
        {"date": day, "service": one.service, "h": hour, "demand_mean": 0.98 * value}
        for one in loaded.services
        # Of the first hour nothing is known, and of the third there is no row.
        for hour, value in zip(hours, one.demand, strict=False)
        if hour != hours[2]
    ]
    for row in demand:
        if row["h"] == hours[0]:
            row["demand_mean"] = None
    told = {"issued": END, "model": "naive-day", "seasons": 1.0, "flag": ""}
    forecast = [
        {
            **told,
            "service": one.service,
            "peak_bound": 1.2 * max(one.came[:24]),
            "h": hour,
            "p50": value,
            "hour_bound": 1.1 * value,
        }
        for one in loaded.services
        for hour, value in zip(hours[24:], one.came, strict=False)
    ]
    tables = Tables(spark, folder / "tables")
    tables.open()
    try:
        put_dates(tables, GOLD_PROVIDER_DAY, flaky)
        put_dates(tables, GOLD_SERVICE_1H, demand)
        put_dates(tables, GOLD_FORECAST, [{**row, "date": END.date()} for row in forecast])
        return pipeline_trial.compare(tables, farms)
    finally:
        tables.close()


def test_each_day_of_each_provider_is_set_beside_what_was_planted(outcome):
    kinds = Counter((day.kind, day.beats, day.found) for day in outcome.days)
    assert kinds == {
        ("10%", 1440, True): 1,
        (GOOD, 1440, True): 1,
        (GOOD, 1440, False): 2,
        (FLAPPING, 0, True): 1,
        (GOOD, 0, False): 9,
    }


def test_a_forecast_that_came_true_has_no_error_and_a_bound_that_is_not_missed(outcome):
    assert len(outcome.forecasts) == len(pipeline_trial.loaded(5))
    for (step,) in outcome.forecasts:
        assert step.mase == pytest.approx(0.0, abs=1e-9)
        assert step.mase_naive > 0
        assert not step.missed
        assert step.over_provision == pytest.approx(1.2)


def test_demand_is_measured_where_something_is_known(outcome):
    measured = outcome.measured
    assert measured.hours == 22 * len(pipeline_trial.loaded(5))
    assert measured.error == pytest.approx(0.02, abs=1e-4)
    assert 0 < measured.hours_down < measured.hours / 2
    assert measured.bias_down == pytest.approx(-0.02, abs=1e-4)


def test_the_verdict_has_all_tables_and_promises(outcome):
    walked = Walked({}, (("a.csv", "is too short"),), (("b.csv", "though nothing is known of 20% of its hours"),))
    told = summary.markdown(walked, pipeline_trial.walked(SMALL), outcome)
    for part in (
        "| generator | 13 | 26 |",
        "| generator, through the jobs | 13 | 13 |",
        "| misses 10% | 1,440 | 1 | 1 | 1 | 100.0% | 1 | 50.0% |",
        "\n- MISSED: days found that were planted: 66.7%, at least 95%\n",
        "\n- kept: planted flaky days found: 100.0% of 2, at least 95%\n",
        "\n- left out: a.csv is too short\n",
        "\n- used: b.csv though nothing is known of 20% of its hours\n",
        "\n- demand as the jobs measured it, of 286 hours: off by 2.0% on average; of",
        "2.0%, 2.0% too low\n",
    ):
        assert part in told
    alone = summary.markdown(walked, pipeline_trial.walked(SMALL), None)
    assert "generator" in alone
    assert "planted" not in alone
