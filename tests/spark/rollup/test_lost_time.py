"""Hidden time, of gaps that were worked out by hand."""

import numpy as np

from spark.capacity.rollup.lost_time import Clock, Gap, Hidden, Missing, apart, beside, find_gaps, joined
from spark.capacity.tables.time_windows import SECOND


def gap(first: float, last: float, boot: str = "one") -> Gap:
    return Gap("b", boot, round(first * SECOND), round(last * SECOND))


def test_what_is_missing_in_a_row_is_one_gap() -> None:
    rows = [Missing("b", "one", 5, 6), Missing("b", "one", 3, 4), Missing("b", "one", 8, 8), Missing("b", "two", 7, 7)]
    assert joined(rows) == [Missing("b", "one", 3, 6), Missing("b", "one", 8, 8), Missing("b", "two", 7, 7)]


def test_no_time_is_hidden_twice() -> None:
    assert apart([gap(15, 30), gap(10, 20), gap(12, 18), gap(5, 50, "two")]) == [
        gap(10, 20), gap(20, 30), gap(5, 50, "two"),
    ]  # fmt: skip


def times(*seconds: float) -> np.ndarray:
    return np.array([round(second * SECOND) for second in seconds], np.int64)


def test_a_clock_stands_still_in_hidden_time() -> None:
    clock = Clock([gap(310, 320), gap(590, 620), gap(650, 655)])
    assert (
        clock.lost(times(300, 310, 315, 320, 600, 620, 655, 9999)).tolist()
        == times(0, 0, 5, 10, 20, 40, 45, 45).tolist()
    )


def test_a_clock_has_got_so_far_before_it_stands_still_and_goes_on_after_it() -> None:
    clock = Clock([gap(310, 320), gap(590, 620)])
    assert clock.when(times(300, 310, 311, 580, 581)).tolist() == times(300, 310, 321, 590, 621).tolist()


def test_each_start_has_a_clock_of_its_own() -> None:
    hidden = Hidden([gap(310, 320), gap(700, 701, "three")], [("b", "one"), ("b", "two"), ("b", "three")])
    starts = np.array([0, 0, 1, 2])
    assert hidden.lost(starts, times(300, 400, 400, 900)).tolist() == times(0, 10, 0, 1).tolist()
    assert hidden.when(starts, times(300, 400, 400, 900)).tolist() == times(300, 410, 400, 901).tolist()


def test_time_is_hidden_between_the_records_beside_what_is_missing() -> None:
    loss = [Missing("b", "one", 2, 3), Missing("b", "one", 6, 6), Missing("b", "one", 9, 9), Missing("b", "two", 1, 1)]
    assert beside(loss[:2]) == {("b", "one"): [1, 4, 5, 7]}
    seconds = {1: 10, 4: 15, 5: 20, 7: 19, 8: 30, 10: 130}
    found = {("b", "one", seq): second * SECOND for seq, second in seconds.items()} | {("b", "two", 2): 50 * SECOND}
    # The clock was set back in the second, the third is a silence of the broker, nothing is known before the fourth.
    assert find_gaps(loss, found, {}) == [gap(10, 15)]
    assert find_gaps(loss, found, {("b", "two"): 40 * SECOND}) == [gap(10, 15), gap(40, 50, "two")]
