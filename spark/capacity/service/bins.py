"""Bins: the rows of a task, divided so that those of a bin fit into memory, whatever the services.

Rules:
- A bin has all rows of some small services, or those of a share of the instances of a large one.
- What fits into one bin stays in memory. More is written into a temporary file, and read again bin by bin.
- A bin is looked at in slices of some instances: many that were there for a short time have few rows and large grids.
- Results do not depend on the division, except for the last bits of sums.
- Services of one pool may be read as one, which has the name of the pool; of an instance with several of them each
  window counts once, that of the longest time up with a known load.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.service.grids import SUM, Grid, Service
from spark.capacity.tables.column_reader import batches, codes, micros
from spark.capacity.tables.schema import SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, Floats, Ints, midnight


class Spill:
    """Record batches on disk, by number: a task has those of one number in memory at a time.

    The file has no name, so that it ends with the process, however that ends.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - open for as long as this is
        self._writer = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._reader: pa.RecordBatchFileReader | None = None
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def add(self, number: int, batch: pa.RecordBatch) -> None:
        """Write a batch. After the first `read` no more can be added."""
        self._writer.write_batch(batch)
        self._places[number].append(self._count)
        self._count += 1

    def read(self, number: int) -> list[pa.RecordBatch]:
        """Read the batches of a number."""
        if self._reader is None:
            self._writer.close()
            self._reader = pa.ipc.open_file(self._file)
        return [self._reader.get_batch(place) for place in self._places[number]]


HASH = 32
"""Bits of the hash of a name, by which instances are divided."""


@attrs.frozen
class Limits:
    """Limits of the memory of a task."""

    rows: int = 300_000
    """Rows of a bin: some 90 MB with their names."""
    instances: int = 400
    """Instances of a slice: some 80 MB with intermediate results, for three dates."""


LIMITS = Limits()


@attrs.frozen
class Share:
    """The services of a task: one of so many shares of them."""

    number: int
    of: int

    def has(self, service: str) -> bool:
        """Return True if a service is in it."""
        return crc32(service.encode()) % self.of == self.number


@attrs.frozen
class Source:
    """The rows and columns that a task reads."""

    files: Sequence[str]
    measures: Sequence[str]
    begin: int
    """The start of the first five minutes."""
    width: int
    """The number of five minutes."""
    share: Share
    pools: Mapping[str, str] | None = None
    """The pool of each service that is read, where pools are read in place of services."""

    def named(self, batch: pa.RecordBatch) -> tuple[Ints, list[str]]:
        """Return the number of each row's service or pool among the names, which may repeat; -1 for a row of none."""
        service, names = codes(batch["service"])
        if self.pools is None:
            return service, names
        known = np.array([name in self.pools for name in names] + [False])
        return np.where(known[service], service, -1), [self.pools.get(name, "") for name in names]


def services(source: Source, folder: Path, limits: Limits = LIMITS) -> Iterator[Service]:
    """Read services, one after the other; each is to be used before the next is taken.

    Rows of more than one bin are meanwhile on the disk of a folder.
    """
    bins = divide(_count(source), limits.rows)
    names = sorted(bins)
    if set(bins.values()) == {range(1)}:
        yield from _Bin([rows for _, rows in _cut(source, bins)], names, source, limits).services()
        return
    with Spill(folder, _schema(source)) as spill:
        for number, rows in _cut(source, bins):
            spill.add(number, rows)

        def load(number: int) -> _Bin:
            return _Bin(spill.read(number), names, source, limits)

        for number in sorted({numbers.start for numbers in bins.values() if len(numbers) == 1}):
            yield from load(number).services()
        for code, name in enumerate(names):
            if len(bins[name]) > 1:
                yield Service(name, None, partial(_slices, load, bins[name], code))


def divide(rows: Mapping[str, int], limit: int) -> dict[str, range]:
    """Divide services, whose numbers of rows are given, into bins of at most so many rows: return the bins of each."""
    made: dict[str, range] = {}
    end, last, filled = 0, -1, limit
    for name, count in sorted(rows.items()):
        if count > limit:
            many = ceil(count / limit)
            made[name], end = range(end, end + many), end + many
            continue
        if filled + count > limit:
            last, end, filled = end, end + 1, 0
        made[name], filled = range(last, last + 1), filled + count
    return made


def _count(source: Source) -> Counter[str]:
    """Count the rows of each service of the share."""
    found = Counter[str]()
    for batch in batches(source.files, ("service",)):
        service, names = source.named(batch)
        for name, count in zip(names, np.bincount(service + 1, minlength=len(names) + 1)[1:].tolist(), strict=True):
            found[name] += count
    return Counter({name: count for name, count in found.items() if count and source.share.has(name)})


