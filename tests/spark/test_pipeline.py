"""The whole pipeline on a journal with everything that can go wrong, of which the truth is known."""

import io
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.generator import END, Faults, Service, deliver, generate
from spark.capacity.pipeline import NoRecordsError, Pipeline, Settings
from spark.capacity.progress import Progress
from spark.capacity.schema import BRONZE_RECORDS, GOLD_FORECAST, GOLD_PLAN, GOLD_PROVIDER_DAY, GOLD_SERVICE_1H, LOSS
from spark.capacity.tables import State, Tables

SERVICES = (
    Service("chat", providers=3, report=300.0),
    Service("render", "dbp", providers=3, interval=120.0, report=600.0),
)

FUTURE = "a date in the future"

FAULTS = Faults(kills=1, drops=1, future_dates=1, unknown_versions=1, garbage=1, torn=1, duplicates=1, late=1)


def run(spark: SparkSession, journal: Path, out: Path, second: int) -> str:
    tables, said = Tables(spark, out), io.StringIO()
    tables.open()
    try:
        settings = Settings(journal, out, END.replace(tzinfo=UTC) + timedelta(seconds=second), horizon=24)
        Pipeline(tables, settings, Progress(said, terminal=False)).run()
    finally:
        tables.close()
    return said.getvalue()


def test_every_record_is_there_once_and_the_loss_is_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    truth = generate(journal, seed=3, days=1.1, services=SERVICES, faults=FAULTS)
    tables = Tables(spark, out)

    said = run(spark, journal, out, 1)
    assert f"quarantined: 1 x {FUTURE}" in said
    assert "rollup   2 dates" in said
    assert tables.state() == State()
    assert (out / "report.html").stat().st_size > 0

    deliver(journal)
    said = run(spark, journal, out, 2)
    assert "1 new segment " in said
    records = tables.read(BRONZE_RECORDS)
    assert records.count() == truth.records
    assert records.select("broker", "boot", "seq").distinct().count() == truth.records
    bad = sum(one.lines for one in truth.bad)
    lost = sorted((row["boot"], row["seq_from"], row["seq_to"], row["known"]) for row in tables.read(LOSS).collect())
    planned = {(one.boot, number) for one in truth.lost for number in range(one.seq_from, one.seq_to + 1)}
    found = {(boot, number) for boot, first, last, _ in lost for number in range(first, last + 1)}
    assert planned <= found
    assert len(found) <= len(planned) + bad
    assert {row["service"] for row in tables.read(GOLD_PLAN).collect()} == {"chat", "render"}
    assert tables.read(GOLD_FORECAST).count() == 2 * 24
    judged = {(row["service"], row["judged"]) for row in tables.read(GOLD_PROVIDER_DAY).collect()}
    assert judged == {("chat", "connection"), ("render", "beats")}

    before = sorted(map(tuple, tables.read(GOLD_SERVICE_1H).collect()))
    plan = sorted(map(str, tables.read(GOLD_PLAN).collect()))
    said = run(spark, journal, out, 3)
    assert "0 new segments" in said
    assert "rollup   0 dates" in said
    assert sorted(map(tuple, tables.read(GOLD_SERVICE_1H).collect())) == before
    assert sorted(map(str, tables.read(GOLD_PLAN).collect())) == plan


def test_a_journal_without_records_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal" / "segments").mkdir(parents=True)
    with pytest.raises(NoRecordsError, match="has no records: no segment is sealed yet"):
        run(spark, tmp_path / "journal", tmp_path / "out", 1)
