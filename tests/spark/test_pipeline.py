"""The whole pipeline on a journal with everything that can go wrong, of which the truth is known."""

import html
import io
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.pipeline import NoRecordsError, Pipeline, Settings
from spark.capacity.progress import Progress
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    EVALUATION,
    GOLD_FORECAST,
    GOLD_PLAN,
    GOLD_PROVIDER_DAY,
    GOLD_SERVICE_1H,
    LOSS,
)
from spark.capacity.tables.store import State, Tables
from tests.spark.generator import END, Faults, Service, deliver, generate
from tests.spark.journal import START, lines, record, segment

SERVICES = (
    Service("chat", providers=3, report=300.0),
    Service("render", "dbp", providers=3, interval=120.0, report=600.0, once=1),
    Service("young", providers=2, hours=2.0, report=600.0),
)

FAULTS = Faults(
    kills=1,
    drops=1,
    clock_jumps=1,
    future_dates=1,
    unknown_versions=1,
    unknown_events=1,
    unknown_members=2,
    garbage=1,
    torn=1,
    truncated=1,
    duplicates=1,
    late=1,
)

REASONS = (
    "no JSON object, or a member of a wrong type",
    "the file is cut off",
    "unknown version 3",
    "unknown event moved",
    "a date in the future",
)
"""Reasons of quarantine."""


LATER = END.replace(tzinfo=UTC)
"""The wall clock of the runs: all records are of the past."""


def run(
    spark: SparkSession,
    journal: Path,
    out: Path,
    second: int,
    now: datetime | None = None,
    horizon: int = 24,
    day: datetime = LATER,
) -> str:
    tables, said = Tables(spark, out), io.StringIO()
    tables.open()
    try:
        started = day + timedelta(seconds=second)
        settings = Settings((journal,), out, started, now, horizon=horizon)
        Pipeline(tables, settings, Progress(said, terminal=False)).run()
    finally:
        tables.close()
    return said.getvalue()


def issued(tables: Tables) -> set[datetime]:
    """Return the times at which the plans and forecasts were issued that are kept."""
    found = (
        tables.rows_of(table, day)["issued"] for table in (GOLD_PLAN, GOLD_FORECAST) for day in tables.dates(table)
    )
    return {at for column in found for at in column.to_pylist()}


def explained(report: str) -> None:
    """Bad records have their explanation on the page, and so have services with too little data to judge."""
    quality = report[report.index('<section id="quality">') :]
    for reason in REASONS:
        assert f"<bdi>{reason}</bdi>" in quality
    assert "<caption>A broker's clock was set back</caption>" in html.unescape(quality)
    assert "<td>10 min</td>" in quality
    [young] = re.findall(r'<section id="[^"]*"><h2>Service <bdi>young</bdi>.*?</section>', report, re.DOTALL)
    assert "Flag: <bdi>" in young
    assert "for a short time only, or once, is not called flaky" in report


