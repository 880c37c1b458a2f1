"""The number of providers that a plan needs, computed by hand."""

from datetime import datetime

import attrs
import pytest

from spark.capacity.planning.plan import GONE, NO_FULL_LOAD, RUNS_OUT, SEVERAL, Options, plan
from spark.capacity.planning.policy import Assumptions, Policy
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_PLAN, GOLD_POOL_1H
from tests.spark.hours import hour, row, table

NOW = 10

POLICY = Policy(target=0.7, spares=2, n_plus=0)

AT = Options(Assumptions((POLICY,)))


def told(service: str, bounds: list[float], **members):
    """Rows of a forecast that is issued now; p50 is half the bound of the hour."""
    known = {"model": "m", "seasons": 8.0, "flag": "", "service": service, "issued": hour(NOW)}
    known |= {"headroom": 1.5, "highest": 80.0, "highest_at": hour(NOW - 1)}
    known |= {"bound_trials": 16, "bound_missed": 0, "bound_miss_most": 0.17, "bound_ahead_h": 168}
    rows = []
    for i, bound in enumerate(bounds):
        known |= {"h": hour(NOW + i), "p50": bound / 2, "hour_bound": bound, "peak_bound": max(bounds)}
        rows.append(tuple((known | members).get(name) for name in GOLD_FORECAST.schema.names))
    return rows


def now(service: str, demand: float, providers: float, full_load: float | None, **members):
    """The last full hour of a service."""
    capacity = None if full_load is None else providers * full_load
    known = {"providers_mean": providers, "full_load": full_load, "capacity": capacity, **members}
    return row(service, NOW - 1, demand, **known)


LOAD = [
    # An older hour, in which there were more of them.
    row("web", NOW - 2, 500.0, providers_mean=9.0, full_load=50.0, capacity=450.0),
    now("web", 80.0, 4.0, 50.0, demand_p95=100.0, demand_max=110.0, demand_peak=120.0),
    row("web", NOW, 9_999.0, providers_mean=99.0, full_load=50.0, capacity=9_999.0),
    now("big", 3_000.0, 60.0, 50.0),
    now("free", 10.0, 3.0, None),
    row("gone", NOW - 5, 10.0, providers_mean=2.0, full_load=10.0, capacity=20.0),
    now("idle", 0.0, 1.0, 10.0),
    now("zero-full", 10.0, 1.0, 0.0),
    now("spared", 100.0, 4.0, 50.0),
    now("rpc", 10.0, 30.0, 100.0, requests=7_200, service_s=5.0),
    # The broker saw a quarter of the hour.
    now("rpc-part", 10.0, 30.0, 100.0, requests=1_800, service_s=5.0, observed_s=900.0),
    now("rpc-free", 10.0, 3.0, None, requests=3_600, service_s=1.0),
    now("in flight", 10.0, 30.0, 100.0, in_flight=10.0),
    now("several", 10.0, 2.0, 100.0, in_flight=10.0),
    now("untimed", 10.0, 3.0, 100.0, requests=7_200),
]

FORECASTS = [
    *told("web", [100.0, 200.0, 300.0]),
    *told("big", [3_500.0]),
    *told("free", [20.0]),
    *told("gone", [20.0], flag="old", seasons=4.0),
    *told("idle", [0.0], flag="constant"),
    *told("zero-full", [20.0]),
    *told("spared", [100.0, 120.0]),
    *told("rpc", [20.0]),
    *told("rpc-part", [20.0]),
    *told("rpc-free", [10.0]),
    *told("in flight", [20.0]),
    *told("several", [20.0]),
    *told("untimed", [20.0]),
    # Issued at another time.
    *[(*row_[:2], hour(0), *row_[3:]) for row_ in told("web", [9_999.0])],
]


def planned(spark, options=AT, shared=None):
    forecasts = spark.createDataFrame(FORECASTS, GOLD_FORECAST.schema)
    job = plan(table(spark, LOAD), forecasts, hour(NOW), options, shared or {})
    assert job.schema == GOLD_PLAN.schema
    rows = job.collect()
    assert len({row_["service"] for row_ in rows}) == len(rows)
    return {row_["service"]: row_ for row_ in rows}


