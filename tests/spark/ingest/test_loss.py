"""Loss: gaps, what drop records tell of them, and numbers that are there twice, against plain counting."""

from collections import Counter
from collections.abc import Iterable
from datetime import date, timedelta

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.ingest.loss import doubled, exact, find_loss, joined
from spark.capacity.tables.schema import BRONZE_RUNS
from spark.capacity.tables.time_windows import BROKER_SILENCE, SET_BACK

DAY = date(2026, 3, 2)
BOOTS = ("one", "two")

RUN = st.tuples(
    st.integers(0, 2).map(lambda days: DAY + timedelta(days=days)),
    st.just("b"),
    st.sampled_from(BOOTS),
    st.integers(1, 40),
    st.integers(0, 12),
).map(lambda run: (*run[:4], run[3] + run[4], 0, 0, 0, 0, None))

Told = tuple[date, str, str, int, int, int | None, int | None, int | None, int | None, int | None]


def frame(runs: Iterable[Told]) -> pd.DataFrame:
    """Make a table of runs: date, broker, boot, seq_from, seq_to, ts_from, ts_to, earliest, latest, dropped."""
    return exact(pd.DataFrame(list(runs), columns=BRONZE_RUNS.schema.names))


def numbers(runs: list[Told]) -> Counter[tuple[str, int]]:
    return Counter((boot, seq) for _, _, boot, first, last, *_ in runs for seq in range(first, last + 1))


@given(st.lists(RUN, max_size=12))
def test_loss_is_every_number_below_the_last_that_is_not_held(runs: list[Told]) -> None:
    held = numbers(runs)
    missing = {
        (boot, seq)
        for boot in BOOTS
        for seq in range(1, max((held_seq for held_boot, held_seq in held if held_boot == boot), default=0))
        if (boot, seq) not in held
    }
    told = find_loss(frame(runs))
    assert {
        (row.boot, seq) for row in told.itertuples() for seq in range(row.seq_from, row.seq_to + 1)
    } == missing  # fmt: skip
    assert told["records"].sum() == len(missing)
    assert not told["known"].any()


@given(st.lists(RUN, max_size=12))
def test_doubled_dates_are_those_that_hold_a_number_which_is_held_twice(runs: list[Told]) -> None:
    twice = {number for number, times in numbers(runs).items() if times > 1}
    dates = {run[0] for run in runs if any((run[2], seq) in twice for seq in range(run[3], run[4] + 1))}
    assert doubled(frame(runs)) == dates


@given(st.lists(RUN, max_size=12))
def test_joined_runs_hold_the_same_numbers_of_the_same_dates_and_never_follow_each_other(runs: list[Told]) -> None:
    one_by_one = [
        (day, broker, boot, seq, seq, 0, 0, 0, 0, None)
        for day, broker, boot, a, b, *_ in runs
        for seq in range(a, b + 1)
    ]
    rows = list(joined(frame(set(one_by_one))).itertuples(index=False))
    made = [(row.date, row.broker, row.boot, seq) for row in rows for seq in range(row.seq_from, row.seq_to + 1)]
    assert sorted(made) == sorted({row[:4] for row in one_by_one})
    ends = {(row.date, row.boot, row.seq_to + 1) for row in rows}
    assert not ends & {(row.date, row.boot, row.seq_from) for row in rows}


def test_a_drop_record_tells_of_the_end_of_the_gap_before_it() -> None:
    runs = [
        (DAY, "b", "one", 1, 10, 0, 0, 0, 0, None),
        (DAY, "b", "one", 21, 21, 0, 0, 0, 0, None),
        (DAY, "b", "one", 22, 22, 0, 0, 0, 0, None),
        (DAY, "b", "one", 21, 21, 0, 0, 0, 0, 4),
        (DAY, "b", "two", 5, 5, 0, 0, 0, 0, None),
        (DAY, "b", "two", 5, 5, 0, 0, 0, 0, 100),
    ]
    told = find_loss(joined(frame(runs)))
    assert [tuple(row) for row in told.itertuples(index=False)] == [
        ("b", "one", 11, 16, 6, False),
        ("b", "one", 17, 20, 4, True),
        ("b", "two", 1, 4, 4, True),
    ]


def test_runs_are_joined_only_if_no_silence_no_clock_and_no_drop_record_is_between_them() -> None:
    def run(seq: int, at: int, dropped: int | None = None) -> Told:
        return (DAY, "b", "one", seq, seq, at, at, at, at, dropped)

    silent, back = BROKER_SILENCE, BROKER_SILENCE + 1 - SET_BACK
    runs = [run(1, 0), run(2, silent), run(3, back), run(4, back - SET_BACK), run(5, silent + back - SET_BACK + 1)]
    runs += [run(6, 200 * silent), run(7, 200 * silent), run(7, 200 * silent, 0), run(8, 200 * silent)]
    rows = joined(frame(runs)).astype(object)
    found = [tuple(row[3:]) for row in rows.where(rows.notna(), None).itertuples(index=False)]
    moments = (back - SET_BACK, silent + back - SET_BACK + 1, *[200 * silent] * 4)
    assert found == [
        (1, 3, 0, back, 0, silent, None),
        *((seq, seq, at, at, at, at, None) for seq, at in zip(range(4, 9), moments, strict=False)),
        (7, 7, *[200 * silent] * 4, 0),
    ]


def test_without_runs_there_is_no_loss() -> None:
    assert find_loss(frame([])).empty
    assert doubled(frame([])) == set()
    assert joined(frame([])).empty
