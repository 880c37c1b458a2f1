"""Rollup: from records to five minutes of each provider, and what must be known of a date to go on with the next.

The records of each *registration* are summed up first (`registrations`); the *up-spans* of a broker's start are the
times in which it lived (`presence`).

Rules:
- From a record to one that is earlier by the clock no time passes. No five minutes have more than 300 s, and no more
  than the broker was up, whatever the clock did.
- A date is counted from the broker's first sign on it to its last. So a date is a function of its own records, of what
  was lost, and of the state before it. Of the minute or less that this leaves out nothing is expected either.
- A registration is open from its first record (a beat proves one that was lost) until it is withdrawn, left or expired,
  or its broker's start ends. It is connected while it is open and the broker is up.
- It is up while it is connected and gives signs of life: a provider with an interval for 3 intervals after its last
  record, any other all the time. After more than 90 s without a broker, life is counted from the broker's return.
- Beats are expected of those with an interval, one for each interval of the connected time; after such a return,
  from its next record or after 60 s.
- What the journal lost hides a part of the time (`hidden`): no beat is expected in it, and no life runs out.
- An instance has rows while it is down (`absences`): `down_s` is that time, `outages` how many began.
- Loads are weighted by time, not by reports: who reports often, or only what changed, is not counted more or less for
  it. A load holds until the next report while the provider is up.
- An instance with two brokers is one: its times are added up and capped.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from spark.capacity.absences import PLACE, absences, stretches
from spark.capacity.hidden import Gap, Missing, find_gaps, hidden_in, until, with_alive, with_lost
from spark.capacity.presence import UP, Signs, Span, in_windows, local, of_brokers, signs_of, stays, up_spans
from spark.capacity.registrations import BROKER, CLOSED, KEY, SILENT, breaks, names, summed_up
from spark.capacity.schema import SILVER_PROVIDER_5M, TYPES, Table, columns
from spark.capacity.times import ABSENCE as ABSENCE
from spark.capacity.times import DAY, FAR, FIVE_MINUTES, GRACE, overlap, windows
from spark.capacity.times import DIGITS as DIGITS
from spark.capacity.times import LIVENESS as LIVENESS
from spark.capacity.times import SECOND as SECOND

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
"""The last record of each registration at the end of a date, with what still holds of those before it: its time, how it
ended the registration if it did (`CLOSED`, `WITHDRAWN`), the interval of beats, and the last sign of the broker's
start. Times are microseconds, since 1970 where they are not lengths."""

STAYS = StructType(
    [
        StructField("broker", TYPES["string"]),
        StructField("stays", ArrayType(columns(stay_from="long", stay_to="long"))),
    ]
)

BROKER_UP = columns(broker="string", w="long", broker_up="long")

SEEN = columns(date="date", end="long", broker="string", boot="string", last_sign="long", lost_in_all="long")

FEW = 200_000
"""Registrations whose names each core may have in memory at once: less than a tenth of it."""


class Rolled(NamedTuple):
    """What a rollup makes. The frames rest on one that Spark keeps on the disk until `done`."""

    silver: DataFrame
    carry: DataFrame
    signs: DataFrame
    kept: tuple[DataFrame, ...]

    def done(self) -> None:
        """Let go of what was kept: the frames are written."""
        for frame in self.kept:
            frame.unpersist()


def runs_of(dates: Iterable[date]) -> list[list[date]]:
    """Divide dates into runs of consecutive ones: each run is one call of the jobs."""
    runs: list[list[date]] = []
    for day in sorted(set(dates)):
        if runs and day - runs[-1][-1] == timedelta(days=1):
            runs[-1].append(day)
        else:
            runs.append([day])
    return runs


def rollup(records: DataFrame, before: DataFrame | None, dates: Sequence[date], loss: Iterable[Missing] = ()) -> Rolled:
    """Make the five minutes of consecutive dates, the state at the end of each, and when brokers gave signs.

    `before` is the state at the end of the day before the first, or None where nothing was before; `loss` tells which
    numbers of records are missing, on any dates.
    """
    first, last = _ends(dates)
    spark, on = records.sparkSession, F.col("date").between(dates[0], dates[-1])
    records = records.where(on)
    gaps = find_gaps(records, before, loss)
    hidden = hidden_in(spark, gaps, last)
    known = names(records, before).persist()
    few = known.count() <= FEW
    kept = summed_up(records, before, hidden, F.broadcast(known) if few else known).persist(StorageLevel.DISK_ONLY)
    cuts = breaks(kept).persist(StorageLevel.DISK_ONLY)
    up = up_spans(_signs(cuts, before, first))
    brokers = of_brokers(up)
    their_stays = [(broker, found) for broker, found in stays(up).items()]
    pieces = _pieces(cuts, local(spark, up, UP), hidden)
    absent = absences(
        stretches(cuts, pieces, before), local(spark, brokers, UP), local(spark, their_stays, STAYS), last
    )
    broker_up = [(*place, time) for place, time in in_windows(brokers).items()]
    silver = _merged(_in_windows(kept, pieces, hidden), absent, local(spark, broker_up, BROKER_UP))
    carry = _carry(with_lost(cuts, "at", "lost", hidden), local(spark, _seen(up, gaps, dates), SEEN))
    return Rolled(silver.where(on), carry, signs_of(local(spark, brokers, UP)).where(on), (known, kept, cuts))


def same_state(one: DataFrame, other: DataFrame) -> bool:
    """Tell whether two carries are the same: if so, the date after them need not be made again."""
    return one.exceptAll(other).isEmpty() and other.exceptAll(one).isEmpty()


def _ends(dates: Sequence[date]) -> tuple[int, int]:
    """Return when the first date begins and the last one ends, and make sure that they are a run."""
    if runs_of(dates) != [list(dates)]:
        raise ValueError("the dates must be consecutive, and at least one")
    first, last = (int(datetime.combine(day, time(), UTC).timestamp()) * SECOND for day in (dates[0], dates[-1]))
    return first, last + DAY


def _signs(cuts: DataFrame, before: DataFrame | None, first: int) -> list[Signs]:
    """Return the signs of each broker's start: those of islands that begin in the same minute together.

    What was carried over is of the day before; of that only the last sign counts.
    """
    signs = cuts.where(F.col("at") >= first).select(
        "broker", "boot", F.col("began").alias("first"), F.col("at").alias("last")
    )
    if before is not None:
        sign = F.col("last_sign")
        signs = signs.union(before.select("broker", "boot", sign.alias("first"), sign.alias("last")))
    minute = F.col("first") - F.col("first") % (60 * SECOND)
    rows = signs.groupBy("broker", "boot", minute).agg(F.min("first").alias("first"), F.max("last").alias("last"))
    return [Signs(*row) for row in rows.select(*Signs._fields).collect()]


def _seen(up: Iterable[Span], gaps: Iterable[Gap], dates: Sequence[date]) -> Iterator[tuple[object, ...]]:
    """Tell of each start, until the end of each date, the last sign and how much was hidden."""
    for day in dates:
        end = _ends([day])[1]
        last: dict[tuple[str, str], int] = {}
        for span in up:
            if span.span_from < end:
                last[span[:2]] = max(last.get(span[:2], 0), span.span_to)
        lost = Counter[tuple[str, str]]()
        for gap in gaps:
            if gap.gap_to < end:
                lost[gap[:2]] += gap.gap_to - gap.gap_from
        yield from ((day, end, *start, sign, lost[start]) for start, sign in last.items())


def _carry(cuts: DataFrame, seen: DataFrame) -> DataFrame:
    """Return the state at the end of each date. A life goes on from where it would be had nothing been hidden."""
    latest = F.row_number().over(Window.partitionBy("registration", "date").orderBy(F.desc("cut")))
    # What ended longer ago than an absence lasts says nothing more.
    until = F.when(F.col("ended").isNull(), F.col("last_sign")).otherwise(F.col("at"))
    return (
        cuts.where("service is not null")
        .join(F.broadcast(seen), ["broker", "boot"])
        .where("at < end")
        .withColumn("latest", latest)
        .where((F.col("latest") == 1) & (until > F.col("end") - ABSENCE))
        .withColumn(
            "at", F.col("at") + F.when(F.col("ended").isNull(), F.col("lost_in_all") - F.col("lost")).otherwise(0)
        )
        .withColumn("seq", F.col("cut"))
        .select(*(F.col(field.name).cast(field.dataType) for field in SILVER_CARRY.schema))
    )


def _pieces(cuts: DataFrame, up: DataFrame, hidden: DataFrame | None) -> DataFrame:
    """Divide the time after breaks by the up-spans: from, until, up until, beats expected from, how up-time ended."""
    pieces = (
        cuts.where("ended is null and service is not null")
        .withColumn("to", F.greatest(F.coalesce("next", F.lit(FAR)), "at"))
        .join(F.broadcast(up), ["broker", "boot"])
        .where("span_from <= to and span_to >= at")
        .withColumn("from", F.greatest("at", "span_from"))
        .withColumn("until", F.least("to", "span_to"))
        .withColumn("anew", F.col("returned") & (F.col("span_from") > F.col("at")))
        .withColumn("base", F.when(F.col("anew"), F.col("span_from")).otherwise(F.col("at")))
    )
    pieces = with_lost(pieces, "base", "base_lost", hidden)
    pieces = pieces.withColumn("alive_known", F.col("base") - F.col("base_lost") + F.col("interval") * LIVENESS)
    expect = F.when(F.col("anew"), F.greatest(F.col("from"), F.col("span_from") + GRACE)).otherwise(F.col("from"))
    ended = F.when(F.col("up_to") < F.col("until"), SILENT).when(F.col("until") < F.col("to"), BROKER)
    return (
        with_lost(with_alive(pieces, hidden), "from", "from_lost", hidden)
        .withColumn("up_to", F.least("until", "alive"))
        .withColumn("how", ended.otherwise(CLOSED))
        .withColumn("expect_from", expect)
        .select(
            *KEY,
            "instance",
            "interval",
            "load",
            "full_load",
            "from",
            "until",
            "up_to",
            "expect_from",
            "how",
            "from_lost",
        )
    )


def _in_windows(kept: DataFrame, pieces: DataFrame, hidden: DataFrame | None) -> DataFrame:
    """Bring the times of short records and of pieces into one form: times, counts and maxima of five minutes."""
    times = ("connected", "loaded", "load", "expected")
    always = ("full_load", "interval")
    kept = kept.where("service is not null")
    within = kept.select(
        *PLACE,
        "w",
        *always,
        "hb",
        "requests",
        "errors",
        "rtt_max",
        "gap",
        *(F.col(f"in_{name}").alias(name) for name in (*times, "load_max")),
        F.col("in_connected").alias("up"),
    )
    after = kept.where("over_connected > 0").select(
        *PLACE,
        (F.col("w") + FIVE_MINUTES).alias("w"),
        *always,
        *(F.col(f"over_{name}").alias(name) for name in (*times, "load_max")),
        F.col("over_connected").alias("up"),
    )
    from_, to = F.col("expect_from"), F.col("until")
    inside = F.least(to, F.col("w") + FIVE_MINUTES)
    longer = pieces.withColumn("w", F.explode(windows(F.col("from"), to)))
    beats, gap = overlap(from_, to), inside - F.col("from")
    if hidden is not None:
        longer = longer.join(hidden, ["broker", "boot", "w"], "left")
        beats = F.when(beats > 0, beats - until(inside) + until(F.greatest(from_, F.col("w")))).otherwise(0)
        gap = gap - until(inside) + F.col("from_lost")
    longer = longer.withColumn("up", overlap(F.col("from"), F.col("up_to"))).select(
        *PLACE,
        "w",
        *always,
        overlap(F.col("from"), to).alias("connected"),
        "up",
        F.when(F.col("load").isNotNull(), F.col("up")).alias("loaded"),
        (F.col("up") * F.col("load")).alias("load"),
        F.when(F.col("up") > 0, F.col("load")).alias("load_max"),
        (beats / F.col("interval")).alias("expected"),
        gap.alias("gap"),
    )
    return within.unionByName(after, allowMissingColumns=True).unionByName(longer, allowMissingColumns=True)


def _merged(own: DataFrame, absent: DataFrame, broker_up: DataFrame) -> DataFrame:
    """Add up all times, put the brokers' own beside them, cap them, and make one row of all brokers'."""
    place = (*PLACE, "w")
    times = ("connected", "loaded", "load", "expected", "up", "hb", "requests", "errors", "down", "outages")
    most = ("load_max", "full_load", "interval", "rtt_max", "gap", "absent_beats")
    rows = (
        own.unionByName(absent, allowMissingColumns=True)
        .repartition("service", "instance")
        .groupBy(*place)
        .agg(*(F.sum(name).alias(name) for name in times), *(F.max(name).alias(name) for name in most))
        .join(F.broadcast(broker_up), ["broker", "w"])
    )
    # The least of nothing and something is something.
    connected = F.least(F.coalesce("connected", F.lit(0)), F.col("broker_up"))
    # A clock that was set back shows the same minutes twice; the share that was one too many is not expected either.
    real = F.when(F.col("connected") > 0, connected / F.col("connected")).otherwise(1.0)
    beats = F.col("interval").isNotNull() | F.coalesce("absent_beats", F.lit(False))
    rows = rows.select(
        *place[1:],
        "hb",
        F.when(beats, F.coalesce(F.col("expected") * real, F.lit(0.0))).alias("expected"),
        connected.alias("connected"),
        F.least(F.coalesce("up", F.lit(0)), F.col("broker_up")).alias("up"),
        "loaded",
        "load",
        "load_max",
        "full_load",
        "requests",
        "errors",
        "rtt_max",
        "broker_up",
        "down",
        "outages",
        F.when(F.col("interval").isNotNull(), F.col("gap")).alias("gap"),
    )
    sums = ("hb", "expected", "connected", "up", "loaded", "load", "requests", "errors", "broker_up", "down", "outages")
    rows = rows.groupBy(*place[1:]).agg(
        *(F.sum(name).alias(name) for name in sums),
        *(F.max(name).alias(name) for name in ("load_max", "full_load", "rtt_max", "gap")),
    )

    def seconds(name: str) -> Column:
        return F.least(F.coalesce(F.col(name), F.lit(0)), F.lit(FIVE_MINUTES)) / SECOND

    w = F.timestamp_micros("w")
    made = {
        "date": F.to_date(w),
        "service": F.col("service"),
        "instance": F.col("instance"),
        "w": w,
        "hb": F.coalesce("hb", F.lit(0)),
        "hb_expected": F.round("expected", DIGITS),
        "connected_s": seconds("connected"),
        "up_s": seconds("up"),
        "load_mean": F.when(F.col("loaded") > 0, F.round(F.col("load") / F.col("loaded"), DIGITS)),
        "load_max": F.col("load_max"),
        "full_load": F.col("full_load"),
        "requests": F.col("requests"),
        "errors": F.col("errors"),
        "rtt_max": F.col("rtt_max"),
        "broker_up_s": seconds("broker_up"),
        "down_s": seconds("down"),
        "outages": F.coalesce("outages", F.lit(0)),
        "gap_max": F.col("gap") / SECOND,
    }
    return rows.select(
        *(made[field.name].cast(field.dataType).alias(field.name) for field in SILVER_PROVIDER_5M.schema.fields)
    )
