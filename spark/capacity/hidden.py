"""Hidden time: what the journal lost of a broker's start, as a part of its time.

Rules:
- The records of a start are numbered in their order. Where numbers are missing, nothing is known of the time from the
  record before them to the one after: it is hidden. So one record that is lost among many hides a fraction of a second,
  and n of them, where r come each second, hide n / r seconds.
- Who was there before is there in hidden time too. No beat is expected in it, and nobody's life runs out in it.
- Of a silence that is longer than the broker's own nothing need be hidden: it counts as the broker's. Nor is any time
  hidden where the clock was set back.
- What was lost before a start's first record, and after its last, hides nothing: then nobody is known to be there.

Each five minutes have a row, from the first hidden ones of a start on: what was hidden before, and what is in them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from spark.capacity.presence import local
from spark.capacity.schema import columns
from spark.capacity.times import BROKER_SILENCE, FAR, FIVE_MINUTES, window_of

START = ("broker", "boot")

GAPS = ArrayType(StructType([StructField("gap_from", LongType()), StructField("gap_to", LongType())]))

HIDDEN = StructType(
    [
        *columns(broker="string", boot="string", w="long", before="long", known_from="long", known_to="long").fields,
        StructField("gaps", GAPS),
    ]
)
"""Five minutes: what was hidden `before` them, where they are on a clock that stands still in hidden time, and the
hidden times that they touch."""


class Missing(NamedTuple):
    """Numbers of records that are not there, the first and the last included."""

    broker: str
    boot: str
    seq_from: int
    seq_to: int


class Gap(NamedTuple):
    """A hidden time."""

    broker: str
    boot: str
    gap_from: int
    gap_to: int


def joined(loss: Iterable[Missing]) -> list[Missing]:
    """Join what follows each other: of one gap, a part may be known and another not."""
    found: list[Missing] = []
    for row in sorted(loss):
        last = found[-1] if found and found[-1][:2] == row[:2] else None
        if last is not None and row.seq_from <= last.seq_to + 1:
            found[-1] = last._replace(seq_to=max(last.seq_to, row.seq_to))
        else:
            found.append(row)
    return found


def find_gaps(records: DataFrame, before: DataFrame | None, loss: Iterable[Missing]) -> list[Gap]:
    """Tell which times are hidden: those between the records beside what is missing."""
    gaps = joined(loss)
    if not gaps:
        return []
    beside = [(row.broker, row.boot, seq) for row in gaps for seq in (row.seq_from - 1, row.seq_to + 1)]
    wanted = F.broadcast(local(records.sparkSession, beside, columns(broker="string", boot="string", seq="long")))
    found = records.join(wanted, [*START, "seq"]).select(*START, "seq", F.unix_micros("ts").alias("at")).collect()
    times = {(row["broker"], row["boot"], row["seq"]): row["at"] for row in found}
    if before is not None and times:
        # The record before may be of the day before; then it was the last one.
        lasts = before.join(wanted.select(*START).distinct(), list(START), "left_semi")
        for row in lasts.groupBy(*START).agg(F.max("last_sign").alias("at")).collect():
            times[row["broker"], row["boot"], 0] = row["at"]
    made = []
    for gap in gaps:
        start = (gap.broker, gap.boot)
        first, last = times.get((*start, gap.seq_from - 1), times.get((*start, 0))), times.get((*start, gap.seq_to + 1))
        if first is not None and last is not None and 0 < last - first <= BROKER_SILENCE:
            made.append(Gap(*start, first, last))
    return apart(made)


def apart(gaps: Iterable[Gap]) -> list[Gap]:
    """Return the gaps in order, and none into another: after a clock was set back, some would be."""
    made: list[Gap] = []
    for gap in sorted(gaps):
        last = made[-1] if made and made[-1][:2] == gap[:2] else None
        first = gap.gap_from if last is None else max(gap.gap_from, last.gap_to)
        if first < gap.gap_to:
            made.append(gap._replace(gap_from=first))
    return made


def rows_of(gaps: Iterable[Gap], end: int) -> Iterator[tuple[object, ...]]:
    """Make the rows of five minutes, until the end of all time that is counted."""
    for start, mine in groupby(gaps, key=lambda gap: gap[:2]):
        times = [(gap.gap_from, gap.gap_to) for gap in mine]
        before, w = 0, times[0][0] - times[0][0] % FIVE_MINUTES
        while w < end:
            after = w + FIVE_MINUTES
            here = times[: bisect_left(times, (after,))]
            so_far = before
            before += sum(min(last, after) - max(first, w) for first, last in here)
            yield *start, w, so_far, w - so_far, after - before if after < end else FAR, here
            times = times[sum(last <= after for _, last in here) :]
            w = after


def hidden_in(spark: SparkSession, gaps: Iterable[Gap], end: int) -> DataFrame | None:
    """Make the frame of hidden time until the end of all time that is counted; none is there if nothing is hidden."""
    rows = list(rows_of(gaps, end))
    return F.broadcast(local(spark, rows, HIDDEN)) if rows else None


def until(at: Column) -> Column:
    """Return how much was hidden until a time in the five minutes of a row of hidden time."""

    def add(so_far: Column, gap: Column) -> Column:
        return so_far + F.greatest(F.least(gap["gap_to"], at) - F.greatest(gap["gap_from"], F.col("w")), F.lit(0))

    return F.coalesce(F.col("before") + F.aggregate("gaps", F.lit(0).cast("long"), add), F.lit(0))


def with_lost(rows: DataFrame, at: str, name: str, hidden: DataFrame | None) -> DataFrame:
    """Add to rows of a start how much was hidden until a time of theirs."""
    if hidden is None:
        return rows.withColumn(name, F.lit(0).cast("long"))
    return (
        rows.withColumn("w", window_of(F.col(at)))
        .join(hidden, [*START, "w"], "left")
        .withColumn(name, until(F.col(at)))
        .drop(*(column for column in HIDDEN.names if column not in START))
    )


def with_alive(rows: DataFrame, hidden: DataFrame | None) -> DataFrame:
    """Add `alive`: when a life runs out that would do so at `alive_known` on the clock that stands still."""
    if hidden is None:
        return rows.withColumn("alive", F.col("alive_known"))

    def add(so_far: Column, gap: Column) -> Column:
        first = F.greatest(gap["gap_from"], F.col("w"))
        return so_far + F.when(first < so_far, gap["gap_to"] - first).otherwise(0)

    alive = F.aggregate("gaps", F.col("alive_known") + F.col("before"), add)
    clock = hidden.withColumnsRenamed({name: f"its_{name}" for name in START})
    same = (F.col("broker") == F.col("its_broker")) & (F.col("boot") == F.col("its_boot"))
    then = (F.col("alive_known") >= F.col("known_from")) & (F.col("alive_known") < F.col("known_to"))
    return (
        rows.join(clock, same & then, "left").withColumn("alive", F.coalesce(alive, "alive_known")).drop(*clock.columns)
    )
