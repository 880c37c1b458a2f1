"""Job: past forecasts, outcome beside promise.

Rules:
- A forecast is compared with the hours of its horizon that are over at ``now`` and of which the demand is known;
  `horizon_h` says how many those are. It has no row before there is one.
- `mape` is the mean absolute error of p50 divided by the mean demand of the same hours. Errors in percent of each hour
  would make much of a quiet night. It is null where the demand was 0 throughout.
- `coverage` is the share of hours with a demand at or below p95.
- The peak was missed if the highest demand of those hours, by the finest peaks that are known, was above the peak
  bound.
- A run evaluates the forecasts whose horizon is not over, and those of which hours were computed again.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.capacity.planning.forecast import full_hour
from spark.capacity.tables.schema import EVALUATION, PEAKS


def evaluate(forecasts: DataFrame, load: DataFrame, now: datetime) -> DataFrame:
    """Return the rows of evaluation, from gold_forecast and gold_service_1h."""
    until = F.lit(full_hour(now))
    known = load.where((F.col("h") < until) & F.col("demand_mean").isNotNull())
    was = known.select("service", "h", "demand_mean", F.coalesce(*PEAKS).alias("peak"))
    error = F.abs(F.col("demand_mean") - F.col("p50"))
    demand = F.sum(F.abs(F.col("demand_mean")))
    return (
        forecasts.join(was, ["service", "h"])
        .groupBy("service", "issued")
        .agg(
            F.count(F.lit(1)).alias("horizon_h"),
            F.when(demand > 0.0, F.sum(error) / F.when(demand > 0.0, demand)).alias("mape"),
            F.avg((F.col("demand_mean") <= F.col("p95")).cast("double")).alias("coverage"),
            (F.max("peak") > F.max("peak_bound")).alias("peak_missed"),
            F.first("coverage").alias("promised_coverage"),
            F.first("bound_miss_most").alias("promised_miss_most"),
            F.first("mase").alias("promised_mase"),
        )
        .withColumn("date", F.to_date("issued"))
        .select(*EVALUATION.schema.names)
    )
