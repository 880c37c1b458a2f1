"""The lake: the tables of a run as Delta tables, for readers while the next run is at work.

The jobs work on plain Parquet, which they replace date by date; a reader of that may find a date missing for a moment.
At its end a run publishes each table with one Delta commit (delta-rs, no Spark), so that pandas, DuckDB, Spark and
others read one version of a table as a whole, and older ones by number or time. The snapshot, which is committed last,
names the versions that belong together (`snapshots`).

Rules:
- A lake is in a folder of this machine, where the files of the jobs become files of the lake by hard links (copies, if
  links cannot be made), or in an object store, to which they are sent.
- A file has the same name in the lake, which no other ever has. So files to add and to remove are found by names,
  and a run that was cut off here is made up for by the next.
- A table of which nothing changed gets no commit.
- After the snapshot, files that no version of the last `KEPT` hours needs are deleted, and those of runs cut off.
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
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, create_table_with_add_actions

from spark.capacity.tables import snapshots, working_copy
from spark.capacity.tables.object_store import ObjectFolder, Place, all_at_once, delta_options, send, sizes
from spark.capacity.tables.schema import SNAPSHOT, TABLES, Table
from spark.capacity.tables.snapshots import CONFIGURATION, Snapshot, described, open_table, opened
from spark.capacity.tables.store import OutError, Tables
from spark.capacity.tables.working_copy import LAKE

KEPT = timedelta(days=7)
"""Retention of versions: a week of runs to compare with. The files of hourly runs are kept for as long."""


def publish(
    tables: Tables, run: str, only: Iterable[Table] = TABLES, origin: ObjectFolder | None = None
) -> dict[str, int]:
    """Publish tables that changed, in the out directory or in the object store of which it is a working copy; return
    their new versions by name. Raise `OutError` if another run has published there meanwhile."""
    lake: Place = (tables.out if origin is None else origin) / LAKE
    last = snapshots.last(lake)
    if origin is not None and not working_copy.is_newest(tables.out, origin, last):
        raise OutError(f"another run has published in {origin} meanwhile")
    there, versions, made = {}, {}, []
    for table in only:
        try:
            published, changed = _publish(tables, table, lake / table.name, run)
        except CommitFailedError as error:
            raise OutError(f"another run is publishing in {lake}") from error
        if published is not None:
            there[table.name] = published.version()
        if published is not None and changed:
            versions[table.name] = published.version()
            made.append(published)
    new = Snapshot(run, there, tables.layout(), frozenset(tables.state().changed))
    if not new.says_the_same(last):
        if origin is not None:
            working_copy.goes_on_from(tables.out, origin, (last, new))
        snapshots.commit(lake, new, last)
        if origin is not None:
            working_copy.goes_on_from(tables.out, origin, (new,))
        made.append(opened(lake / SNAPSHOT.name))
    for published in made:
        published.vacuum(retention_hours=int(KEPT.total_seconds() // 3600), dry_run=False, full=True)
    return versions


def _publish(tables: Tables, table: Table, place: Place, run: str) -> tuple[DeltaTable | None, bool]:
    """Publish a table; return its last version, None if it has none, and whether that is new."""
    wanted = dict(_wanted(tables, table))
    lake = open_table(place)
    if lake is not None and lake.metadata().configuration != CONFIGURATION:
        lake.alter.set_table_properties(dict(CONFIGURATION))
    there = {} if lake is None else _there(lake)
    schema = Schema.from_arrow(described(table))
    other = lake is not None and lake.schema() != schema
    if (lake is None and not wanted) or (wanted.keys() == there.keys() and not other):
        return lake, False
    # A table of another version of these jobs is begun again, in its place.
    added = wanted.keys() if other else wanted.keys() - there.keys()
    _bring(place, {name: wanted[name] for name in sorted(added)})
    adds = [_add(name, wanted[name]) for name in sorted(added)]
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
            description=table.purpose,
            configuration=CONFIGURATION,
            storage_options=delta_options(place),
            commit_properties=properties,
        )
        return opened(place), True
    removes = [there[name] for name in sorted(there.keys() - wanted.keys())]
    lake.create_write_transaction(
        [*adds, *removes], "append", schema, partition_by=partitions, commit_properties=properties
    )
    lake.update_incremental()
    return lake, True


def _wanted(tables: Tables, table: Table) -> Iterator[tuple[str, Path]]:
    """List the files of a table by the names that they have in the lake."""
    for day in tables.dates(table) if table.dated else (None,):
        folder = "" if day is None else f"date={day}/"
        for path in tables.files(table, day):
            yield f"{folder}{path.name}", path


def _bring(place: Place, files: dict[str, Path]) -> None:
    """Put files into the lake, except for those that a run which was cut off has put there."""
    if isinstance(place, Path):
        for name, path in files.items():
            _link(path, place / name)
        return
    there = sizes(place, files)
    missing = [(name, path) for name, path in files.items() if there[name] != path.stat().st_size]
    all_at_once(lambda one: send(one[1], place, one[0]), missing)


def _link(path: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name("." + target.name)
    hidden.unlink(missing_ok=True)
    try:
        os.link(path, hidden)
    except OSError:
        shutil.copy2(path, hidden)
    hidden.replace(target)


def _add(name: str, path: Path) -> AddAction:
    """Return the entry of a new file for the log of Delta: its size, its partition, the number of its rows."""
    status, rows = path.stat(), pyarrow.parquet.read_metadata(path).num_rows
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
