"""docs/tables.md agrees with the schema."""

from pathlib import Path

from spark.capacity.tables.document import EVERY, MEANINGS, OF_TABLE, PURPOSES, markdown, meaning

ROOT = Path(__file__).parents[3]


def test_every_column_has_a_meaning_and_no_other_has_one():
    columns = {(table.name, column) for table in EVERY for column in table.schema.names}
    assert all(meaning(table, column)[1] for table in EVERY for column in table.schema.names)
    assert MEANINGS.keys() <= {column for _, column in columns}
    assert OF_TABLE.keys() <= columns
    assert PURPOSES.keys() == {table.name for table in EVERY}


def test_the_document_is_what_the_schema_says():
    said = "run: python -m spark.capacity.tables.document >docs/tables.md"
    assert (ROOT / "docs" / "tables.md").read_text() == markdown(), said
