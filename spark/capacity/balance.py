"""Balance: how evenly the load of a service lies on its providers, for each day.

Rules:
- An instance's share is its load over the mean of its service in the same five minutes, averaged over the day: who was
  there at night only is not compared with who was there at noon.
- Only five minutes in which two instances or more reported a load count, and only instances with an hour of them.
- An instance is hot when its share is one and a half times its even one. A service is unbalanced when it has a hot
  instance, or when the shares' standard deviation is 0.3 of their mean: then many are uneven, but none by much.
- A day on which no service has two such instances has no row for it: one provider cannot be uneven.
"""

from collections.abc import Sequence
from datetime import date

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.schema import GOLD_BALANCE_DAY
from spark.capacity.times import DIGITS

HOT = 1.5
"""Times the even share from which an instance is hot. A plan at 70 % of full load is full at 1.43 times the mean."""

UNEVEN = 0.3
"""The coefficient of variation from which a service is unbalanced: random choice of providers stays near 0.1."""

HOUR = 12
"""Five minutes in an hour: fewer make no average."""


def balance(silver: DataFrame, dates: Sequence[date]) -> DataFrame:
    """Make the days of services from the five minutes of their providers."""
    place = ("date", "service")
    rows = silver.where(F.col("date").isin(*dates) & F.col("load_mean").isNotNull())
    together = Window.partitionBy("service", "w")
    shares = (
        rows.withColumn("mean", F.avg("load_mean").over(together))
        .withColumn("there", F.count("load_mean").over(together))
        .where("there > 1 and mean > 0")
        .groupBy(*place, "instance")
        .agg(F.avg(F.col("load_mean") / F.col("mean")).alias("value"), F.count("*").alias("windows"))
        .where(F.col("windows") >= HOUR)
        .withColumn("value", F.round("value", DIGITS))
    )
    hot = shares.groupBy(*place).agg(
        F.sort_array(F.collect_list(F.when(F.col("value") >= HOT, F.col("instance")))).alias("hot_instances"),
        F.count("*").alias("instances"),
    )
    uneven = (F.col("cov") >= UNEVEN) | (F.size("hot_instances") > 0)
    made = spread(shares, *place).join(hot.where("instances > 1").drop("instances"), list(place))
    return made.withColumn("unbalanced", F.coalesce(uneven, F.lit(False))).select(*GOLD_BALANCE_DAY.schema.names)


def spread(values: DataFrame, *place: str) -> DataFrame:
    """Tell how far the values of each place lie apart: cov, max_mean and gini; null where all are zero.

    With the values x in order, the Gini coefficient is 2 sum(i x) / (n sum(x)) - (n + 1) / n, i from 1.
    """
    rank = F.row_number().over(Window.partitionBy(*place).orderBy("value"))
    n, total = F.col("n"), F.col("total")
    return (
        values.withColumn("rank", rank)
        .groupBy(*place)
        .agg(
            F.count("value").alias("n"),
            F.sum("value").alias("total"),
            F.avg("value").alias("mean"),
            F.stddev_pop("value").alias("deviation"),
            F.max("value").alias("most"),
            F.sum(F.col("rank") * F.col("value")).alias("ranked"),
        )
        .select(
            *place,
            F.when(total > 0, F.round(F.col("deviation") / F.col("mean"), DIGITS)).alias("cov"),
            F.when(total > 0, F.round(F.col("most") / F.col("mean"), DIGITS)).alias("max_mean"),
            F.when(total > 0, F.round(2 * F.col("ranked") / (n * total) - (n + 1) / n, DIGITS)).alias("gini"),
        )
    )
