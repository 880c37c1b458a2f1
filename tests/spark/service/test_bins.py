"""Bins: the division of a task's rows, which bounds its memory and changes no result."""

from datetime import timedelta
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.service import balance, demand, reliability
from spark.capacity.service.bins import Limits, Share, Source, divide, services
from spark.capacity.service.demand import LOOKBACK
from spark.capacity.tables.time_windows import DAY as DAY_LENGTH
from spark.capacity.tables.time_windows import FIVE_MINUTES, midnight
from tests.spark.farm import DAY, clock, each, silver

MEASURES = ("load_mean", "+requests")

WHOLE = Limits(rows=1_000_000, instances=1_000)
"""Limits that no service of these tests reaches."""


def instance(service, number, first=0, last=6, load=10.0, requests=2):
    """Rows of an instance from 10:00 on."""
    return [
        {
            "service": service,
            "instance": f"{service}:{number}",
            "w": clock("10:00") + timedelta(minutes=5 * index),
            "load_mean": load + index,
            "requests": requests,
        }
        for index in range(first, last)
    ]


def source(*files, share=0, of=1):
    return Source(files, MEASURES, midnight(DAY), DAY_LENGTH // FIVE_MINUTES, Share(share, of))


def read(folder, rows, limits):
    """Return the slices of each service."""
    found = services(source(silver(folder, rows[::2]), silver(folder, rows[1::2])), folder, limits)
    return {service.name: list(service.each(lambda grid: grid)) for service in found}


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 100)), st.integers(1, 40))
def test_a_bin_has_small_services_or_a_share_of_a_large_one(rows, limit):
    bins = divide(rows, limit)
    assert bins.keys() == rows.keys()
    within: dict[int, list[str]] = {}
    for name, numbers in bins.items():
        assert len(numbers) == ceil(rows[name] / limit)
        for number in numbers:
            within.setdefault(number, []).append(name)
    assert sorted(within) == list(range(len(within)))
    for names in within.values():
        assert len(names) == 1 or sum(rows[name] for name in names) <= limit


def test_a_service_of_many_rows_is_read_in_slices_of_some_instances(tmp_path):
    rows = [row for number in range(40) for row in instance("large", number)] + instance("small", 1)
    found = read(tmp_path, rows, Limits(rows=60, instances=3))
    assert [len(grid.instances) for grid in found["small"]] == [1]
    sizes = [len(grid.instances) for grid in found["large"]]
    # 40 instances in four bins by a hash of their names; each bin has a slice that is not full at most.
    assert max(sizes) == 3
    assert sum(size < 3 for size in sizes) <= 4
    names = [name for grid in found["large"] for name in grid.instances]
    assert sorted(names) == sorted(f"large:{number}" for number in range(40))
    assert list(tmp_path.iterdir()) == list(tmp_path.glob("*.parquet"))


def test_instances_of_a_moment_are_read_in_slices_though_their_rows_are_few(tmp_path):
    rows = [row for number in range(10) for row in instance("short", number, number, number + 1)]
    found = read(tmp_path, rows, Limits(rows=1_000, instances=4))
    assert [len(grid.instances) for grid in found["short"]] == [4, 4, 2]


def test_slices_have_the_rows_of_their_instances_and_sums_of_them(tmp_path):
    rows = [row for number in range(9) for row in instance("large", number, 1, 2 + number % 4, number, number)]
    slices = read(tmp_path, rows, Limits(rows=10, instances=2))["large"]
    assert len(slices) > 2
    place = (10 * 3600) // 300
    for grid in slices:
        for row, name in enumerate(grid.instances):
            number = int(name.split(":")[1])
            told = [number + index for index in range(1, 2 + number % 4)]
            assert grid["load_mean"][row][grid.there[row]].tolist() == told
            assert np.flatnonzero(grid.there[row]).tolist() == [place + index for index in range(1, 2 + number % 4)]
    asked = np.nansum([grid["+requests"][0] for grid in slices], axis=0)
    assert asked[place + 1 : place + 5].tolist() == [36.0, 36.0 - 8 - 4, 36.0 - 8 - 4 - 1 - 5, 3.0 + 7]
    assert np.isnan(slices[0]["+requests"][0][0])


def test_slices_of_a_large_service_can_be_read_again(tmp_path):
    rows = [row for number in range(9) for row in instance("large", number)]
    for service in services(source(silver(tmp_path, rows)), tmp_path, Limits(rows=10, instances=2)):
        slices = service.each(lambda grid: grid)
        once, again = list(slices), list(slices)
        assert [grid.instances for grid in once] == [grid.instances for grid in again]
        assert not {id(grid) for grid in once} & {id(grid) for grid in again}


def test_a_task_has_the_services_of_its_share(tmp_path):
    # Some files have none of a share's services.
    files = [silver(tmp_path, instance(f"s{number}", 1)) for number in range(20)]
    shares = [
        [service.name for service in services(source(*files, share=number, of=3), tmp_path, Limits(rows=15))]
        for number in range(3)
    ]
    assert all(shares)
    assert sorted(name for names in shares for name in names) == sorted(f"s{number}" for number in range(20))


LIVES = st.tuples(st.integers(0, 8), st.integers(1, 16), st.integers(0, 40), st.integers(0, 20), st.integers(0, 6))
"""The first window of an instance, how many there are, its load, where it falls silent, and for how long."""


def life(service, number, first, length, load, silent, gone):
    """Rows of an instance that is down for some windows; at the end of its rows it may not have come back."""
    rows = instance(service, number, first, first + length, load, number)
    for index, row in enumerate(rows):
        down = silent <= index < silent + gone
        up = 0.0 if down else 150.0 if index == silent + gone else 300.0
        row |= {"up_s": up, "connected_s": up, "down_s": 300.0 - up, "outages": int(index == silent and gone > 0)}
        row |= {"hb": int(up / 30), "hb_expected": 10.0, "full_load": 50.0}
        if down:
            row["load_mean"] = None
    return rows


JOBS = [
    (demand.service_load, demand.MEASURES, LOOKBACK.days, "h"),
    (balance.balance, balance.MEASURES, 0, "date"),
    (reliability.provider_days, reliability.MEASURES, 0, "instance"),
]


@pytest.mark.long
@given(st.lists(st.lists(LIVES, min_size=1, max_size=8), min_size=1, max_size=3), st.integers(1, 60), st.integers(1, 4))
def test_the_division_changes_no_result(farm, rows, instances):
    lives = [
        row
        for service, members in enumerate(farm)
        for number, one in enumerate(members)
        for row in life(f"s{service}", number, *one)
    ]
    with TemporaryDirectory() as place:
        files = [silver(Path(place), lives[::2]), silver(Path(place), lives[1::2])]
        for job, measures, lookback, key in JOBS:
            whole, divided = (
                sorted(
                    each(job, measures, files, DAY, lookback, limits), key=lambda row: (row["service"], str(row[key]))
                )
                for limits in (WHOLE, Limits(rows, instances))
            )
            assert len(whole) == len(divided)
            for one, other in zip(whole, divided, strict=True):
                for name, value in one.items():
                    if isinstance(value, float):
                        assert other[name] == pytest.approx(value, abs=2e-6, nan_ok=True), (name, one)
                    else:
                        assert other[name] == value, (name, one)
