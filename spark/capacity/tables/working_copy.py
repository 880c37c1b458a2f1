"""The working copy of an out directory that is in an object store: a folder in which runs work as in any out directory.

Spark reads and writes folders, which it sees under one path everywhere; dates are replaced by renames. Stores have
neither. So a run works in a folder, and publishes its lake to the store (`lake`), from which the folder can be made
again.

Rules:
- The mark of a folder tells of which out directory it is a copy, and which snapshot it goes on from. A folder that goes
  on from the last one stays as it is, with the work of a run that was cut off.
- Any other is emptied, and filled with the files of the last snapshot. Only a folder with a mark is emptied.
- The name of a snapshot is in the mark before it is committed: it is known again, wherever the run was cut off.
"""

import json
import shutil
from collections.abc import Collection, Iterable
from datetime import date
from pathlib import Path

import attrs
import pyarrow as pa

from spark.capacity.tables import snapshots
from spark.capacity.tables.object_store import ObjectFolder, all_at_once, fetch
from spark.capacity.tables.schema import TABLES, Table
from spark.capacity.tables.snapshots import Snapshot, opened
from spark.capacity.tables.store import LOCK, LOG, OutError, State, Tables, put_text

MARK = ".origin.json"

LAKE = "lake"
"""The folder of the published tables, below the out directory."""


@attrs.frozen
class Mark:
    """Origin of a working copy, and the snapshots from one of which it goes on; None: before the first one."""

    origin: str
    known: tuple[str | None, ...]


def read_mark(folder: Path) -> Mark | None:
    """Return the mark of a folder."""
    try:
        told = json.loads((folder / MARK).read_text())
    except FileNotFoundError:
        return None
    return Mark(told["origin"], tuple(told["known"]))


def refresh(tables: Tables, origin: ObjectFolder) -> bool:
    """Make the out directory, which is locked, a copy of the last snapshot or of what came after it; tell whether it
    was filled anew."""
    folder, mark, last = tables.out, read_mark(tables.out), snapshots.last(origin / LAKE)
    if mark is None and any(path.name not in (LOCK, LOG) for path in folder.iterdir()):
        raise OutError(f"{folder} is no working folder: it holds other files")
    if mark is not None and mark.origin != str(origin):
        raise OutError(f"{folder} is the working folder of {mark.origin}")
    if is_newest(folder, origin, last):
        goes_on_from(folder, origin, [last])
        return False
    # Until it is full it goes on from no snapshot.
    goes_on_from(folder, origin, [])
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LOCK, LOG, MARK):
            path.unlink()
    if last is not None:
        fill(tables, origin, last)
    goes_on_from(folder, origin, [last])
    return last is not None


def fill(
    tables: Tables,
    origin: ObjectFolder,
    snapshot: Snapshot,
    only: Iterable[Table] = TABLES,
    day: date | None = None,
) -> None:
    """Fetch the files of a snapshot, or those of a date, into an out directory that has none of these tables."""
    wanted: list[tuple[str, Path]] = []
    for table in only:
        if table.name not in snapshot.versions:
            continue
        place = origin / LAKE / table.name
        lake = opened(place, snapshot.versions[table.name])
        tables.path(table).mkdir()
        names = pa.table(lake.get_add_actions(flatten=True))["path"].to_pylist()
        mine = [name for name in names if day is None or name.startswith(f"date={day}/")]
        wanted += [(str(place / name), tables.path(table) / name) for name in mine]
    all_at_once(lambda one: fetch(*one), wanted)
    tables.keep(State(set(), set(snapshot.to_do)))
    tables.note_layout(snapshot.layout)


def is_newest(folder: Path, origin: ObjectFolder, last: Snapshot | None) -> bool:
    """Return True if a folder is a working copy that goes on from the last snapshot."""
    mark = read_mark(folder)
    return mark is not None and mark.origin == str(origin) and (None if last is None else last.ident) in mark.known


def goes_on_from(folder: Path, origin: ObjectFolder, known: Collection[Snapshot | None]) -> None:
    """Write the snapshots from which a working copy may go on to its mark, and wait until that is on the disk."""
    idents = [None if one is None else one.ident for one in known]
    put_text(folder / MARK, json.dumps({"origin": str(origin), "known": idents}))
