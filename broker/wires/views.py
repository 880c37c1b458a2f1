"""Views: tables of the state of a wire, for the console, the HTTP API and the command line alike.

A view names its columns and yields its rows in a stable order, the oldest first where there is an order of time. A row
is a JSON object; a column that does not apply to a row is absent from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Generic, TypeVar

import attrs

MAX_ROWS = 1_000
"""Rows of one page: more than a person reads, and a few milliseconds of the reactor's time."""

Item = TypeVar("Item")
Row = Mapping[str, object]


@attrs.frozen
class Column:
    """A column: its ``name`` in rows, its meaning, and the ``unit`` of numbers ("" for a plain number or a text)."""

    name: str
    help: str
    unit: str = ""


@attrs.frozen(eq=False)
class View(Generic[Item]):
    """A table.

    - ``name``: the words that select it: ``mc0 sessions``. ``help``: a sentence.
    - ``columns``: all columns, in order.
    - ``items``: the things that have a row each, evaluated lazily.
    - ``row``: the row of a thing.
    - ``keys``: the texts of a thing that a shell pattern is compared with.
    """

    name: str
    help: str
    columns: Sequence[Column]
    items: Callable[[], Iterable[Item]]
    row: Callable[[Item], Row]
    keys: Callable[[Item], Iterable[str]]

    def page(self, pattern: str = "*", offset: int = 0, limit: int = MAX_ROWS) -> list[Row]:
        """Return at most ``limit`` rows whose keys match a shell pattern, after the first ``offset`` of them."""
        found: Iterable[Item] = self.items()
        if pattern != "*":
            found = (item for item in found if any(fnmatchcase(key, pattern) for key in self.keys(item)))
        return [self.row(item) for item in islice(found, offset, offset + min(limit, MAX_ROWS))]


AnyView = View[Any]
