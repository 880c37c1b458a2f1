"""Delta tables of this machine and of object stores: how delta-rs opens them, and the schemas that they have."""

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from spark.capacity.tables.document import meaning
from spark.capacity.tables.object_store import Place, delta_options
from spark.capacity.tables.schema import Table, arrow_schema


def open_table(place: Place, version: int | None = None) -> DeltaTable | None:
    """Open the last version of a table, or another one; None if there is no table."""
    try:
        return DeltaTable(str(place), version=version, storage_options=delta_options(place))
    except TableNotFoundError:
        return None


def described(table: Table) -> pa.Schema:
    """Return the schema with the unit and the meaning of each column."""
    fields = []
    for field in arrow_schema(table.schema):
        unit, told = meaning(table, field.name)
        fields.append(field.with_metadata({"unit": unit, "comment": told}))
    return pa.schema(fields)
