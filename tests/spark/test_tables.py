"""The out directory: what is replaced, what stays, and what a cut leaves."""

from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.schema import BRONZE_RUNS, LOSS, TABLES
from spark.capacity.tables import OutError, State, Tables


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    made = Tables(spark, tmp_path / "a b" / "out")
    made.open()
    return made


def runs(tables: Tables, *rows: tuple[date, int]) -> None:
    made = [(day, "b", "one", number, number, None) for day, number in rows]
    tables.write(BRONZE_RUNS, tables.spark.createDataFrame(made, BRONZE_RUNS.schema))


def test_a_dated_table_is_replaced_date_by_date(tables: Tables) -> None:
    first, second = date(2026, 3, 1), date(2026, 3, 2)
    assert tables.read(BRONZE_RUNS).count() == 0
    runs(tables, (first, 1), (second, 2))
    runs(tables, (second, 3))
    assert sorted((row["date"], row["seq_to"]) for row in tables.read(BRONZE_RUNS).collect()) == [
        (first, 1),
        (second, 3),
    ]
    assert [row["seq_to"] for row in tables.read(BRONZE_RUNS, [first]).collect()] == [1]
    assert tables.read(BRONZE_RUNS, []).count() == 0
    assert tables.dates(BRONZE_RUNS) == [first, second]
    assert tables.read(BRONZE_RUNS).schema == BRONZE_RUNS.schema


def test_a_table_without_dates_may_be_written_from_itself(tables: Tables) -> None:
    row = tables.spark.createDataFrame([("b", "one", 1, 2, 2, True)], LOSS.schema)
    tables.write(LOSS, row)
    tables.write(LOSS, tables.read(LOSS).union(row))
    assert tables.read(LOSS).count() == 2
    assert sorted(path.name for path in tables.out.iterdir()) == [".lock", "loss"]


def test_a_swap_that_was_cut_off_is_finished_or_undone(tables: Tables) -> None:
    for name in (".old-loss", ".old-ledger", "ledger", ".new-plan"):
        (tables.out / name).mkdir()
    tables.close()
    tables.open()
    assert sorted(path.name for path in tables.out.iterdir()) == [".lock", "ledger", "loss"]


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


def test_every_dated_table_has_a_date_and_no_other_has() -> None:
    assert {name for name, table in TABLES.items() if table.dated} == {
        name for name, table in TABLES.items() if "date" in table.schema.names
    }
