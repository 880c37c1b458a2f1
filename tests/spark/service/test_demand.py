"""Hours of services, from five minutes whose demand is known."""

from datetime import timedelta

import pytest

from spark.capacity.service.demand import LOOKBACK, MEASURES, service_load
from spark.capacity.tables.schema import GOLD_SERVICE_1H
from tests.spark.farm import DAY, as_rows, clock, each, silver

NEXT = DAY + timedelta(days=1)


def instance(service, number, load, first=0, last=36, **members):
    """Rows of an instance from 10:00 on; the load is a number, or a function of the number of five minutes."""
    rows = []
    for index in range(first, last):
        value = load(index) if callable(load) else load
        row = {
            "service": service,
            "instance": f"{service}:{number}",
            "w": clock("10:00") + timedelta(minutes=5 * index),
            "load_mean": value,
            **members,
        }
        if value is None:
            row |= {"up_s": 0.0, "connected_s": 0.0, "down_s": 300.0}
        rows.append(row)
    return rows


def gone(load, first=12, last=24):
    """A load that is not reported in some of the five minutes."""
    return lambda index: None if first <= index < last else load(index) if callable(load) else load


def rising(index):
    return 10.0 + index


def minute(service, number, killed=False):
    """Rows of an instance that is up for a minute, one after the other; a killed one counts as down from then on."""
    index, place = divmod(number, 5)
    rows = instance(service, number, 50.0, index, index + 1, up_s=60.0, connected_s=60.0, full_load=100.0)
    if killed:
        rows[0]["down_s"] = 300.0 - 60.0 * (place + 1)
        rows += instance(service, number, None, index + 1, full_load=100.0)
    return rows


def made(files, day=DAY):
    return as_rows(GOLD_SERVICE_1H, each(service_load, MEASURES, files, day, LOOKBACK.days))


@pytest.fixture(scope="module")
def hours(tmp_path_factory):
    rows = [
        *instance("steady", 1, 10.0, full_load=40.0, requests=5),
        *instance("steady", 2, 30.0, full_load=40.0, requests=5),
        # One of three is down for an hour, and the others do as before.
        *instance("down", 1, 10.0, full_load=40.0),
        *instance("down", 2, 10.0, full_load=40.0),
        *instance("down", 3, gone(20.0), full_load=40.0),
        # The others take its load over.
        *instance("moved", 1, lambda index: 15.0 if 12 <= index < 24 else 10.0),
        *instance("moved", 2, lambda index: 15.0 if 12 <= index < 24 else 10.0),
        *instance("moved", 3, gone(10.0)),
        # Half of it.
        *instance("half", 1, lambda index: 15.0 if 12 <= index < 24 else 10.0),
        *instance("half", 2, gone(10.0)),
        # Nobody is left.
        *instance("none", 1, gone(10.0)),
        # It had nothing to do when it fell silent; alone, and beside one that gets more to do.
        *instance("idle", 1, gone(0.0)),
        *instance("idle beside", 1, lambda index: 10.0 if index < 12 else 20.0),
        *instance("idle beside", 2, gone(0.0)),
        # It follows the rise of the nineteen others.
        *(row for number in range(19) for row in instance("rising", number, rising)),
        *instance("rising", 19, gone(lambda index: 2 * rising(index))),
        # Withdrawn after an hour.
        *instance("fewer", 1, 10.0),
        *instance("fewer", 2, 10.0, last=12),
        # Back at once, but without a report.
        *instance("unknown", 1, gone(10.0, 12, 36), up_s=300.0, connected_s=300.0, down_s=0.0),
        *instance("silent", 1, None),
        *instance("half down", 1, 10.0, up_s=75.0, down_s=225.0),
        *instance("half down", 2, 10.0),
        *instance("restart", 1, lambda index: 100.0 if index % 12 == 0 else 10.0),
        *(row for number in range(60) for row in minute("minutes", number)),
        *(row for number in range(60) for row in minute("killed", number, killed=True)),
        # One of two is replaced in the middle of a window, by a withdrawal or a kill.
        *instance("rolled", 1, 10.0, full_load=40.0),
        *instance("rolled", 2, 10.0, last=6, full_load=40.0),
        *instance("rolled", 2, 10.0, 6, 7, up_s=100.0, full_load=40.0),
        *instance("rolled", 3, 10.0, 6, 7, up_s=200.0, full_load=40.0),
        *instance("rolled", 3, 10.0, 7, full_load=40.0),
        *instance("rolled by kill", 1, 10.0, full_load=40.0),
        *instance("rolled by kill", 2, 10.0, last=6, full_load=40.0),
        *instance("rolled by kill", 2, 10.0, 6, 7, up_s=100.0, down_s=200.0, full_load=40.0),
        *instance("rolled by kill", 2, None, 7, full_load=40.0),
        *instance("rolled by kill", 3, 10.0, 6, 7, up_s=200.0, full_load=40.0),
        *instance("rolled by kill", 3, 10.0, 7, full_load=40.0),
        *instance("awaited", 1, 10.0, 0, 6),
        *instance("awaited", 1, 10.0, 6, 7, up_s=240.0, awaited_s=60.0),
        *instance("awaited", 1, 10.0, 7),
        # In half a minute after the broker's start only one of them is back, with a load that nobody has long.
        *instance("peak", 1, lambda index: 30.0 if index == 3 else 10.0),
        *instance("peak", 2, lambda index: 90.0 if index == 12 else 10.0),
    ]
    for row in rows:
        if row["service"] == "peak" and row["w"] == clock("11:00"):
            row |= {"up_s": 30.0, "broker_up_s": 30.0}
    for row in rows:
        if row["service"] == "unknown" and row["load_mean"] is None:
            row |= {"up_s": 300.0, "connected_s": 300.0, "down_s": 0.0}
        if row["service"] == "restart" and row["load_mean"] == 100.0:
            row |= {"up_s": 30.0, "connected_s": 30.0, "broker_up_s": 30.0}
    return {(row.service, row.h.hour): row for row in made([silver(tmp_path_factory.mktemp("silver"), rows)])}


