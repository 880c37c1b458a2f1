"""docs/tables.md agrees with the schema: ``python -m tests.spark.tables.test_document`` writes it."""

import textwrap
from pathlib import Path

from spark.capacity.tables.columns import COLUMNS
from spark.capacity.tables.schema import MEMBERS, SNAPSHOT, TABLES, Table

PAGE = Path(__file__).parents[3] / "docs" / "tables.md"

EVERY = (*TABLES, SNAPSHOT)

OF_RECORDS = set(MEMBERS.split()) - {
    "broker", "boot", "seq", "service", "load", "full_load", "in_flight", "requests", "errors", "dropped", "coalesced",
}  # fmt: skip
"""Members of records that no table changes: docs/export.md has their meanings."""


def described(table: Table, name: str) -> str:
    """Return the text of a column: unit and meaning."""
    unit, text = table.meaning(name)
    return f"`{name}`{f' ({unit})' if unit else ''}: {text}."


def markdown() -> str:
    """Return docs/tables.md: the tables with their columns, and each meaning once."""
    lines = [
        "# Tables of the capacity jobs",
        "",
        "Made by `python -m tests.spark.tables.test_document`. A table is a folder of Parquet files, with their types;",
        "a dated one has a folder `date=YYYY-MM-DD` for each UTC date. Times are in UTC, loads in the unit that the",
        "providers report. Unknown values are null. Columns without a meaning below are [members of",
        "records](export.md#records).",
        "",
        "## Tables",
        "",
    ]
    columns: dict[str, str] = {}
    for table in EVERY:
        names = []
        for name in table.schema.names:
            text = described(table, name)
            exception = name in table.own or columns.setdefault(name, text) != text
            names.append(text[:-1] if exception else f"`{name}`")
        dated = ", dated" if table.dated else ""
        item = f"**{table.name}**: {table.purpose}{dated}. {'; '.join(names)}."
        lines += textwrap.wrap(item, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    lines += ["", "## Columns", ""]
    for name, item in columns.items():  # In the order of the tables, since a meaning may refer to the column before.
        if name not in OF_RECORDS:
            lines += textwrap.wrap(item, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def test_every_column_belongs_to_a_table():
    assert set(COLUMNS) == {column for table in EVERY for column in table.schema.names}
    assert all(set(table.own) <= set(table.schema.names) for table in EVERY)
    assert all(table.meaning(column)[1] for table in EVERY for column in table.schema.names)


def test_the_page_of_tables_is_what_the_schema_says():
    assert PAGE.read_text() == markdown(), "run: python -m tests.spark.tables.test_document"


if __name__ == "__main__":
    PAGE.write_text(markdown())
