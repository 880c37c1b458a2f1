"""The out directory: reading and writing its tables, and repair after a run that was cut off.

Rules:
- A dated table is replaced date by date; the other dates stay as they are. A table without dates is written beside the
  old one, and takes its place by a rename.
- Tables of a few rows, which tell of others (segments read, records held, records missing), are read and written here
  without Spark: to it each of them is as much work as a large one.
- Each file of a table has a name that no other ever has: in the lake it has the same one.
- Names that begin with a dot are no tables; Spark does not see them.
- Only one run at a time works on an out directory.
- The tables made of bronze are made again where an older version of these jobs made them (`LAYOUT`). Columns that an
  older file does not have are null.
- Both directories are folders that the driver and the workers see under the same path.
"""

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import IO, Any

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.capacity.tables.columns import FORMAT, arrow_schema
from spark.capacity.tables.schema import BRONZE_RECORDS, Table

LOCK, LOG = ".lock", ".spark.log"
"""Files of a directory that holds no tables yet: the lock of the run, and the output of Java in the last one."""

LAYOUT = 6
"""The version of the tables; another number makes the next run compute the derived ones again from bronze."""

OLDEST = 5
"""The first layout whose bronze can be read: version 0.1.0 has a later one."""

FILES = 8
"""Most files of a date that Spark writes: as many tasks work on it."""

DERIVED = ("silver_*", "gold_service_1h", "gold_pool_1h", "gold_provider_day", "gold_balance_day")
"""The tables that are made of bronze date by date."""


class OutError(Exception):
    """The out directory cannot be used."""


@attrs.define
class State:
    """Unfinished work of a run, by date.

    `moving`: bronze may hold records twice, or records that were not counted. `changed`: bronze has new records that
    the tables made of it do not know.
    """

    moving: set[str] = attrs.field(factory=set)
    changed: set[str] = attrs.field(factory=set)


def url(path: Path) -> str:
    """Name a folder to Spark for writing, whatever file system it takes for its default."""
    return f"file://{path}"


GLOB = re.compile(r"[][{}*?\\]")
"""Characters with which Spark takes the name of a folder to read for a pattern."""


def readable(path: Path) -> str:
    """Name a folder or file to Spark for reading, each character of its name as it is."""
    return url(Path(GLOB.sub(r"\\\g<0>", str(path))))


UNPUBLISHED = re.compile(r"[]\[^|\\]|%[0-9A-Fa-f]{2}")
"""Parts of a path with which delta-rs cannot write a table: it takes them for parts of a URI."""


def need_publishable(out: Path) -> None:
    """Raise `OutError` for a folder in which no table could be published: better now than after the work.

    The real path counts: delta-rs resolves links, relative paths and descriptors before it reads the name as a URI.
    """
    if found := UNPUBLISHED.search(str(out.resolve())):
        raise OutError(f"{out}: tables cannot be published in a folder with {found[0]} in its path: name another one")


DATED = re.compile(r"date=\d{4}-\d\d-\d\d")
"""Names of the folders of a dated table."""


