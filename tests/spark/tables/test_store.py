"""The out directory: what is replaced, what stays, and what a cut leaves."""

from datetime import UTC, date, datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import BRONZE_RECORDS, GOLD_BALANCE_DAY, LEDGER, LOSS, TABLES
from spark.capacity.tables.store import OLDEST, OutError, State, Tables
from tests.spark.farm import put_dates


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    made = Tables(spark, tmp_path / "a b [2026]{c,d} %41 *?" / "out")
    made.open()
    return made


def days(tables: Tables, *rows: tuple[date, float]) -> None:
    told = {"service": "mail", "hot_instances": ["one"], "unbalanced": False}
    put_dates(tables, GOLD_BALANCE_DAY, [{**told, "date": day, "cov": cov} for day, cov in rows])


def test_a_dated_table_is_replaced_date_by_date(tables: Tables) -> None:
    first, second = date(2026, 3, 1), date(2026, 3, 2)
    assert tables.read(GOLD_BALANCE_DAY).count() == 0
    days(tables, (first, 1.0), (second, 2.0))
    days(tables, (second, 3.0))
    rows = tables.read(GOLD_BALANCE_DAY).collect()
    assert sorted((row["date"], row["cov"]) for row in rows) == [(first, 1.0), (second, 3.0)]
    assert [row["cov"] for row in tables.read(GOLD_BALANCE_DAY, [first]).collect()] == [1.0]
    assert tables.read(GOLD_BALANCE_DAY, []).count() == 0
    assert tables.dates(GOLD_BALANCE_DAY) == [first, second]
    assert tables.read(GOLD_BALANCE_DAY).schema == GOLD_BALANCE_DAY.schema


def test_a_date_without_rows_goes_and_leaves_nothing_staged(tables: Tables) -> None:
    day = date(2026, 3, 1)
    days(tables, (day, 1.0))
    tables.put_date(GOLD_BALANCE_DAY, arrow_schema(GOLD_BALANCE_DAY.schema).empty_table(), day)
    assert tables.dates(GOLD_BALANCE_DAY) == []
    assert list(tables.out.glob(".new-*")) == []


def test_rows_that_were_put_are_those_that_spark_reads_and_the_other_way_round(tables: Tables) -> None:
    at = datetime(2026, 3, 1, 10, 0, 0, 123456, tzinfo=UTC)
    big = 2**53 + 1
    whole = ("a", 1, 7, "d", big, 0, "b", "one", 5, "r", at)
    rows = [whole, ("b", 2, None, None, None, 0, None, None, None, "r", None)]
    for way in ("put", "write"):
        assert tables.rows(LEDGER).empty is (way == "put")
        if way == "put":
            tables.put(LEDGER, pd.DataFrame(rows, columns=LEDGER.schema.names, dtype=object))
        else:
            tables.write(LEDGER, tables.spark.createDataFrame(rows, LEDGER.schema))
        read = tables.rows(LEDGER)
        assert list(read["records"]) == [big, pd.NA]
        assert read["ingested_at"][0].to_pydatetime() == at
        assert [row["records"] for row in tables.read(LEDGER).orderBy("segment").collect()] == [big, None]


def test_a_table_without_dates_may_be_written_from_itself(tables: Tables) -> None:
    row = tables.spark.createDataFrame([("b", "one", 1, 2, 2, True)], LOSS.schema)
    tables.write(LOSS, row)
    tables.write(LOSS, tables.read(LOSS).union(row))
    assert tables.read(LOSS).count() == 2
    assert sorted(path.name for path in tables.out.iterdir()) == [".layout", ".lock", "loss"]


def test_a_swap_that_was_cut_off_is_finished_or_undone(tables: Tables) -> None:
    for name in (".old-loss", ".old-ledger", "ledger", ".new-plan"):
        (tables.out / name).mkdir()
    tables.close()
    tables.open()
    assert sorted(path.name for path in tables.out.iterdir()) == [".layout", ".lock", "ledger", "loss"]


def test_two_runs_do_not_work_on_one_directory(tables: Tables) -> None:
    with pytest.raises(OutError, match="another run is at work"):
        Tables(tables.spark, tables.out).open()
    tables.close()
    Tables(tables.spark, tables.out).open()


def test_a_file_in_the_place_of_the_directory_is_told(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutError, match="cannot write to"):
        Tables(spark, tmp_path / "out").open()


def test_the_state_is_what_was_kept_last(tables: Tables) -> None:
    assert tables.state() == State()
    tables.keep(State({"2026-03-01"}, {"2026-03-01", "2026-03-02"}))
    assert tables.state() == State({"2026-03-01"}, {"2026-03-01", "2026-03-02"})


def test_tables_of_an_older_layout_are_made_again_from_bronze(spark: SparkSession, tmp_path: Path) -> None:
    old = Tables(spark, tmp_path)
    old.open()
    put_dates(old, BRONZE_RECORDS, [{"date": date(2026, 3, 2), "seq": 1}])
    put_dates(old, GOLD_BALANCE_DAY, [{"date": date(2026, 3, 2), "service": "chat"}])
    old.close()
    old.open()
    assert old.dates(GOLD_BALANCE_DAY) == [date(2026, 3, 2)]
    old.close()
    (tmp_path / ".layout").unlink()
    with pytest.raises(OutError, match=r"was made by a version before 0\.1\.0: name another one"):
        old.open()
    (tmp_path / ".layout").write_text(f"{OLDEST}\n")
    unfinished = tmp_path / ".healed" / "_SUCCESS"
    unfinished.parent.mkdir()
    unfinished.touch()
    with pytest.raises(OutError, match="an unfinished run of an earlier version: let that version run once more"):
        old.open()
    unfinished.unlink()
    old.open()
    old.close()
    assert old.dates(GOLD_BALANCE_DAY) == []
    assert old.dates(BRONZE_RECORDS) == [date(2026, 3, 2)]
    assert old.state() == State(set(), {"2026-03-02"})


def test_a_column_that_an_older_file_lacks_is_null(tables: Tables) -> None:
    tables.put(LOSS, pd.DataFrame({"broker": ["b"], "records": [3]}).reindex(columns=LOSS.schema.names))
    [file] = tables.files(LOSS)
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).drop_columns(["records"]), file)
    assert tables.rows_of(LOSS).to_pylist()[0]["records"] is None


def test_every_table_with_a_date_is_dated_but_the_small_one_of_runs() -> None:
    assert {table.name for table in TABLES if table.dated} == {
        table.name for table in TABLES if "date" in table.schema.names and table.name != "bronze_runs"
    }
