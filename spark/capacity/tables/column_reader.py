"""Reading tables by columns, as arrays, in a task of Spark. Names come as numbers and a list.

The row groups of bronze that may have records of some instances are found by the ranges in the footer of a file:

- Rows are sorted by service and instance (`ingest/sorted_files.py`), so an instance is in one group of a file, or in
  some that follow each other.
- The range of a group is the service and the instance of its first and of its last row. Parquet's own ranges are of one
  column each: of a group with two services they say nothing of instances.
- Long names are cut off, so that a range is wider than its rows, and never narrower.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow.parquet import FileMetaData

from spark.capacity.tables.schema import OF_BROKER
from spark.capacity.tables.time_windows import Flags, Floats, Ints

NAMES = ("broker", "boot", "service", "instance", "event", "why")
"""Columns with few distinct strings."""

ROWS = 1 << 18
"""Rows that are taken out of a file at once: some 20 MB as arrays."""


def batches(
    files: Sequence[str],
    columns: Sequence[str],
    groups: Callable[[pyarrow.parquet.FileMetaData], list[int]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read some columns of files, batch by batch, or those of some row groups."""
    for path in files:
        with pyarrow.parquet.ParquetFile(path, read_dictionary=[name for name in columns if name in NAMES]) as file:
            wanted = None if groups is None else groups(file.metadata)
            if wanted != []:
                yield from file.iter_batches(ROWS, wanted, list(columns), use_threads=False)


def codes(column: pa.DictionaryArray) -> tuple[Ints, list[str]]:
    """Return the number of each row's name, -1 where it has none, and the names."""
    return pc.fill_null(column.indices, -1).to_numpy().astype(np.int64), column.dictionary.to_pylist()


def whole(column: pa.Array, missing: int) -> Ints:
    """Return a column of whole numbers."""
    made: Ints = pc.fill_null(column, missing).to_numpy()
    return made


def micros(column: pa.Array) -> Ints:
    """Return a column of times, all of which are there."""
    made: Ints = column.cast(pa.timestamp("us", "UTC")).view(pa.int64()).to_numpy()
    return made


def real(column: pa.Array) -> Floats:
    """Return a column of numbers, NaN where there is none."""
    # Counts beyond the exact integers of a float are rounded, and no error.
    made: Floats = pc.fill_null(column.cast(pa.float64(), safe=False), float("nan")).to_numpy()
    return made


def is_one(column: pa.DictionaryArray, *wanted: str) -> Flags:
    """Return a mask of the rows that have one of some names."""
    numbers, names = codes(column)
    return np.append([name in wanted for name in names], [False])[numbers].astype(bool)


def of_providers(batch: pa.RecordBatch) -> Flags:
    """Return a mask of the records of providers; all others are the broker's own."""
    named = pc.and_(
        pc.is_valid(batch["service"]), pc.and_(pc.is_valid(batch["provider"]), pc.is_valid(batch["instance"]))
    )
    made: Flags = named.to_numpy(zero_copy_only=False) & ~is_one(batch["event"], *OF_BROKER)
    return made


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values of an array in the order in which they come; return the numbers, and the values."""
    made = pa.array(values).dictionary_encode()
    return made.indices.to_numpy().astype(np.int64), made.dictionary.to_numpy()


def together(*keys: Ints) -> Ints:
    """Number the distinct rows of some arrays."""
    made, _ = numbered(keys[0])
    for key in keys[1:]:
        number, of = numbered(key)
        made, _ = numbered(made * len(of) + number)
    return made


def latest(key: Ints, seq: Ints, told: Flags, keys: int) -> Ints:
    """Return for each of so many keys the row with the highest number of those that tell something, -1 if none does."""
    most = np.full(keys, np.iinfo(np.int64).min)
    np.maximum.at(most, key[told], seq[told])
    rows, made = np.flatnonzero(told & (seq == most[key])), np.full(keys, -1)
    made[key[rows]] = rows
    return made


Name = tuple[str, str]
"""A service and an instance of it."""

Row = tuple[str, str | None]
"""Service and instance of a row."""

RANGES = "elkobroker.ranges"
"""Key in the footer."""

LONGEST = 200
"""Characters of a name in a range: a footer is read by each part of a date."""


def footer(ranges: Iterable[tuple[Row, Row] | None]) -> dict[str, str]:
    """Return the entry of a footer for the first and the last row of each group; None for one without any service."""
    told = [None if one is None else [_least(*one[0]), _most(*one[1])] for one in ranges]
    return {RANGES: json.dumps(told, ensure_ascii=False, separators=(",", ":"))}


def groups_with(metadata: FileMetaData, instances: Sequence[Name]) -> list[int]:
    """Return the row groups of a file that may have records of providers of these instances, which are in order."""
    told = (metadata.metadata or {}).get(RANGES.encode())
    if told is None:
        return list(range(metadata.num_row_groups))
    return [number for number, one in enumerate(json.loads(told)) if one is not None and _any_in(instances, *one)]


def _any_in(instances: Sequence[Name], least: list[str], most: list[str] | None) -> bool:
    end = len(instances) if most is None else bisect_right(instances, (*most,))
    return bisect_left(instances, (*least,)) < end


def _least(service: str, instance: str | None) -> Name:
    return (service[:LONGEST], (instance or "")[:LONGEST])


def _most(service: str, instance: str | None) -> Name | None:
    if len(service) > LONGEST:
        return None
    if instance is None or len(instance) > LONGEST:
        # What follows all instances of the service.
        return (service + "\0", "")
    return (service, instance)


# Ends of registrations, as records tell of them: numbers by which tables and jobs name them.

OPEN, CLOSED, BROKER, SILENT, WITHDRAWN = -1, 0, 1, 2, 3
"""End of an up interval, if it ended. Of ends at the same moment the last of these counts."""


def ends(batch: pa.RecordBatch) -> Ints:
    """Return the end of the registration that each record reports, by its event: `OPEN`, `CLOSED` or `WITHDRAWN`."""
    event, why = batch["event"], batch["why"]
    withdrawn = is_one(event, "unregister") & is_one(why, "withdrawn")
    made: Ints = np.where(withdrawn, WITHDRAWN, np.where(is_one(event, "unregister", "expire"), CLOSED, OPEN))
    return made
