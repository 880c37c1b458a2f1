"""Journals made by hand: a few records of a broker's start, as ingest hands them on."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyspark.sql import Row

from spark.capacity.ingest.loss import framed, joined
from spark.capacity.ingest.runs import runs_of
from spark.capacity.ingest.sorted_files import BRONZE, SortedFiles
from spark.capacity.rollup import window_sums
from spark.capacity.rollup.date_rollup import rollup
from spark.capacity.rollup.date_survey import Survey, survey
from spark.capacity.rollup.lost_time import Missing
from spark.capacity.service.bins import LIMITS, Job, Limits, Share, do
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import BRONZE_PAIRS, BRONZE_RUNS, Table
from spark.capacity.tables.store import Tables

DAY = date(2026, 3, 2)


def clock(text: str, day: date = DAY) -> datetime:
    """Make a time of "HH:MM:SS" or "HH:MM"."""
    hour, minute, second = (*map(int, text.split(":")), 0)[:3]
    return datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=UTC)


def every(seconds: int, first: str, last: str, day: date = DAY) -> list[datetime]:
    """List times, the first and the last included."""
    at, end = clock(first, day), clock(last, day)
    times = []
    while at <= end:
        times.append(at)
        at += timedelta(seconds=seconds)
    return times


class Start:
    """One start of a broker. Its records are numbered in the order in which they are written down."""

    def __init__(self, broker: str, boot: str) -> None:
        self.names = {"broker": broker, "boot": boot}
        self.records: list[dict[str, Any]] = []

    def write(self, at: datetime, event: str, **members) -> None:
        self.records.append({**self.names, "seq": len(self.records) + 1, "ts": at, "event": event, **members})

    def alive(self, times: Iterable[datetime]) -> None:
        for at in times:
            self.write(at, "alive")

    def beats(self, service: str, provider: int, times: Iterable[datetime], seconds: int = 30, **members) -> None:
        """Register a provider at the first time, and let it beat at the others."""
        times = list(times)
        told = {"service": service, "provider": provider, "instance": f"{service}:1", "interval_ms": seconds * 1000}
        for at in times:
            self.write(at, "register" if at is times[0] else "hb", **{**told, **members})


def bronze(tables: Tables, starts: Iterable[Start], copies: int = 1) -> None:
    """Write the records as ingest does, each as often as told."""
    records = [{"v": 1, "segment": "s", **record} for start in starts for record in start.records]
    rows = pa.Table.from_pylist([{**record, "date": record["ts"].date()} for record in records], BRONZE)
    for _ in range(copies):
        files = SortedFiles(tables.out)
        files.add(rows)
        files.flush()
    tables.out.mkdir(exist_ok=True)
    tables.put(BRONZE_RUNS, joined(framed(runs_of(rows))))


def rolled(
    tables: Tables, starts: Iterable[Start], days: Iterable[date] = (DAY,), loss: Iterable[Missing] = ()
) -> Tables:
    """Write records, and make the five minutes of some dates of them."""
    bronze(tables, starts)
    list(rollup(tables, days, loss))
    return tables


def surveyed(tables: Tables, loss: Iterable[Missing] = ()) -> Survey:
    """Survey the date of the records."""
    return survey(DAY, tables.rows_of(BRONZE_RUNS), tables.rows_of(BRONZE_PAIRS, DAY), loss)


def by_window(rows: Iterable[Row]) -> dict[tuple[str, str], Row]:
    """Find rows of five minutes by service (or service and number) and "HH:MM"."""
    return {(row.service, row.w.strftime("%H:%M")): row for row in rows}


def silver(folder: Path, rows: Iterable[dict[str, Any]]) -> str:
    """Write five minutes of providers that are up all the time, but for what the rows say, as one file."""
    usual = {"hb": 0, "connected_s": 300.0, "up_s": 300.0, "broker_up_s": 300.0, "down_s": 0.0, "outages": 0}
    path = folder / f"{uuid.uuid4()}.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist([{**usual, **row} for row in rows], window_sums.FILE), path)
    return str(path)


def each(
    job: Job,
    measures: Sequence[str],
    files: Sequence[str],
    day: date = DAY,
    lookback: int = 0,
    limits: Limits = LIMITS,
    pools: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Do a daily job with all services, or with all pools."""
    folder = Path(files[0]).parent
    return list(do(job, measures, folder, day, day - timedelta(days=lookback), files, Share(0, 1), pools, limits))


def put_dates(tables: Tables, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Replace those dates of a table that the rows have."""
    made = pa.Table.from_pylist(list(rows), arrow_schema(table.schema))
    for day in pc.unique(made["date"]).to_pylist():
        tables.put_date(table, made.filter(pc.equal(made["date"], day)), day)


def as_rows(table: Table, rows: Iterable[dict[str, Any]]) -> list[SimpleNamespace]:
    """Return rows as they are written to a table."""
    made = pa.Table.from_pylist(list(rows), arrow_schema(table.schema))
    return [SimpleNamespace(**row) for row in made.to_pylist()]
