"""Rows of tables as Python values, in which None is unknown: their numbers, and the rows of each service."""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Row = Mapping[str, Any]


def number_of(row: Row, name: str) -> float | None:
    """Return a number; None where it is not known, or is the sum of loads that is larger than any number."""
    value = row.get(name)
    return float(value) if value is not None and math.isfinite(value) else None


def mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def highest_of(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def grouped(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    """Return the rows of each value of a column, or of each tuple of the values of several."""
    key, found = itemgetter(*names), defaultdict[Any, list[Row]](list)
    for row in rows:
        found[key(row)].append(row)
    return found


RECENT = 8
"""Services whose rows are kept: a page asks for those of one service again and again."""


class RowsByService(Mapping[str, list[dict[str, Any]]]):
    """A table with services and hours, as a mapping from service to rows in the order of their hours.

    Rows are made when they are asked for: ten thousand services' rows would not fit into memory.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table.sort_by([("service", "ascending"), ("h", "ascending")])
        names = pc.run_end_encode(self._table["service"].combine_chunks())
        self._places = dict(zip(names.values.to_pylist(), pairwise([0, *names.run_ends.to_pylist()]), strict=True))
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

    def span(self, column: str) -> tuple[datetime, datetime] | None:
        """Return the first and the last time of a column."""
        ends = pc.min_max(self._table[column]).as_py()
        return None if ends["min"] is None else (ends["min"], ends["max"])
