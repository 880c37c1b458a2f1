"""The lake: versions that pandas, DuckDB and Spark read as a whole while others are published."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from itertools import count
from pathlib import Path
from threading import Event

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark.capacity.tables import lake, snapshots
from spark.capacity.tables.columns import COLUMNS, arrow_schema
from spark.capacity.tables.lake import publish
from spark.capacity.tables.schema import GOLD_BALANCE_DAY, LOSS, Table
from spark.capacity.tables.store import Tables
from tests.patience import PATIENCE
from tests.spark.farm import put_dates

DAY = date(2026, 3, 2)

ONLY = (GOLD_BALANCE_DAY, LOSS)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    made = Tables(spark, tmp_path / "out")
    made.out.mkdir()
    return made


def balanced(tables: Tables, number: int, days: int = 3) -> None:
    """Write the same number to some dates, one after the other."""
    for day in range(days):
        rows = [{"date": DAY + timedelta(days=day), "service": f"s{row}", "cov": float(number)} for row in range(5)]
        put_dates(tables, GOLD_BALANCE_DAY, rows)


def place(tables: Tables, table: Table = GOLD_BALANCE_DAY) -> str:
    return str(tables.out / "lake" / table.name)


def read_by(spark: SparkSession, way: str, version: DeltaTable) -> list[tuple[date, str, float]]:
    if way == "pandas":
        rows = version.to_pandas()
        return sorted(zip(rows["date"], rows["service"], rows["cov"], strict=True))
    if way == "duckdb":
        files = version.file_uris()
        query = "select date, service, cov from read_parquet($files, hive_partitioning = true)"
        return sorted(duckdb.execute(query, {"files": files}).fetchall())
    reader = spark.read.option("basePath", version.table_uri).schema(GOLD_BALANCE_DAY.schema)
    return sorted(map(tuple, reader.parquet(*version.file_uris()).select("date", "service", "cov").collect()))


@pytest.mark.parametrize("way", ["pandas", "duckdb", "spark"])
def test_a_version_is_read_as_it_was_after_dates_were_replaced(spark: SparkSession, tables: Tables, way: str) -> None:
    balanced(tables, 1)
    assert publish(tables, "r1", ONLY) == {"gold_balance_day": 0}
    old = DeltaTable(place(tables))
    before = read_by(spark, way, old)
    assert {value for _, _, value in before} == {1.0}
    assert len(before) == 15
    balanced(tables, 2)
    shutil.rmtree(tables.path(GOLD_BALANCE_DAY) / f"date={DAY}")
    assert publish(tables, "r2", ONLY) == {"gold_balance_day": 1}
    assert read_by(spark, way, old) == before
    assert read_by(spark, way, DeltaTable(place(tables), version=0)) == before
    now = read_by(spark, way, DeltaTable(place(tables)))
    assert {(day, value) for day, _, value in now} == {(DAY + timedelta(days=more), 2.0) for more in (1, 2)}


@pytest.mark.parametrize("way", ["pandas", "duckdb", "spark"])
def test_readers_see_whole_versions_while_runs_publish(spark: SparkSession, tables: Tables, way: str) -> None:
    balanced(tables, 0)
    publish(tables, "r0", ONLY)
    over = Event()

    def run_after_run() -> None:
        for number in count(1):
            if over.is_set():
                return
            balanced(tables, number)
            publish(tables, f"r{number}", ONLY)

    seen: list[set[float]] = []
    end = time.monotonic() + PATIENCE
    with ThreadPoolExecutor(1) as runs:
        published = runs.submit(run_after_run)
        try:
            while len(set().union(*seen)) < 4 and not published.done() and time.monotonic() < end:
                rows = read_by(spark, way, DeltaTable(place(tables)))
                assert len(rows) == 15
                seen.append({value for _, _, value in rows})
        finally:
            over.set()
        published.result()
    # Each reading is of one run, and they are of several runs.
    assert {len(values) for values in seen} == {1}
    assert len(set().union(*seen)) >= 4


def test_a_path_may_have_any_characters(tmp_path: Path) -> None:
    tables = Tables(None, tmp_path / "plan {a,b} 100% *?")
    tables.out.mkdir()
    balanced(tables, 1)
    assert publish(tables, "r1", ONLY) == {"gold_balance_day": 0}
    balanced(tables, 2)
    assert publish(tables, "r2", ONLY) == {"gold_balance_day": 1}
    assert [path.name for path in tmp_path.iterdir()] == [tables.out.name]
    assert set(DeltaTable(place(tables)).to_pyarrow_table()["cov"].to_pylist()) == {2.0}


def test_nothing_new_is_no_version_and_only_changed_dates_are_added(tables: Tables) -> None:
    balanced(tables, 1)
    publish(tables, "r1", ONLY)
    assert publish(tables, "r2", ONLY) == {}
    put_dates(tables, GOLD_BALANCE_DAY, [{"date": DAY, "service": "s", "cov": 7.0}])
    tables.put(LOSS, pd.DataFrame(columns=LOSS.schema.names))
    assert publish(tables, "r3", ONLY) == {"gold_balance_day": 1, "loss": 0}
    last = DeltaTable(place(tables)).history(1)[0]
    assert last["run"] == "r3"
    assert len(DeltaTable(place(tables)).file_uris()) == 3


def test_a_run_that_was_cut_off_is_made_up_for(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    balanced(tables, 1)
    with monkeypatch.context() as patch:
        patch.setattr(lake, "create_table_with_add_actions", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            publish(tables, "r1", ONLY)
    assert publish(tables, "r2", ONLY) == {"gold_balance_day": 0}
    assert DeltaTable(place(tables)).to_pyarrow_table().num_rows == 15


def test_files_are_linked_or_else_copied(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    balanced(tables, 1, days=1)
    publish(tables, "r1", ONLY)
    [file] = tables.files(GOLD_BALANCE_DAY, DAY)
    [linked] = DeltaTable(place(tables)).file_uris()
    assert file.samefile(linked.removeprefix("file://"))

    def no_link(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr("os.link", no_link)
    balanced(tables, 2, days=1)
    publish(tables, "r2", ONLY)
    assert set(DeltaTable(place(tables)).to_pyarrow_table()["cov"].to_pylist()) == {2.0}


def test_files_of_a_run_that_was_cut_off_are_deleted_after_a_week(tables: Tables) -> None:
    balanced(tables, 1, days=1)
    publish(tables, "r1", ONLY)
    [file] = tables.files(GOLD_BALANCE_DAY, DAY)
    orphans = [Path(place(tables)) / f"date={DAY}" / name for name in ("old.parquet", "new.parquet")]
    for path in orphans:
        shutil.copy(file, path)
    week = lake.KEPT.total_seconds()
    os.utime(orphans[0], (0, time.time() - week - 3600))
    # Its own file is older, and referenced.
    os.utime(file, (0, time.time() - 2 * week))
    balanced(tables, 2, days=1)
    publish(tables, "r2", ONLY)
    assert [path.exists() for path in orphans] == [False, True]
    assert DeltaTable(place(tables), version=0).to_pyarrow_table().num_rows == 5


def test_a_table_of_another_schema_is_begun_again_in_its_place(tables: Tables) -> None:
    balanced(tables, 1)
    older = Table("gold_balance_day", "", GOLD_BALANCE_DAY.names.rpartition(" ")[0], dated=True)
    assert publish(tables, "r1", (older,)) == {"gold_balance_day": 0}
    assert publish(tables, "r2", ONLY) == {"gold_balance_day": 1}
    now = DeltaTable(place(tables))
    assert "unbalanced" in now.to_pyarrow_table().column_names
    assert now.to_pyarrow_table().num_rows == 15
    assert DeltaTable(place(tables), version=0).to_pyarrow_table().num_rows == 15


def test_columns_have_their_units_and_meanings(tables: Tables) -> None:
    balanced(tables, 1)
    publish(tables, "r1", ONLY)
    told = DeltaTable(place(tables))
    assert told.metadata().name == "gold_balance_day"
    fields = {field.name: field.metadata for field in told.schema().fields}
    assert fields.keys() == set(arrow_schema(GOLD_BALANCE_DAY.schema).names)
    assert fields["date"] == {"unit": "UTC date", "comment": "date of the row; the folder of a dated table"}
    assert isinstance(pa.schema(told.schema().to_arrow()), pa.Schema)


def test_tables_of_an_earlier_version_with_other_descriptions_are_published(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        for column in ("name", "cov"):
            earlier.setitem(COLUMNS, column, (COLUMNS[column][0], "", "as an earlier version described it"))
        balanced(tables, 1)
        publish(tables, "r1", ONLY)
    balanced(tables, 2)
    assert publish(tables, "r2", ONLY) == {"gold_balance_day": 1}
    fields = {field.name: field.metadata["comment"] for field in DeltaTable(place(tables)).schema().fields}
    assert fields["cov"] == COLUMNS["cov"][2]
    told = snapshots.last(tables.out / "lake")
    assert told is not None
    assert told.run == "r2"
