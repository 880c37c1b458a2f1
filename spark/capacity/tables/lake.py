"""The lake: the tables of a run as Delta tables, for readers while the next run is at work.

The jobs work on plain Parquet, which they replace date by date; a reader of that may find a date missing for a moment.
At its end a run publishes each table with one Delta commit (delta-rs, no Spark), so that pandas, DuckDB, Spark and
others read one version of a table as a whole, and older ones by number or time.

Rules:
- The files of the jobs become files of the lake by hard links: nothing is copied. If links cannot be made (another file
  system), they are copied.
- The name of a linked file is made of its inode, time and size. So files to add and to remove are found by names,
  and a run that was cut off here is made up for by the next.
- A table of which nothing changed gets no commit.
- Files that no version of the last `KEPT` hours needs are deleted.
- Each column has its unit and meaning in its metadata.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, create_table_with_add_actions

from spark.capacity.tables.document import PURPOSES, meaning
from spark.capacity.tables.schema import TABLES, Table, arrow_schema
from spark.capacity.tables.store import Tables

KEPT = timedelta(days=7)
"""Retention of versions: a week of runs to compare with. The files of hourly runs are kept for as long."""

FOLDER = "lake"
"""Below the out directory."""


def publish(tables: Tables, run: str, only: Iterable[Table] = tuple(TABLES.values())) -> dict[str, int]:
    """Publish tables that changed; return their new versions by name."""
    made = {}
    for table in only:
        version = _publish(tables, table, tables.out / FOLDER / table.name, run)
        if version is not None:
            made[table.name] = version
    return made


def _publish(tables: Tables, table: Table, place: Path, run: str) -> int | None:
    wanted = dict(_wanted(tables, table))
    lake = _opened(place)
    there = {} if lake is None else _there(lake)
    schema = Schema.from_arrow(described(table))
    other = lake is not None and lake.schema() != schema
    if (lake is None and not wanted) or (wanted.keys() == there.keys() and not other):
        return None
    # A table of another version of these jobs is begun again, in its place.
    added = wanted.keys() if other else wanted.keys() - there.keys()
    adds = [_add(place, name, wanted[name]) for name in sorted(added)]
    properties = CommitProperties(custom_metadata={"run": run})
    partitions = ["date"] if table.dated else None
    if lake is None or other:
        create_table_with_add_actions(
            str(place),
            schema,
            adds,
            mode="error" if lake is None else "overwrite",
            partition_by=partitions,
            name=table.name,
            description=PURPOSES[table.name],
            commit_properties=properties,
        )
        return DeltaTable(str(place)).version()
    removes = [there[name] for name in sorted(there.keys() - wanted.keys())]
    lake.create_write_transaction(
        [*adds, *removes], "append", schema, partition_by=partitions, commit_properties=properties
    )
    lake.update_incremental()
    lake.vacuum(retention_hours=int(KEPT.total_seconds() // 3600), dry_run=False)
    return lake.version()


def _opened(place: Path) -> DeltaTable | None:
    try:
        return DeltaTable(str(place))
    except TableNotFoundError:
        return None


def described(table: Table) -> pa.Schema:
    """Return the schema with the unit and the meaning of each column."""
    fields = []
    for field in arrow_schema(table.schema):
        unit, told = meaning(table, field.name)
        fields.append(field.with_metadata({"unit": unit, "comment": told}))
    return pa.schema(fields)


def _wanted(tables: Tables, table: Table) -> Iterator[tuple[str, Path]]:
    """List the files of a table by the names that they have in the lake."""
    for day in tables.dates(table) if table.dated else (None,):
        folder = "" if day is None else f"date={day}/"
        for path in tables.files(table, day):
            status = path.stat()
            yield f"{folder}{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}.parquet", path


def _add(place: Path, name: str, path: Path) -> AddAction:
    """Link a file into the lake."""
    target = place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        hidden = target.with_name("." + target.name)
        hidden.unlink(missing_ok=True)
        try:
            os.link(path, hidden)
        except OSError:
            shutil.copy2(path, hidden)
        hidden.replace(target)
    status, rows = target.stat(), pyarrow.parquet.read_metadata(target).num_rows
    values = {"date": name.partition("/")[0].removeprefix("date=")} if "/" in name else {}
    stats = json.dumps({"numRecords": rows})
    return AddAction(name, status.st_size, values, int(status.st_mtime * 1000), True, stats)


def _there(lake: DeltaTable) -> dict[str, RemoveAction]:
    """List the files of the last version, each with the action that would remove it."""
    files = pa.table(lake.get_add_actions(flatten=True)).to_pylist()
    now = int(time.time() * 1000)
    return {
        row["path"]: RemoveAction(
            row["path"],
            data_change=True,
            deletion_timestamp=now,
            size=row["size_bytes"],
            partition_values={"date": str(row["partition.date"])} if "partition.date" in row else {},
        )
        for row in files
    }