def test_demand_is_the_sum_of_loads(hours):
    row = hours["steady", 10]
    assert (row.date, row.h) == (DAY, clock("10:00"))
    assert (row.demand_mean, row.demand_p95, row.capacity, row.full_load, row.util) == (40.0, 40.0, 80.0, 40.0, 0.5)
    assert (row.providers_mean, row.providers_min, row.requests) == (2.0, 2, 120)
    assert (row.cov, row.max_mean, row.gini) == (0.5, 1.5, 0.25)


def test_who_is_down_does_not_look_like_demand_that_fell(hours):
    assert [hours["down", hour].demand_mean for hour in (10, 11, 12)] == [40.0, 40.0, 40.0]
    row = hours["down", 11]
    assert (row.capacity, row.providers_mean, row.providers_min, row.util) == (80.0, 2.0, 2, 0.5)


def test_load_that_others_took_over_is_not_counted_twice(hours):
    assert [hours["moved", hour].demand_mean for hour in (10, 11, 12)] == [30.0, 30.0, 30.0]


def test_load_that_was_taken_over_in_part_is_filled_in_in_part(hours):
    assert hours["half", 11].demand_mean == 15.0 + 15.0 * 0.5


def test_when_nobody_is_left_the_last_load_stands(hours):
    assert (hours["none", 11].demand_mean, hours["none", 11].providers_min) == (10.0, 0)


def test_a_silence_that_began_at_load_0_is_no_demand_and_takes_none_away(hours):
    assert [hours["idle", hour].demand_mean for hour in (10, 11, 12)] == [0.0, 0.0, 0.0]
    assert [hours["idle", hour].demand_p95 for hour in (10, 11, 12)] == [0.0, 0.0, 0.0]
    assert [hours["idle beside", hour].demand_mean for hour in (10, 11, 12)] == [10.0, 20.0, 20.0]


def test_what_is_filled_in_follows_the_rise_of_the_others(hours):
    known = sum(21 * rising(index) for index in range(12, 24)) / 12
    assert hours["rising", 11].demand_mean == pytest.approx(known, rel=0.1)
    # It is less than the others say alone only by what they are taken to have taken over.
    assert hours["rising", 11].demand_mean >= known * 19 / 21


def test_who_withdrew_is_not_filled_in(hours):
    assert [hours["fewer", hour].demand_mean for hour in (10, 11)] == [20.0, 10.0]
    assert hours["fewer", 11].providers_mean == 1.0


