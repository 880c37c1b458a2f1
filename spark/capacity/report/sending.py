"""Sending the report of a run to the object store that has its out directory."""

from collections.abc import Sequence
from pathlib import Path

from spark.capacity.report.page import PAGES
from spark.capacity.tables.object_store import ObjectFolder, all_at_once, listing, remove, send

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
