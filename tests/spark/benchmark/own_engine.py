"""Sort, division and spill of our own beside Spark's operators, in core-seconds of all processes of the session.

Run by ``python -m tests.spark.benchmark.own_engine OUT WORK TIMES``: OUT is the out directory of a run, WORK a new
folder. With more than one of TIMES, the exchange of bronze alone is measured, each date so many times by hard links.
The exchanges of Spark hand their rows to functions that count them only.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench.machine import SessionTime
from spark.capacity.ingest.sorted_files import BRONZE, FILE, LARGE, SortedFiles
from spark.capacity.rollup.date_rollup import rollup
from spark.capacity.rollup.registrations import COLUMNS
from spark.capacity.service import demand
from spark.capacity.service.bins import each_service
from spark.capacity.service.demand import LOOKBACK
from spark.capacity.service.grids import Service
from spark.capacity.session import open_session
from spark.capacity.tables.schema import BRONZE_RECORDS, SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables, readable, url


def times(source: Tables, place: Path, count: int) -> list[str]:
    """Return files with the records of each date so many times, under other dates."""
    days = source.dates(BRONZE_RECORDS)
    made = []
    for number in range(count):
        for day in days:
            folder = place / f"date={day - timedelta(days=number * (len(days) + 1))}"
            folder.mkdir(parents=True)
            for path in source.files(BRONZE_RECORDS, day):
                os.link(path, folder / path.name)
                made.append(str(folder / path.name))
    return made


def batches_of(paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Read files of bronze as a task of ingest has its rows."""
    for path in paths:
        day = date.fromisoformat(Path(path).parent.name.removeprefix("date="))
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(LARGE, columns=FILE.names, use_threads=False):
                rows = pa.Table.from_batches([batch]).cast(FILE).append_column("date", pa.repeat(day, len(batch)))
                yield from rows.select(BRONZE.names).combine_chunks().to_batches()


def sorted_by_us(paths: Iterable[str], place: str) -> Iterator[int]:
    made = SortedFiles(Path(place))
    for batch in batches_of(paths):
        made.add(pa.Table.from_batches([batch]))
    made.flush()
    yield len(made.names)


def measured(name: str, work: Callable[[], object]) -> None:
    used = SessionTime(os.getsid(0))
    told = work()
    print(f"{name}: {used.stop():.1f} core-seconds ({told})", flush=True)


def counted(rows: DataFrame, *keys: str) -> int:
    """Exchange rows, and count them in groups."""
    count = rows.groupBy(*keys).applyInArrow(
        lambda group: pa.table({"rows": pa.array([len(group)], pa.int64())}), "rows long"
    )
    return int(count.agg(F.sum("rows")).collect()[0][0])


def in_slices(service: Service, day: date) -> list[dict[str, int]]:
    return [{"rows": int(sum(grid.there.sum() for grid in service.each(lambda grid: grid)))}]


def main() -> None:
    source, work, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    work.mkdir(parents=True)
    spark = open_session("local[2]")
    context, tables = spark.sparkContext, Tables(spark, source)
    days, bronze, place = tables.dates(BRONZE_RECORDS), work / "bronze", work / "sorted"
    files = times(tables, bronze, count)
    records = sum(pyarrow.parquet.read_metadata(path).num_rows for path in files)
    print(f"{records:,} records in {len(files)} files", flush=True)

    def ours() -> int:
        target = str(place)
        return sum(
            context.parallelize(files, len(files)).mapPartitions(lambda one: sorted_by_us(one, target)).collect()
        )

    def of_spark() -> None:
        paths = spark.createDataFrame([(path,) for path in files], "path string").repartition(len(files))
        rows = paths.mapInArrow(
            lambda held: (row for batch in held for row in batches_of(batch["path"].to_pylist())), BRONZE_RECORDS.schema
        )
        rows.sortWithinPartitions("date", "service", "instance").write.partitionBy("date").parquet(url(place))

    def exchanged() -> int:
        rows = spark.read.parquet(readable(bronze)).select("date", *COLUMNS)
        return counted(rows, "date", "service")

    def spilled() -> int:
        rows = spark.read.parquet(readable(tables.path(SILVER_PROVIDER_5M)))
        of_days = F.explode(F.sequence(F.to_date("date"), F.date_add(F.to_date("date"), LOOKBACK.days)))
        return counted(rows.withColumn("day", of_days), "day", "service")

    def binned() -> int:
        done = each_service(tables, days, in_slices, demand.MEASURES, LOOKBACK)
        return sum(row["rows"] for _, rows in done for row in rows)

    measured("groupBy(date, service).applyInArrow of the columns of the rollup", exchanged)
    if count > 1:
        return
    measured("the whole rollup, ours", lambda: len(list(rollup(tables, days))))
    measured("windows of services with their lookback, ours", binned)
    measured("groupBy(day, service).applyInArrow of them", spilled)
    measured("sort and write, ours, with the pairs of registrations", ours)
    shutil.rmtree(place)
    measured("sort and write, sortWithinPartitions of rows that come from Python", of_spark)


if __name__ == "__main__":
    main()
