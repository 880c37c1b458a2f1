"""The limits that the document names are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.core import model
from broker.core.director import farm_state, farm_tables
from broker.wires.elko.sessions import director_pages as pages

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocols" / "elko-director.md"
UNITS = {"": 1, "KiB": 1024, "MiB": 1024 * 1024}


def documented() -> list[tuple[str, int]]:
    """Each constant in the document's table of limits, with its value."""
    table = DOCUMENT.read_text().partition("| constant |")[2].partition("\n\n")[0]
    found = []
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.M):
        names = re.findall(r"`(\w+)`", row[0])
        values = re.findall(r"(\d[\d,]*\d|\d)(?: (KiB|MiB))?", row[1])
        assert len(names) == len(values), row
        found += [
            (name, int(value.replace(",", "")) * UNITS[unit]) for name, (value, unit) in zip(names, values, strict=True)
        ]
    return found


def test_the_table_is_found() -> None:
    assert {name for name, _ in documented()} >= {
        "MAX_LINKS",
        "MAX_CONTEXTS",
        "MAX_USERS",
        "MAX_UNBATCHED",
        "MAX_BEHIND",
    }


@pytest.mark.parametrize(("name", "value"), documented())
def test_a_limit_is_what_the_document_says(name: str, value: int) -> None:
    [code] = {getattr(module, name) for module in (farm_state, farm_tables, pages, model) if hasattr(module, name)}
    assert code == value
