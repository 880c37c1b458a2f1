"""The live display: its state, its keys, and its screen."""

from __future__ import annotations

import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure as TwistedFailure
from zope.interface import implementer

from broker.brokerctl import output
from broker.brokerctl.list_commands import LISTINGS
from broker.brokerctl.output import Column, clean

# The state of the live display, and the effect of each key. Pure.

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
            query["search"] = self.filter
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


# The screen: a state and the last answers as lines that fit the terminal. Pure.

HEAD = 4
"""Lines above the rows: the broker, its numbers, the tables, the headings."""

FOOT = 1
"""Lines below the rows."""

GAP = 1
"""Spaces between columns: fewer than in printed tables, since 80 columns are few."""


@attrs.frozen
class Seen:
    """The last answers.

    ``listeners`` are the rows of the list of listeners, as the table has them: the status names sockets, of which a
    listener may have several. ``trouble`` is the reason why there are no answers now; ``changes`` the changes in a
    second.
    """

    status: Mapping[str, Any] = attrs.field(factory=dict)
    rows: Sequence[Mapping[str, Any]] = ()
    listeners: Sequence[Mapping[str, Any]] = ()
    where: str = ""
    trouble: str = ""
    changes: float | None = None
    loading: bool = True


def capacity(height: int) -> int:
    """Return the number of rows that fit."""
    return max(1, height - HEAD - FOOT)


def columns_of(top: Top, rows: Sequence[Mapping[str, Any]], width: int) -> list[Column]:
    """Return the columns that fit."""
    return output.chosen(rows, LISTINGS[top.table].columns, False, width)


def screen(top: Top, seen: Seen, width: int, height: int) -> list[Text]:
    """Return all lines, none wider than the terminal, and no more than it has."""
    lines = [_broker(seen), _numbers(top, seen), _tabs(top)]
    if top.helping:
        lines.append(Text())
        lines += [Text.assemble("  ", (keys.ljust(24), "bold"), meaning) for keys, meaning in HELP]
    else:
        lines += _table(top, seen, width, capacity(height))
    room = max(1, height - FOOT)
    lines = lines[:room] + [Text()] * (room - len(lines))
    lines.append(_foot(top))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[-height:]


def _broker(seen: Seen) -> Text:
    version = seen.status.get("version")
    name = seen.status.get("name")
    left = Text.assemble(("elkobroker ", "bold"), output.text(version) if version else "")
    if name:
        left.append(f" {output.text(name)}")
    left.append(f"  {clean(seen.where)}", "dim")
    uptime = seen.status.get("uptime")
    if isinstance(uptime, int | float):
        left.append(f"  up {output.duration(uptime)}")
    if seen.trouble:
        return Text(clean(seen.trouble), "bold red")
    return left


def _numbers(top: Top, seen: Seen) -> Text:
    found = seen.status.get("registry")
    registry: Mapping[str, Any] = found if isinstance(found, dict) else {}
    line = Text()
    for name in ("providers", "services", "waits"):
        if isinstance(registry.get(name), int):
            line.append(f"{name} ").append(output.text(registry[name]), "bold").append("  ")
    if seen.changes is not None:
        line.append("changes ").append(f"{seen.changes:.1f}/s", "bold").append("  ")
    if seen.listeners:
        ready, total = sum(row.get("ready") is True for row in seen.listeners), len(seen.listeners)
        line.append("listeners ").append(f"{ready}/{total}", "bold" if ready == total else "bold red").append("  ")
    if top.paused:
        line.append("PAUSED", "bold yellow")
    else:
        line.append(f"every {top.interval:g}s", "dim")
    return line


def _tabs(top: Top) -> Text:
    line = Text()
    for number, name in enumerate(TABLES, 1):
        line.append(f"{number}{name}", "reverse" if name == top.table else "dim").append(" ")
    return line


