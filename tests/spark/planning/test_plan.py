"""How many providers, by hand."""

from datetime import datetime

import pytest

from spark.capacity.planning import erlang
from spark.capacity.planning.plan import GONE, NO_FULL_LOAD, RUNS_OUT, plan, providers_for
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_PLAN
from tests.spark.hours import hour, row, table

NOW = 10


def told(service: str, bounds: list[float], **members):
    """Rows of a forecast that is issued now; p50 is half the bound."""
    known = {"model": "m", "seasons": 8.0, "peak_miss_rate": 0.1, "flag": "", "service": service, "issued": hour(NOW)}
    rows = []
    for i, bound in enumerate(bounds):
        known |= {"h": hour(NOW + i), "p50": bound / 2, "p95": bound, "peak_bound": bound, **members}
        rows.append(tuple(known.get(name) for name in GOLD_FORECAST.schema.names))
    return rows


def now(service: str, demand: float, providers: float, full_load: float | None, **members):
    """The last full hour of a service."""
    capacity = None if full_load is None else providers * full_load
    known = {"providers_mean": providers, "full_load": full_load, "capacity": capacity, **members}
    return row(service, NOW - 1, demand, **known)


@pytest.fixture(scope="module")
def plans(spark):
    """The plan of some services, in one run of the job."""
    load = [
        # An older hour, in which there were more of them.
        row("web", NOW - 2, 500.0, providers_mean=9.0, full_load=50.0, capacity=450.0),
        now("web", 100.0, 4.0, 50.0, demand_p95=120.0),
        row("web", NOW, 9_999.0, providers_mean=99.0, full_load=50.0, capacity=9_999.0),
        now("big", 3_000.0, 60.0, 50.0),
        now("free", 10.0, 3.0, None),
        row("gone", NOW - 5, 10.0, providers_mean=2.0, full_load=10.0, capacity=20.0),
        now("idle", 0.0, 1.0, 10.0),
        now("zero-full", 10.0, 1.0, 0.0),
        now("rpc", 10.0, 30.0, 100.0, requests=7_200),
        now("rpc-free", 10.0, 3.0, None, requests=3_600),
    ]
    forecasts = [
        *told("web", [100.0, 200.0, 300.0]),
        *told("big", [3_500.0]),
        *told("free", [20.0]),
        *told("gone", [20.0], flag="old", seasons=4.0, peak_miss_rate=None),
        *told("idle", [0.0], flag="constant"),
        *told("zero-full", [20.0]),
        *told("rpc", [20.0]),
        *told("rpc-free", [10.0]),
        # Issued at another time.
        *[(row_[0], hour(0), *row_[2:]) for row_ in told("web", [9_999.0])],
    ]
    times = spark.createDataFrame([("rpc", 5.0), ("rpc-free", 1.0)], "service string, service_s double")
    job = plan(table(spark, load), spark.createDataFrame(forecasts, GOLD_FORECAST.schema), hour(NOW), times)
    assert job.schema.names == GOLD_PLAN.schema.names
    assert [c.dataType for c in job.schema] == [c.dataType for c in GOLD_PLAN.schema]
    rows = job.collect()
    assert len({row_["service"] for row_ in rows}) == len(rows)
    return {row_["service"]: row_ for row_ in rows}


def utc(number: int) -> datetime:
    """An hour as Spark gives it back: without a zone, in the session's own."""
    return datetime.fromtimestamp(hour(number).timestamp())


def test_the_bound_at_the_target_and_two_spare(plans):
    web = plans["web"]
    # 120 / 35 and 300 / 35, rounded up, and two.
    assert (web["providers_now"], web["need_now"], web["need_horizon"], web["spare"]) == (4, 6, 11, 2)
    assert web["rule"] == "peak bound at 70% load + 2 spare"
    assert (web["peak_bound"], web["target_utilisation"], web["peak_miss_rate"]) == (300.0, 0.7, 0.1)


def test_it_runs_out_when_the_forecast_is_above_what_should_be_carried(plans):
    web = plans["web"]
    # Four of 50 should carry 140: the bound is above it in the second hour, half of it in the third.
    assert (web["exhaust_bound"], web["exhaust_p50"]) == (utc(NOW + 1), utc(NOW + 2))
    assert web["note"] == RUNS_OUT
    assert plans["idle"]["exhaust_bound"] is None


def test_a_large_farm_has_a_twentieth_spare(plans):
    # 3500 / 35 = 100; one in twenty is five.
    assert (plans["big"]["need_horizon"], plans["big"]["spare"]) == (105, 5)
    assert plans["big"]["rule"] == "peak bound at 70% load + 5% spare"


@pytest.mark.parametrize("service", ["free", "zero-full"])
def test_nothing_is_claimed_where_nothing_says_when_a_provider_is_full(plans, service):
    row_ = plans[service]
    for name in ("need_now", "need_horizon", "spare", "exhaust_p50", "exhaust_bound"):
        assert row_[name] is None
    assert (row_["rule"], row_["note"]) == ("none", NO_FULL_LOAD)
    assert row_["peak_bound"] == 20.0


def test_a_service_whose_providers_are_gone_still_needs_some(plans):
    gone = plans["gone"]
    assert (gone["providers_now"], gone["need_now"], gone["need_horizon"]) == (0, 3, 5)
    assert gone["exhaust_bound"] == utc(NOW)
    assert gone["note"] == f"{GONE}; old"


def test_no_demand_needs_one_and_its_spare(plans):
    assert (plans["idle"]["need_now"], plans["idle"]["need_horizon"]) == (3, 3)


def test_requests_that_would_wait_need_more(plans):
    # Two a second of five seconds each are ten erlangs now, and twenty when the demand has doubled.
    assert plans["rpc"]["need_now"] == erlang.providers_for(10.0) + 2
    assert plans["rpc"]["need_horizon"] == 29 + 2
    assert plans["rpc"]["rule"] == "at most 5% wait + 2 spare"


def test_requests_alone_are_enough_for_a_number_but_not_for_a_date(plans):
    assert plans["rpc-free"]["need_horizon"] == 4 + 2
    assert plans["rpc-free"]["exhaust_bound"] is None
    assert plans["rpc-free"]["note"] == NO_FULL_LOAD


def test_confidence_is_of_history_and_of_what_the_bound_held(plans):
    assert plans["web"]["confidence"] == 0.9
    assert plans["gone"]["confidence"] == 0.13
    # That it is constant is no reason for doubt.
    assert plans["idle"]["confidence"] == 0.9


def test_sparks_own_search_finds_what_the_formula_finds(spark):
    erlangs = [0.0, 0.001, 0.3, 1.0, 2.0, 5.0, 19.9, 20.0, 64.0, 200.0, 1_234.5]
    frame = spark.createDataFrame([(a,) for a in [*erlangs, -1.0, 1e300, None]], "a double")
    found = [row_["n"] for row_ in frame.select(providers_for(frame["a"]).alias("n")).collect()]
    assert found == [*(erlang.providers_for(a) for a in erlangs), None, None, None]


@pytest.mark.parametrize("target", [0.0, -0.1, 1.01, float("nan")])
def test_an_absurd_target_is_an_error(spark, target):
    with pytest.raises(ValueError, match="target"):
        plan(table(spark, []), spark.createDataFrame([], GOLD_FORECAST.schema), hour(0), target=target)
