"""The highest minute of services' hours, from five minutes whose minutes are known."""

from datetime import timedelta

import pytest

from spark.capacity.service.bins import Limits
from spark.capacity.service.demand import LOOKBACK, MEASURES, service_load
from spark.capacity.tables.schema import GOLD_SERVICE_1H
from tests.spark.farm import DAY, as_rows, clock, each, silver

PEAK = (5.0, 5.0, 30.0, 5.0, 5.0)


def instance(service, number, minutes=None, load=10.0, first=0, last=24, **members):
    """Rows of an instance from 10:00 on; `minutes` are those of the windows that have some."""
    rows = []
    for index in range(first, last):
        told = (minutes or {}).get(index)
        row = {
            "service": service,
            "instance": f"{service}:{number}",
            "w": clock("10:00") + timedelta(minutes=5 * index),
            "load_mean": load,
        }
        row |= {f"load_{place + 1}": value for place, value in enumerate(told or ())}
        rows.append(row | members)
    return rows


def part(service, number, index, seconds, load=10.0, **members):
    """A window of an instance that is up for a part of it."""
    return instance(service, number, None, load, index, index + 1, up_s=seconds, connected_s=seconds, **members)


def made(folder, rows, limits=None):
    files = [silver(folder, rows)]
    done = each(service_load, MEASURES, files, DAY, LOOKBACK.days, **({"limits": limits} if limits else {}))
    return {(row.service, row.h.hour): row for row in as_rows(GOLD_SERVICE_1H, done)}


@pytest.fixture(scope="module")
def hours(tmp_path_factory):
    rows = [
        *instance("one", 1, {3: PEAK}),
        # The same minute, another one, and minutes that even each other out.
        *(row for number in range(2) for row in instance("together", number, {3: PEAK})),
        *instance("apart", 1, {3: PEAK}),
        *instance("apart", 2, {3: PEAK[2:] + PEAK[:2]}),
        *instance("even", 1, {3: (8.0, 8.0, 8.0, 13.0, 13.0)}),
        *instance("even", 2, {3: (12.0, 12.0, 12.0, 7.0, 7.0)}),
        # Of some instances nothing is known by the minute.
        *instance("few", 1, {3: PEAK}),
        *instance("few", 2),
        *instance("few", 3, None, None, up_s=0.0, connected_s=0.0, down_s=300.0),
        *instance("none", 1),
        # The minute is in a lower window than the highest one.
        *instance("lower", 1, {3: (5.0, 5.0, 5.0, 5.0, 30.0)}),
        *(row | {"load_mean": 40.0 if number == 7 else 0.0} for number, row in enumerate(instance("lower", 2))),
        # One of two ends in the fourth minute of a window, and the other takes its load over.
        *instance("taken over", 1, {5: (10.0, 10.0, 10.0, 15.0, 20.0)}, 13.0, last=6),
        *instance("taken over", 1, None, 20.0, 6),
        *instance("taken over", 2, last=5),
        *part("taken over", 2, 5, 210.0),
        # It is silent, and counts as up until the next window.
        *instance("late", 1, {4: (10.0, 10.0, 10.0, 20.0, 20.0)}, 14.0, last=5),
        *instance("late", 1, None, 20.0, 5),
        *instance("late", 2, last=5),
        *part("late", 2, 5, 30.0),
        # Another one comes to help, and tells its load in the next window.
        *instance("helped", 1, {5: (20.0, 20.0, 20.0, 20.0, 10.0)}, 18.0, last=6),
        *instance("helped", 1, None, 10.0, 6),
        *part("helped", 2, 4, 60.0, None),
        *instance("helped", 2, first=5),
        # Replaced by another one, which has its load.
        *instance("rolled", 1, {5: (9.0, 9.0, 9.0, 9.0, 14.0)}),
        *instance("rolled", 2, last=5),
        *part("rolled", 2, 5, 100.0),
        *part("rolled", 3, 5, 200.0),
        *instance("rolled", 3, first=6),
        # More than what the one that ends could have left to others.
        *instance("more", 1, {5: (10.0, 10.0, 10.0, 10.0, 110.0)}, 30.0),
        *instance("more", 2, last=5),
        *part("more", 2, 5, 100.0),
    ]
    return made(tmp_path_factory.mktemp("silver"), rows)


def peak(hours, service, hour=10):
    return hours[service, hour].demand_peak


def test_the_highest_minute_is_the_peak(hours):
    row = hours["one", 10]
    assert (row.demand_mean, row.demand_max, row.demand_peak) == (10.0, 10.0, 30.0)
    assert peak(hours, "one", 11) == 10.0


def test_minutes_of_instances_are_added_up_minute_by_minute(hours):
    assert peak(hours, "together") == 60.0
    assert peak(hours, "apart") == 35.0
    assert peak(hours, "even") == 20.0


def test_instances_without_minutes_count_as_even(hours):
    assert peak(hours, "few") == hours["few", 10].demand_max + 20.0
    assert peak(hours, "none") == 10.0


def test_the_peak_of_minutes_is_not_below_that_of_windows(hours):
    assert (hours["lower", 10].demand_max, peak(hours, "lower")) == (50.0, 50.0)
    assert all(row.demand_peak >= row.demand_max for row in hours.values())


@pytest.mark.parametrize("service", ["taken over", "late", "helped", "rolled"])
def test_load_that_moves_between_instances_is_no_peak(hours, service):
    assert hours[service, 10].demand_peak == hours[service, 10].demand_max


def test_a_rise_beyond_what_could_have_moved_counts(hours):
    # A third of the window is the other's, and its load is taken off the rise.
    assert peak(hours, "more") == pytest.approx(30.0 + 10.0 / 3 + 80.0 - 10.0)


def test_a_peak_does_not_depend_on_the_division_into_slices(tmp_path):
    rows = [row for number in range(40) for row in instance("many", number, {3 + number % 3: PEAK})]
    whole, divided = made(tmp_path, rows), made(tmp_path, rows, Limits(rows=100, instances=3))
    assert whole["many", 10].demand_peak == divided["many", 10].demand_peak == 400.0 + 14 * 20.0


def test_in_a_window_that_the_broker_hardly_saw_minutes_do_not_count(tmp_path):
    rows = instance("short", 1, {3: PEAK})
    rows[3] |= {"broker_up_s": 59.0, "up_s": 59.0}
    assert made(tmp_path, rows)["short", 10].demand_peak == 10.0
