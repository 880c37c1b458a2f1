"""Survey of a date, from the tables beside its records."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark.capacity.rollup.date_survey import Pair, Survey
from spark.capacity.rollup.lost_time import Missing
from spark.capacity.tables.store import Tables
from tests.spark.farm import DAY, Start, bronze, clock, every, surveyed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int:
    return (clock(text) - EPOCH) // timedelta(microseconds=1)


@pytest.fixture
def seen(spark, tmp_path: Path) -> Survey:
    start, other = Start("b", "one"), Start("b", "two")
    start.beats("s", 1, every(10, "10:00:05", "10:00:55"))
    start.alive(every(60, "10:01:30", "10:02:30"))
    start.write(clock("10:10"), "hb", service="s", provider=1, instance="renamed:1")
    start.write(clock("10:10:20"), "load", service="s", load=1.0)
    other.write(clock("10:05"), "alive", service="s", provider=1, instance="s:1")
    other.write(clock("23:59:59", DAY + timedelta(days=1)), "alive")
    # Of a whole start the numbers 4 and 5 are missing.
    start.records = [record for record in start.records if record["seq"] not in (4, 5)]
    tables = Tables(spark, tmp_path)
    bronze(tables, [start, other])
    return surveyed(tables, [Missing("b", "one", 4, 5), Missing("c", "one", 1, 1)])


def test_signs_are_the_ends_of_unbroken_records(seen: Survey) -> None:
    assert sorted(seen.signs) == [
        ("b", "one", micros("10:00:05"), micros("10:00:25")),
        ("b", "one", micros("10:00:55"), micros("10:02:30")),
        ("b", "one", micros("10:10"), micros("10:10:20")),
        ("b", "two", micros("10:05"), micros("10:05")),
    ]  # fmt: skip


def test_only_records_of_providers_are_of_pairs(seen: Survey) -> None:
    assert seen.pairs == {Pair("b", "one", "s", 1, "s:1"): 4, Pair("b", "one", "s", 1, "renamed:1"): 1}


def test_the_times_beside_lost_records_are_told(seen: Survey) -> None:
    assert seen.times == {("b", "one", 3): micros("10:00:25"), ("b", "one", 6): micros("10:00:55")}


def test_pairs_of_all_files_add_up(spark, tmp_path: Path) -> None:
    start = Start("b", "one")
    start.beats("s", 1, every(10, "10:00:05", "10:00:55"))
    tables = Tables(spark, tmp_path)
    bronze(tables, [start], copies=3)
    assert surveyed(tables).pairs == {Pair("b", "one", "s", 1, "s:1"): 18}
