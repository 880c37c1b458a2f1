"""Runs of records, against a look at each pair of records that follow each other."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark.capacity.ingest.runs import runs_of
from spark.capacity.ingest.sorted_files import BRONZE
from spark.capacity.tables.time_windows import BROKER_SILENCE, SECOND, SET_BACK

DAY = date(2026, 3, 2)

MIDNIGHT = int(datetime(2026, 3, 3, tzinfo=UTC).timestamp()) * SECOND


def one(seq: int, at: int, event: str = "hb", boot: str = "one", dropped: int | None = None) -> dict[str, Any]:
    """Make a record `at` so many microseconds after the midnight at the end of `DAY`."""
    return {"broker": "b", "boot": boot, "seq": seq, "ts": MIDNIGHT + at, "event": event, "dropped": dropped}


def found(*records: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the runs: days after `DAY`, boot, numbers, times after its end, and `dropped`."""
    return [
        (
            (row["date"] - DAY).days,
            row["boot"],
            row["seq_from"],
            row["seq_to"],
            row["ts_from"] - MIDNIGHT,
            row["ts_to"] - MIDNIGHT,
            row["dropped"],
        )
        for row in runs_of(pa.Table.from_pylist(list(records), BRONZE)).to_pylist()
    ]


def test_records_in_order_are_one_run_of_each_start_and_date() -> None:
    records = [one(seq, (seq - 3) * SECOND) for seq in range(1, 6)] + [one(1, SECOND, boot="two")]
    assert found(*records) == [
        (0, "one", 1, 2, -2 * SECOND, -SECOND, None),
        (1, "one", 3, 5, 0, 2 * SECOND, None),
        (1, "two", 1, 1, SECOND, SECOND, None),
    ]


def test_a_drop_record_is_a_run_of_its_own_and_tells_its_count() -> None:
    assert found(one(1, 0), one(6, 1, "drop", dropped=4), one(7, 2), one(8, 3, "drop")) == [
        (1, "one", 1, 1, 0, 0, None),
        (1, "one", 6, 6, 1, 1, None),
        (1, "one", 7, 7, 2, 2, None),
        (1, "one", 8, 8, 3, 3, None),
        (1, "one", 6, 6, 1, 1, 4),
        (1, "one", 8, 8, 3, 3, 0),
    ]


def test_a_number_that_is_there_twice_is_in_two_runs() -> None:
    assert [run[2:4] for run in found(one(1, 0), one(1, 0), one(2, 0))] == [(1, 1), (1, 2)]


def test_without_records_there_is_no_run() -> None:
    assert found() == []


STEPS = st.sampled_from([0, 1, -SET_BACK, 1 - SET_BACK, BROKER_SILENCE, BROKER_SILENCE + 1])


@given(st.lists(st.tuples(st.integers(1, 3), STEPS), max_size=20), st.randoms())
def test_runs_end_where_a_pair_of_records_does_not_follow_whatever_the_order(
    steps: list[tuple[int, int]], chance: Any
) -> None:
    seq, at, records = 0, SECOND * 3600, []
    for more, step in steps:
        seq, at = seq + more, at + step
        records.append(one(seq, at))
    breaks = [
        before["seq"]
        for before, after in pairwise(records)
        if after["seq"] != before["seq"] + 1 or not -SET_BACK < after["ts"] - before["ts"] <= BROKER_SILENCE
    ]
    shuffled = list(records)
    chance.shuffle(shuffled)
    runs = found(*shuffled)
    assert [run[3] for run in runs] == breaks + [seq] * bool(records)
    times = {record["seq"]: record["ts"] - MIDNIGHT for record in records}
    assert all((times[run[2]], times[run[3]]) == run[4:6] for run in runs)
    held = [[times[seq] for seq in range(run[2], run[3] + 1)] for run in runs]
    rows = runs_of(pa.Table.from_pylist(shuffled, BRONZE)).to_pylist()
    ends = [(row["earliest"] - MIDNIGHT, row["latest"] - MIDNIGHT) for row in rows]
    assert ends == [(min(mine), max(mine)) for mine in held]
    assert sum(run[3] - run[2] + 1 for run in runs) == len(records)


def test_a_date_is_that_of_the_record() -> None:
    [row] = runs_of(pa.Table.from_pylist([one(1, -1)], BRONZE)).to_pylist()
    assert (row["date"], datetime.fromtimestamp(row["ts_from"] / SECOND, UTC).date()) == (DAY, DAY)
    assert row["date"] + timedelta(days=1) == datetime.fromtimestamp(MIDNIGHT / SECOND, UTC).date()
