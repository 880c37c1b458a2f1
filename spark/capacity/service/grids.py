"""Grids: the five minutes of instances, a row for each instance and a column for each five minutes.

The jobs between the rollup and the forecasts look at one service at a time, and need some dates of it at most. A
service comes in slices of its instances, so that the memory of a task does not depend on their number.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import numpy as np

from spark.capacity.tables.time_windows import Flags, Floats

SUM = "+"
"""Before the name of a measure of which only the sum over the instances is kept: one row, whatever their number."""

HOUR = 12
"""Five minutes of an hour."""

T = TypeVar("T")


@attrs.frozen
class Grid:
    """Some measures of the table of five minutes, NaN where nothing is known; `there` tells which rows there are."""

    instances: Sequence[str]
    there: Flags
    measures: dict[str, Floats]
    """Of an array that has a sum, there is one row."""

    def __getitem__(self, measure: str) -> Floats:
        return self.measures[measure]

    def columns(self, first: int) -> "Grid":
        """Return the columns from some place on."""
        measures = {name: values[:, first:] for name, values in self.measures.items()}
        return Grid(self.instances, self.there[:, first:], measures)


@attrs.frozen
class Service:
    """A service, as the slices of its instances. Each instance is in one of them."""

    name: str
    whole: Grid | None
    """The only slice of a small service. It is kept."""
    read: Callable[[], Iterator[Grid]]
    """Reads the slices; those of a large service again at each call."""

    def each(self, make: Callable[[Grid], T]) -> Iterable[T]:
        """Return a value of each slice. They can be iterated over several times.

        Of a small service they are made once; of a large one each iteration makes them again, one at a time.
        """
        return _Again(self, make) if self.whole is None else [make(self.whole)]


class _Again(Iterable[T]):
    """Values that each iteration makes again, so that none is kept."""

    def __init__(self, service: Service, make: Callable[[Grid], T]) -> None:
        self._service, self._make = service, make

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._service.read())


def added(values: Floats, others: Floats) -> Floats:
    """Add two arrays; where one value is unknown, the sum is the other one."""
    return np.where(np.isnan(values), others, values + np.nan_to_num(others))


def sum_known(values: Floats) -> Floats:
    """Add up the rows of known values; of none the sum is not known."""
    total: Floats = np.nansum(values, axis=0)
    return np.where(np.isnan(values).all(axis=0), np.nan, total)


def maximum(values: Floats) -> Floats:
    """Return the greatest of each column that is known."""
    most: Floats = np.fmax.reduce(values, axis=0, initial=np.nan)
    return most


def last(values: Floats) -> Floats:
    """Return at each place of a row the last that was known."""
    column = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(values.shape[1])), axis=1)
    return np.where(column < 0, np.nan, np.take_along_axis(values, np.maximum(column, 0), axis=1))


def mean_around(values: Floats, first: int, last: int) -> Floats:
    """Return at each place of a row the mean of the known values from so many places on to so many.

    ``first`` is not above 0.
    """
    total, number = np.zeros_like(values), np.zeros_like(values)
    padded = np.pad(values, ((0, 0), (max(0, -first), max(0, last))), constant_values=np.nan)
    for step in range(last - first + 1):
        there = padded[:, step : step + values.shape[1]]
        total += np.nan_to_num(there)
        number += ~np.isnan(there)
    return np.divide(total, number, out=np.full_like(values, np.nan), where=number > 0)
