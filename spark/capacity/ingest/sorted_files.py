"""Files of bronze in the order of services and instances, so that a reader of some instances can skip the rest.

Rules:
- The rows of a file are sorted by service and instance; those of an instance keep the order in which they came, and
  records of no service are last. A row group has a fixed number of rows, and its range is in the footer
  (`column_reader`).
- Beside each file is one of the same name with its pairs (`runs`).
- A task holds a bounded number of rows; with more it writes several files for a date.
"""

import uuid
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from spark.capacity.ingest.runs import RUNS, pairs_of, runs_of
from spark.capacity.tables.column_reader import Row, footer
from spark.capacity.tables.columns import FORMAT, arrow_schema
from spark.capacity.tables.schema import BRONZE_PAIRS, BRONZE_RECORDS, Table
from spark.capacity.tables.time_windows import Ints

BRONZE = arrow_schema(BRONZE_RECORDS.schema)

FILE = BRONZE.remove(BRONZE.get_field_index("date"))
"""Columns of a file; its date is in the name of its folder."""

LARGE = 500_000
"""Rows that a task holds: some 70 MB, with names as numbers, and as much again while they are sorted. A share of
segments (`intake.SHARE`) has 400,000 in most journals: a small rest would be one more file for each reader."""

GROUP = 16_384
"""Rows of a row group, some 120 KB. A reader of a twentieth of a large file takes a fifteenth of it; the descriptions
of the groups, which each reader needs, take 2 % of the file."""

DISTINCT = ("ts", "seq", "hb_seq", "sent_ts")
"""Columns that have another value in each record: Parquet would make a dictionary of them first, and throw it away."""

ORDER = ("service", "instance")
"""Columns by which rows are sorted. Only for these are Parquet's own ranges stored, for other readers: those of other
columns would be the same in each group."""


class SortedFiles:
    """The files that a task writes below a folder, which has a folder for each table."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._columns: dict[str, list[pa.Array]] = {name: [] for name in BRONZE.names}
        self._held = 0
        self.names: list[str] = []
        """Paths of the written files, below the folder."""

    def add(self, rows: pa.Table) -> None:
        """Add rows of bronze, in the order in which they came."""
        rows, begin = numbered_names(rows), 0
        while begin < len(rows):
            taken = rows.slice(begin, LARGE - self._held)
            begin += len(taken)
            self._held += len(taken)
            for name, column in zip(rows.column_names, taken.columns, strict=True):
                self._columns[name] += column.chunks
            if self._held == LARGE:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are held."""
        if self._held:
            self._write_all()
            # The worker has other tasks later, which should not need their memory beside this.
            pa.default_memory_pool().release_unused()

    def _write_all(self) -> None:
        # Column by column and group by group: memory that is used again costs less than new memory.
        rows = pa.table({name: _whole(self._columns, name) for name in BRONZE.names})
        self._held = 0
        order, pairs = _order(rows), pairs_of(rows)
        days, first = np.unique(rows["date"].cast(pa.int32()).to_numpy()[order], return_index=True)
        for mine, day in zip(np.split(order, first[1:]), pa.array(days).cast(pa.date32()).to_pylist(), strict=True):
            name = f"date={day}/{uuid.uuid4()}.parquet"
            self._write(rows, mine, self._new(BRONZE_RECORDS, name))
            told = pairs.filter(pc.equal(pairs["date"], day)).drop_columns("date")
            pyarrow.parquet.write_table(told, self._new(BRONZE_PAIRS, name), **FORMAT)

    @staticmethod
    def _write(rows: pa.Table, order: Ints, path: Path) -> None:
        with writer_of(path, FILE, ORDER) as writer:
            ranges = []
            for begin in range(0, len(order), GROUP):
                group = rows.take(pa.array(order[begin : begin + GROUP]))
                ranges.append(_range(group))
                # As text: a group of numbered names would have all names of the file.
                writer.write_table(group.select(FILE.names).cast(FILE))
            writer.add_key_value_metadata(footer(ranges))

    def _new(self, table: Table, name: str) -> Path:
        path = self._place / table.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.names.append(f"{table.name}/{name}")
        return path


def write_again(paths: Iterable[str], place: str) -> tuple[pa.Table, list[str]]:
    """Read files of bronze, named "date=.../name" in their folder, and write their rows in order; a task of Spark.

    Returns the runs of the records, and the files, as "table/date=.../name".
    """
    made, runs = SortedFiles(Path(place)), [RUNS.empty_table()]
    for path in paths:
        day = date.fromisoformat(Path(path).parent.name.removeprefix("date="))
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(LARGE, columns=FILE.names, use_threads=False):
                rows = pa.Table.from_batches([batch]).cast(FILE).append_column("date", pa.repeat(day, len(batch)))
                runs.append(runs_of(rows))
                made.add(rows.select(BRONZE.names))
    made.flush()
    return pa.concat_tables(runs), made.names


def writer_of(path: Path, schema: pa.Schema, ranged: Sequence[str] = ()) -> pyarrow.parquet.ParquetWriter:
    """Open a file for sorted records: numbers and times by their differences, names as dictionaries.

    Parquet's own ranges are stored for the columns that are ``ranged``.
    """
    distinct = [name for name in DISTINCT if name in schema.names]
    return pyarrow.parquet.ParquetWriter(
        path,
        schema,
        use_dictionary=[name for name in schema.names if name not in distinct],
        column_encoding=dict.fromkeys(distinct, "DELTA_BINARY_PACKED"),
        write_statistics=list(ranged),
        **FORMAT,
    )


def numbered_names(rows: pa.Table) -> pa.Table:
    """Encode columns of text as dictionaries: rows of the same service and provider are many."""
    columns = [each.dictionary_encode() if pa.types.is_string(each.type) else each for each in rows.columns]
    return pa.table(columns, rows.column_names)


def _whole(columns: dict[str, list[pa.Array]], name: str) -> pa.Array:
    """Take the parts of a column out, and return them as one array."""
    parts, columns[name] = columns[name], []
    return pa.chunked_array(parts).unify_dictionaries().combine_chunks()


def _range(group: pa.Table) -> tuple[Row, Row] | None:
    """Return the names of the first and of the last row that is of a service; the broker's own records are last."""
    last = len(group) - group["service"].null_count - 1
    if last < 0:
        return None
    first, end = ((group["service"][row].as_py(), group["instance"][row].as_py()) for row in (0, last))
    return first, end


def _order(rows: pa.Table) -> Ints:
    """Return the rows in the order of their dates, services and instances."""
    keys = [rows["date"].cast(pa.int32()).to_numpy(), *(_ranks(rows[name].chunk(0)) for name in ORDER)]
    made = np.zeros(len(rows), np.int64)
    for key in keys:
        made = made * (int(key.max()) + 1) + key
    order: Ints = np.argsort(made, kind="stable")
    return order


def _ranks(column: pa.DictionaryArray) -> Ints:
    """Return the place of each row's name among the names in their order; rows without one are behind them."""
    names = column.dictionary
    ranks = np.full(len(names) + 1, len(names), np.int64)
    ranks[pc.sort_indices(names).to_numpy()] = np.arange(len(names))
    made: Ints = ranks[pc.fill_null(column.indices, len(names)).to_numpy()]
    return made
