"""Rollup: from records to five minutes of each provider, and what must be known of a date to go on with the next.

A *registration* is what a broker's start calls a provider of a service: (broker, boot, service, provider). Each of its
records says what holds until the next one. The *up-spans* of a broker's start are the times in which it lived.

Rules:
- Within a registration records are ordered by their number, and not by the clock, which may jump; a record that is
  there twice counts once. From a record to one that is earlier by the clock no time passes. No five minutes have more
  than 300 s, and no more than the broker was up, whatever the clock did.
- Any record is a sign of the broker. Signs more than 90 s apart, and midnight, divide up-spans: a date is counted from
  the broker's first sign on it to its last. So a date is a function of its own records and of the state before it. Of
  the minute or less that this leaves out nothing is expected either.
- A registration is open from its first record (a beat proves one that was lost) until it is withdrawn, left or expired,
  or its broker's start ends. It is connected while it is open and the broker is up.
- It is up while it is connected and gives signs of life: a provider with an interval for 3 intervals after its last
  record, any other all the time. After more than 90 s without a broker, life is counted from the broker's return.
- Beats are expected of those with an interval, one for each interval of the connected time; after such a return,
  from its next record or after 60 s.
- An instance is down from the end of its up-time under all its registrations until it is up again, for a day at most;
  not while its broker is down nor in the 60 s after its broker's next start, and not after it withdrew. It has rows
  while it is down: `down_s` is that time, `outages` how many began.
- Loads are weighted by time, not by reports: who reports often, or only what changed, is not counted more or less for
  it. A load holds until the next report while the provider is up.
- An instance with two brokers is one: its times are added up and capped.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.schema import SILVER_PROVIDER_5M, Table, columns

SECOND = 1_000_000
"""Microseconds: times are whole numbers of them, so that sums do not depend on the order of their terms."""

FIVE_MINUTES = 300 * SECOND
"""The grain of the table."""

BROKER_SILENCE = 90 * SECOND
"""The broker writes a record each minute at least. After one and a half it was not there (docs/export.md)."""

LIVENESS = 3
"""Intervals after which a silent provider is no longer up: the wires' own measure of an end."""

GRACE = 60 * SECOND
"""What providers have to come back after the broker did: they try again every few seconds, but not all at once."""

ABSENCE = 24 * 3600 * SECOND
"""An instance that is away for longer was taken away; it is no longer down."""

DIGITS = 6
"""Decimals of what is stored. The last bits of a sum depend on the order of its terms; these do not."""

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

KEY = ("provider", "service", "boot", "broker")
"""A registration. Spark sorts by the first of these fast, and by all of them only where that is the same."""

CLOSED, BROKER, SILENT, WITHDRAWN = range(4)
"""How a time of being up ended. Of ends at the same moment the last of these counts."""

FAR = 2**60
"""A time in microseconds that is after everything."""


class Rolled(NamedTuple):
    """What a rollup makes. Both frames rest on one that Spark keeps on the disk until `done`."""

    silver: DataFrame
    carry: DataFrame
    kept: DataFrame

    def done(self) -> None:
        """Let go of what was kept: both frames are written."""
        self.kept.unpersist()


def runs_of(dates: Iterable[date]) -> list[list[date]]:
    """Divide dates into runs of consecutive ones: each run is one call of the jobs."""
    runs: list[list[date]] = []
    for day in sorted(set(dates)):
        if runs and day - runs[-1][-1] == timedelta(days=1):
            runs[-1].append(day)
        else:
            runs.append([day])
    return runs


