"""Parts: the records of a date, divided so that each part can be counted by itself, and fits into memory.

Rules:
- Registrations of one instance are in one part, and so are the instances of one registration: the work on one part
  says nothing about another.
- A part has services and instances that follow each other in their order, in which the records are stored.
- Parts that are too small for a task of their own, as those of small dates are, share one.
- The results do not depend on the number of parts.

The records of a date with many parts are written once more, so that each part has files of its own:

- A task divides a range: some parts that follow each other. It reads the row groups of their instances in all files of
  the date. So a file is read by as many tasks as there are ranges, not parts.
- Records of a part are held until they are worth a row group. Those of no part, the broker's own, are left out.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark.capacity.ingest.sorted_files import FILE, writer_of
from spark.capacity.rollup.date_survey import Pair
from spark.capacity.rollup.registrations import COLUMNS
from spark.capacity.tables.column_reader import Name, batches, codes, groups_with
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, Ints

Item = TypeVar("Item")

ROWS = DAY // FIVE_MINUTES
"""An instance has as many rows in the end, whatever the number of its records."""

LARGE = 600_000
"""Records and rows of a part: some 300 MB in the memory of a worker."""

SMALL = 50_000
"""Records and rows that are not worth a task of their own."""


@attrs.frozen
class Part:
    """A part of a date: pairs, and the number of records and rows."""

    pairs: Sequence[Pair]
    size: int


def divide(pairs: Mapping[Pair, int], cores: int) -> list[Part]:
    """Divide the pairs, whose numbers of records are given, into parts of about the same size."""
    groups = sorted(_joined(pairs), key=lambda group: min((pair.service, pair.instance) for pair in group))
    sizes = [sum(pairs[pair] + ROWS for pair in group) for group in groups]
    total = sum(sizes)
    wanted = max(ceil(total / LARGE), min(cores, ceil(total / SMALL)))
    parts: list[list[Pair]] = [[] for _ in range(wanted)]
    so_far = 0
    for size, group in zip(sizes, groups, strict=True):
        # A group is in the part in which its middle is.
        parts[(2 * so_far + size) * wanted // (2 * total)] += group
        so_far += size
    return [Part(sorted(part), sum(pairs[pair] + ROWS for pair in part)) for part in parts if part]


def in_tasks(items: Iterable[tuple[int, Item]]) -> list[list[Item]]:
    """Distribute items, given with their sizes, over tasks; items that are too small for a task share one."""
    made: list[list[Item]] = []
    held = SMALL
    for size, item in items:
        if held >= SMALL:
            made.append([])
            held = 0
        made[-1].append(item)
        held += size
    return made


def connected(keys: Iterable[tuple[object, object]]) -> dict[object, object]:
    """Return for each key of the pairs one of the keys that they connect it with, the same for all of these."""
    leads: dict[object, object] = {}

    def lead(key: object) -> object:
        while (above := leads.setdefault(key, key)) != key:
            # Half of the way is cut each time: no way gets long.
            leads[key] = leads[above]
            key = leads[key]
        return key

    for one, other in keys:
        leads[lead(one)] = lead(other)
    return {key: lead(key) for key in leads}


def _joined(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Group the pairs that share a registration or an instance."""
    pairs = list(pairs)
    registrations: list[tuple[object, ...]] = [(*pair[:4],) for pair in pairs]
    instances = ((pair.service, pair.instance) for pair in pairs)
    lead = connected(zip(registrations, instances, strict=True))
    groups: dict[object, list[Pair]] = {}
    for registration, pair in zip(registrations, pairs, strict=True):
        groups.setdefault(lead[registration], []).append(pair)
    return list(groups.values())


RANGE = 32
"""Parts of a range: a task has as many files open, and holds up to a row group for each."""

GROUP = 32_768
"""Rows of a row group that is written: twice those of bronze, since nobody skips one. 32 of them need some 100 MB; the
footer of a million rows fits into the 64 KiB that one read takes."""

SCHEMA = pa.schema([FILE.field(name) for name in COLUMNS])

Range = list[tuple[int, list[Name]]]
"""Parts by number, each with its instances."""


def in_ranges(parts: Sequence[list[Name]], cores: int) -> list[Range]:
    """Group consecutive parts into ranges: as many as there are cores, or more."""
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
