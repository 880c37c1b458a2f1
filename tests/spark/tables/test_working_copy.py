"""The working copy of an out directory in an object store: when it stays, when it is made again, when it is refused."""

from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from spark.capacity.tables.lake import publish
from spark.capacity.tables.object_store import ObjectFolder, listing, send
from spark.capacity.tables.schema import GOLD_BALANCE_DAY, LOSS, TABLES
from spark.capacity.tables.snapshots import last
from spark.capacity.tables.store import LAYOUT, LOG, OutError, State, Tables
from spark.capacity.tables.working_copy import LAKE, Mark, fill, goes_on_from, read_mark, refresh
from tests.spark.buckets import send_folder
from tests.spark.farm import put_dates

pytestmark = pytest.mark.long

FIRST, SECOND = date(2026, 3, 1), date(2026, 3, 2)


def working(folder: Path, origin: ObjectFolder, *, filled: bool) -> Tables:
    """Begin a run in a folder, and say whether it should be filled anew."""
    tables = Tables(None, folder)
    tables.lock()
    assert refresh(tables, origin) is filled
    tables.open()
    return tables


def put(tables: Tables, number: float, *days: date) -> None:
    put_dates(tables, GOLD_BALANCE_DAY, [{"date": day, "service": "s", "cov": number} for day in days])


def held(tables: Tables) -> dict[date, list[float]]:
    days = tables.dates(GOLD_BALANCE_DAY)
    return {day: tables.rows_of(GOLD_BALANCE_DAY, day)["cov"].to_pylist() for day in days}


def files(tables: Tables) -> dict[str, bytes]:
    return {
        path.relative_to(tables.out).as_posix(): path.read_bytes()
        for path in tables.out.rglob("*.parquet")
        if path.is_file()
    }


def test_a_folder_elsewhere_is_filled_with_all_that_was_published(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST, SECOND)
    first.put(LOSS, pd.DataFrame(columns=LOSS.schema.names))
    first.keep(State(set(), {"2026-03-02"}))
    publish(first, "r1", origin=bucket)
    second = working(tmp_path / "b", bucket, filled=True)
    assert files(second) == files(first)
    assert second.state() == first.state()
    assert second.layout() == LAYOUT
    assert second.path(LOSS).is_dir()
    # What is published from there is nothing new: the files have their names.
    assert publish(second, "r2", origin=bucket) == {}
    put(second, 2.0, SECOND)
    publish(second, "r3", origin=bucket)
    assert held(working(tmp_path / "c", bucket, filled=True)) == {FIRST: [1.0], SECOND: [2.0]}


def test_a_folder_stays_as_it_is_with_the_work_of_a_run_that_was_cut_off(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST)
    # Cut off before anything was published, and once more after that.
    for number in (2.0, 3.0):
        first.close()
        first = working(tmp_path / "a", bucket, filled=False)
        put(first, number, SECOND)
        assert held(first) == {FIRST: [1.0], SECOND: [number]}
        publish(first, f"r{number}", origin=bucket)
    put(first, 4.0, SECOND)
    first.close()
    assert held(working(tmp_path / "a", bucket, filled=False)) == {FIRST: [1.0], SECOND: [4.0]}


@pytest.mark.parametrize("committed", [False, True])
def test_a_run_that_was_cut_off_beside_its_commit_is_known_again(
    bucket: ObjectFolder, tmp_path: Path, committed: bool
) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST)
    publish(first, "r1", origin=bucket)
    before = last(bucket / LAKE)
    put(first, 2.0, FIRST)
    if committed:
        publish(first, "r2", origin=bucket)
    goes_on_from(first.out, bucket, (before, last(bucket / LAKE)))
    first.close()
    assert held(working(tmp_path / "a", bucket, filled=False)) == {FIRST: [2.0]}


