"""Hidden time, of gaps that were worked out by hand."""

from spark.capacity.hidden import Gap, Missing, apart, joined, rows_of
from spark.capacity.times import FAR, SECOND


def gap(first: float, last: float, boot: str = "one") -> Gap:
    return Gap("b", boot, round(first * SECOND), round(last * SECOND))


def test_what_is_missing_in_a_row_is_one_gap() -> None:
    rows = [Missing("b", "one", 5, 6), Missing("b", "one", 3, 4), Missing("b", "one", 8, 8), Missing("b", "two", 7, 7)]
    assert joined(rows) == [Missing("b", "one", 3, 6), Missing("b", "one", 8, 8), Missing("b", "two", 7, 7)]


def test_no_time_is_hidden_twice() -> None:
    assert apart([gap(15, 30), gap(10, 20), gap(12, 18), gap(5, 50, "two")]) == [
        gap(10, 20), gap(20, 30), gap(5, 50, "two"),
    ]  # fmt: skip


def test_five_minutes_know_what_was_hidden_before_them_and_in_them() -> None:
    gaps = [gap(310, 320), gap(590, 620), gap(650, 655)]
    rows = [tuple(row) for row in rows_of(gaps, 1200 * SECOND)]
    first, second, third = ((one.gap_from, one.gap_to) for one in gaps)
    assert rows == [
        ("b", "one", 300 * SECOND, 0, 300 * SECOND, 580 * SECOND, [first, second]),
        ("b", "one", 600 * SECOND, 20 * SECOND, 580 * SECOND, 855 * SECOND, [second, third]),
        ("b", "one", 900 * SECOND, 45 * SECOND, 855 * SECOND, FAR, []),
    ]


def test_each_start_has_rows_of_its_own() -> None:
    rows = rows_of([gap(310, 320), gap(700, 701, "two")], 900 * SECOND)
    assert [tuple(row)[1:4] for row in rows] == [
        ("one", 300 * SECOND, 0), ("one", 600 * SECOND, 10 * SECOND), ("two", 600 * SECOND, 0),
    ]  # fmt: skip


def test_nothing_hidden_has_no_rows() -> None:
    assert list(rows_of([], 900 * SECOND)) == []
