"""Retention: the dates that are kept, and dates of many small files."""

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark.capacity.ingest import intake
from spark.capacity.ingest.intake import ingest, move, replace
from spark.capacity.ingest.journal_folders import is_kept
from spark.capacity.ingest.retention import MANY, first_kept, forget, many_small
from spark.capacity.ingest.sorted_files import write_again
from spark.capacity.last_run import same_plan
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    FOLDERS,
    LEDGER,
    LOSS,
    QUARANTINE,
    SILVER_PROVIDER_5M,
)
from spark.capacity.tables.store import Tables
from tests.spark.farm import put_dates
from tests.spark.journal import START, lines, record, segment

FIRST = START.date()


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Iterator[Tables]:
    made = Tables(spark, tmp_path / "out")
    made.open()
    yield made
    made.close()


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def written(journal: Path, number: int, seq: int, *more: str) -> str:
    """Write a segment of ten records on a day, from a number on."""
    at = int((START + timedelta(days=number)).timestamp()) * 1_000_000
    records = [record(n, ts=at + n) for n in range(seq, seq + 10)]
    return segment(journal, f"b-one-{seq}", lines(*records, *more), day=str(day(number)))


def run(tables: Tables, journal: Path, keep: int, number: int) -> int:
    started = START + timedelta(days=number, hours=1)
    return ingest(tables, [journal], run=f"{started:%Y%m%dT%H%M%SZ}", started=started, keep=keep).segments


def test_what_is_forgotten_of_a_large_quarantine_is_never_all_in_memory(tmp_path: Path) -> None:
    tables, lines = Tables(None, tmp_path / "out"), 4_000
    tables.need_folder()
    for number in range(20):
        name = f"date={day(number % 2 * 2)}/hour=00/b-one-{number}.jsonl.gz"
        raw = [f"{number}-{line}-" + "x" * 1_900 for line in range(lines)]
        told: dict[str, Any] = {"segment": name, "line": range(lines), "reason": "torn", "raw": raw, "run": "r"}
        tables.put(QUARANTINE, pd.DataFrame(told))
        tables.files(QUARANTINE)[0].rename(tmp_path / f"{number}.parquet")
    for file in tmp_path.glob("*.parquet"):
        file.rename(tables.path(QUARANTINE) / file.name)
    (tables.path(BRONZE_RECORDS) / f"date={day(0)}").mkdir(parents=True)
    tracemalloc.start()
    try:
        forget(tables, day(2), START + timedelta(days=2), 1)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    left = tables.rows_of(QUARANTINE)
    assert (len(left), {name[:15] for name in left["segment"].to_pylist()}) == (10 * lines, {f"date={day(2)}"})
    assert len({*left["raw"].to_pylist()}) == 10 * lines
    assert most < 20_000_000  # of 152 MB


def test_a_folder_with_an_impossible_date_is_kept_by_its_name() -> None:
    assert is_kept("date=2026-02-30", date(2026, 3, 1))
    assert not is_kept("date=2026-02-30", date(2026, 3, 3))