def pooled(service: str, own_peak: float, own_providers: float) -> dict[str, object]:
    """A service of a pool of four servers whose highest load was 300, at a full load of 100."""
    known = {"date": hour(NOW - 1).date(), "service": service, "h": hour(NOW - 1), "demand_mean": 250.0, "pool": "a"}
    known |= {"demand_peak": 300.0, "providers_mean": 4.0, "full_load": 100.0}
    return known | {"own_peak": own_peak, "own_providers": own_providers}


def test_services_that_share_servers_have_one_need(spark):
    hours = [pooled("a", 180.0, 2.0), pooled("b", 210.0, 2.0), {**pooled("c", 1.0, 1.0), "pool": None, "service": "c"}]
    load = spark.createDataFrame(
        [tuple(row.get(name) for name in GOLD_POOL_1H.schema.names) for row in hours], GOLD_POOL_1H.schema
    )
    forecasts = spark.createDataFrame([one for name in "abc" for one in told(name, [330.0])], GOLD_FORECAST.schema)
    rows = {row_["service"]: row_ for row_ in plan(load, forecasts, hour(NOW), AT, {}).collect()}
    # 330 / 70, rounded up, and two.
    assert {(rows[name]["providers_now"], rows[name]["need_horizon"], rows[name]["add"]) for name in "ab"} == {
        (4, 7, 3)
    }
    assert [rows[name]["pool"] for name in "abc"] == ["a", "a", None]
    assert "pool 'a'" in rows["b"]["note"]
    # The servers of the pool carry its load; those of b alone do not carry theirs.
    assert [rows[name]["state"] for name in "ab"] == ["too little history", "overloaded"]


@pytest.fixture(scope="module")
def plans(spark):
    """The plan of some services, in one run of the job."""
    return planned(spark, shared={"big": 7})


def utc(number: int) -> datetime:
    """An hour as Spark gives it back: without a zone, in the session's own."""
    return datetime.fromtimestamp(hour(number).timestamp())


def test_the_bound_at_the_target_and_two_spare(plans):
    web = plans["web"]
    # The bound of the hour 100 / 35, that of the horizon 300 / 35, rounded up, and two.
    assert (web["providers_now"], web["need_now"], web["need_horizon"], web["spare"]) == (4, 5, 11, 5)
    assert (web["add"], web["rule"]) == (7, "peak bound at 70% load + 2 spare")
    assert (web["demand_now"], web["peak_bound"], web["full_load"], web["target_utilisation"]) == (120, 300, 50, 0.7)
    record = ("bound_trials", "bound_missed", "bound_miss_most", "bound_ahead_h")
    assert [web[name] for name in record] == [16, 0, 0.17, 168]


def test_it_runs_out_in_the_hour_whose_need_is_more_than_there_are(plans):
    web = plans["web"]
    # Spares count: the bound needs 3 + 2 in the first hour, half of it 2 + 2 in the first, and 3 + 2 in the second.
    assert (web["exhaust_bound"], web["exhaust_p50"]) == (utc(NOW), utc(NOW + 1))
    assert web["note"] == RUNS_OUT
    assert plans["big"]["exhaust_p50"] is None


def test_spares_count_in_every_column(plans):
    row_ = plans["spared"]
    # 100 / 35 are three busy ones: four are one short of its spares, now and in each hour.
    assert (row_["need_now"], row_["need_horizon"], row_["add"]) == (5, 6, 2)
    assert row_["exhaust_bound"] == utc(NOW)


def test_the_peaks_of_the_weeks_stand_in_the_plan(plans):
    assert plans["web"]["weekly_peaks"] == [None] * 12 + [500.0]
    assert plans["web"]["trend_level"] is None


def test_shared_providers_are_counted(plans):
    assert (plans["big"]["shared_providers"], plans["web"]["shared_providers"]) == (7, 0)


def test_the_policy_stands_in_the_plan(plans):
    row_ = plans["big"]
    assert (row_["policy"], row_["target_utilisation"], row_["spares"], row_["n_plus"]) == ("*", 0.7, 2, 0)
    assert (row_["headroom"], row_["providers_least"], row_["providers_most"], row_["cost"]) == (1.5, 1, None, None)


