"""Spread: how unevenly values are distributed, of values that come some at a time.

Rules:
- Up to `KEPT` values are kept, and the spread is exact.
- Of more, count, mean, variance and maximum are exact. For the Gini coefficient neighbours are merged into their mean.
  They differ little: the coefficient of a million values is off by less than a millionth of the ratio of the maximum
  to the mean.
"""

import numpy as np

from spark.capacity.tables.time_windows import DIGITS, Floats

KEPT = 16_384
"""Values, or means of merged ones, that are kept: 6 MB for the hours of a day."""


class Spread:
    """The spread of values, some of which are added at a time."""

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
