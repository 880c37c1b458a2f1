"""Daily jobs: those that look at one service at a time, and at some dates of it, run as tasks of Spark.

Their rows come back to the driver, which writes them: there is one for each service's hour, and each provider's day.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from math import ceil
from typing import Any

import pyarrow.parquet

from spark.capacity.service.grids import Grid, Share, grids
from spark.capacity.tables.schema import SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables

ROWS = 2_000_000
"""Rows of five minutes that a task reads: some 300 MB in the memory of a worker. A service is never divided."""

Job = Callable[[Grid, date], list[dict[str, Any]]]


def each_service(
    tables: Tables, dates: Sequence[date], job: Job, measures: Sequence[str], lookback: timedelta = timedelta()
) -> Iterator[tuple[date, list[dict[str, Any]]]]:
    """Do a job with each service on each date; a grid has the measures of that date and of some days before it."""
    context = tables.spark.sparkContext
    together = max(1, context.defaultParallelism)
    for begin in range(0, len(dates), together):
        some = dates[begin : begin + together]
        tasks = []
        for day in some:
            first = day - lookback
            days = [first + timedelta(days=number) for number in range(lookback.days + 1)]
            files = [str(path) for one in days for path in tables.files(SILVER_PROVIDER_5M, one)]
            rows = sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)
            shares = max(ceil(rows / ROWS), ceil(together / len(some)))
            tasks += [(day, first, files, Share(number, shares)) for number in range(shares)]
        made: dict[date, list[dict[str, Any]]] = {day: [] for day in some}
        work = context.parallelize(tasks, len(tasks))
        for day, rows_of in work.map(lambda task: (task[0], do(job, measures, *task))).collect():
            made[day] += rows_of
        yield from made.items()


def do(
    job: Job, measures: Sequence[str], day: date, first: date, files: Sequence[str], share: Share
) -> list[dict[str, Any]]:
    """Do a job with a share of the services; a task of Spark."""
    return [row for grid in grids(files, measures, first, day, share) for row in job(grid, day)]
