"""Division: the records of a date with many parts, written once more, so that each part has files of its own.

Rules:
- A task divides a range: some parts that follow each other. It reads the row groups of their instances in all files of
  the date. So a file is read by as many tasks as there are ranges, not parts.
- Records of a part are held until they are worth a row group. Those of no part, the broker's own, are left out.
- A task may be cut off, or done twice: only the files that its answer names count.
"""

import uuid
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark.capacity.ingest.sorted_files import FILE, writer_of
from spark.capacity.rollup.registrations import COLUMNS
from spark.capacity.tables.column_reader import batches, codes
from spark.capacity.tables.row_groups import Name, groups_with
from spark.capacity.tables.time_windows import Ints

RANGE = 32
"""Parts of a range: a task has as many files open, and holds up to a row group for each."""

GROUP = 32_768
"""Rows of a row group that is written: twice those of bronze, since nobody skips one. 32 of them need some 100 MB; the
footer of a million rows fits into the 64 KiB that one read takes."""

SCHEMA = pa.schema([FILE.field(name) for name in COLUMNS])

Range = list[tuple[int, list[Name]]]
"""Parts by number, each with its instances."""


def in_ranges(parts: Sequence[list[Name]], cores: int) -> list[Range]:
    """Put parts together that follow each other: into as many ranges as there are cores, or more."""
    numbered = list(enumerate(parts))
    size = min(RANGE, ceil(len(numbered) / cores))
    return [numbered[begin : begin + size] for begin in range(0, len(numbered), size)]


def divide_records(files: Sequence[str], parts: Range, place: str) -> list[tuple[int, str]]:
    """Write the records of some parts below a folder; return the file of each that has any. A task of Spark."""
    wanted = sorted({instance for _, instances in parts for instance in instances})
    part_of = {instance: number for number, instances in parts for instance in instances}
    written = {number: _PartFile(Path(place) / f"{number}-{uuid.uuid4()}.parquet") for number, _ in parts}
    for batch in batches(files, COLUMNS, lambda metadata: groups_with(metadata, wanted)):
        for number, rows in _divided(batch.select(COLUMNS), part_of):
            written[number].add(rows)
    return [(number, str(file.path)) for number, file in written.items() if file.close()]


def _divided(batch: pa.RecordBatch, part_of: dict[Name, int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each part."""
    (service, services), (instance, instances) = codes(batch["service"]), codes(batch["instance"])
    pair = np.where((service < 0) | (instance < 0), -1, service * len(instances) + instance)
    pairs, place = np.unique(pair, return_inverse=True)
    names = [(services[one // len(instances)], instances[one % len(instances)]) if one >= 0 else None for one in pairs]
    part: Ints = np.array([-1 if name is None else part_of.get(name, -1) for name in names], np.int64)[place]
    for number in np.unique(part[part >= 0]).tolist():
        yield number, batch.filter(pa.array(part == number))


class _PartFile:
    """The file of a part, and the rows that are held for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: list[pa.RecordBatch] = []
        self._count = 0
        self._file: pyarrow.parquet.ParquetWriter | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._count += len(rows)
        if self._count >= GROUP:
            self._write()

    def close(self) -> bool:
        """Write what is held; return True if there is a file."""
        if self._held:
            self._write()
        if self._file is None:
            return False
        self._file.close()
        return True

    def _write(self) -> None:
        if self._file is None:
            self._file = writer_of(self.path, SCHEMA)
        # As text: each batch has numbers of its own for names.
        self._file.write_table(pa.concat_tables(pa.table(rows).cast(SCHEMA) for rows in self._held))
        self._held, self._count = [], 0
