"""Files of the report: tables as CSV, and all of them sent to an object store."""

import csv
import io
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spark.capacity.tables.object_store import ObjectFolder, all_at_once, listing, remove, send
from spark.capacity.tables.row_values import Row

PAGES = "services"
"""The folder of the pages of services, below that of the report."""

TIME = "%Y-%m-%dT%H:%M:%SZ"
"""The notation of times, which are in UTC."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet would take for a formula."""


def table_csv(rows: Sequence[Row], names: Sequence[str] = ()) -> str:
    """Return rows as CSV with a line of names. A text that looks like a formula gets an apostrophe."""
    names = names or (list(rows[0]) if rows else [])
    to = io.StringIO()
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in names])
    return to.getvalue()


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ";".join(map(cell, value))
    if isinstance(value, datetime):
        return value.strftime(TIME)
    if isinstance(value, str) and value[:1] in FORMULA:
        return "'" + value
    return str(value)


# Sending the report of a run to the object store that has its out directory.

TYPES = {
    ".toml": "application/toml",
    ".csv": "text/csv; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
}
"""Media types, by which a browser shows a file instead of saving it."""


def send_report(out: Path, files: Sequence[Path], to: ObjectFolder) -> None:
    """Send the files of a report, and the pages of its services; remove the pages of services that have none now."""
    pages = sorted((out / PAGES).glob("*.html"))

    def put(path: Path) -> None:
        send(path, to, path.relative_to(out).as_posix(), TYPES.get(path.suffix))

    # The pages first: what the index links to is there.
    all_at_once(put, pages)
    all_at_once(put, files)
    remove(to / PAGES, sorted({one.name for one in listing(to / PAGES)} - {path.name for path in pages}))
