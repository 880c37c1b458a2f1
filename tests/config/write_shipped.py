"""Writes the files that are made of the declarations of the keys: ``python -m tests.config.write_shipped``."""

from __future__ import annotations

from pathlib import Path

from broker.app.configuration import SCHEMA
from broker.config import document

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "etc" / "elkobroker.toml"
DOCUMENT = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- keys -->\n", "<!-- end of keys -->\n"
"""The marks around the tables in `DOCUMENT`."""


def documented() -> str:
    """Return the tables of all keys, as they are between the marks."""
    return document.tables((each.name, each.default) for each in SCHEMA.sections)


def main() -> None:
    """Write both files."""
    EXAMPLE.write_text(SCHEMA.example())
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + "\n" + documented() + rest[rest.index(END) :])


if __name__ == "__main__":
    main()
