"""Registrations: what the records say of each of them, summed up in one pass over all records.

A *registration* is what a broker's start calls a provider of a service: (broker, boot, service, provider). Each of its
records says what holds until the next one. Records of no provider are taken for those of one that the broker is itself:
so its own signs come out of the same pass.

Rules:
- Within a registration records are ordered by their number, and not by the clock, which may jump; a record that is
  there twice counts once.
- A record is *short* when its registration is up until the next one and no silence of the broker can lie between: most
  records are, and need no look at when the broker was there. All others are breaks. What is between two breaks is an
  island: the registration is up in it all the time.
- Registrations and instances go by numbers of 64 bits, made of their names: to sort by names is slow, and rows with
  names in them do not fit into memory. Of a million registrations, two have the same number once in 30 million times.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.hidden import with_lost
from spark.capacity.times import BROKER_SILENCE, DAY, FIVE_MINUTES, LIVENESS, window_of

KEY = ("broker", "boot", "service", "provider")
"""The names of a registration."""

NUMBERS = ("registration", "place")
"""The numbers of a registration, and of its service and instance: an instance may change within a registration."""

CLOSED, BROKER, SILENT, WITHDRAWN = range(4)
"""How a time of being up ended. Of ends at the same moment the last of these counts."""

TOLD = ("requests", "errors", "rtt_ms")
"""Members that records may have, and nearly none has."""


def _named(records: DataFrame) -> DataFrame:
    """Give each record the names and numbers of its registration; those of no provider are the broker's own."""
    own = F.col("event").isin("alive", "drop") | F.expr("service is null or provider is null or instance is null")
    names = {name: F.when(~own, F.col(name)) for name in ("service", "provider", "instance")}
    return _numbered(records.withColumns(names))


def _numbered(rows: DataFrame) -> DataFrame:
    return rows.withColumn("registration", F.xxhash64(*KEY)).withColumn("place", F.xxhash64("service", "instance"))


def names(records: DataFrame, before: DataFrame | None) -> DataFrame:
    """Tell the names of all numbers."""
    every = _named(records).select(*KEY, "instance")
    if before is not None:
        every = every.union(before.select(*KEY, "instance"))
    return _numbered(every.distinct())


def _rows(records: DataFrame, before: DataFrame | None, hidden: DataFrame | None) -> DataFrame:
    """Return what the records say, and before it what was carried over, which looks just like it."""
    event = F.col("event")
    withdrawn = (event == "unregister") & F.coalesce(F.col("why") == "withdrawn", F.lit(False))
    rows = _named(records).select(
        *NUMBERS,
        *(() if hidden is None else ("broker", "boot")),
        "seq",
        F.unix_micros("ts").alias("at"),
        F.when(withdrawn, WITHDRAWN).when(event.isin("unregister", "expire"), CLOSED).alias("ended"),
        F.when(F.col("interval_ms") > 0, F.col("interval_ms") * 1000).alias("interval"),
        "load",
        "full_load",
        (event == "hb").cast("int").alias("hb"),
        F.when(F.coalesce(*TOLD).isNotNull(), F.struct(*TOLD)).alias("told"),
    )
    if before is not None:
        carried = _numbered(before).select(
            *(name for name in rows.columns if name not in ("hb", "told", "ended")),
            F.col("ended").cast("int"),
            F.lit(0).alias("hb"),
        )
        rows = rows.unionByName(carried, allowMissingColumns=True)
    if hidden is None:
        return rows
    return with_lost(rows, "at", "lost", hidden).drop("broker", "boot")


