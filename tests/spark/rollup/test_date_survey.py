"""Survey of a date before its records are counted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark.capacity.rollup.date_survey import Pair, Survey, survey
from spark.capacity.tables.schema import BRONZE_RECORDS
from spark.capacity.tables.store import Tables
from tests.spark.farm import DAY, Start, bronze, clock, every

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(text: str) -> int:
    return (clock(text) - EPOCH) // timedelta(microseconds=1)


@pytest.fixture
def seen(spark, tmp_path: Path) -> Survey:
    start, other = Start("b", "one"), Start("b", "two")
    start.alive(every(60, "10:00:30", "10:02:30"))
    start.beats("s", 1, every(10, "10:00:05", "10:00:55"))
    start.write(clock("10:01"), "hb", service="s", provider=1, instance="renamed:1")
    start.write(clock("10:01"), "load", service="s", load=1.0)
    other.write(clock("10:05"), "alive", service="s", provider=1, instance="s:1")
    tables = Tables(spark, tmp_path)
    bronze(tables, [start, other])
    files = [str(path) for path in tables.files(BRONZE_RECORDS, DAY)]
    made = Survey()
    made.add(survey(files, {("b", "one"): [3, 4, 99], ("c", "one"): [1]}))
    return made


def test_signs_are_the_ends_of_each_minute(seen: Survey) -> None:
    assert sorted(seen.signs) == [
        ("b", "one", micros("10:00:05"), micros("10:00:55")),
        ("b", "one", micros("10:01"), micros("10:01:30")),
        ("b", "one", micros("10:02:30"), micros("10:02:30")),
        ("b", "two", micros("10:05"), micros("10:05")),
    ]  # fmt: skip


def test_only_records_of_providers_are_of_pairs(seen: Survey) -> None:
    assert seen.pairs == {Pair("b", "one", "s", 1, "s:1"): 6, Pair("b", "one", "s", 1, "renamed:1"): 1}


def test_the_times_of_wanted_records_are_told(seen: Survey) -> None:
    assert seen.times == {("b", "one", 3): micros("10:02:30"), ("b", "one", 4): micros("10:00:05")}


def test_surveys_of_parts_add_up(seen: Survey) -> None:
    pairs = dict(seen.pairs)
    seen.add(Survey(minutes={("b", "one", micros("10:00") // 60_000_000): (micros("10:00:01"), micros("10:00:02"))}))
    seen.add(Survey(pairs=seen.pairs.copy()))
    assert seen.signs[0][2:] == (micros("10:00:01"), micros("10:00:55"))
    assert seen.pairs == {pair: 2 * records for pair, records in pairs.items()}
