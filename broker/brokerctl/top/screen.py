"""The screen: a state and the last answers as lines that fit the terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from broker.brokerctl.commands.lists import LISTINGS
from broker.brokerctl.output import tables, units
from broker.brokerctl.output.clean import clean
from broker.brokerctl.output.tables import Column
from broker.brokerctl.top.model import HELP, TABLES, Top

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
    return tables.chosen(rows, LISTINGS[top.table].columns, False, width)


def screen(top: Top, seen: Seen, width: int, height: int) -> list[Text]:
    """Return all lines, none wider than the terminal, and no more than it has."""
    lines = [_broker(seen, width), _numbers(top, seen), _tabs(top)]
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


def _broker(seen: Seen, width: int) -> Text:
    version = seen.status.get("version")
    name = seen.status.get("name")
    left = Text.assemble(("elkobroker ", "bold"), units.text(version) if version else "")
    if name:
        left.append(f" {units.text(name)}")
    left.append(f"  {clean(seen.where)}", "dim")
    uptime = seen.status.get("uptime")
    if isinstance(uptime, int | float):
        left.append(f"  up {units.duration(uptime)}")
    if seen.trouble:
        return Text(clean(seen.trouble), "bold red")
    return left


def _numbers(top: Top, seen: Seen) -> Text:
    found = seen.status.get("registry")
    registry: Mapping[str, Any] = found if isinstance(found, dict) else {}
    line = Text()
    for name in ("providers", "services", "waits"):
        if isinstance(registry.get(name), int):
            line.append(f"{name} ").append(units.text(registry[name]), "bold").append("  ")
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
    cells = [[units.text(row.get(c.name), c.unit, c.name) for c in columns] for row in seen.rows[:room]]
    widths = [
        max(cell_len(_heading(top, column)), *(cell_len(row[i]) for row in cells)) for i, column in enumerate(columns)
    ]
    _shrink(widths, width)
    right = [all(tables.is_number(row.get(c.name)) for row in seen.rows) for c in columns]
    head = Text(style="bold")
    for i, column in enumerate(columns):
        head.append(_fit(_heading(top, column), widths[i], right[i]), "reverse" if column.name == top.sort else "")
        head.append(" " * GAP)
    lines = [head]
    for row in cells:
        line = Text()
        for i, text in enumerate(row):
            line.append(_fit(text, widths[i], right[i]), tables.style_of(text)).append(" " * GAP)
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