def test_who_has_not_reported_yet_keeps_its_load_and_counts_as_there(hours):
    assert (hours["unknown", 12].demand_mean, hours["unknown", 12].providers_min) == (10.0, 1)


def test_a_service_that_never_reported_a_load_has_no_demand(hours):
    row = hours["silent", 10]
    assert (row.demand_mean, row.demand_p95, row.capacity, row.util, row.cov) == (None, None, None, None, None)


def test_providers_count_by_the_time_that_they_are_up(hours):
    assert (hours["half down", 10].providers_mean, hours["half down", 10].providers_min) == (1.25, 1)


def test_five_minutes_count_by_how_much_the_broker_was_up(hours):
    known = (100.0 * 30 + 11 * 10.0 * 300) / (30 + 11 * 300)
    assert hours["restart", 10].demand_mean == pytest.approx(known, abs=1e-6)


def test_an_hour_without_a_broker_has_no_row(hours):
    assert {hour for service, hour in hours if service == "steady"} == {10, 11, 12}


@pytest.mark.parametrize("service", ["minutes", "killed"])
def test_instances_of_a_minute_each_are_one_provider(hours, service):
    row = hours[service, 10]
    assert (row.demand_mean, row.demand_max, row.capacity, row.providers_mean) == (50.0, 50.0, 100.0, 1.0)
    assert row.providers_min == 1


@pytest.mark.parametrize("service", ["rolled", "rolled by kill"])
def test_a_rolling_replacement_leaves_demand_and_capacity_as_they_are(hours, service):
    for hour in (10, 11):
        row = hours[service, hour]
        assert (row.demand_mean, row.demand_max, row.capacity, row.providers_mean) == (20.0, 20.0, 80.0, 2.0)


def test_an_awaited_instance_keeps_its_place(hours):
    assert (hours["awaited", 10].demand_mean, hours["awaited", 10].providers_mean) == (10.0, 1.0)


def test_the_highest_window_is_the_peak_if_the_broker_saw_enough_of_it(hours):
    assert (hours["peak", 10].demand_mean, hours["peak", 10].demand_max) == (pytest.approx(20 + 20 / 12), 40.0)
    assert hours["peak", 11].demand_max == 20.0


def test_an_absence_that_began_the_day_before_is_filled_in(tmp_path):
    rows = [*instance("night", 1, 10.0, last=200), *instance("night", 2, gone(20.0, 160, 200), last=200)]
    hours = made([silver(tmp_path, rows)], NEXT)
    assert {row.date for row in hours} == {NEXT}
    assert {row.demand_mean for row in hours} == {30.0}


@pytest.mark.parametrize("again", [1, 2])
def test_those_that_fell_silent_together_are_replaced_in_part(tmp_path, again):
    """Of two that are killed at the same time one is replaced, or both are; their loads may differ."""
    rows = [
        *instance("kept", 0, 30.0),
        *instance("kept", 1, gone(10.0, 12, 36)),
        *instance("kept", 2, gone(20.0, 12, 36)),
    ]
    rows += [row for number in range(again) for row in instance("kept", 3 + number, 15.0, 12)]
    hours = {row.h.hour: row for row in made([silver(tmp_path, rows)])}
    assert hours[10].demand_mean == 60.0
    told = 30.0 + 15.0 * again
    if again == 2:
        assert hours[12].demand_mean == told
    else:
        assert told < hours[12].demand_mean < told + 15.0


def test_reports_of_requests_are_added_up_over_instances(tmp_path):
    rows = [
        *instance("asked", 1, 10.0, requests=5, errors=1, timed=5, busy_s=2.0, in_flight=1.5),
        *instance("asked", 2, 10.0, requests=3),
        *instance("unasked", 1, 10.0),
    ]
    told = {(row.service, row.h.hour): row for row in made([silver(tmp_path, rows)])}
    row = told["asked", 10]
    assert (row.requests, row.errors, row.service_s, row.in_flight) == (96, 12, 0.4, 1.5)
    row = told["unasked", 10]
    assert (row.requests, row.errors, row.service_s, row.in_flight) == (None, None, None, None)
    assert row.observed_s == 3_600.0
