"""Clocks that were set back: a few records written by hand, and any others against a comparison of each pair."""

from datetime import UTC, date, datetime
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.rollup.clock_jumps import (
    MOST,
    SILVER_SET_BACK,
    TOLD,
    Piece,
    SetBack,
    rows,
    sentences,
    set_back,
    within,
)
from spark.capacity.rollup.date_rollup import look
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import SECOND
from tests.spark.farm import DAY, Start, bronze, clock, rolled

NAMES = [("b", "one"), ("b", "two")]

Seen = tuple[int, int, int]


def found(*pieces: list[Seen]) -> list[SetBack]:
    """Look at pieces of records: number of the start, number, second."""
    seen, within_them = list[Piece](), list[SetBack]()
    for piece in pieces:
        start, seq, at = np.array(piece, np.int64).reshape(-1, 3).T
        made, more = within(start, seq, at * SECOND, NAMES)
        seen += made
        within_them += more
    return set_back(seen, within_them)


def test_a_record_that_is_earlier_than_the_one_before_it_is_told() -> None:
    assert found([(0, 1, 100), (0, 2, 110), (0, 3, 50), (0, 4, 60)]) == [("b", "one", 3, 2, 110 * SECOND, 50 * SECOND)]
    assert found([(0, 1, 100), (0, 2, 100), (0, 4, 101)]) == []


def test_starts_are_apart_and_the_order_is_that_of_the_numbers() -> None:
    assert found([(0, 1, 100), (1, 1, 50), (0, 3, 30), (1, 2, 60), (0, 2, 110)]) == [
        ("b", "one", 3, 2, 110 * SECOND, 30 * SECOND)
    ]


def test_a_clock_that_was_set_back_between_two_files_is_noticed_in_whatever_order_they_come() -> None:
    first, second = [(0, 1, 100), (0, 2, 110)], [(0, 5, 50), (0, 6, 60)]
    told = [("b", "one", 5, 2, 110 * SECOND, 50 * SECOND)]
    assert found(first, second) == found(second, first) == told
    assert found(first, first, [], second) == told, "a file that is there twice changes nothing"


def test_what_two_parts_of_the_same_records_find_is_one() -> None:
    records = [(0, number, number + (100 if number < 40 else 0)) for number in range(1, 80)]
    assert found(records[::2], records[1::2]) == [("b", "one", 40, 39, 139 * SECOND, 40 * SECOND)]


def test_what_keeps_a_clock_right_is_not_told() -> None:
    start, seq = np.zeros(2, np.int64), np.array([1, 2])
    for by, told in ((TOLD - 1, 0), (TOLD, 1)):
        assert len(within(start, seq, np.array([5 * SECOND, 5 * SECOND - by]), NAMES)[1]) == told


def test_a_clock_that_goes_to_and_fro_is_told_a_bounded_number_of_times() -> None:
    records = [(0, number, number % 2 * 10) for number in range(1, 4 * MOST)]
    assert len(found(records)) == MOST
    assert len(found(*([record] for record in records))) == MOST


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 30), st.integers(0, 20)), max_size=20, unique_by=lambda r: r[:2]
    )
)
def test_all_and_only_those_are_told_that_a_look_at_each_pair_finds(records: list[Seen]) -> None:
    pairs = pairwise(sorted(records))
    wanted = [
        (*NAMES[number], seq, since, sooner * SECOND, at * SECOND)
        for (before, since, sooner), (number, seq, at) in pairs
        if before == number and at < sooner
    ]
    assert found(records) == wanted
    assert found(*([record] for record in records)) == wanted


def test_a_drop_record_is_written_later_than_what_follows_it(spark, tmp_path) -> None:
    start = Start("b", "one")
    start.alive([clock("10:00")])
    start.write(clock("10:00:30"), "drop", dropped=4, why="disk")
    start.alive([clock("10:00:10")])
    tables = Tables(spark, tmp_path)
    bronze(tables, [start])
    assert look(tables, [DAY])[DAY].set_back == []


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
