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

from spark.capacity.service.grids import HOUR, Service
from spark.capacity.tables.time_windows import DIGITS, WINDOWS, Floats


def spread(values: Floats) -> dict[str, float | None]:
    """Return cov, max_mean and gini of values; None where there are no values, or all are zero.

    With the values x in order, the Gini coefficient is 2 sum(i x) / (n sum(x)) - (n + 1) / n, i from 1.
    """
    total, count = float(values.sum()), len(values)
    if total <= 0:
        return dict.fromkeys(("cov", "max_mean", "gini"))
    mean, ranked = total / count, float((np.sort(values) * np.arange(1, count + 1)).sum())
    gini = 2 * ranked / (count * total) - (count + 1) / count
    found = {"cov": float(values.std()) / mean, "max_mean": float(values.max()) / mean, "gini": gini}
    return {name: round(value, DIGITS) for name, value in found.items()}


HOT = 1.5
"""Times the even share from which an instance is hot. A plan at 70 % of full load is full at 1.43 times the mean."""

UNEVEN = 0.3
"""The coefficient of variation from which a service is unbalanced: random choice of providers stays near 0.1."""

MEASURES = ("load_mean",)
"""Input columns."""


def balance(service: Service, day: date) -> list[dict[str, Any]]:
    """Make the day of a service from the five minutes of its providers: one row, or none."""
    slices = service.each(lambda grid: grid)
    number, total = np.zeros(WINDOWS, np.int64), np.zeros(WINDOWS)
    for grid in slices:
        number += (~np.isnan(grid["load_mean"])).sum(axis=0)
        total += np.nansum(grid["load_mean"], axis=0)
    compared = (number > 1) & (total > 0)
    mean = total[compared] / number[compared]
    shares, hot = np.zeros(0), list[str]()
    for grid in slices:
        load = grid["load_mean"][:, compared]
        windows = (~np.isnan(load)).sum(axis=1)
        there = windows >= HOUR
        of_slice = np.round(np.nansum(load[there] / mean, axis=1) / windows[there], DIGITS)
        shares = np.append(shares, of_slice)
        hot += np.array(grid.instances, object)[there][of_slice >= HOT].tolist()
    if len(shares) < 2:
        return []
    known = spread(shares)
    uneven = known["cov"] is not None and known["cov"] >= UNEVEN
    row = {
        "date": day,
        "service": service.name,
        **known,
        "hot_instances": sorted(hot),
        "unbalanced": uneven or bool(hot),
    }
    return [row]
