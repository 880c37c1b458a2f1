"""Presence: when each broker was there, by its records.

Rules:
- Any record is a sign. The signs of a minute are kept as the first and the last of them, in one row.
- Between two signs more than 90 s apart the broker was not there (docs/export.md). A broker is all its starts together.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.schema import Table, columns

SILENCE = 90
"""Seconds: the broker writes a record each minute at least."""

SILVER_SIGNS = Table(
    "silver_signs", columns(date="date", broker="string", first="timestamp", last="timestamp"), dated=True
)
"""The first and the last record of a broker in each minute that has one."""


def signs(records: DataFrame) -> DataFrame:
    """Make the minutes in which brokers were there."""
    return (
        records.groupBy("date", "broker", F.date_trunc("minute", "ts").alias("minute"))
        .agg(F.min("ts").alias("first"), F.max("ts").alias("last"))
        .select(*SILVER_SIGNS.schema.names)
    )


def broker_down(minutes: DataFrame) -> DataFrame:
    """Tell when brokers were not there: broker, start, end."""
    window = Window.partitionBy("broker").orderBy("first")
    return (
        minutes.withColumn("start", F.lag("last").over(window))
        .where(F.unix_micros("first") - F.unix_micros("start") > SILENCE * 1_000_000)
        .select("broker", "start", F.col("first").alias("end"))
        .orderBy("broker", "start")
    )