PIECES: Mapping[str, Any] = {"batch_size": 4_096, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
"""Rows that are in memory at once: 8 MB of lines that are no records, each cut to 2,000 letters."""


def _names(folder: Path) -> list[str]:
    """List the names in a folder; one that is not there has none. A table has a folder for each date of years."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def put_text(path: Path, text: str, *, lasting: bool = True) -> None:
    """Put a text in the place of a file: a reader finds the file before or the new one.

    The same holds after a loss of power where it is ``lasting``; waiting for the disk takes long for many files.
    """
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(text, encoding="utf-8", errors="replace", newline="")
    if lasting:
        sync(hidden)
    hidden.replace(path)
    if lasting:
        sync(path.parent)


class Tables:
    """The tables of one out directory."""

    def __init__(self, spark: SparkSession | None, out: Path) -> None:
        self._spark = spark
        self.out = out.absolute()
        self._lock: IO[str] | None = None

    @property
    def spark(self) -> SparkSession:
        """The session; readers of small tables do without."""
        if self._spark is None:
            raise OutError(f"{self.out} was opened without Spark")
        return self._spark

    def lock(self) -> None:
        """Make the directory, and keep other runs out."""
        self.need_folder()
        try:
            lock = (self.out / LOCK).open("w")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutError(f"another run is at work in {self.out}") from error
        except OSError as error:
            raise OutError(f"cannot write to {self.out}: {error.strerror}") from error
        self._lock = lock

    def need_folder(self) -> None:
        """Make the directory. Raises `OutError`."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutError(f"cannot write to {self.out}: {error.strerror}") from error

    def open(self) -> None:
        """Lock the directory against other runs, and finish the work of a run that was cut off."""
        if self._lock is None:
            self.lock()
        for old in self.out.glob(".old-*"):
            # The swap stopped half-way: before the new table came, or after it.
            name = old.name.removeprefix(".old-")
            if (self.out / name).exists():
                shutil.rmtree(old)
            else:
                old.rename(self.out / name)
        for new in self.out.glob(".new-*"):
            shutil.rmtree(new)
        self._upgrade()

    def _upgrade(self) -> None:
        """Drop derived tables of an older layout, and note that all their dates are to be made again."""
        if self.layout() == LAYOUT:
            return
        if dates := {str(day) for day in self.dates(BRONZE_RECORDS)}:
            if self.layout() < OLDEST:
                self.close()
                raise OutError(f"{self.out} was made by a version before 0.1.0: name another one")
            if (self.out / ".healed" / "_SUCCESS").exists():
                self.close()
                raise OutError(
                    f"{self.out} has an unfinished run of an earlier version: let that version run once more"
                )
            state = self.state()
            self.keep(State(state.moving, state.changed | dates))
            for folder in [folder for name in DERIVED for folder in self.out.glob(name)]:
                shutil.rmtree(folder)
        self.note_layout(LAYOUT)

    def layout(self) -> int:
        """Return the version of the derived tables."""
        mark = self.out / ".layout"
        return int(mark.read_text()) if mark.exists() else 1

    def note_layout(self, layout: int) -> None:
        """Write the version of the derived tables."""
        (self.out / ".layout").write_text(f"{layout}\n")

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def path(self, table: Table) -> Path:
        """Return the folder of a table."""
        return self.out / table.name

    def dates(self, table: Table) -> list[date]:
        """Return the dates of a dated table."""
        names = (name.removeprefix("date=") for name in _names(self.path(table)) if DATED.fullmatch(name))
        return sorted(date.fromisoformat(name) for name in names)

    def read(self, table: Table, dates: Iterable[date] | None = None) -> DataFrame:
        """Read a table, or some dates of it; a table that was never written has no rows."""
        if not self.path(table).is_dir():
            return self.spark.createDataFrame([], table.schema)
        rows = self.spark.read.schema(table.schema).parquet(readable(self.path(table)))
        if dates is not None:
            rows = rows.where(F.col("date").isin(sorted(dates))) if (dates := list(dates)) else rows.limit(0)
        # Spark puts the columns of folders last.
        return rows.select(*table.schema.names)

    def write(self, table: Table, rows: DataFrame) -> None:
        """Replace a table without dates."""
        rows = rows.select(*(F.col(column.name).cast(column.dataType) for column in table.schema))
        new = self.out / f".new-{table.name}"
        rows.coalesce(1).write.mode("overwrite").parquet(url(new))
        self._swap(table)

    def write_date(self, table: Table, rows: DataFrame, day: date) -> None:
        """Replace a date, by tasks of Spark."""
        columns = (F.col(column.name).cast(column.dataType) for column in table.schema if column.name != "date")
        staged = self.stage(table)
        rows.select(*columns).coalesce(FILES).write.mode("append").parquet(url(staged))
        self.replace(table, day, staged)

    def drop_date(self, table: Table, day: date) -> None:
        """Remove a date."""
        shutil.rmtree(self._folder(table, day), ignore_errors=True)

    def _swap(self, table: Table) -> None:
        """Replace the old table by the new one."""
        new, old, place = self.out / f".new-{table.name}", self.out / f".old-{table.name}", self.path(table)
        if place.exists():
            place.rename(old)
        new.rename(place)
        sync(self.out)
        shutil.rmtree(old, ignore_errors=True)

    def rows(self, table: Table) -> pd.DataFrame:
        """Read a table of a few rows. Numbers that may be missing are whole all the same."""
        return self.rows_of(table).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)

    def put(self, table: Table, rows: pd.DataFrame) -> None:
        """Replace a table of a few rows, as a whole: it must fit into memory."""
        made = pa.Table.from_pandas(rows, arrow_schema(table.schema), preserve_index=False)
        self._write(made, self.stage(table))
        self._swap(table)

    def files(self, table: Table, day: date | None = None) -> list[Path]:
        """List the files of a date, or of a table without dates."""
        folder = self.path(table) if day is None else self._folder(table, day)
        return [folder / name for name in sorted(_names(folder)) if name.endswith(".parquet") and name[0] not in "._"]

    def rows_of(self, table: Table, day: date | None = None, most: int | None = None) -> pa.Table:
        """Read a date, or a table without dates, or the first rows of it; a missing one has none."""
        schema, files = arrow_schema(table.schema), self.files(table, day)
        if not files:
            return schema.empty_table()
        held = pyarrow.dataset.dataset(list(map(str, files)), schema)
        rows = held.to_table(use_threads=False) if most is None else held.head(most, use_threads=False)
        if day is not None:
            rows = rows.set_column(schema.get_field_index("date"), "date", pa.repeat(day, len(rows)))
        return rows

    def reaches(self, table: Table, day: date, column: str, least: object) -> bool:
        """Return True if a value of a column in a date may be so much: by the statistics of its files."""
        for path in self.files(table, day):
            about = pyarrow.parquet.read_metadata(path)
            number = about.schema.names.index(column)
            for group in range(about.num_row_groups):
                known = about.row_group(group).column(number).statistics
                if known is None or not known.has_min_max or known.max >= least:
                    return True
        return False

    def put_date(self, table: Table, rows: pa.Table, day: date) -> None:
        """Replace a date of not too many rows: they must fit into memory."""
        staged = self.stage(table)
        if len(rows):
            self._write(rows.drop_columns("date"), staged)
        self.replace(table, day, staged)

    def keep_named(self, table: Table, column: str, is_kept: Callable[[str], bool]) -> None:
        """Remove the rows of a table without dates whose name in a column is not kept. The table need not fit into
        memory."""
        files = list(map(str, self.files(table)))
        if not files:
            return
        schema = arrow_schema(table.schema)
        held = pyarrow.dataset.dataset(files, schema)

        def mask(names: pa.Array) -> pa.Array:
            return pa.array([is_kept(str(name)) for name in names.to_pylist()], pa.bool_())

        if all(pc.all(mask(batch[column])).as_py() is not False for batch in held.to_batches([column], **PIECES)):
            return
        staged = self.stage(table)
        with pyarrow.parquet.ParquetWriter(staged / f"{uuid.uuid4()}.parquet", schema, **FORMAT) as writer:
            for batch in held.to_batches(**PIECES):
                writer.write_batch(batch.filter(mask(batch[column])))
        self._swap(table)

    def stage(self, table: Table) -> Path:
        """Make an empty folder for files that are to become a part of a table, or all of it."""
        new = self.out / f".new-{table.name}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        return new

    def replace(self, table: Table, day: date, staged: Path) -> None:
        """Put staged files in the place of a date; without files the date goes.

        A run that is cut off in between makes the date again (`State`).
        """
        place = self._folder(table, day)
        place.parent.mkdir(exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        if any(staged.iterdir()):
            staged.rename(place)
        else:
            staged.rmdir()
        sync(place.parent)

    def _folder(self, table: Table, day: date) -> Path:
        return self.path(table) / f"date={day}"

    @staticmethod
    def _write(rows: pa.Table, folder: Path) -> None:
        pyarrow.parquet.write_table(rows, folder / f"{uuid.uuid4()}.parquet", **FORMAT)

    def state(self) -> State:
        """Return the work that an earlier run has begun and not finished."""
        try:
            told = json.loads((self.out / ".state.json").read_text())
        except FileNotFoundError:
            return State()
        return State(set(told["moving"]), set(told["changed"]))

    def keep(self, state: State) -> None:
        """Write the unfinished work of a run, and wait until it is on the disk."""
        told = {name: sorted(dates) for name, dates in attrs.asdict(state).items()}
        put_text(self.out / ".state.json", json.dumps(told))
