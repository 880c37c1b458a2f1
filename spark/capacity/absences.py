"""Absences: when an instance was down, which is seen by when it was up.

Rules:
- An instance is down from the end of its up-time under all its registrations until it is up again, for a day at most;
  not while its broker is down, and not after it withdrew.
- Whose up-time ended with the broker's has a minute to come back, of a start of the broker that lasts for one. Until
  then it is not down: who had the broker for twenty seconds between two of its ends had no time to. It is awaited, and
  has rows that say so by no time of either kind: its load is not known, and not gone.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.registrations import BROKER, CLOSED, SILENT, WITHDRAWN
from spark.capacity.times import ABSENCE, FIVE_MINUTES, GRACE, LIVENESS, overlap, windows

PLACE = ("broker", "service", "instance")

INSTANCE = ("instance", "service")


def stretches(breaks: DataFrame, pieces: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return times of being up, of any registration: broker, service, instance, beats, from, to, how it ended."""
    beats = F.col("interval").isNotNull().alias("beats")
    withdrawn = F.coalesce(F.col("ended") == WITHDRAWN, F.lit(False))
    # An end of which nothing before it is known says nothing of being up; a withdrawal says that nobody is down.
    islands = (
        breaks.where("service is not null")
        .where(withdrawn | F.col("ended").isNull() | ~F.col("alone"))
        .select(
            *PLACE,
            beats,
            # Where the clock was set back the same time is there twice, and nobody is down in it.
            F.when(F.col("ended").isNull(), F.least("began", "next")).otherwise(F.col("began")).alias("from"),
            F.col("at").alias("to"),
            F.when(withdrawn, WITHDRAWN).otherwise(CLOSED).alias("how"),
        )
    )
    longer = pieces.where("up_to >= from").select(*PLACE, beats, "from", F.col("up_to").alias("to"), "how")
    every = islands.unionByName(longer)
    if before is None:
        return every
    alive = F.col("at") + F.col("interval") * LIVENESS
    how = F.when(alive < F.col("last_sign"), SILENT).otherwise(BROKER)
    carried = before.select(
        *PLACE,
        beats,
        F.col("at").alias("from"),
        F.when(F.col("ended").isNull(), F.greatest("at", F.least("last_sign", alive)))
        .otherwise(F.col("at"))
        .alias("to"),
        F.when(F.col("ended").isNull(), how).otherwise(F.col("ended")).cast("int").alias("how"),
    )
    return every.unionByName(carried)


def absences(stretches: DataFrame, brokers: DataFrame, stays: DataFrame, last: int) -> DataFrame:
    """Return the down time of instances: broker, service, instance, w, down, outages, absent_beats."""
    order = Window.partitionBy(*INSTANCE).orderBy("from", "to", "how")
    until_here = order.rowsBetween(Window.unboundedPreceding, 0)
    gaps = (
        stretches.withColumn("rank", F.col("to") * 4 + F.col("how"))
        .withColumns(
            {
                "next": F.lead("from").over(order),
                "end": F.max("rank").over(until_here),
                "broker": F.max_by("broker", "rank").over(until_here),
                "beats": F.max_by("beats", "rank").over(until_here),
            }
        )
        .withColumn("how", F.col("end") % 4)
        .withColumn("up_to", F.shiftright("end", 2))
        .where(f"how != {WITHDRAWN} and (next is null or next > up_to)")
        .select("broker", *INSTANCE, "beats", "how", "up_to", "next")
    )
    up_to = F.col("up_to")
    due = F.array_min(
        F.transform(
            "stays",
            lambda stay: F.when(
                F.greatest(stay["stay_from"], up_to) + GRACE <= stay["stay_to"],
                F.greatest(stay["stay_from"], up_to) + GRACE,
            ),
        )
    )
    absent = (
        gaps.join(F.broadcast(stays), "broker")
        .withColumn("to", F.least(F.coalesce("next", F.lit(last)), up_to + ABSENCE))
        .withColumn("due", F.when(F.col("how") == BROKER, F.coalesce(due, "to")).otherwise(up_to))
        .where("up_to < to")
        .select("broker", *INSTANCE, "beats", F.col("up_to").alias("from"), "to", "due")
    )
    parts = (
        absent.join(F.broadcast(brokers), "broker")
        .where((F.col("span_from") < F.col("to")) & (F.col("span_to") > F.col("from")))
        .withColumn("from", F.greatest("from", "span_from"))
        .withColumn("to", F.least("to", "span_to"))
    )
    w, begun = F.col("w"), F.col("due")
    begins = (begun >= F.greatest("span_from", w)) & (begun < F.least("to", w + FIVE_MINUTES))
    return parts.withColumn("w", F.explode(windows(F.col("from"), F.col("to")))).select(
        *PLACE,
        "w",
        overlap(F.greatest("from", "due"), F.col("to")).alias("down"),
        F.when(begins, 1).otherwise(0).cast("long").alias("outages"),
        F.col("beats").alias("absent_beats"),
    )
