"""Rollup: from records to five minutes of each provider, and the state from which the next date goes on.

The tables beside bronze tell what concerns all records of a date (`date_survey`). The records are then aggregated by
partition (`partitioning`, `aggregation`): each partition is a Spark task, and reads the row groups of its instances.

Rules:
- From a record to one that is earlier by the clock no time passes. No five minutes have more than 300 s, and no more
  than the broker was up, whatever the clock did.
- A date is counted from the broker's first sign on it to its last. So a date is a function of its own records, of
  losses, and of the state before it. Of the minute or less that this leaves out nothing is expected either.
- A registration is open from its first record (a beat proves one that was lost) until it is withdrawn, left or expired,
  or its broker's start ends. It is connected while it is open and the broker is up.
- It is up while it is connected and gives signs of life: a provider with an interval for 3 intervals after its last
  record, any other all the time. After more than 90 s without a broker, life is counted from the broker's return.
- Beats are expected of those with an interval, one for each interval of the connected time; after such a return,
  from its next record or after 60 s.
- Records that the journal lost hide a part of the time (`lost_time`): no beat is expected in it, and no life runs out.
- An instance has rows while it is down (`downtime`): `down_s` is that time, `outages` how many began.
- Loads are weighted by time, not by reports: a provider that reports often, or changes only, is not counted more or
  less for it. A load holds until the next report while the provider is up.
- An instance with two brokers is one: its times are added up and capped.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from spark.capacity.rollup import clock_jumps
from spark.capacity.rollup.aggregation import Day, write
from spark.capacity.rollup.broker_presence import SILVER_SIGNS, Signs, in_windows, of_brokers, signs_of, stays, up_spans
from spark.capacity.rollup.clock_jumps import SILVER_SET_BACK
from spark.capacity.rollup.date_survey import Pair, Survey, survey
from spark.capacity.rollup.lost_time import Missing, beside, find_gaps, joined
from spark.capacity.rollup.partitioning import divide
from spark.capacity.rollup.registrations import COLUMNS, OPEN, Carried
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    SILVER_PROVIDER_5M,
    Table,
    arrow_schema,
    columns,
)
from spark.capacity.tables.store import Tables, url
from spark.capacity.tables.time_windows import DAY, midnight

SILVER_CARRY = Table(
    "silver_carry",
    columns(
        date="date",
        broker="string",
        boot="string",
        service="string",
        provider="long",
        instance="string",
        seq="long",
        at="long",
        ended="long",
        interval="long",
        load="double",
        full_load="double",
        last_sign="long",
    ),
    dated=True,
)
"""The last record of each registration at the end of a date, with the values of those before it that still hold: its
time, the end of the registration if it is one (`CLOSED`, `WITHDRAWN`), the interval of beats, and the last sign of the
broker's start. Times are microseconds, since 1970 where they are not lengths."""

STATE = arrow_schema(SILVER_CARRY.schema)

MOST_PARTS = 32
"""Parts of a date that read the row groups of their instances: groups on the border of two parts are read by both, and
the footers of files by all, which makes 1.5 times the bytes of a date at some 35 parts. With more parts Spark divides
the records first."""

PARTED = ".parted"
"""Path below the output directory."""


def look(tables: Tables, day: date, loss: Iterable[Missing] = ()) -> Survey:
    """Survey a date, without its records; `loss` tells which numbers are missing, on any date."""
    runs = tables.rows_of(BRONZE_RUNS)
    return survey(runs.filter(pc.equal(runs["date"], day)), tables.rows_of(BRONZE_PAIRS, day), beside(joined(loss)))


