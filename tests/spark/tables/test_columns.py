"""The columns of the tables, each with a meaning."""

from spark.capacity.tables.columns import COLUMNS
from spark.capacity.tables.schema import SNAPSHOT, TABLES

EVERY = (*TABLES, SNAPSHOT)


def test_every_column_belongs_to_a_table():
    assert set(COLUMNS) == {column for table in EVERY for column in table.schema.names}
    assert all(set(table.own) <= set(table.schema.names) for table in EVERY)
    assert all(table.meaning(column)[1] for table in EVERY for column in table.schema.names)
