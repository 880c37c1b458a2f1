"""Grids: the five minutes of a service's instances, a row for each instance and a column for each five minutes.

The jobs between the rollup and the forecasts look at one service at a time, and need some dates of it at most.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from zlib import crc32

import attrs
import numpy as np

from spark.capacity.tables.column_reader import batches, codes, micros, real
from spark.capacity.tables.time_windows import DAY, FIVE_MINUTES, Flags, Floats, Ints, midnight

COLUMNS = ("service", "instance", "w")

SUM = "+"
"""Before the name of a measure of which only the sum over all instances is kept: one row, whatever their number."""


@attrs.frozen
class Grid:
    """Some measures of the table of five minutes, NaN where nothing is known; `there` tells which rows there are."""

    service: str
    instances: Sequence[str]
    there: Flags
    measures: dict[str, Floats]
    """Of an array that has a sum, there is one row."""

    def __getitem__(self, measure: str) -> Floats:
        return self.measures[measure]

    def columns(self, first: int) -> "Grid":
        """Return the columns from some place on."""
        measures = {name: values[:, first:] for name, values in self.measures.items()}
        return Grid(self.service, self.instances, self.there[:, first:], measures)

    def rows(self, first: int, last: int) -> "Grid":
        """Return some instances; sums stay those of all."""
        measures = {
            name: values if name.startswith(SUM) else values[first:last] for name, values in self.measures.items()
        }
        return Grid(self.service, self.instances[first:last], self.there[first:last], measures)


@attrs.frozen
class Share:
    """The services of a task: one of so many shares of them."""

    number: int
    of: int

    def has(self, service: str) -> bool:
        """Return True if a service is in it."""
        return crc32(service.encode()) % self.of == self.number


class _Rows:
    """Rows of a service, as they are read."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.parts: list[tuple[Ints, Ints, dict[str, Floats]]] = []

    def add(self, instance: Ints, names: Sequence[str], place: Ints, measures: dict[str, Floats]) -> None:
        for number in np.unique(instance).tolist():
            self.numbers.setdefault(names[number], len(self.numbers))
        row = np.array([self.numbers.get(name, -1) for name in names], np.int64)[instance]
        self.parts.append((row, place, measures))

    def grid(self, service: str, measures: Sequence[str], width: int) -> Grid:
        shape = (len(self.numbers), width)
        there = np.zeros(shape, bool)
        made = {name: np.full((1, width) if name.startswith(SUM) else shape, np.nan) for name in measures}
        for row, place, told in self.parts:
            there[row, place] = True
            for name, values in told.items():
                if name.startswith(SUM):
                    known = ~np.isnan(values)
                    total = made[name][0]
                    total[place[known & np.isnan(total[place])]] = 0.0
                    np.add.at(total, place[known], values[known])
                else:
                    made[name][row, place] = values
        order = sorted(self.numbers, key=self.numbers.__getitem__)
        return Grid(service, order, there, made)


def grids(files: Sequence[str], measures: Sequence[str], first: date, last: date, share: Share) -> Iterator[Grid]:
    """Read the five minutes of services, from one date to another."""
    begin, width = midnight(first), (midnight(last) + DAY - midnight(first)) // FIVE_MINUTES
    found: dict[str, _Rows] = {}
    names_of = {name: name.removeprefix(SUM) for name in measures}
    for batch in batches(files, (*COLUMNS, *names_of.values())):
        (service, services), (instance, names) = codes(batch["service"]), codes(batch["instance"])
        place = (micros(batch["w"]) - begin) // FIVE_MINUTES
        inside = (place >= 0) & (place < width)
        told = {name: real(batch[column]) for name, column in names_of.items()}
        for number, name in enumerate(services):
            rows = np.flatnonzero(inside & (service == number)) if share.has(name) else ()
            if len(rows):
                mine = {measure: values[rows] for measure, values in told.items()}
                found.setdefault(name, _Rows()).add(instance[rows], names, place[rows], mine)
    for name in sorted(found):
        yield found.pop(name).grid(name, measures, width)


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
    """Return at each place of a row the mean of the known values from so many places on to so many."""
    total, number = np.zeros_like(values), np.zeros_like(values)
    for step in range(first, last + 1):
        moved = _moved(values, step)
        total += np.nan_to_num(moved)
        number += ~np.isnan(moved)
    return np.divide(total, number, out=np.full_like(values, np.nan), where=number > 0)


def _moved(values: Floats, step: int) -> Floats:
    moved = np.full_like(values, np.nan)
    if step < 0:
        moved[:, -step:] = values[:, :step]
    else:
        moved[:, : values.shape[1] - step] = values[:, step:]
    return moved
