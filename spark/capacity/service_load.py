"""Service load: the demand of each service and what was there to meet it, for each hour.

Demand is the sum of the loads of the service's instances. When one is down its load is not reported, which must not
look like demand that fell; but if the others took its load over, it is in their reports, and must not be counted twice.

Rules:
- An instance that is known but reports no load (it is down, or it came back and has not reported yet) is filled in for
  a day at most. Who withdrew has no rows and is not filled in.
- What is filled in is the mean of the others at that time, times what the instance used to carry in relation to that
  mean just before it fell silent. So it follows the day's rise and fall. If no other reports, it is the instance's own
  last load.
- Of that, the share which the others took over is left out: how much the sum of those who were there before and after
  rose when it fell silent (from 15 to 10 minutes before until 10 minutes after), over what was lost in that moment, not
  less than nothing and not more than all. Demand that rises by itself in these minutes is taken for that too; the error
  is less than one provider's load, and the larger the service, the less that is.
- Five minutes count by how much of them the broker was up. An hour without a broker has no row: nothing is known of it.
- Capacity and use are told only where `full_load` is set.
"""

from collections.abc import Sequence
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.balance import spread
from spark.capacity.schema import GOLD_SERVICE_1H
from spark.capacity.times import ABSENCE, DIGITS, SECOND

LOOKBACK = timedelta(days=2)
"""What must be known of the time before: an absence lasts a day at most, and its beginning needs minutes before it."""

STEP = 300
"""Seconds of a row of the rollup."""


def service_load(silver: DataFrame, dates: Sequence[date]) -> DataFrame:
    """Make the hours of services on some dates, from the five minutes of those dates and of `LOOKBACK` before them."""
    wanted = F.col("date").isin(*dates)
    early = [day - timedelta(days=back) for day in dates for back in range(LOOKBACK.days + 1)]
    rows = _filled(silver.where(F.col("date").isin(*sorted(set(early))))).where(wanted)
    place = ("date", "service", "h")
    rows = rows.withColumn("h", F.date_trunc("hour", "w"))
    hours = _hours(rows, place)
    loads = (
        rows.where("load_mean is not null and up_s > 0")
        .groupBy(*place, "instance")
        .agg(F.round(F.sum(F.col("load_mean") * F.col("up_s")) / F.sum("up_s"), DIGITS).alias("value"))
    )
    return hours.join(spread(loads, *place), list(place), "left").select(*GOLD_SERVICE_1H.schema.names)


def _filled(silver: DataFrame) -> DataFrame:
    """Add `load`: what is reported, or else filled in."""
    own = Window.partitionBy("service", "instance").orderBy("at")
    so_far = own.rowsBetween(Window.unboundedPreceding, 0)
    together = Window.partitionBy("service", "at")
    load = F.col("load_mean")

    def over(value: Column, first: int, last: int) -> Column:
        return F.avg(value).over(own.rangeBetween(first * STEP, last * STEP))

    rows = (
        silver.withColumn("at", F.unix_seconds("w"))
        .withColumn("mean", F.avg(load).over(together))
        .withColumn("others", F.sum(load).over(together) - load)
        .withColumn("number", F.count(load).over(together))
        .withColumn("relative", F.when(F.col("others") > 0, load * (F.col("number") - 1) / F.col("others")))
        .withColumn("seen", F.last(F.when(load.isNotNull(), F.col("at")), ignorenulls=True).over(so_far))
        # The last five minutes before silence are half of it: the level is that of the ten minutes before them.
        .withColumn("level", F.when(load.isNotNull(), F.coalesce(over(load, -2, -1), load)))
        .withColumn("level", F.last("level", ignorenulls=True).over(so_far))
        .withColumn("relation", F.when(load.isNotNull(), F.coalesce(over(F.col("relative"), -2, -1), "relative")))
        .withColumn("relation", F.last("relation", ignorenulls=True).over(so_far))
        .withColumn("rise", over(load, 0, 1) - over(load, -3, -2))
    )
    silent = load.isNull() & F.coalesce(F.col("at") - F.col("seen") <= ABSENCE // SECOND, F.lit(False))
    first = silent & (F.col("at") - F.col("seen") == STEP)
    risen = F.coalesce(F.sum(F.when(load.isNotNull(), F.col("rise"))).over(together), F.lit(0.0))
    lost = F.sum(F.when(first, F.col("level"))).over(together)
    taken = F.when(first & (lost > 0), F.greatest(F.least(risen / lost, F.lit(1.0)), F.lit(0.0)))
    same_silence = Window.partitionBy("service", "instance", "seen")
    guess = F.coalesce(F.col("relation") * F.col("mean"), F.col("level"))
    return (
        rows.withColumn("taken", taken)
        .withColumn("taken", F.coalesce(F.max("taken").over(same_silence), F.lit(0.0)))
        .withColumn("load", F.coalesce(load, F.when(silent, guess * (1 - F.col("taken")))))
    )


def _hours(rows: DataFrame, place: tuple[str, ...]) -> DataFrame:
    """Sum up the instances of each five minutes, then the five minutes of each hour."""
    judged = F.col("up_s") + F.col("down_s")
    there = F.when(judged > 0, F.col("up_s") / judged).otherwise(0.0)
    # The measure of fullness is the service's: an instance that has not reported yet has the same one.
    full = F.max("full_load").over(Window.partitionBy(*place))
    windows = (
        rows.withColumn("there", there)
        .withColumn("full_load", full)
        .groupBy(*place, "w")
        .agg(
            F.sum("load").alias("demand"),
            F.sum("there").alias("providers"),
            F.sum(F.when(F.col("there") >= 0.5, 1).otherwise(0)).alias("whole"),
            F.sum(F.col("there") * F.col("full_load")).alias("capacity"),
            F.max("full_load").alias("full_load"),
            F.max("broker_up_s").alias("weight"),
            F.sum("requests").alias("requests"),
        )
        .where("weight > 0")
    )

    def mean(name: str) -> Column:
        weight = F.when(F.col(name).isNotNull(), F.col("weight"))
        return F.round(F.sum(F.col(name) * F.col("weight")) / F.sum(weight), DIGITS)

    hours = windows.groupBy(*place).agg(
        mean("demand").alias("demand_mean"),
        F.round(F.percentile("demand", F.lit(0.95)), DIGITS).alias("demand_p95"),
        mean("capacity").alias("capacity"),
        F.max("full_load").alias("full_load"),
        mean("providers").alias("providers_mean"),
        F.min("whole").alias("providers_min"),
        F.sum("requests").alias("requests"),
    )
    used = F.when(F.col("capacity") > 0, F.round(F.col("demand_mean") / F.col("capacity"), DIGITS))
    return hours.withColumn("util", used)
