"""Balance: the spread of the load of a service over its providers, for each day.

Rules:
- An instance's share is its load over the mean of its service in the same five minutes, averaged over the day: a
  provider of the night only is not compared with those of noon.
- Only five minutes in which two instances or more reported a load count, and only instances with an hour of them.
- An instance is hot when its share is one and a half times its even one. A service is unbalanced when it has a hot
  instance, or when the shares' standard deviation is 0.3 of their mean: then many are uneven, but none by much.
- A day on which no service has two such instances has no row for it: one provider cannot be uneven.
"""

from datetime import date
from typing import Any

import numpy as np

from spark.capacity.service.grids import Grid
from spark.capacity.tables.time_windows import DIGITS, Floats

HOT = 1.5
"""Times the even share from which an instance is hot. A plan at 70 % of full load is full at 1.43 times the mean."""

UNEVEN = 0.3
"""The coefficient of variation from which a service is unbalanced: random choice of providers stays near 0.1."""

HOUR = 12
"""Five minutes in an hour: fewer make no average."""


MEASURES = ("load_mean",)
"""Input columns."""


def balance(grid: Grid, day: date) -> list[dict[str, Any]]:
    """Make the day of a service from the five minutes of its providers: one row, or none."""
    load = grid["load_mean"]
    number, total = (~np.isnan(load)).sum(axis=0), np.nansum(load, axis=0)
    compared = load[:, (number > 1) & (total > 0)]
    mean = (total / np.maximum(number, 1))[(number > 1) & (total > 0)]
    windows = (~np.isnan(compared)).sum(axis=1)
    there = windows >= HOUR
    shares = np.round(np.nansum(compared[there] / mean, axis=1) / windows[there], DIGITS)
    if len(shares) < 2:
        return []
    known = spread(shares)
    names = np.array(grid.instances, object)[there]
    hot = sorted(names[shares >= HOT].tolist())
    uneven = known["cov"] is not None and known["cov"] >= UNEVEN
    row = {"date": day, "service": grid.service, **known, "hot_instances": hot, "unbalanced": uneven or bool(hot)}
    return [row]


def spread(values: Floats) -> dict[str, float | None]:
    """Return the spread of values: cov, max_mean and gini; nothing where there are none, or all are zero.

    With the values x in order, the Gini coefficient is 2 sum(i x) / (n sum(x)) - (n + 1) / n, i from 1.
    """
    n, total = len(values), values.sum()
    if total <= 0:
        return {"cov": None, "max_mean": None, "gini": None}
    ranked = (np.arange(1, n + 1) * np.sort(values)).sum()
    found = {
        "cov": values.std() / values.mean(),
        "max_mean": values.max() / values.mean(),
        "gini": 2 * ranked / (n * total) - (n + 1) / n,
    }
    return {name: round(float(value), DIGITS) for name, value in found.items()}