def test_what_is_measured_comes_before_what_is_bound(plans):
    # Of one hour of history nothing else is claimed.
    states = {service: plans[service]["state"] for service in ("big", "spared", "several", "idle", "free")}
    assert states == {
        "big": "too little history",
        "spared": "too little history",
        "several": "too little history",
        "idle": "too little history",
        "free": "unknown",
    }


def test_what_a_service_with_a_day_of_history_does_not_need_is_free(spark):
    # At 70% of 50 each, two carry the bound of 70, and two more are the spares.
    there = {"free": 6.0, "just": 4.0, "short": 3.0}
    load = [
        row(service, NOW - back, 20.0, providers_mean=providers, full_load=50.0, capacity=50.0 * providers)
        for service, providers in there.items()
        for back in range(1, 25)
    ]
    forecasts = [one for service in there for one in told(service, [70.0])]
    job = plan(table(spark, load), spark.createDataFrame(forecasts, GOLD_FORECAST.schema), hour(NOW), AT, {})
    assert {
        row_["service"]: tuple(row_[name] for name in ("state", "free", "add", "note")) for row_ in job.collect()
    } == {
        "free": ("can free", 2, 0, ""),
        "just": ("enough", 0, 0, ""),
        "short": ("below policy", 0, 1, RUNS_OUT),
    }


@pytest.mark.parametrize("service", ["free", "zero-full"])
def test_nothing_is_claimed_where_nothing_says_when_a_provider_is_full(plans, service):
    row_ = plans[service]
    for name in ("need_now", "need_horizon", "add", "spare", "exhaust_p50", "exhaust_bound"):
        assert row_[name] is None
    assert (row_["rule"], row_["note"]) == ("none", NO_FULL_LOAD)
    assert row_["peak_bound"] == 20.0


def test_a_service_whose_providers_are_gone_still_needs_some(plans):
    gone = plans["gone"]
    assert (gone["providers_now"], gone["need_now"], gone["need_horizon"]) == (0, 5, 5)
    assert gone["exhaust_bound"] == utc(NOW)
    assert gone["note"] == f"{GONE}; old"


def test_no_demand_needs_the_spares_alone(plans):
    assert (plans["idle"]["need_now"], plans["idle"]["need_horizon"]) == (2, 2)


@pytest.mark.parametrize("service", ["rpc", "rpc-part", "in flight"])
def test_requests_that_would_wait_need_more(plans, service):
    # Two a second of five seconds each are ten erlangs, and twenty when the demand has doubled.
    row_ = plans[service]
    assert (row_["erlangs"], row_["providers_now"]) == (10.0, 30)
    assert (row_["need_now"], row_["need_horizon"]) == (29 + 2, 29 + 2)
    # As expected the demand stays as it is: ten erlangs need 17 and the spares.
    assert (row_["exhaust_bound"], row_["exhaust_p50"]) == (utc(NOW), None)
    assert row_["rule"] == "at most 5% wait + 2 spare"


def test_requests_without_their_latency_claim_nothing(plans):
    assert (plans["untimed"]["erlangs"], plans["untimed"]["need_horizon"]) == (None, 1 + 2)
    assert plans["untimed"]["rule"] == "peak bound at 70% load + 2 spare"


def test_where_providers_handle_several_requests_at_a_time_the_formula_says_nothing(plans):
    row_ = plans["several"]
    assert (row_["erlangs"], row_["need_horizon"]) == (10.0, 1 + 2)
    assert SEVERAL in row_["note"]


def test_requests_alone_are_enough_for_a_number_and_a_date(plans):
    assert plans["rpc-free"]["need_horizon"] == 4 + 2
    assert plans["rpc-free"]["exhaust_bound"] == utc(NOW)
    assert plans["rpc-free"]["note"] == f"{NO_FULL_LOAD}; {RUNS_OUT}"


def test_what_if_the_demand_grows_the_providers_differ_or_some_go(spark):
    web = planned(spark, attrs.evolve(AT, growth=1.3, full_load=100.0, without={"web": 3}))["web"]
    # 130 / 70 and 390 / 70, rounded up, and two.
    assert (web["need_now"], web["need_horizon"], web["providers_now"], web["add"]) == (4, 8, 1, 7)
