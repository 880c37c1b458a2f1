"""Rows as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from broker.brokerctl.output import units
from broker.brokerctl.output.clean import clean

Row = Mapping[str, Any]

NARROWEST = 12
"""Width to which a column of text may shrink before a less important column is left out."""

UNBOUNDED = 100_000
"""Width of output that is no terminal, and of the format ``wide``: nothing is cut or left out."""

GAP = 2
"""Spaces between columns."""


@attrs.frozen
class Column:
    """A column. ``wide``: only ``-o wide`` shows it. The first columns are the most important ones."""

    name: str
    unit: str = ""
    wide: bool = False


_STYLES = {
    "passing": "green",
    "failing": "bold red",
    "doubtful": "yellow",
    "untested": "dim",
    "gone": "red",
    "restored": "yellow",
    "enough": "green",
    "short now": "bold red",
    "short in the horizon": "yellow",
    "short by the trend": "yellow",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}
"""Styles of values that are a state."""


def all_columns(rows: Sequence[Row], columns: Sequence[Column]) -> list[Column]:
    """Return the known columns that occur in rows, and after them all others that occur, in their order."""
    occurring = dict.fromkeys(name for row in rows for name in row)
    if not rows:
        return list(columns)
    known = [column for column in columns if column.name in occurring]
    names = {column.name for column in known}
    return known + [Column(name, wide=bool(known)) for name in occurring if name not in names]


def chosen(rows: Sequence[Row], columns: Sequence[Column], wide: bool, width: int) -> list[Column]:
    """Return the columns to show: all for ``wide``, else the important ones that fit."""
    found = all_columns(rows, columns)
    if wide:
        return found
    found = [column for column in found if not column.wide]
    while len(found) > 1 and _least_width(rows, found) > width:
        found.pop()
    return found


def _least_width(rows: Sequence[Row], columns: Sequence[Column]) -> int:
    return sum(min(NARROWEST, width) + GAP for width in _widths(rows, columns))


def _widths(rows: Sequence[Row], columns: Sequence[Column]) -> list[int]:
    """Return the width of each column that shows its values in full."""
    return [max(len(column.name), *(cell_len(_text(row, column)) for row in rows)) for column in columns]


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns in ``room``: the widest are cut to a common width, the others stay as they are.

    No column becomes narrower than `NARROWEST` by it, even where there is no room.
    """
    left, at_most = room, max(widths, default=0)
    for count, width in zip(range(len(widths), 0, -1), sorted(widths), strict=True):
        if width * count > left:
            at_most = max(left // count, NARROWEST)
            break
        left -= width
    return [min(width, at_most) for width in widths]


def table(rows: Sequence[Row], columns: Sequence[Column], wide: bool = False, width: int = UNBOUNDED) -> Table:
    """Return a table. Unless ``wide``, long texts are shortened to the ``width`` of the terminal."""
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    # Rich would take as much from each column, so that a narrow one beside a long text had no width left.
    room = width - GAP * (len(columns) - 1)
    for column, most in zip(columns, fitted(_widths(rows, columns), room), strict=True):
        numeric = all(is_number(row.get(column.name)) for row in rows)
        made.add_column(
            heading(column.name),
            justify="right" if numeric else "left",
            no_wrap=True,
            overflow="ignore" if wide else "ellipsis",
            max_width=None if wide else most,
        )
    for row in rows:
        made.add_row(*(Text(shown, style_of(shown)) for shown in (_text(row, column) for column in columns)))
    return made


def pairs(value: Mapping[str, Any], columns: Sequence[Column] = ()) -> Table:
    """Return one object as a table of names and values. An object or a list of objects in it is indented."""
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    by_name = {column.name: column for column in columns}
    _add_pairs(made, value, by_name, "")
    return made


def _add_pairs(made: Table, value: Mapping[str, Any], columns: Mapping[str, Column], indent: str) -> None:
    for name, each in value.items():
        shown = indent + clean(str(name)).replace("_", " ")
        if isinstance(each, dict) and each:
            made.add_row(shown, "")
            _add_pairs(made, each, columns, indent + "  ")
        elif isinstance(each, list) and each and all(isinstance(item, dict) for item in each):
            made.add_row(shown, Text(units.text(each[0])))
            for item in each[1:]:
                made.add_row("", Text(units.text(item)))
        else:
            column = columns.get(name, Column(name))
            text = units.text(each, column.unit, column.name)
            made.add_row(shown, Text(text, style_of(text)))


def heading(name: str) -> Text:
    """Return the heading of a column."""
    return Text(clean(name).replace("_", " ").upper())


def style_of(text: str) -> str:
    """Return the style of a value that is a state, else none."""
    return _STYLES.get(text, "dim" if text == units.NOTHING else "")


def _text(row: Row, column: Column) -> str:
    return units.text(row.get(column.name), column.unit, column.name)


def is_number(value: object) -> bool:
    """Return True for a number or an absent value, which a column of numbers may have."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
