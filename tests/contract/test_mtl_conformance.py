"""The table of conformance in docs/protocols/mtl.md is whole, and each of its rows has a test that carries its number.

A test carries the numbers that its name begins with: ``test_G01_G02_...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

TESTS = Path(__file__).parents[1]

DOCUMENT = TESTS.parent / "docs" / "protocols" / "mtl.md"

LEVELS = {
    "G": "MMMMMMMMRRR",
    "A": "MMMMMMMMMMMMMMMMRRRIMO",
    "P": "MMMMMI",
    "L": "MMMMMMMRRII",
    "E": "SSSSMMMMMSSM",
    "D": "MMMMMMRRRIIO",
    "S": "MMMMMMMMMM",
    "W": "MMMMMMMRRRR",
    "K": "MMMMMMMRRRRM",
    "H": "SSMRISSSRS",
    "F": "MSS",
    "X": "SSSSSM",
    "T": "OMMRMRM",
    "Z": "---",
}
"""The level of each row, by its letter, from 01 on. M, S and O are RFC 11's MUST, SHOULD and MAY. R is what we make of
what it leaves open, I what it leaves open and is told only, and - is everything at once."""

ROWS = {f"{letter}{number:02}": level for letter, levels in LEVELS.items() for number, level in enumerate(levels, 1)}

_ROW = re.compile(r"\| ([A-Z]\d\d) \| (.) \| (.+) \| (.+) \|")
_FILE = re.compile(r"`([a-z_/]+\.py)`")
_TEST = re.compile(r"^ *(?:async )?def test_((?:[A-Z]\d\d_)+)", re.MULTILINE)


@attrs.frozen
class Row:
    """A row of the table."""

    number: str
    level: str
    what: str
    files: tuple[str, ...]


def rows(text: str) -> Iterator[Row]:
    """The rows of the tables in a document."""
    for line in text.splitlines():
        if found := _ROW.fullmatch(line):
            number, level, what, where = found.groups()
            yield Row(number, level, what, tuple(_FILE.findall(where)))


def files_by_number() -> dict[str, set[str]]:
    """The files with tests of each number."""
    files: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for numbers in _TEST.findall(path.read_text()):
            for number in numbers.rstrip("_").split("_"):
                files.setdefault(number, set()).add(str(path.relative_to(TESTS)))
    return files


TESTED = files_by_number()

TABLE = list(rows(DOCUMENT.read_text()))


def test_the_table_has_every_row_once_and_in_order() -> None:
    assert {row.number: row.level for row in TABLE} == ROWS
    assert [row.number for row in TABLE] == list(ROWS)


@pytest.mark.parametrize("number", ROWS)
def test_each_row_has_a_test_with_its_number(number: str) -> None:
    assert TESTED.get(number)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.number)
def test_the_files_that_a_row_names_have_tests_with_its_number(row: Row) -> None:
    assert row.files
    assert TESTED[row.number].issuperset(row.files)


def test_no_test_has_a_number_that_there_is_not() -> None:
    assert ROWS.keys() >= TESTED.keys()