def test_a_folder_is_made_again_where_another_run_has_published(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST)
    publish(first, "r1", origin=bucket)
    second = working(tmp_path / "b", bucket, filled=True)
    put(second, 2.0, FIRST)
    publish(second, "r2", origin=bucket)
    put(first, 3.0, FIRST, SECOND)
    (first.out / "report.html").write_text("old")
    with pytest.raises(OutError, match="another run has published"):
        publish(first, "r3", origin=bucket)
    told = last(bucket / LAKE)
    assert told is not None
    assert told.run == "r2"
    first.close()
    again = working(tmp_path / "a", bucket, filled=True)
    assert held(again) == {FIRST: [2.0]}
    assert not (again.out / "report.html").exists()


def test_a_folder_that_was_not_filled_to_the_end_is_filled_again(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST, SECOND)
    publish(first, "r1", origin=bucket)
    first.close()
    first.drop_date(GOLD_BALANCE_DAY, FIRST)
    goes_on_from(first.out, bucket, [])
    assert held(working(tmp_path / "a", bucket, filled=True)) == {FIRST: [1.0], SECOND: [1.0]}


def test_the_output_of_java_makes_a_new_folder_no_other_one(bucket: ObjectFolder, tmp_path: Path) -> None:
    tables = Tables(None, tmp_path)
    tables.lock()
    (tmp_path / LOG).write_text("Java is about to start")
    assert not refresh(tables, bucket)
    assert (tmp_path / LOG).exists()
    tables.close()


def test_a_folder_that_holds_something_else_is_refused_and_stays(bucket: ObjectFolder, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    tables = Tables(None, tmp_path)
    tables.lock()
    with pytest.raises(OutError, match="is no working folder: it holds other files"):
        refresh(tables, bucket)
    assert (tmp_path / "mine").read_text() == "kept"
    working(tmp_path / "a", bucket, filled=False).close()
    tables = Tables(None, tmp_path / "a")
    tables.lock()
    with pytest.raises(OutError, match=f"is the working folder of {bucket}"):
        refresh(tables, bucket / "other")
    assert read_mark(tables.out) == Mark(str(bucket), (None,))


def test_single_dates_are_fetched_where_they_are_asked_for(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST, SECOND)
    publish(first, "r1", origin=bucket)
    snapshot = last(bucket / LAKE)
    assert snapshot is not None
    (tmp_path / "b").mkdir()
    part = Tables(None, tmp_path / "b")
    fill(part, bucket, snapshot, [GOLD_BALANCE_DAY, LOSS], SECOND)
    assert held(part) == {SECOND: [1.0]}


def test_files_of_a_run_that_was_cut_off_are_sent_again_or_used(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    put(first, 1.0, FIRST)
    [path] = first.files(GOLD_BALANCE_DAY, FIRST)
    name = path.relative_to(first.out).as_posix()
    # A part of the file, as no process leaves it that is killed, but one that fails while it reads may.
    (tmp_path / "part").write_bytes(path.read_bytes()[:100])
    send(tmp_path / "part", bucket / LAKE, name)
    publish(first, "r1", origin=bucket)
    assert held(working(tmp_path / "b", bucket, filled=True)) == {FIRST: [1.0]}
    assert sum(one.name.endswith(path.name) for one in listing(bucket)) == 1


def test_all_tables_that_runs_work_on_are_published(bucket: ObjectFolder, tmp_path: Path) -> None:
    first = working(tmp_path / "a", bucket, filled=False)
    for table in TABLES:
        if table.dated:
            put_dates(first, table, [{"date": FIRST}])
        else:
            first.put(table, pd.DataFrame({name: [None] for name in table.schema.names}))
    assert publish(first, "r1", origin=bucket).keys() == {table.name for table in TABLES}
    assert files(working(tmp_path / "b", bucket, filled=True)) == files(first)


def test_the_lake_of_a_folder_may_be_copied_into_a_bucket(bucket: ObjectFolder, tmp_path: Path) -> None:
    here = Tables(None, tmp_path / "here")
    here.open()
    put(here, 1.0, FIRST, SECOND)
    here.keep(State(set(), {"2026-03-02"}))
    publish(here, "r1")
    send_folder(here.out / LAKE, bucket / LAKE)
    moved = working(tmp_path / "work", bucket, filled=True)
    assert held(moved) == held(here)
    assert moved.state() == here.state()
    assert publish(moved, "r2", origin=bucket) == {}