def _cut(source: Source, bins: Mapping[str, range]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the rows of the share, cut into pieces of one bin each."""
    number_of = {name: number for number, name in enumerate(sorted(bins))}
    columns = {name: name.removeprefix(SUM) for name in source.measures}
    for batch in batches(source.files, ("service", "instance", "w", *columns.values())):
        (service, names), (instance, instances) = source.named(batch), codes(batch["instance"])
        place = (micros(batch["w"]) - source.begin) // FIVE_MINUTES
        # The last item is for rows without a name, whose number is -1.
        of = [bins.get(name, range(0)) for name in names] + [range(0)]
        many = np.array([len(one) for one in of])[service]
        number = np.array([one.start for one in of])[service]
        if (many > 1).any():
            hashes = np.array([crc32(name.encode()) for name in instances] + [0], np.int64)
            number += hashes[instance] * many >> HASH
        mine = np.flatnonzero((many > 0) & (place >= 0) & (place < source.width))
        if not len(mine):
            continue
        order = mine[np.argsort(number[mine], kind="stable")]
        rows = pa.record_batch(
            {
                "service": np.array([number_of.get(name, -1) for name in names] + [-1], np.int32)[service[order]],
                "instance": batch["instance"].take(pa.array(order)).cast(pa.string()),
                "place": place[order].astype(np.int32),
                **{name: batch[column].cast(pa.float64()).take(pa.array(order)) for name, column in columns.items()},
            },
            _schema(source),
        )
        found, begins = np.unique(number[order], return_index=True)
        for one, begin, end in zip(found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
            yield one, rows.slice(begin, end - begin)


class _Bin:
    """The rows of a bin, in the order of services and instances."""

    def __init__(self, pieces: Sequence[pa.RecordBatch], names: Sequence[str], source: Source, limits: Limits) -> None:
        self._names, self._width, self._limits = names, source.width, limits
        rows = pa.Table.from_batches(pieces, _schema(source))
        service = rows["service"].to_numpy()
        instance, self._instances = codes(rows["instance"].combine_chunks().dictionary_encode())
        rank = np.argsort(np.argsort(np.array(self._instances, object)))
        self._order = np.lexsort((rank[instance], service))
        self._place = rows["place"].to_numpy()
        self._values = {name: pc.fill_null(rows[name], np.nan).to_numpy() for name in source.measures}
        if source.pools is not None:
            self._order = self._once(service, rank[instance])
        service, instance = service[self._order], instance[self._order]
        another = np.append(True, (np.diff(service) != 0) | (np.diff(instance) != 0))[: len(service)]
        self._begins = np.flatnonzero(another)
        """The first row of each instance."""
        self._service, self._instance = service[self._begins], instance[self._begins]

    def _once(self, service: Ints, instance: Ints) -> Ints:
        """Return the order of the rows with one row for each window of an instance."""
        known = np.where(np.isnan(self._values["load_mean"]), 0.0, self._values["up_s"])
        order = np.lexsort((-known, self._place, instance, service))
        keys = np.stack([service, instance, self._place])[:, order]
        made: Ints = order[np.append(True, (np.diff(keys) != 0).any(axis=0))[: len(order)]]
        return made

    def services(self) -> Iterator[Service]:
        """Return the services, all of which are small."""
        for code in np.unique(self._service).tolist():
            begin, end = self._instances_of(code)
            whole = self._grid(begin, end) if end - begin <= self._limits.instances else None
            yield Service(self._names[code], whole, partial(self.slices, code))

    def slices(self, code: int) -> Iterator[Grid]:
        """Return the instances of a service that are in the bin, some at a time."""
        first, last = self._instances_of(code)
        for begin in range(first, last, self._limits.instances):
            yield self._grid(begin, min(begin + self._limits.instances, last))

    def _instances_of(self, code: int) -> tuple[int, int]:
        first, last = np.searchsorted(self._service, [code, code + 1]).tolist()
        return first, last

    def _grid(self, first: int, last: int) -> Grid:
        begins = np.append(self._begins, len(self._order))[first : last + 1]
        rows = self._order[begins[0] : begins[-1]]
        row, place = np.repeat(np.arange(last - first), np.diff(begins)), self._place[rows]
        there = np.zeros((last - first, self._width), bool)
        there[row, place] = True
        made = {name: _placed(name, row, place, values[rows], there.shape) for name, values in self._values.items()}
        return Grid([self._instances[number] for number in self._instance[first:last].tolist()], there, made)


def _placed(name: str, row: Ints, place: Ints, values: Floats, shape: tuple[int, int]) -> Floats:
    """Return the values of a measure as a grid; those of a sum added up over all rows."""
    if not name.startswith(SUM):
        made = np.full(shape, np.nan)
        made[row, place] = values
        return made
    known = ~np.isnan(values)
    there = np.bincount(place[known], minlength=shape[1]) > 0
    total = np.bincount(place[known], values[known], minlength=shape[1])
    return np.where(there, total, np.nan)[np.newaxis]


def _slices(load: Callable[[int], _Bin], numbers: range, code: int) -> Iterator[Grid]:
    """Read the slices of a large service, bin by bin."""
    return (grid for number in numbers for grid in load(number).slices(code))


def _schema(source: Source) -> pa.Schema:
    """Return the columns of a piece; the numbers of services are those of their names in order."""
    names = {"service": pa.int32(), "instance": pa.string(), "place": pa.int32()}
    return pa.schema({**names, **dict.fromkeys(source.measures, pa.float64())})


# Daily jobs: those that look at one service at a time, and at some dates of it, run as tasks of Spark.
#
# Their rows come back to the driver, which writes them: there is one for each service's hour, and each provider's day.

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