def rollup(records: DataFrame, before: DataFrame | None, dates: Sequence[date]) -> Rolled:
    """Make the five minutes of consecutive dates, and the state at the end of each of them.

    `before` is the state at the end of the day before the first, or None where nothing was before.
    """
    last = _end(dates)
    up = _local(_up_spans(_signs(records, before, dates), ("broker", "boot")))
    starts = up.select("broker", F.col("span_from").alias("first"), F.col("span_to").alias("last"))
    brokers = _local(_up_spans(starts, ("broker",)))
    kept = _summaries(_lived(_events(records, before, dates))).persist(StorageLevel.DISK_ONLY)
    pieces = _pieces(kept, up)
    absent = _absences(_stretches(kept, pieces, before), up, brokers, last)
    silver = _merged(_in_windows(kept, pieces), absent, brokers)
    return Rolled(silver.where(F.col("date").between(dates[0], dates[-1])), _carry(kept, up, dates), kept)


def same_state(one: DataFrame, other: DataFrame) -> bool:
    """Tell whether two carries are the same: if so, the date after them need not be made again."""
    return one.exceptAll(other).isEmpty() and other.exceptAll(one).isEmpty()


def _end(dates: Sequence[date]) -> int:
    """Return the end of the last date, and make sure that they are a run."""
    if runs_of(dates) != [list(dates)]:
        raise ValueError("the dates must be consecutive, and at least one")
    after = datetime.combine(dates[-1] + timedelta(days=1), time(), UTC)
    return int(after.timestamp()) * SECOND


def _on(records: DataFrame, dates: Sequence[date]) -> DataFrame:
    return records.where(F.col("date").between(dates[0], dates[-1]))


def _events(records: DataFrame, before: DataFrame | None, dates: Sequence[date]) -> DataFrame:
    """Return the records about providers, and before them what was carried over, which looks just like them."""
    event = F.col("event")
    withdrawn = (event == "unregister") & F.coalesce(F.col("why") == "withdrawn", F.lit(False))
    events = (
        _on(records, dates)
        .where(event.isin("register", "unregister", "expire", "hb", "load"))
        .where("service is not null and provider is not null and instance is not null")
        .select(
            *KEY,
            "instance",
            "seq",
            F.unix_micros("ts").alias("at"),
            F.when(withdrawn, WITHDRAWN).when(event.isin("unregister", "expire"), CLOSED).cast("long").alias("ended"),
            F.when(F.col("interval_ms") > 0, F.col("interval_ms") * 1000).alias("interval"),
            "load",
            "full_load",
            F.when(event == "hb", 1).otherwise(0).cast("long").alias("hb"),
            "requests",
            "errors",
            "rtt_ms",
        )
    )
    if before is None:
        return events
    carried = before.select(
        *KEY, "instance", "seq", "at", "ended", "interval", "load", "full_load", F.lit(0).cast("long").alias("hb")
    )
    return events.unionByName(carried, allowMissingColumns=True)


def _signs(records: DataFrame, before: DataFrame | None, dates: Sequence[date]) -> DataFrame:
    """Return the first and the last sign of each broker's start in each minute: broker, boot, first, last."""
    at = F.unix_micros("ts")
    signs = (
        _on(records, dates)
        .groupBy("broker", "boot", (at - at % (60 * SECOND)).alias("minute"))
        .agg(F.min(at).alias("first"), F.max(at).alias("last"))
        .drop("minute")
    )
    if before is None:
        return signs
    last = before.groupBy("broker", "boot").agg(F.max("last_sign").alias("last"))
    return signs.unionByName(last.select("broker", "boot", F.col("last").alias("first"), "last"))