def test_old_dates_are_forgotten_and_their_segments_not_read_again(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for number in range(4):
        # Ten numbers are lost between two dates, and a line of the first one is no record.
        written(journal, number, 20 * number + 1, *(["{torn"] if number == 0 else []))
    assert run(tables, journal, 2, 4) == 4
    put_dates(tables, SILVER_PROVIDER_5M, [{"date": day(number), "service": "s"} for number in range(4)])
    assert [row["records"] for row in tables.read(LOSS).collect()] == [10, 10, 10]
    assert len(tables.rows(QUARANTINE)) == 1
    written(journal, 4, 81)
    # The retention is counted from the last record that was there at the beginning.
    assert run(tables, journal, 2, 5) == 1
    kept = [day(1), day(2), day(3), day(4)]
    assert tables.dates(BRONZE_RECORDS) == tables.dates(BRONZE_PAIRS) == kept
    written(journal, 5, 101)
    assert run(tables, journal, 2, 6) == 1
    assert tables.dates(BRONZE_RECORDS) == [day(number) for number in (2, 3, 4, 5)]
    assert tables.dates(SILVER_PROVIDER_5M) == [day(2), day(3)]
    # A segment may end on the date after that of its folder: those of the day before are still known.
    assert {name[5:15] for name in tables.rows(LEDGER)["segment"]} == {str(day(n)) for n in range(1, 6)}
    assert len(tables.rows(QUARANTINE)) == 0
    assert {name[5:15] for name in tables.rows(FOLDERS)["folder"]} == {str(day(n)) for n in range(1, 6)}
    # No loss is claimed among the numbers that were forgotten.
    losses = [(row.seq_from, row.records) for row in tables.rows(LOSS).itertuples()]
    assert losses == [(31, 10), (51, 10), (71, 10), (91, 10)]
    old = [row for row in tables.rows(BRONZE_RUNS).itertuples() if row.date < day(2)]
    assert [(row.seq_from, row.seq_to) for row in old] == [(1, 30)]
    # A late segment of a date that is not kept is not read, nor one that was read before.
    written(journal, 0, 11)
    assert run(tables, journal, 2, 6) == 0
    assert same_plan(tables.out, {}, [journal], datetime.combine(day(6), time(), UTC), None, 2) is None
    assert first_kept(tables, 2) == day(3)


def test_of_a_late_segment_only_dates_that_are_kept_are_read(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for number in range(4):
        written(journal, number, 20 * number + 1)
    run(tables, journal, 1, 4)
    assert first_kept(tables, 1) == day(2)
    # It begins on the date before, of which the hours of services are kept, but not what they were made of.
    midnight = int(datetime.combine(day(2), time(), UTC).timestamp()) * 1_000_000
    late = lines(*(record(seq, ts=midnight + (seq - 36) * 1_000_000) for seq in range(31, 41)))
    segment(journal, "b-one-31", late, day=str(day(1)))
    assert run(tables, journal, 1, 4) == 1
    assert tables.dates(BRONZE_RECORDS) == tables.dates(BRONZE_PAIRS) == [day(2), day(3)]
    assert sorted(row["seq"] for row in tables.read(BRONZE_RECORDS).collect()) == [*range(36, 51), *range(61, 71)]
    assert [(row.seq_from, row.records) for row in tables.rows(LOSS).itertuples()] == [(51, 10)]
    assert run(tables, journal, 1, 4) == 0


def test_a_date_of_many_small_files_is_written_again_as_one(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    for number in range(MANY + 1):
        written(journal, 0, 10 * number + 1)
        run(tables, journal, 400, 1)
    assert len(tables.files(BRONZE_RECORDS, FIRST)) == MANY + 1
    # Hourly runs may add to the last dates.
    assert many_small(tables) == {}
    rows = sorted(map(tuple, tables.read(BRONZE_RECORDS).collect()))
    written(journal, 3, 1_001)
    run(tables, journal, 400, 4)
    assert [len(tables.files(table, FIRST)) for table in (BRONZE_RECORDS, BRONZE_PAIRS)] == [1, 1]
    assert sorted(map(tuple, tables.read(BRONZE_RECORDS, [FIRST]).collect())) == rows
    [pair] = tables.read(BRONZE_PAIRS, [FIRST]).collect()
    assert (pair["records"], pair["seq"]) == (10 * (MANY + 1), 10 * (MANY + 1))
    assert many_small(tables) == {}


def test_records_of_a_run_that_was_cut_off_while_it_replaced_files_are_there_once(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    written(journal, 0, 1)
    run(tables, journal, 400, 1)
    rows = sorted(map(tuple, tables.read(BRONZE_RECORDS).collect()))
    [path] = tables.files(BRONZE_RECORDS, FIRST)

    def cut_off(*arguments: Any) -> None:
        move(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(intake, "move", cut_off)
    with pytest.raises(KeyboardInterrupt):
        replace(tables, [[str(path)]], [FIRST])
    monkeypatch.undo()
    assert tables.read(BRONZE_RECORDS).count() == 20
    run(tables, journal, 400, 1)
    assert sorted(map(tuple, tables.read(BRONZE_RECORDS).collect())) == rows
    assert sum(row["records"] for row in tables.read(BRONZE_PAIRS).collect()) == 10
    assert not tables.state().moving
    assert path not in tables.files(BRONZE_RECORDS, FIRST)


def test_of_the_files_of_several_attempts_only_those_that_the_answer_names_count(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    written(journal, 0, 1)
    run(tables, journal, 400, 1)
    before = sorted(map(tuple, tables.read(BRONZE_RECORDS).collect()))

    def twice(paths: list[str], place: str) -> tuple[pa.Table, list[str]]:
        """Write files again in two attempts, of which Spark knows the second."""
        write_again(paths, place)
        return write_again(paths, place)

    monkeypatch.setattr(intake, "write_again", twice)
    replace(tables, [[str(one) for one in tables.files(BRONZE_RECORDS, FIRST)]], [FIRST])
    assert sorted(map(tuple, tables.read(BRONZE_RECORDS).collect())) == before
