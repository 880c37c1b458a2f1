"""Daily jobs: those that look at one service at a time, and at some dates of it, run as tasks of Spark.

Their rows come back to the driver, which writes them: there is one for each service's hour, and each provider's day.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from math import ceil
from pathlib import Path
from typing import Any

from spark.capacity.service.bins import LIMITS, Limits, Share, Source, services
from spark.capacity.service.grids import Service
from spark.capacity.tables.schema import SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, midnight

Job = Callable[[Service, date], Iterable[dict[str, Any]]]


def each_service(
    tables: Tables,
    dates: Sequence[date],
    job: Job,
    measures: Sequence[str],
    lookback: timedelta = timedelta(),
    pools: Mapping[date, Mapping[str, str]] | None = None,
) -> Iterator[tuple[date, list[dict[str, Any]]]]:
    """Do a job with each service on each date, or with each of the pools of that date; a grid has the measures of that
    date and of some days before it.

    A service is never divided between tasks. A core has one task for a date at most, since each reads all rows.
    """
    context = tables.spark.sparkContext
    together = max(1, context.defaultParallelism)
    folder = tables.out
    for begin in range(0, len(dates), together):
        some = dates[begin : begin + together]
        shares = ceil(together / len(some))
        tasks = []
        for day in some:
            first = day - lookback
            days = [first + timedelta(days=number) for number in range(lookback.days + 1)]
            files = [str(path) for one in days for path in tables.files(SILVER_PROVIDER_5M, one)]
            mine = None if pools is None else pools[day]
            tasks += [(day, first, files, Share(number, shares), mine) for number in range(shares)]
        made: dict[date, list[dict[str, Any]]] = {day: [] for day in some}
        work = context.parallelize(tasks, len(tasks))
        done = work.flatMap(lambda task: ((task[0], row) for row in do(job, measures, folder, *task)))
        for day, row in done.collect():
            made[day].append(row)
        yield from made.items()


def do(
    job: Job,
    measures: Sequence[str],
    folder: Path,
    day: date,
    first: date,
    files: Sequence[str],
    share: Share,
    pools: Mapping[str, str] | None = None,
    limits: Limits = LIMITS,
) -> Iterator[dict[str, Any]]:
    """Do a job with a share of the services or pools; a task of Spark."""
    begin = midnight(first)
    source = Source(files, measures, begin, (midnight(day) + DAY - begin) // FIVE_MINUTES, share, pools)
    return (row for service in services(source, folder, limits) for row in job(service, day))
