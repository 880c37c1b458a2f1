"""Needs: one rule for now, each hour and the horizon."""

from datetime import timedelta
from math import inf

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.export.plan_document import MAX_PROVIDERS
from spark.capacity.planning.needs import Needs, needs_of
from spark.capacity.planning.plan import PLAIN, Options, plan_service
from spark.capacity.planning.policy import Assumptions, Event, Policy
from spark.capacity.tables.schema import GOLD_FORECAST
from tests.spark.hours import hour

NOW = 10

BY_WAITING = Needs(None, erlangs=10.0, mean=100.0)

POLICIES = [
    Policy(),
    Policy(target=0.7, spares=2, n_plus=0),
    Policy(target=1.0, n_plus=0),
    Policy(n_plus=2),
    Policy(least=3),
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("needs", [Needs(50.0), BY_WAITING, Needs(50.0, erlangs=10.0, mean=100.0)])
def test_the_load_that_providers_carry_is_the_highest_that_needs_no_more(needs, policy):
    needs = attrs.evolve(needs, policy=policy)
    for providers in (0, 1, 2, 3, 4, 40, 42, 43, 100):
        most = needs.carried(providers)
        if most:
            assert needs.of(most * (1 - 1e-12)) <= providers < needs.of(most + 0.1), providers
        else:
            assert needs.of(0.1) > providers


def test_no_load_needs_more_than_the_largest_number():
    limited = Needs(50.0, Policy(most=4))
    assert (limited.of(1e9), limited.rule(1e9), limited.carried(4)) == (4, "at most 4", inf)
    assert limited.rule(10.0) == "N+1"


@pytest.mark.parametrize("load", [1e25, 1e308, inf])
def test_a_load_beyond_any_farm_has_a_need_that_the_tables_and_the_broker_can_hold(load):
    row = planned([load], 3, Options(Assumptions((Policy(spares=2),))), demand_peak=load)
    assert (row["need_now"], row["need_horizon"], row["state"]) == (MAX_PROVIDERS, MAX_PROVIDERS, "overloaded")


@pytest.mark.parametrize("target", [0.1, 0.5, 0.9])
def test_a_full_load_of_which_a_share_is_zero_has_needs(target):
    needs = Needs(5e-324, Policy(target=target, n_plus=0))
    assert (needs.of(0.0), needs.of(1e-300), needs.carried(0)) == (1, MAX_PROVIDERS, 0.0)


@pytest.mark.parametrize(("load", "factor"), [(inf, 0.0), (1e308, 0.0), (0.0, 1e308)])
def test_an_event_without_demand_needs_none(load, factor):
    event = Event(hour(NOW), hour(NOW + 1), factor=factor)
    row = planned([load], 3, Options(Assumptions(events=(event,), growth=1e10), growth=1e10), full_load=50.0)
    assert (row["peak_bound"], row["need_now"], row["need_horizon"], row["exhaust_bound"]) == (0.0, 1, 1, None)


def test_a_service_without_load_needs_no_more_by_an_infinite_growth():
    endless = Options(Assumptions(growth=1e308), growth=1e308)
    row = planned([0.0], 3, endless, full_load=50.0, demand_peak=0.0, own_peak=0.0)
    assert (row["demand_now"], row["demand_day"], row["need_horizon"]) == (0.0, 0.0, 1)
    assert row["state"] != "overloaded"


@pytest.mark.parametrize("load", [0.0, 1e308, inf])
def test_a_load_without_requests_in_service_has_no_traffic(load):
    needs = Needs(None, erlangs=0.0, mean=5.0)
    assert (needs.busy(load), needs.of(load)) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "need", "rule"),
    [
        # 804 of 14 providers of 100: the bound is 1,045.
        (Policy(), 14, "peak bound at 80% load"),
        (Policy(target=1.0), 12, "N+1"),
        (Policy(target=1.0, n_plus=0), 11, "peak bound at 100% load"),
        (Policy(spares=2), 16, "peak bound at 80% load + 2 spare"),
        (Policy(least=20), 20, "at least 20"),
    ],
)
def test_the_rules_of_a_policy_do_not_add_up(policy, need, rule):
    needs = Needs(100.0, policy)
    assert (needs.of(1_045.0), needs.rule(1_045.0), needs.busy(1_045.0)) == (need, rule, 11)


