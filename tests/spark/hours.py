"""Hours of services, as rows of gold_pool_1h, for the tests of the jobs that read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark.capacity.tables.schema import GOLD_POOL_1H

START = datetime(2026, 3, 2, tzinfo=UTC)
"""A Monday."""


def hour(number: int) -> datetime:
    """Return the time of an hour, counted from `START`."""
    return START + timedelta(hours=number)


def row(service: str, number: int, demand: float | None, **members: Any) -> tuple[Any, ...]:
    """Return a service's hour with a demand that is the same in all of it; members that are not given are null."""
    known = {"date": hour(number).date(), "service": service, "h": hour(number), "observed_s": 3600.0}
    known |= {"demand_mean": demand, "demand_peak": demand, **members}
    return tuple(known.get(name) for name in GOLD_POOL_1H.schema.names)


def table(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Return a table of the rows."""
    return spark.createDataFrame(list(rows), GOLD_POOL_1H.schema)
