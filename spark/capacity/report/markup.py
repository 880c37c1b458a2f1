"""Pieces of the report: values that may be missing, as text, and pieces of HTML.

Any value called ``html`` is markup already; all else is text, which is escaped where it becomes markup.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from spark.capacity.report.chart import escape

Row = Mapping[str, Any]
Tables = Mapping[str, Any]
"""The rows of each table by its name, as the schema has them: sequences of rows, or for hours and forecasts of services
a `RowsByService`. A table that is left out is empty. There are two more
than the schema has: ``broker_down``, with `broker`, `start` and `end`: when the broker was not there; and ``set_back``,
with `broker`, `boot`, `seq`, `before` and `after`: which records show that a broker's clock was set back."""

ROWS = 50
"""Rows of a table that could be long; what is left out is counted below it. All of it is in the tables."""

DASH = "\u2013"


def missing(value: Any) -> bool:
    # NaN and pandas' NaT are not equal to themselves.
    return value is None or (isinstance(value, float | datetime) and value != value)


def utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def time_of(row: Row, name: str) -> datetime | None:
    value = row.get(name)
    return None if missing(value) or not isinstance(value, datetime) else utc(value)


def number_of(row: Row, name: str) -> float | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def yes(row: Row, name: str) -> bool:
    value = row.get(name)
    return not missing(value) and bool(value)


def texts_of(value: Any) -> list[str]:
    """A list of texts, whether it comes as a list, an array, or not at all."""
    if value is None or isinstance(value, float):
        return []
    return [str(one) for one in ([value] if isinstance(value, str) else value)]


def when(value: datetime | None) -> str:
    return DASH if value is None else value.strftime("%Y-%m-%d %H:%M UTC")


def plain(value: float | None, digits: int = 1) -> str:
    if value is None:
        return DASH
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{plain(value * 100, digits)} %"


def span(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 120:
        return f"{plain(seconds, 0)} s"
    if seconds < 7200:
        return f"{plain(seconds / 60, 0)} min"
    return f"{plain(seconds / 3600)} h"


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def highest_of(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def total_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def counted(number: float, one: str, many: str | None = None) -> str:
    return f"{plain(number, 0)} {one if number == 1 else many or one + 's'}"


def bdi(text: object) -> str:
    return f"<bdi>{escape(text)}</bdi>"


def para(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table_html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], empty: str, cut: int = ROWS) -> str:
    """A table of cells that are HTML. The first column names the row; columns of names stand left, of numbers right."""
    if not rows:
        return para(empty, "empty")
    sides = [' class="name"' if any("<bdi>" in row[place] for row in rows[:cut]) else "" for place in range(len(heads))]
    head = "".join(f'<th scope="col"{side}>{escape(one)}</th>' for one, side in zip(heads, sides, strict=True))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{side}>{cell}</td>" for cell, side in zip(row[1:], sides[1:], strict=True))
        + "</tr>\n"
        for row in rows[:cut]
    )
    left_out = f"{counted(len(rows) - cut, 'more row')} in the tables." if len(rows) > cut else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
        + (para(left_out) if left_out else "")
    )


def section_html(ident: str, title_html: str, *parts_html: str) -> str:
    return f'<section id="{ident}"><h2>{title_html}</h2>\n' + "\n".join(filter(None, parts_html)) + "</section>\n"