def test_a_service_without_load_needs_its_least():
    assert Needs(100.0).of(0.0) == 1
    assert Needs(100.0, Policy(least=0)).of(0.0) == 1


def test_traffic_grows_and_falls_with_the_load():
    # 5, 10 and 20 erlangs need 10, 17 and 29 for one in twenty to wait.
    assert [BY_WAITING.of(load) for load in (50.0, 100.0, 200.0)] == [10, 17, 29]


def test_nothing_is_known_without_a_full_load_and_requests():
    nothing = Needs(None)
    assert (nothing.of(10.0), nothing.carried(10), nothing.exceed(1e9, 1)) == (None, None, False)


def test_without_a_bound_nothing_is_claimed_about_the_horizon():
    row = planned([None, None], 3)
    unknown = ("peak_bound", "need_now", "need_horizon", "add", "spare", "exhaust_bound", "exhaust_p50")
    assert {row[name] for name in unknown} == {None}
    assert (row["state"], row["rule"], row["free"]) == ("too little history", "none", 0)


def planned(bounds, providers, options=PLAIN, **members):
    known = dict.fromkeys(GOLD_FORECAST.schema.names) | {"service": "s", "flag": "", "headroom": 1.3}
    known |= {"peak_bound": max((bound for bound in bounds if bound is not None), default=None)}
    steps = [
        {**known, "h": hour(NOW + number), "p50": None if bound is None else bound / 2, "hour_bound": bound}
        for number, bound in enumerate(bounds)
    ]
    last = {"h": hour(NOW - 1), "full_load": 50.0, "demand_mean": 80.0, "demand_peak": 100.0, **members}
    return plan_service(steps, [{**last, "providers_mean": providers}], hour(NOW), options)


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=30),
    st.integers(0, 30),
    st.none() | st.floats(0.0, 20.0),
    st.sampled_from([None, 50.0]),
    st.floats(0.5, 3.0),
)
def test_a_service_is_short_now_just_where_its_first_hour_is(bounds, providers, in_flight, full_load, growth):
    row = planned(bounds, providers, Options(growth=growth), in_flight=in_flight, full_load=full_load)
    if row["need_horizon"] is None:
        assert (row["need_now"], row["add"], row["exhaust_bound"]) == (None, None, None)
        return
    assert (row["need_now"] > providers) == (row["exhaust_bound"] == hour(NOW))
    assert row["need_now"] <= row["need_horizon"]
    assert (row["exhaust_bound"] is None) == (row["add"] == 0)


def test_the_demand_of_the_last_hour_is_unknown_where_no_load_is():
    # Providers that do not report their load; and an hour without a broker.
    assert planned([80.0], 3, demand_peak=None, demand_mean=None)["demand_now"] is None
    assert planned([80.0], 3, h=hour(NOW - 2))["demand_now"] is None
    assert planned([80.0], 3, demand_peak=0.0)["demand_now"] == 0.0


def test_dates_are_those_of_waiting_requests_where_they_decide():
    # Ten erlangs at a mean of 80: the third hour has 25 of them, which need 35; the load needs 5.
    row = planned([80.0, 80.0, 200.0], 20, in_flight=10.0, demand_peak=80.0)
    assert (row["need_now"], row["need_horizon"], row["exhaust_bound"]) == (17, 35, hour(NOW) + timedelta(hours=2))
    assert needs_of(row).of(200.0) == 35


def test_providers_that_are_taken_away_do_not_lower_the_need():
    row = planned([80.0], 12, in_flight=10.0)
    other = planned([80.0], 12, Options(without={"s": 5}), in_flight=10.0)
    assert (row["need_now"], other["need_now"], other["providers_now"]) == (17, 17, 7)
