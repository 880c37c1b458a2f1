"""Balance: the spread of the load of a service over its providers, for each day.

Rules:
- An instance's share is its load over the mean of its service in the same five minutes, averaged over the day: a
  provider that runs at night only is not compared with those at noon.
- Only five minutes in which two instances or more reported a load count, and only instances with an hour of them.
- An instance is hot when its share is one and a half times its even one. A service is unbalanced when it has a hot
  instance, or when the shares' standard deviation is 0.3 of their mean: then many are uneven, but none by much.
- A day on which no service has two such instances has no row for it: one provider cannot be uneven.
"""

from datetime import date
from typing import Any

import numpy as np

from spark.capacity.service.grids import Grid, Service
from spark.capacity.tables.time_windows import DAY, DIGITS, FIVE_MINUTES, Floats

KEPT = 16_384
"""Values, or means of merged ones, that are kept: 6 MB for the hours of a day."""


class Spread:
    """The spread of values, some of which are added at a time.

    - Up to `KEPT` values are kept, and the spread is exact.
    - Of more, count, mean, variance and maximum are exact. For the Gini coefficient neighbours are merged into their
      mean. They differ little: the coefficient of a million values is off by less than a millionth of the ratio of the
      maximum to the mean.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._limit = most
        self._values, self._weights = np.zeros(0), np.zeros(0)
        self._squares = self._mean = 0.0
        self._most = -np.inf
        self.count = 0

    @property
    def kept(self) -> int:
        """The number of values, or means of merged ones, that are kept."""
        return len(self._values)

    def add(self, values: Floats) -> None:
        """Add values, all of which are known."""
        if not len(values):
            return
        mean, so_far = float(values.mean()), self.count
        self.count += len(values)
        # The sum of squares around the mean, by Chan's formula: it does not cancel out.
        apart = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + apart**2 * so_far * len(values) / self.count
        self._mean += apart * len(values) / self.count
        self._most = max(self._most, float(values.max()))
        self._values = np.append(self._values, values)
        self._weights = np.append(self._weights, np.ones(len(values)))
        if len(self._values) > self._limit:
            self._merge()

    def _merge(self) -> None:
        """Merge the values into half as many as may be kept, each of the same weight as far as that is possible."""
        order = np.argsort(self._values)
        values, weights = self._values[order], self._weights[order]
        group = ((np.cumsum(weights) - weights) * (self._limit // 2) // self.count).astype(np.int64)
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        self._weights = np.add.reduceat(weights, begins)
        self._values = np.add.reduceat(values * weights, begins) / self._weights

    def told(self) -> dict[str, float | None]:
        """Return cov, max_mean and gini; nothing where there are no values, or all are zero.

        With the values x in order, the Gini coefficient is 2 sum(i x) / (n sum(x)) - (n + 1) / n, i from 1; of a
        merged value i is the mean of the numbers of its values.
        """
        total = float((self._values * self._weights).sum())
        if total <= 0:
            return {"cov": None, "max_mean": None, "gini": None}
        order = np.argsort(self._values)
        values, weights = self._values[order], self._weights[order]
        ranked = float((values * weights * (np.cumsum(weights) - (weights - 1) / 2)).sum())
        found = {
            "cov": (self._squares / self.count) ** 0.5 / self._mean,
            "max_mean": self._most / self._mean,
            "gini": 2 * ranked / (self.count * total) - (self.count + 1) / self.count,
        }
        return {name: round(value, DIGITS) for name, value in found.items()}


def spread(values: Floats) -> dict[str, float | None]:
    """Return the spread of values."""
    made = Spread()
    made.add(values)
    return made.told()


HOT = 1.5
"""Times the even share from which an instance is hot. A plan at 70 % of full load is full at 1.43 times the mean."""

UNEVEN = 0.3
"""The coefficient of variation from which a service is unbalanced: random choice of providers stays near 0.1."""

HOUR = 12
"""Five minutes in an hour: fewer make no average."""

WINDOWS = DAY // FIVE_MINUTES

MEASURES = ("load_mean",)
"""Input columns."""


def balance(service: Service, day: date) -> list[dict[str, Any]]:
    """Make the day of a service from the five minutes of its providers: one row, or none."""
    slices = service.each(_itself)
    number, total = np.zeros(WINDOWS, np.int64), np.zeros(WINDOWS)
    for grid in slices:
        number += (~np.isnan(grid["load_mean"])).sum(axis=0)
        total += np.nansum(grid["load_mean"], axis=0)
    compared = (number > 1) & (total > 0)
    mean = total[compared] / number[compared]
    shares, hot = Spread(), list[str]()
    for grid in slices:
        load = grid["load_mean"][:, compared]
        windows = (~np.isnan(load)).sum(axis=1)
        there = windows >= HOUR
        of_slice = np.round(np.nansum(load[there] / mean, axis=1) / windows[there], DIGITS)
        shares.add(of_slice)
        hot += np.array(grid.instances, object)[there][of_slice >= HOT].tolist()
    if shares.count < 2:
        return []
    known = shares.told()
    uneven = known["cov"] is not None and known["cov"] >= UNEVEN
    row = {
        "date": day,
        "service": service.name,
        **known,
        "hot_instances": sorted(hot),
        "unbalanced": uneven or bool(hot),
    }
    return [row]


def _itself(grid: Grid) -> Grid:
    return grid
