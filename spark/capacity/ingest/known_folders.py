"""The folders of the journal whose segments are all in the ledger, each with its state (`journal_folders`)."""

from collections.abc import Mapping

import pandas as pd

from spark.capacity.tables.schema import FOLDERS
from spark.capacity.tables.store import Tables


def known_folders(tables: Tables) -> dict[str, int]:
    """Return the states of folders by key."""
    rows = tables.rows_of(FOLDERS)
    return dict(zip(rows["folder"].to_pylist(), rows["state"].to_pylist(), strict=True))


def note_folders(tables: Tables, found: Mapping[str, int]) -> None:
    """Note the states of folders, once their segments are in the ledger."""
    known = known_folders(tables)
    if found.items() - known.items():
        tables.put(FOLDERS, pd.DataFrame(sorted({**known, **found}.items()), columns=FOLDERS.schema.names))