def _up_spans(signs: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """Return the up-spans of each key: span_from, span_to, date, and whether the broker came back with it."""
    order = Window.partitionBy(*key).orderBy("first", "last")
    seen = F.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    day = F.to_date(F.timestamp_micros("first"))
    return (
        signs.withColumn("away", F.coalesce(F.col("first") - seen > BROKER_SILENCE, F.lit(False)))
        .withColumn("date", day)
        .withColumn("new_day", F.coalesce(F.lag("date").over(order) != F.col("date"), F.lit(False)))
        .withColumn("span", F.sum(F.when(F.col("away") | F.col("new_day"), 1).otherwise(0)).over(order))
        .groupBy(*key, "span", "date")
        .agg(
            F.min("first").alias("span_from"),
            F.max("last").alias("span_to"),
            F.max("away").alias("returned"),
        )
        .drop("span")
    )


def _local(spans: DataFrame) -> DataFrame:
    """Fetch the up-spans: there are few, all the rest asks for them, and so they are made once."""
    return spans.sparkSession.createDataFrame(spans.collect(), spans.schema)


def _lived(events: DataFrame) -> DataFrame:
    """Add to each record what holds from it on, and until when.

    A row is `short` when its registration is up until the next record and no silence of the broker can lie between:
    most rows are, and they need no look at the up-spans. `island` counts the rows before that are not: rows of one
    island are up without a break, and the last of them is the one that is not short.
    """
    order = Window.partitionBy(*KEY).orderBy("seq")
    until_here = order.rowsBetween(Window.unboundedPreceding, 0)
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    day = 24 * 3600 * SECOND
    reach = F.least(F.col("interval") * LIVENESS, F.lit(BROKER_SILENCE))
    same_day = F.col("at") - F.col("at") % day == F.col("to") - F.col("to") % day
    short = F.col("ended").isNull() & (F.col("to") - F.col("at") <= reach) & same_day
    return (
        events.withColumn("again", F.coalesce(F.lag("seq").over(order) == F.col("seq"), F.lit(False)))
        .withColumn("to", F.lead("at").over(order))
        .withColumn("interval", F.last("interval", ignorenulls=True).over(until_here))
        .withColumn("load", F.last("load", ignorenulls=True).over(until_here))
        .withColumn("full_load", F.last("full_load", ignorenulls=True).over(until_here))
        .withColumn("to", F.when(F.col("to").isNotNull(), F.greatest("to", "at")))
        .withColumn("short", F.coalesce(short, F.lit(False)))
        .withColumn("breaks", F.when(F.col("short"), 0).otherwise(1))
        .withColumn("island", F.coalesce(F.sum("breaks").over(earlier), F.lit(0)))
    )


def _window_of(at: Column) -> Column:
    return at - at % FIVE_MINUTES


def _windows(from_: Column, to: Column) -> Column:
    """Return the five minutes that a time touches; one that has no length touches the one that it is in."""
    last = _window_of(F.greatest(from_, to - 1))
    return F.sequence(_window_of(from_), last, F.lit(FIVE_MINUTES).cast("long"))


def _overlap(from_: Column, to: Column) -> Column:
    """Return how much of a time lies in the five minutes `w`."""
    end = F.least(to, F.col("w") + FIVE_MINUTES)
    return F.greatest(end - F.greatest(from_, F.col("w")), F.lit(0))


def _summaries(lived: DataFrame) -> DataFrame:
    """Sum up the rows of each registration, island and five minutes: this is the one pass over all records.

    `in_*` are the times of the short rows within the five minutes, `over_*` what reaches into the next; `long_*` is the
    row that is not short, if it is here and ends nothing; `last_*` is the last row.
    """
    opens = F.col("ended").isNull()
    long = ~F.col("short") & opens
    over = F.when(F.col("short"), F.greatest(F.col("to") - F.col("w") - FIVE_MINUTES, F.lit(0))).otherwise(0)
    length = F.when(F.col("short"), F.col("to") - F.col("at")).otherwise(0)
    rows = lived.withColumn("w", _window_of(F.col("at"))).withColumn("over", over)
    rows = rows.withColumn("in", length - F.col("over"))
    shares = []
    for part in ("in", "over"):
        spent = F.col(part)
        shares += [
            F.sum(spent).alias(f"{part}_connected"),
            F.sum(F.when(F.col("load").isNotNull(), spent)).alias(f"{part}_loaded"),
            F.sum(spent * F.col("load")).alias(f"{part}_load"),
            F.max(F.when(spent > 0, F.col("load"))).alias(f"{part}_load_max"),
            F.sum(spent / F.col("interval")).alias(f"{part}_expected"),
        ]
    return rows.groupBy(*KEY, "instance", "w", "island").agg(
        *(F.sum(F.when(~F.col("again"), F.col(name))).alias(name) for name in ("hb", "requests", "errors")),
        F.max("rtt_ms").alias("rtt_max"),
        F.max("full_load").alias("full_load"),
        F.max("interval").alias("interval"),
        F.max(length).alias("gap"),
        F.min(F.when(opens, F.col("at"))).alias("open_from"),
        F.max(F.when(F.col("short"), F.col("to")).when(opens, F.col("at"))).alias("open_to"),
        F.max(F.when(F.col("ended") == WITHDRAWN, F.col("at"))).alias("withdrawn_at"),
        F.max(F.when(long, F.col("at"))).alias("long_at"),
        F.max(F.when(long, F.coalesce("to", F.lit(FAR)))).alias("long_to"),
        F.max(F.when(long, F.col("interval"))).alias("long_interval"),
        F.max(F.when(long, F.col("load"))).alias("long_load"),
        F.max("seq").alias("last_seq"),
        *(F.max_by(name, "seq").alias(f"last_{name}") for name in ("at", "ended", "interval", "load", "full_load")),
        *shares,
    )


def _carry(kept: DataFrame, up: DataFrame, dates: Sequence[date]) -> DataFrame:
    """Return the state at the end of each date."""
    days = up.sparkSession.createDataFrame([(day,) for day in dates], columns(day="date"))
    end = F.unix_micros(F.col("day").cast("timestamp")) + 24 * 3600 * SECOND
    held = ("instance", "last_at", "last_ended", "last_interval", "last_load", "last_full_load")
    states = (
        kept.join(F.broadcast(days), F.col("w") < end)
        .groupBy(*KEY, "day")
        .agg(F.max("last_seq").alias("seq"), *(F.max_by(name, "last_seq").alias(name) for name in held))
    )
    seen = (
        up.join(F.broadcast(days), F.col("date") <= F.col("day"))
        .groupBy("broker", "boot", "day")
        .agg(F.max("span_to").alias("last_sign"))
    )
    # What ended longer ago than an absence lasts says nothing more.
    until = F.when(F.col("last_ended").isNull(), F.col("last_sign")).otherwise(F.col("last_at"))
    return (
        states.join(F.broadcast(seen), ["broker", "boot", "day"])
        .where(until > end - ABSENCE)
        .withColumnsRenamed({f"last_{name}": name for name in ("at", "ended", "interval", "load", "full_load")})
        .withColumnRenamed("day", "date")
        .select(*SILVER_CARRY.schema.names)
    )


def _pieces(kept: DataFrame, up: DataFrame) -> DataFrame:
    """Divide the long rows by the up-spans: from, until, up until, beats expected from, and how the up-time ended."""
    pieces = (
        kept.where("long_at is not null")
        .select(
            *KEY,
            "instance",
            "full_load",
            F.col("long_interval").alias("interval"),
            F.col("long_load").alias("load"),
            F.col("long_at").alias("at"),
            F.col("long_to").alias("to"),
        )
        .join(F.broadcast(up), ["broker", "boot"])
        .where("span_from <= to and span_to >= at")
        .withColumn("from", F.greatest("at", "span_from"))
        .withColumn("until", F.least("to", "span_to"))
        .withColumn("anew", F.col("returned") & (F.col("span_from") > F.col("at")))
    )
    alive = F.when(F.col("anew"), F.col("span_from")).otherwise(F.col("at")) + F.col("interval") * LIVENESS
    expect = F.when(F.col("anew"), F.greatest(F.col("from"), F.col("span_from") + GRACE)).otherwise(F.col("from"))
    ended = F.when(F.col("up_to") < F.col("until"), SILENT).when(F.col("until") < F.col("to"), BROKER)
    return (
        pieces.withColumn("up_to", F.least("until", alive))
        .withColumn("how", ended.otherwise(CLOSED))
        .withColumn("expect_from", expect)
        .select(*KEY, "instance", "interval", "load", "full_load", "from", "until", "up_to", "expect_from", "how")
    )


def _in_windows(kept: DataFrame, pieces: DataFrame) -> DataFrame:
    """Bring the times of short rows and of pieces into one form: times, counts and maxima of (broker, instance, w)."""
    place = ("broker", "service", "instance")
    times = ("connected", "loaded", "load", "expected")
    counts = ("hb", "requests", "errors")
    always = ("full_load", "interval")
    within = kept.select(
        *place,
        "w",
        *always,
        *counts,
        "rtt_max",
        "gap",
        "in_load_max",
        *(F.col(f"in_{name}").alias(name) for name in times),
        F.col("in_connected").alias("up"),
    ).withColumnRenamed("in_load_max", "load_max")
    after = kept.where("over_connected > 0").select(
        *place,
        (F.col("w") + FIVE_MINUTES).alias("w"),
        *always,
        *(F.col(f"over_{name}").alias(name) for name in times),
        F.col("over_connected").alias("up"),
        F.col("over_load_max").alias("load_max"),
    )
    longer = (
        pieces.withColumn("w", F.explode(_windows(F.col("from"), F.col("until"))))
        .withColumn("connected", _overlap(F.col("from"), F.col("until")))
        .withColumn("up", _overlap(F.col("from"), F.col("up_to")))
        .withColumn("expected", _overlap(F.col("expect_from"), F.col("until")) / F.col("interval"))
        .select(
            *place,
            "w",
            *always,
            "connected",
            "up",
            F.when(F.col("load").isNotNull(), F.col("up")).alias("loaded"),
            (F.col("up") * F.col("load")).alias("load"),
            F.when(F.col("up") > 0, F.col("load")).alias("load_max"),
            "expected",
            (F.least(F.col("until"), F.col("w") + FIVE_MINUTES) - F.col("from")).alias("gap"),
        )
    )
    return (
        within.unionByName(after, allowMissingColumns=True)
        .unionByName(longer, allowMissingColumns=True)
        .groupBy(*place, "w")
        .agg(
            *(F.sum(name).alias(name) for name in (*times, "up", *counts)),
            *(F.max(name).alias(name) for name in ("load_max", "rtt_max", "gap", *always)),
        )
    )


def _stretches(kept: DataFrame, pieces: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return times of being up, of any registration: broker, service, instance, beats, from, to, how it ended."""
    place = ("broker", "service", "instance")
    beats = F.col("interval").isNotNull().alias("beats")
    islands = (
        kept.where("open_from is not null")
        .groupBy(*KEY, "instance", "island")
        .agg(F.min("open_from").alias("from"), F.max("open_to").alias("to"), F.max("interval").alias("interval"))
        .select(*place, beats, "from", "to", F.lit(CLOSED).alias("how"))
    )
    longer = pieces.where("up_to >= from").select(*place, beats, "from", F.col("up_to").alias("to"), "how")
    at = F.col("withdrawn_at")
    withdrawn = kept.where(at.isNotNull()).select(
        *place, beats, at.alias("from"), at.alias("to"), F.lit(WITHDRAWN).alias("how")
    )
    every = islands.unionByName(longer).unionByName(withdrawn)
    if before is None:
        return every
    alive = F.col("at") + F.col("interval") * LIVENESS
    how = F.when(alive < F.col("last_sign"), SILENT).otherwise(BROKER)
    carried = before.select(
        *place,
        beats,
        F.col("at").alias("from"),
        F.when(F.col("ended").isNull(), F.greatest("at", F.least("last_sign", alive)))
        .otherwise(F.col("at"))
        .alias("to"),
        F.when(F.col("ended").isNull(), how).otherwise(F.col("ended")).cast("int").alias("how"),
    )
    return every.unionByName(carried)


def _absences(stretches: DataFrame, up: DataFrame, brokers: DataFrame, last: int) -> DataFrame:
    """Return the down time of instances: broker, service, instance, w, beats, down, outages."""
    instance = ("instance", "service")
    order = Window.partitionBy(*instance).orderBy("from", "to", "how")
    until_here = order.rowsBetween(Window.unboundedPreceding, 0)
    rank = F.col("to") * 4 + F.col("how")
    gaps = (
        stretches.withColumn("rank", rank)
        .withColumn("next", F.lead("from").over(order))
        .withColumn("end", F.max("rank").over(until_here))
        .withColumn("broker", F.max_by("broker", "rank").over(until_here))
        .withColumn("beats", F.max_by("beats", "rank").over(until_here))
        .withColumn("how", F.col("end") % 4)
        .withColumn("up_to", F.shiftright("end", 2))
        .where("how != 3 and (next is null or next > up_to)")
        .select("broker", *instance, "beats", "how", "up_to", "next")
    )
    starts = up.select("broker", F.col("span_from").alias("start"))
    back = (
        gaps.where(F.col("how") == BROKER)
        .join(F.broadcast(starts), "broker")
        .where(F.col("start") > F.col("up_to"))
        .groupBy("broker", *instance, "up_to")
        .agg((F.min("start") + GRACE).alias("due"))
    )
    due = F.when(F.col("how") == BROKER, F.coalesce("due", F.col("up_to") + GRACE)).otherwise(F.col("up_to"))
    downs = (
        gaps.join(back, ["broker", *instance, "up_to"], "left")
        .withColumn("from", due)
        .withColumn("to", F.least(F.coalesce("next", F.lit(last)), F.col("up_to") + ABSENCE))
        .where(F.col("from") < F.col("to"))
        .select("broker", *instance, "beats", "from", "to")
    )
    pieces = (
        downs.join(F.broadcast(brokers), "broker")
        .where((F.col("span_from") < F.col("to")) & (F.col("span_to") > F.col("from")))
        .withColumn("begun", F.col("from") >= F.col("span_from"))
        .withColumn("from", F.greatest("from", "span_from"))
        .withColumn("to", F.least("to", "span_to"))
    )
    begins = F.col("begun") & (F.col("from") >= F.col("w"))
    return (
        pieces.withColumn("w", F.explode(_windows(F.col("from"), F.col("to"))))
        .withColumn("down", _overlap(F.col("from"), F.col("to")))
        .groupBy("broker", *instance, "w")
        .agg(
            F.sum("down").alias("down"),
            F.sum(F.when(begins, 1).otherwise(0)).alias("outages"),
            F.max("beats").alias("beats"),
        )
    )


def _merged(own: DataFrame, absent: DataFrame, brokers: DataFrame) -> DataFrame:
    """Put the brokers' times beside those of their instances, cap them, and make one row of all brokers'."""
    place = ("broker", "service", "instance", "w")
    broker_up = (
        brokers.withColumn("w", F.explode(_windows(F.col("span_from"), F.col("span_to"))))
        .groupBy("broker", "w")
        .agg(F.sum(_overlap(F.col("span_from"), F.col("span_to"))).alias("broker_up"))
    )
    rows = (
        own.join(absent, list(place), "full")
        .join(F.broadcast(broker_up), ["broker", "w"])
        .where("connected is not null or down is not null")
    )
    # The least of nothing and something is something.
    connected = F.least(F.coalesce("connected", F.lit(0)), F.col("broker_up"))
    # A clock that was set back shows the same minutes twice; the share that was one too many is not expected either.
    real = F.when(F.col("connected") > 0, connected / F.col("connected")).otherwise(1.0)
    beats = F.col("interval").isNotNull() | F.coalesce("beats", F.lit(False))
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
    most = ("load_max", "full_load", "rtt_max", "gap")
    rows = rows.groupBy(*place[1:]).agg(
        *(F.sum(name).alias(name) for name in sums), *(F.max(name).alias(name) for name in most)
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
