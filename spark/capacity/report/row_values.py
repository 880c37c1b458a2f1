"""Values of rows, which may be missing: None, NaN, pandas' NaT, or a column that is not there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from spark.capacity.utc import utc

Row = Mapping[str, Any]
Tables = Mapping[str, Any]
"""The rows of each table by its name, as the schema has them: sequences of rows, or for hours and forecasts of services
a `RowsByService`. A table that is left out is empty. There are two more
than the schema has: ``broker_down``, with `broker`, `start` and `end`: when the broker was not there; and ``set_back``,
with `broker`, `boot`, `seq`, `before` and `after`: which records show that a broker's clock was set back."""


def missing(value: Any) -> bool:
    # NaN and pandas' NaT are not equal to themselves.
    return value is None or (isinstance(value, float | datetime) and value != value)


def time_of(row: Row, name: str) -> datetime | None:
    value = row.get(name)
    return None if missing(value) or not isinstance(value, datetime) else utc(value)


def number_of(row: Row, name: str) -> float | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def text_of(row: Row, name: str) -> str | None:
    """Return a text; None where it is missing or empty."""
    value = row.get(name)
    return str(value) if not missing(value) and value else None


def yes(row: Row, name: str) -> bool:
    value = row.get(name)
    return not missing(value) and bool(value)


def texts_of(value: Any) -> list[str]:
    """A list of texts, whether it comes as a list, an array, or not at all."""
    if value is None or isinstance(value, float):
        return []
    return [str(one) for one in ([value] if isinstance(value, str) else value)]


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def highest_of(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def total_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
