"""Files of the report: put in their place at once, and tables as CSV."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spark.capacity.report.row_values import Row, missing
from spark.capacity.utc import utc

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a text that a spreadsheet would take for a formula."""


def replace(path: Path, text: str, *, lasting: bool = True) -> None:
    """Put a text in the place of a file: a reader finds the file before or the new one.

    The same holds after a loss of power where it is ``lasting``; waiting for the disk takes long for many files.
    """
    hidden = path.with_name("." + path.name)
    with hidden.open("w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)
        file.flush()
        if lasting:
            os.fsync(file.fileno())
    hidden.replace(path)


def table_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV with a line of names. A text that looks like a formula gets an apostrophe."""
    names = list(rows[0]) if rows else []
    to = io.StringIO()
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([cell(row.get(name)) for name in names])
    return to.getvalue()


def cell(value: Any) -> str:
    """Return a value as the text of a cell."""
    if missing(value):
        return ""
    if isinstance(value, list):
        return ";".join(map(cell, value))
    if isinstance(value, datetime):
        return utc(value).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, str) and value[:1] in FORMULA:
        return "'" + value
    return str(value)
