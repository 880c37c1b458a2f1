"""Values of rows, which may be missing: None, NaN, pandas' NaT, or a column that is not there. Rows by service."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.tables.time_windows import utc

Row = Mapping[str, Any]
Tables = Mapping[str, Any]
"""The rows of each table by its name, as the schema has them: sequences of rows, or for hours and forecasts of services
a `RowsByService`. A table that is left out is empty. There are two more than the schema has: ``broker_down``, with
`broker`, `start` and `end` of each absence of a broker; and ``set_back``, with `broker`, `boot`, `seq`, `before` and
`after` of each record that shows that a broker's clock was set back."""


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


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def highest_of(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def total_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


RECENT = 8
"""Services whose rows are kept: a page asks for those of one service again and again."""


class RowsByService(Mapping[str, list[dict[str, Any]]]):
    """A table with services and hours, as a mapping from service to rows in the order of their hours.

    Rows are made when they are asked for: ten thousand services' rows would not fit into memory.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table.sort_by([("service", "ascending"), ("h", "ascending")])
        names = pc.run_end_encode(self._table["service"].combine_chunks()) if len(table) else None
        ends = [] if names is None else names.run_ends.to_pylist()
        values = [] if names is None else names.values.to_pylist()
        begins = [0, *ends[:-1]] if ends else []
        self._places = {name: (begin, end) for name, begin, end in zip(values, begins, ends, strict=True)}
        self._recent: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def __getitem__(self, service: str) -> list[dict[str, Any]]:
        begin, end = self._places[service]
        if service not in self._recent:
            self._recent[service] = self._table.slice(begin, end - begin).to_pylist()
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return self._recent[service]

    def __contains__(self, service: object) -> bool:
        # That of a mapping would make the rows.
        return service in self._places

    def first(self, service: str) -> dict[str, Any]:
        """Return the first row of a service; an empty one if it has none."""
        begin, end = self._places.get(service, (0, 0))
        return next(iter(self._table.slice(begin, min(1, end - begin)).to_pylist()), {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __bool__(self) -> bool:
        return bool(self._places)

    def span(self, column: str) -> tuple[datetime, datetime] | None:
        """Return the first and the last time of a column."""
        ends = pc.min_max(self._table[column]).as_py()
        return None if ends["min"] is None else (ends["min"], ends["max"])
