"""The state of the live display, and the effect of each key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

TABLES = ("services", "providers", "loads", "sessions", "queues", "topics", "listeners", "counters")
"""The tables, in the order of the keys 1 to 8."""

INTERVALS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two questions."""

MAX_FILTER = 64
"""Characters of a filter."""

HELP = (
    ("1-8  Tab", "choose the table"),
    ("<  >  ← →", "choose the column to sort by"),
    ("r", "reverse the order"),
    ("u", "the order of the broker again"),
    ("/", "filter by a part of a name, or a pattern such as web*"),
    ("↑ ↓  PgUp PgDn  Home", "scroll"),
    ("+  -", "ask more or less often"),
    ("Space", "pause"),
    ("q", "quit"),
)
"""The keys with their meanings."""


@attrs.define
class Top:
    """The state.

    ``columns`` are those on the screen, among which the sort moves. ``page`` is the number of rows on the screen, and
    ``total`` that of the rows that there are. ``editing`` is the filter while it is typed.
    """

    table: str = TABLES[0]
    interval: float = 2.0
    sort: str = ""
    descending: bool = False
    filter: str = ""
    editing: str | None = None
    offset: int = 0
    paused: bool = False
    helping: bool = False
    quit: bool = False
    columns: Sequence[str] = ()
    page: int = 10
    total: int = 0

    def query(self) -> dict[str, Any]:
        """Return the query of the rows on the screen."""
        query: dict[str, Any] = {"offset": self.offset, "limit": max(1, min(self.page, 1_000))}
        if self.sort:
            query["sort"] = f"-{self.sort}" if self.descending else self.sort
        if self.filter:
            query["pattern"] = self.filter if any(c in self.filter for c in "*?[") else f"*{self.filter}*"
        return query

    def press(self, key: str) -> bool:
        """Take a key. Returns True if other rows are wanted now."""
        before = (self.table, self.query(), self.paused)
        if self.editing is not None:
            self._edit(key)
        elif self.helping:
            self.helping, self.quit = False, key in ("q", "Q")
        else:
            self._command(key)
        return before != (self.table, self.query(), self.paused)

    def received(self, answer: Mapping[str, Any]) -> None:
        """Take the number of rows of an answer. The offset stays within it."""
        total = answer.get("total")
        self.total = total if isinstance(total, int) else 0
        self.offset = max(0, min(self.offset, self.total - 1))

    def _edit(self, key: str) -> None:
        assert self.editing is not None
        if key == "enter":
            self.filter, self.editing, self.offset = self.editing, None, 0
        elif key == "escape":
            self.editing = None
        elif key == "backspace":
            self.editing = self.editing[:-1]
        elif len(key) == 1 and len(self.editing) < MAX_FILTER:
            self.editing += key

    def _command(self, key: str) -> None:
        if key in ("q", "Q"):
            self.quit = True
        elif key in ("?", "h"):
            self.helping = True
        elif key == "/":
            self.editing = self.filter
        elif key == " ":
            self.paused = not self.paused
        elif key == "escape":
            self.filter, self.offset = "", 0
        elif key in ("+", "-"):
            self._pace(1 if key == "-" else -1)
        elif key in ("r", "R"):
            self.descending, self.offset = not self.descending, 0
        elif key == "u":
            self.sort, self.descending, self.offset = "", False, 0
        elif key in ("<", ">", "left", "right"):
            self._sort(-1 if key in ("<", "left") else 1)
        elif key in ("tab", "back tab"):
            step = 1 if key == "tab" else -1
            self._choose(TABLES[(TABLES.index(self.table) + step) % len(TABLES)])
        elif key.isdigit() and 1 <= int(key) <= len(TABLES):
            self._choose(TABLES[int(key) - 1])
        else:
            self._scroll(key)

    def _choose(self, table: str) -> None:
        if table != self.table:
            self.table, self.sort, self.descending, self.offset, self.total, self.columns = table, "", False, 0, 0, ()

    def _sort(self, step: int) -> None:
        names = list(self.columns)
        if names:
            here = names.index(self.sort) if self.sort in names else (-1 if step > 0 else 0)
            self.sort, self.offset = names[(here + step) % len(names)], 0

    def _scroll(self, key: str) -> None:
        steps = {"up": -1, "down": 1, "page up": -self.page, "page down": self.page}
        last = max(0, self.total - self.page)
        if key in steps:
            self.offset = max(0, min(self.offset + steps[key], last))
        elif key in ("home", "end"):
            self.offset = 0 if key == "home" else last

    def _pace(self, step: int) -> None:
        near = min(range(len(INTERVALS)), key=lambda i: abs(INTERVALS[i] - self.interval))
        self.interval = INTERVALS[max(0, min(near + step, len(INTERVALS) - 1))]
