"""Balance, on five minutes whose spread was worked out by hand."""

from datetime import timedelta

import pytest

from spark.capacity.service.balance import MEASURES, balance
from spark.capacity.tables.schema import GOLD_BALANCE_DAY
from tests.spark.farm import as_rows, clock, each, silver


def loads(service, numbers, first="10:00", windows=12):
    """An hour in which the providers have the same loads all the time."""
    return [
        {
            "service": service,
            "instance": f"{service}:{index}",
            "w": clock(first) + timedelta(minutes=5 * step),
            "load_mean": number,
        }
        for index, number in enumerate(numbers)
        for step in range(windows)
    ]


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    rows = [
        *loads("even", [10.0, 10.0, 10.0]),
        *loads("hot", [10.0, 10.0, 10.0, 30.0]),
        *loads("uneven", [6.0, 6.0, 14.0, 14.0]),
        *loads("idle", [0.0, 0.0]),
        *loads("alone", [10.0]),
        *loads("brief", [10.0, 30.0], windows=11),
        # Each is there with others that have the same: the hour makes the difference, and not the provider.
        *loads("shifts", [1.0, 1.0], "02:00"),
        *[{**row, "instance": row["instance"] + "day"} for row in loads("shifts", [9.0, 9.0], "12:00")],
    ]
    file = silver(tmp_path_factory.mktemp("silver"), rows)
    return {row.service: row for row in as_rows(GOLD_BALANCE_DAY, each(balance, MEASURES, [file]))}


def test_equal_loads_are_balanced(day):
    row = day["even"]
    assert (row.cov, row.max_mean, row.gini, row.hot_instances, row.unbalanced) == (0.0, 1.0, 0.0, [], False)


def test_a_hot_instance_is_named(day):
    row = day["hot"]
    # Shares of 2/3 three times, and 2: the deviation is the root of 1/3.
    assert (row.cov, row.max_mean, row.gini) == (0.57735, 2.0, 0.25)
    assert (row.hot_instances, row.unbalanced) == (["hot:3"], True)


def test_many_uneven_ones_need_no_hot_one(day):
    row = day["uneven"]
    assert (row.cov, row.max_mean, row.gini) == (0.4, 1.4, 0.2)
    assert (row.hot_instances, row.unbalanced) == ([], True)


def test_what_cannot_be_uneven_has_no_row(day):
    assert not {"idle", "alone", "brief"} & set(day)


def test_those_who_work_at_night_are_not_compared_with_those_of_the_day(day):
    assert (day["shifts"].cov, day["shifts"].unbalanced) == (0.0, False)