def _lived(rows: DataFrame) -> DataFrame:
    """Add to each record what holds from it on, until when, and where its registration began.

    `cut` is 0 for short records, and the number of any other one.
    """
    order = Window.partitionBy("registration").orderBy("seq")
    until_here = order.rowsBetween(Window.unboundedPreceding, 0)
    lived = rows.withColumns(
        {
            "next": F.lead("at").over(order),
            "next_seq": F.lead("seq").over(order),
            "began": F.first("at").over(until_here),
            "began_seq": F.first("seq").over(until_here),
            **{name: F.last(name, ignorenulls=True).over(until_here) for name in ("interval", "load", "full_load")},
        }
    )
    length = F.col("next") - F.col("at")
    known = length
    if "lost" in rows.columns:
        lived = lived.withColumn("lost_next", F.lead("lost").over(order))
        known = length - F.greatest(F.col("lost_next") - F.col("lost"), F.lit(0))
    same_day = F.col("at") - F.col("at") % DAY == F.col("next") - F.col("next") % DAY
    alive = F.col("interval").isNull() | (known <= F.col("interval") * LIVENESS)
    short = F.col("ended").isNull() & length.between(0, BROKER_SILENCE) & alive & same_day
    return lived.withColumns(
        {
            "again": F.coalesce(F.col("next_seq") == F.col("seq"), F.lit(False)),
            "cut": F.when(F.coalesce(short, F.lit(False)), 0).otherwise(F.col("seq")),
            "known": F.greatest(known, F.lit(0)),
            "w": window_of(F.col("at")),
        }
    )


def _summed(lived: DataFrame) -> DataFrame:
    """Sum up the short records of each registration and five minutes; breaks stay as they are, each a row of its own.

    `in_*` are the times of the short records within the five minutes, `over_*` what reaches into the next.
    """
    short = F.col("cut") == 0
    over = F.when(short, F.greatest(F.col("next") - F.col("w") - FIVE_MINUTES, F.lit(0))).otherwise(0)
    within = F.when(short, F.col("next") - F.col("at")).otherwise(0) - over
    rows = lived.withColumns({"over": over, "in": within})
    shares = []
    for part in ("in", "over"):
        spent = F.col(part)
        beats = spent / F.col("interval")
        if "lost" in lived.columns:
            # What of it is hidden is taken to lie evenly in both.
            beats = F.when(spent > 0, beats * F.col("known") / (F.col("next") - F.col("at"))).otherwise(beats)
        shares += [
            F.sum(spent).alias(f"{part}_connected"),
            F.sum(F.when(F.col("load").isNotNull(), spent)).alias(f"{part}_loaded"),
            F.sum(spent * F.col("load")).alias(f"{part}_load"),
            F.max(F.when(spent > 0, F.col("load"))).alias(f"{part}_load_max"),
            F.sum(beats).alias(f"{part}_expected"),
        ]
    once = ~F.col("again")
    of_break = ("at", "ended", "load", "next", "next_seq", "began", "began_seq")
    return rows.groupBy(*NUMBERS, "w", "cut").agg(
        F.sum(F.when(once, F.col("hb"))).alias("hb"),
        F.sum(F.when(once, F.col("told.requests"))).alias("requests"),
        F.sum(F.when(once, F.col("told.errors"))).alias("errors"),
        F.max("told.rtt_ms").alias("rtt_max"),
        F.max(F.when(short, F.col("known")).otherwise(0)).alias("gap"),
        F.max("interval").alias("interval"),
        F.max("full_load").alias("full_load"),
        *(F.max(name).alias(name) for name in of_break),
        *shares,
    )


def summed_up(records: DataFrame, before: DataFrame | None, hidden: DataFrame | None, known: DataFrame) -> DataFrame:
    """Sum up all records, by registration and five minutes, and give the registrations the names that are `known`."""
    return _summed(_lived(_rows(records, before, hidden))).join(known, list(NUMBERS))


def breaks(kept: DataFrame) -> DataFrame:
    """Return the breaks, and when the island began that each of them ends; `alone`: the break is all of it."""
    order = Window.partitionBy("registration").orderBy("cut")
    began = F.coalesce(F.lag("next_seq").over(order), "began_seq")
    return (
        kept.where("cut > 0")
        .withColumn("alone", began == F.col("cut"))
        .withColumn("began", F.coalesce(F.lag("next").over(order), "began"))
    )