def _table(top: Top, seen: Seen, width: int, room: int) -> list[Text]:
    if not seen.rows:
        return [Text(), Text("..." if seen.loading else f"no {top.table}" + (" match" if top.filter else ""), "dim")]
    columns = columns_of(top, seen.rows, width)
    cells = [[output.text(row.get(c.name), c.unit, c.name) for c in columns] for row in seen.rows[:room]]
    widths = [
        max(cell_len(_heading(top, column)), *(cell_len(row[i]) for row in cells)) for i, column in enumerate(columns)
    ]
    _shrink(widths, width)
    right = [all(output.is_number(row.get(c.name)) for row in seen.rows) for c in columns]
    head = Text(style="bold")
    for i, column in enumerate(columns):
        head.append(_fit(_heading(top, column), widths[i], right[i]), "reverse" if column.name == top.sort else "")
        head.append(" " * GAP)
    lines = [head]
    for row in cells:
        line = Text()
        for i, text in enumerate(row):
            line.append(_fit(text, widths[i], right[i]), output.style_of(text)).append(" " * GAP)
        lines.append(line)
    return lines


def _heading(top: Top, column: Column) -> str:
    arrow = "" if column.name != top.sort else "▼" if top.descending else "▲"
    return clean(column.name).replace("_", " ").upper() + arrow


def _shrink(widths: list[int], width: int) -> None:
    """Make the widest columns narrower until all fit."""
    while sum(widths) + GAP * len(widths) > width and max(widths) > 3:
        widths[widths.index(max(widths))] -= 1


def _fit(text: str, width: int, right: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, max(0, width - 1)) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def _foot(top: Top) -> Text:
    if top.editing is not None:
        return Text.assemble(("filter: ", "bold"), clean(top.editing), ("█", "blink"), ("  Enter, Esc", "dim"))
    first = top.offset + 1 if top.total else 0
    last = min(top.offset + top.page, top.total)
    line = Text().append(f"{first}-{last} of {top.total:,}", "bold")
    if top.filter:
        line.append(f"  filter {clean(top.filter)}", "yellow")
    return line.append("  ? help  / filter  < > sort  r reverse  Tab table  q quit", "dim")


# Keys of a terminal: bytes to names. Pure.

_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[Z": "back tab",
}
_NAMES = {"\x1b": "escape", "\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace"}
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[@-~]|O[@-~])|.", re.DOTALL)


def keys(data: bytes) -> list[str]:
    """Return the keys in one read of a terminal: characters, or names of others. Unknown ones are left out."""
    found = []
    for each in _KEY.findall(data.decode(errors="ignore")):
        name = _SEQUENCES.get(each) or _NAMES.get(each) or (each if len(each) == 1 and each.isprintable() else "")
        if name:
            found.append(name)
    return found


# The terminal of the live display: keys one by one, and a screen of its own that is left as it was.

MAX_READ = 1_024
"""Bytes of one read: a pasted text comes in several."""


@implementer(IReadDescriptor)
class Keyboard:
    """Standard input as a source of keys. ``ended`` is called at its end: the terminal is gone."""

    def __init__(self, pressed: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._pressed, self._ended = pressed, ended

    def fileno(self) -> int:
        """Return the descriptor of standard input."""
        return sys.stdin.fileno()

    def doRead(self) -> None:
        """Take the typed text."""
        try:
            data = os.read(self.fileno(), MAX_READ)
        except OSError:
            data = b""
        if not data:
            self._ended()
        for key in keys(data):
            self._pressed(key)

    def connectionLost(self, reason: TwistedFailure) -> None:
        """Part of the interface of descriptors."""

    def logPrefix(self) -> str:
        """Part of the interface of descriptors."""
        return "keyboard"


@contextmanager
def terminal(
    reactor: Any,
    console: Console,
    pressed: Callable[[str], None],
    resized: Callable[[], None],
    ended: Callable[[], None],
) -> Iterator[Callable[[list[Text]], None]]:
    """Take the terminal. Yields a function that shows lines; the terminal is restored at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    keyboard = Keyboard(pressed, ended)
    handler = signal.signal(signal.SIGWINCH, lambda number, frame: reactor.callFromThread(resized))
    shown: list[str] = []
    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
    ) as live:

        def show(lines: list[Text]) -> None:
            # Over a slow link an unchanged screen costs nothing.
            drawn = [f"{console.size}", *(line.markup for line in lines)]
            if drawn != shown:
                shown[:] = drawn
                live.update(Text("\n", no_wrap=True).join(lines), refresh=True)

        # Ctrl-C stays a signal.
        tty.setcbreak(descriptor)
        reactor.addReader(keyboard)
        try:
            yield show
        finally:
            reactor.removeReader(keyboard)
            signal.signal(signal.SIGWINCH, handler)
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
