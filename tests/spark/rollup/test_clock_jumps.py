"""Clocks that were set back: a few records written by hand, and any others against a comparison of each pair."""

from datetime import UTC, date, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.rollup.clock_jumps import MOST, Run, SetBack, rows, sentences, set_back
from spark.capacity.tables.schema import SILVER_SET_BACK
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import SECOND, SET_BACK
from tests.spark.farm import DAY, Start, bronze, clock, rolled, surveyed

Seen = tuple[str, int, int]


def found(*records: Seen) -> list[SetBack]:
    """Look at records: boot, number, second; each is a run."""
    return set_back(Run("b", boot, seq, seq, *[at * SECOND] * 4) for boot, seq, at in records)


def test_a_run_that_begins_earlier_than_the_one_before_it_ends_is_told() -> None:
    runs = [Run("b", "one", 1, 2, 0, 110 * SECOND, 0, 200 * SECOND), Run("b", "one", 3, 4, 50 * SECOND, 0, 0, 0)]
    assert set_back(reversed(runs)) == [("b", "one", 3, 2, 110 * SECOND, 50 * SECOND)]
    assert found(("one", 1, 100), ("one", 2, 100), ("one", 4, 101)) == []


def test_each_start_has_a_clock_of_its_own() -> None:
    assert found(("one", 1, 100), ("two", 2, 50)) == []


def test_less_than_a_second_is_not_told() -> None:
    for by, told in ((SET_BACK - 1, 0), (SET_BACK, 1)):
        runs = [Run("b", "one", seq, seq, *[at] * 4) for seq, at in ((1, 5 * SECOND), (2, 5 * SECOND - by))]
        assert len(set_back(runs)) == told


def test_a_clock_that_goes_to_and_fro_is_told_a_bounded_number_of_times() -> None:
    assert len(found(*(("one", number, number % 2 * 10) for number in range(1, 4 * MOST)))) == MOST


@given(
    st.lists(
        st.tuples(st.sampled_from(("one", "two")), st.integers(1, 30), st.integers(0, 20)),
        max_size=20,
        unique_by=lambda r: r[:2],
    )
)
def test_all_and_only_those_are_told_that_a_look_at_each_pair_finds(records: list[Seen]) -> None:
    wanted = [
        ("b", boot, seq, since, sooner * SECOND, at * SECOND)
        for (before, since, sooner), (boot, seq, at) in pairwise(sorted(records))
        if before == boot and at < sooner
    ]
    assert found(*records) == wanted


def test_a_drop_record_is_written_later_than_what_follows_it(spark, tmp_path) -> None:
    start = Start("b", "one")
    start.alive([clock("10:00")])
    start.write(clock("10:00:30"), "drop", dropped=4, why="disk")
    start.alive([clock("10:00:10")])
    tables = Tables(spark, tmp_path)
    bronze(tables, [start])
    assert surveyed(tables).set_back == []


def test_a_date_has_its_table_and_a_run_its_sentence(spark, tmp_path) -> None:
    start, other = Start("b", "one"), Start("c", "one")
    start.alive([clock("10:00"), clock("09:50"), clock("09:51"), clock("09:30")])
    other.alive([clock("10:00"), clock("10:01"), clock("09:59:30")])
    told = rolled(Tables(spark, tmp_path), [start, other]).rows_of(SILVER_SET_BACK, DAY).to_pylist()
    assert [(row["broker"], row["seq"], row["before"], row["after"]) for row in told] == [
        ("b", 2, clock("10:00"), clock("09:50")),
        ("b", 4, clock("09:51"), clock("09:30")),
        ("c", 3, clock("10:01"), clock("09:59:30")),
    ]
    assert sentences(told) == [
        "the clock of broker 'b' was set back 2 times, by 1,260 s at most: times that it showed twice count once",
        "the clock of broker 'c' was set back once, by 90 s at most: times that it showed twice count once",
    ]


def test_rows_are_those_of_the_schema() -> None:
    made = rows(date(2026, 3, 2), [SetBack("b", "one", 7, 6, 2 * SECOND, SECOND)])
    assert made.column_names == SILVER_SET_BACK.schema.names
    assert made.to_pylist()[0]["after"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert rows(date(2026, 3, 2), []).num_rows == 0
