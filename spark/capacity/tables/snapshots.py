"""Snapshots: the versions of all tables in the lake that one run published, as a Delta table of their own.

Delta has no commit over several tables. So the run commits each table, and this one last: its last version has the
versions of the others that belong together. A run that was cut off before leaves the snapshot as it was.
"""

import uuid
from collections.abc import Mapping

import attrs
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.object_store import Place, StoreError, delta_options
from spark.capacity.tables.schema import SNAPSHOT, Table
from spark.capacity.tables.store import OutError

CONFIGURATION = {"delta.logRetentionDuration": "interval 8 days"}
"""Properties of each table: its log is kept for a day longer than the files of its versions (`lake.KEPT`). Each 100
versions delta-rs writes a checkpoint, and deletes what is older."""


def open_table(place: Place, version: int | None = None) -> DeltaTable | None:
    """Open the last version of a table, or another one; None if there is no table."""
    try:
        return DeltaTable(str(place), version=version, storage_options=delta_options(place))
    except TableNotFoundError:
        return None


def opened(place: Place, version: int | None = None) -> DeltaTable:
    """Open a table as `open_table` does. Raises `StoreError` if it has been removed since its last commit."""
    table = open_table(place, version)
    if table is None:
        raise StoreError(f"{place} is not there any more")
    return table


def described(table: Table) -> pa.Schema:
    """Return the schema with the unit and the meaning of each column."""
    fields = []
    for field in arrow_schema(table.schema):
        unit, told = table.meaning(field.name)
        fields.append(field.with_metadata({"unit": unit, "comment": told}))
    return pa.schema(fields)


@attrs.frozen
class Snapshot:
    """A set of versions, by table; with the run that published it, and what the next run must know besides the tables:
    the layout of the out directory, and the dates that are to be made again."""

    run: str
    versions: Mapping[str, int]
    layout: int
    to_do: frozenset[str] = frozenset()
    ident: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    def says_the_same(self, other: "Snapshot | None") -> bool:
        """Return True if another one has the same content."""
        return other is not None and attrs.evolve(self, run=other.run, ident=other.ident) == other


def last(lake: Place) -> Snapshot | None:
    """Return the last snapshot of a lake; None if nothing was published yet."""
    table = open_table(lake / SNAPSHOT.name)
    rows = [] if table is None else table.to_pyarrow_table().to_pylist()
    if not rows:
        return None
    one = rows[0]
    versions = {row["name"]: row["version"] for row in rows}
    return Snapshot(one["run"], versions, one["layout"], frozenset(one["to_do"]), one["snapshot"])


def commit(lake: Place, new: Snapshot, after: Snapshot | None) -> None:
    """Commit a snapshot as the successor of another one; raise `OutError` if that is not the last one."""
    place = lake / SNAPSHOT.name
    # Opened before it is compared: what is committed after that is a conflict.
    table, now = open_table(place), last(lake)
    if (now and now.ident) != (after and after.ident):
        raise OutError(f"another run has published in {lake} meanwhile")
    rest = {"run": new.run, "snapshot": new.ident, "layout": new.layout, "to_do": sorted(new.to_do)}
    rows = [{"name": name, "version": version, **rest} for name, version in sorted(new.versions.items())]
    made = pa.Table.from_pylist(rows, described(SNAPSHOT))
    try:
        if table is None:
            write_deltalake(
                str(place),
                made,
                mode="error",
                name=SNAPSHOT.name,
                description=SNAPSHOT.purpose,
                configuration=CONFIGURATION,
                storage_options=delta_options(place),
            )
        else:
            # The columns may have other descriptions than in an earlier version of these jobs.
            write_deltalake(table, made, mode="overwrite", schema_mode="overwrite")
    except CommitFailedError as error:
        raise OutError(f"another run has published in {lake} meanwhile") from error