def rollup(tables: Tables, day: date, loss: Iterable[Missing] = ()) -> bool:
    """Make the tables of a date, and tell whether its state at the end became another one; `loss` is that of all dates.

    The state at the end of the day before is read from its table; where there is none, nothing was before.
    """
    begin, seen = midnight(day), look(tables, day, loss)
    before = _carried(_state(tables, day - timedelta(days=1)))
    last_signs = {(one.pair.broker, one.pair.boot): one.last_sign for one in before}
    gaps = find_gaps(joined(loss), seen.times, last_signs)
    up = up_spans([*seen.signs, *(Signs(*start, sign, sign) for start, sign in last_signs.items())])
    brokers = of_brokers(up)
    files = tuple(str(path) for path in tables.files(BRONZE_RECORDS, day))
    common = Day(begin, files, tuple(up), tuple(brokers), stays(up), in_windows(brokers), tuple(gaps))
    staged = tables.stage(SILVER_PROVIDER_5M)
    after = _table(day, _count(tables, common, {**{one.pair: 0 for one in before}, **seen.pairs}, before, str(staged)))
    tables.replace(SILVER_PROVIDER_5M, day, staged)
    tables.put_date(SILVER_SIGNS, _signs(day, signs_of(brokers, begin, begin + DAY)), day)
    tables.put_date(SILVER_SET_BACK, clock_jumps.rows(day, seen.set_back), day)
    changed = not after.equals(_state(tables, day))
    tables.put_date(SILVER_CARRY, after, day)
    return changed


def _count(tables: Tables, day: Day, pairs: dict[Pair, int], before: Sequence[Carried], place: str) -> list[Carried]:
    """Count all parts of a date, and write their rows."""
    context = tables.spark.sparkContext
    parts = divide(pairs, context.defaultParallelism)
    if not parts:
        return []
    part_of = {pair: number for number, part in enumerate(parts) for pair in part}
    carried: list[list[Carried]] = [[] for _ in parts]
    for one in before:
        carried[part_of[one.pair]].append(one)
    files = _files(tables, day, part_of, len(parts))
    tasks = context.parallelize(list(zip(files, parts, carried, strict=True)), len(parts))
    counted = tasks.map(lambda task: write(replace(day, files=task[0]), task[1], task[2], place)).collect()
    shutil.rmtree(tables.out / PARTED, ignore_errors=True)
    return [one for part in counted for one in part]


def _files(tables: Tables, day: Day, part_of: Mapping[Pair, int], parts: int) -> list[tuple[str, ...]]:
    """Return the files that each part has to read: those of the date, or if there are many parts, files of its own."""
    if parts <= MOST_PARTS:
        return [day.files] * parts
    spark, place = tables.spark, tables.out / PARTED
    shutil.rmtree(place, ignore_errors=True)
    rows = sorted({(pair.service, pair.instance, number) for pair, number in part_of.items()})
    numbers = spark.createDataFrame(rows, "service string, instance string, part int")
    records = spark.read.schema(BRONZE_RECORDS.schema).parquet(*(f"file://{path}" for path in day.files))
    divided = records.select(*COLUMNS).join(F.broadcast(numbers), ["service", "instance"])
    divided.repartition(parts, "part").write.partitionBy("part").parquet(url(place))
    return [tuple(map(str, sorted(place.glob(f"part={number}/*.parquet")))) for number in range(parts)]


def _state(tables: Tables, day: date) -> pa.Table:
    return tables.rows_of(SILVER_CARRY, day).sort_by([(name, "ascending") for name in Pair._fields])


def _carried(state: pa.Table) -> list[Carried]:
    nothing = {"ended": OPEN, "interval": 0, "load": np.nan, "full_load": np.nan}
    made = []
    for row in state.drop_columns("date").to_pylist():
        told: dict[str, Any] = {name: nothing.get(name) if value is None else value for name, value in row.items()}
        pair = Pair(**{name: told.pop(name) for name in Pair._fields})
        made.append(Carried(pair, **told))
    return made


def _table(day: date, carried: Iterable[Carried]) -> pa.Table:
    def row(one: Carried) -> dict[str, Any]:
        return {
            "date": day,
            **one.pair._asdict(),
            "seq": one.seq,
            "at": one.at,
            "ended": None if one.ended == OPEN else one.ended,
            "interval": one.interval or None,
            "load": None if np.isnan(one.load) else one.load,
            "full_load": None if np.isnan(one.full_load) else one.full_load,
            "last_sign": one.last_sign,
        }

    return pa.Table.from_pylist([row(one) for one in sorted(carried, key=lambda one: one.pair)], STATE)


def _signs(day: date, signs: Iterable[tuple[str, int, int]]) -> pa.Table:
    rows = [{"date": day, "broker": broker, "first": first, "last": last} for broker, first, last in signs]
    return pa.Table.from_pylist(rows, arrow_schema(SILVER_SIGNS.schema))