def test_every_record_is_there_once_and_the_loss_is_the_truth(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    truth = generate(journal, seed=3, days=1.1, services=SERVICES, faults=FAULTS)
    tables = Tables(spark, out)

    said = run(spark, journal, out, 1)
    for reason in REASONS:
        assert f" x {reason}\n" in said
    assert re.search(r"unknown member .colour. in [12] records: not used", said)
    assert "was set back once, by 578 s at most: times that it showed twice count once" in said
    assert "rollup   2 dates" in said
    assert tables.state() == State()
    assert (out / "report.html").stat().st_size > 0
    assert list(out.glob(".new-*")) == []

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
    assert {row["service"] for row in tables.read(GOLD_PLAN).collect()} == {"chat", "render", "young"}
    assert tables.read(GOLD_FORECAST).count() == 3 * 24
    judged = {(row["service"], row["judged"]) for row in tables.read(GOLD_PROVIDER_DAY).collect()}
    assert judged == {("chat", "connection"), ("render", "beats"), ("young", "connection")}

    explained((out / "report.html").read_text())
    [once] = [row for row in tables.read(GOLD_PROVIDER_DAY).collect() if row["instance"] == "10.0.1.13:9001"]
    assert (once["flaky"], once["outages"]) == (False, 0)

    before = sorted(map(tuple, tables.read(GOLD_SERVICE_1H).collect()))
    plan = sorted(map(str, tables.read(GOLD_PLAN).collect()))
    said = run(spark, journal, out, 3)
    assert "0 new segments" in said
    assert "rollup   0 dates" in said
    assert sorted(map(tuple, tables.read(GOLD_SERVICE_1H).collect())) == before
    assert sorted(map(str, tables.read(GOLD_PLAN).collect())) == plan

    # A run replaces the forecast and the plan that another one issued as of another hour of the same date.
    [first] = issued(tables)
    other = first - timedelta(hours=1)
    assert other.date() == first.date()
    run(spark, journal, out, 4, other)
    assert issued(tables) == {other}


def test_a_plan_of_an_earlier_time_leaves_the_outcome_of_later_ones(spark: SparkSession, tmp_path: Path) -> None:
    journal, out, began = tmp_path / "journal", tmp_path / "out", record(0)["ts"]
    known = {"load": 2.0, "full_load": 5.0}
    loads = (record(seq, "load", ts=began + seq * 60_000_000, **known) for seq in range(1, 3 * 1440))
    segment(journal, "b-one-1", lines(*loads))
    tables = Tables(spark, out)

    def outcomes() -> list[tuple[datetime, int]]:
        rows = (row for day in tables.dates(EVALUATION) for row in tables.rows_of(EVALUATION, day).to_pylist())
        return [(row["issued"], row["horizon_h"]) for row in rows]

    later = START + timedelta(days=1)
    run(spark, journal, out, 1, later)
    run(spark, journal, out, 2)
    assert outcomes() == [(later, 24)]
    earlier = START + timedelta(hours=6)
    run(spark, journal, out, 3, earlier)
    assert outcomes() == [(earlier, 24), (later, 24)]


def test_a_long_forecast_has_its_whole_outcome_after_runs_with_a_shorter_horizon(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out, began = tmp_path / "journal", tmp_path / "out", record(0)["ts"]
    tables, days = Tables(spark, out), (0, 1, 10, 12)
    for number, (first, end) in enumerate(pairwise(days), 1):
        ticks = range(first * 1440 + 1, end * 1440 + 1)
        loads = (record(seq, "load", ts=began + seq * 60_000_000, load=2.0, full_load=5.0) for seq in ticks)
        segment(journal, f"b-one-{ticks[0]}", lines(*loads), day=str((START + timedelta(days=first)).date()))
        run(spark, journal, out, number, horizon=264 if first == 0 else 24)
    issue = START + timedelta(days=1)
    [row] = tables.rows_of(EVALUATION, issue.date()).to_pylist()
    assert (row["issued"], row["horizon_h"]) == (issue, 264)


@pytest.mark.parametrize(("down", "planned"), [(130, 12), (24 * 60 + 54, 13)])
def test_a_plan_is_that_of_the_last_hour_with_a_broker(
    spark: SparkSession, tmp_path: Path, down: int, planned: int
) -> None:
    journal, out, began = tmp_path / "journal", tmp_path / "out", record(0)["ts"]
    for boot, first, minutes in ("one", 0, 120), ("two", 120 + down, 10):
        known = {"boot": boot, "load": 2.0, "full_load": 5.0}
        text = lines(
            *(record(seq, "load", ts=began + (first + seq) * 60_000_000, **known) for seq in range(1, minutes))
        )
        segment(journal, f"b-{boot}-1", text)
    tables = Tables(spark, out)
    run(spark, journal, out, 1)
    [at] = issued(tables)
    assert at.hour == planned
    [row] = tables.rows_of(GOLD_PLAN, at.date()).to_pylist()
    assert row["providers_now"] == 1


def test_a_broker_with_a_clock_ahead_does_not_move_the_plan_of_the_others(spark: SparkSession, tmp_path: Path) -> None:
    journal, out, began = tmp_path / "journal", tmp_path / "out", record(0)["ts"]
    for broker, ahead, service in ("one", 0, "mail"), ("two", 5 * 60, "news"):
        known = {"broker": broker, "boot": broker, "load": 2.0, "full_load": 5.0, "service": service}
        loads = (record(seq, "load", ts=began + (ahead + seq) * 60_000_000, **known) for seq in range(1, 180))
        segment(journal, f"{broker}-{broker}-1", lines(*loads))
    tables, clock = Tables(spark, out), START + timedelta(hours=3)
    run(spark, journal, out, 1, day=clock)
    assert issued(tables) == {clock}
    rows = tables.rows_of(GOLD_PLAN, clock.date()).to_pylist()
    assert [row["providers_now"] for row in rows if row["service"] == "mail"] == [1]


def test_a_journal_without_records_is_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "journal" / "segments").mkdir(parents=True)
    with pytest.raises(NoRecordsError, match="has no records: no segment is sealed yet"):
        run(spark, tmp_path / "journal", tmp_path / "out", 1)
