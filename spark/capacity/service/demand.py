"""Service load: the demand of each service and what was there to meet it, for each hour.

Demand is the sum of the loads of the service's instances. When one is down its load is not reported, which must not
look like demand that fell; but if the others took its load over, it is in their reports, and must not be counted twice.

Rules:
- An instance that is known but reports no load (it is down, or it came back and has not reported yet) is filled in for
  a day at most. Who withdrew has no rows and is not filled in.
- What is filled in is the mean of the others at that time, times what the instance used to carry in relation to that
  mean just before it fell silent. So it follows the day's rise and fall. If no other reports, it is the instance's own
  last load.
- Of that, the share which the others took over is left out: how much the sum of those who were there before and after
  rose when it fell silent (from 15 to 10 minutes before until 10 minutes after), over what was lost in that moment, not
  less than nothing and not more than all. Demand that rises by itself in these minutes is taken for that too; the error
  is less than one provider's load, and the larger the service, the less that is.
- Five minutes count by how much of them the broker was up. An hour without a broker has no row: nothing is known of it.
- Capacity and use are told only where `full_load` is set.
"""

from datetime import date, timedelta
from typing import Any

import numpy as np

from spark.capacity.service.balance import spread
from spark.capacity.service.grids import Grid, last, maximum, mean_around, sum_known
from spark.capacity.tables.time_windows import ABSENCE, DAY, DIGITS, FIVE_MINUTES, Floats, midnight

LOOKBACK = timedelta(days=2)
"""What must be known of the time before: an absence lasts a day at most, and its beginning needs minutes before it."""

MEASURES = ("load_mean", "up_s", "down_s", "full_load", "broker_up_s", "requests")
"""What it is made of."""

HOUR = 12
"""Five minutes of an hour."""

HOURS = DAY // FIVE_MINUTES // HOUR

AWAY = ABSENCE // FIVE_MINUTES
"""Five minutes for which an instance is filled in."""


def service_load(grid: Grid, day: date) -> list[dict[str, Any]]:
    """Make the hours of a service on a date, from the five minutes of that date and of `LOOKBACK` before it."""
    demand = sum_known(filled(grid)[:, -HOURS * HOUR :])
    grid = grid.columns(-HOURS * HOUR)
    judged = grid["up_s"] + grid["down_s"]
    there = np.divide(grid["up_s"], judged, out=np.zeros_like(judged), where=judged > 0)
    providers, whole = there.sum(axis=0), (there >= 0.5).sum(axis=0)
    # The measure of fullness is the service's: an instance that has not reported yet has the same one.
    full = maximum(grid["full_load"].reshape(-1, HOUR * HOURS)).reshape(HOURS, HOUR)
    full_load = maximum(full.T)
    weight, requests, values = maximum(grid["broker_up_s"]), sum_known(grid["requests"]), _loads(grid)
    rows = []
    for hour in range(HOURS):
        places = np.arange(hour * HOUR, (hour + 1) * HOUR)
        places = places[weight[places] > 0]
        if not len(places):
            continue
        known = demand[places][~np.isnan(demand[places])]
        asked = requests[places][~np.isnan(requests[places])]
        mean, room = (_mean(one[places], weight[places]) for one in (demand, providers * full_load[hour]))
        row = {
            "date": day,
            "service": grid.service,
            "h": midnight(day) + hour * HOUR * FIVE_MINUTES,
            "demand_mean": mean,
            "demand_p95": _rounded(np.percentile(known, 95)) if len(known) else None,
            "capacity": room,
            "full_load": None if np.isnan(full_load[hour]) else float(full_load[hour]),
            "providers_mean": _mean(providers[places], weight[places]),
            "providers_min": int(whole[places].min()),
            "util": _rounded(mean / room) if mean is not None and room else None,
            "requests": int(asked.sum()) if len(asked) else None,
            **spread(values[:, hour][~np.isnan(values[:, hour])]),
        }
        rows.append(row)
    return rows


def filled(grid: Grid) -> Floats:
    """Return the loads of a service's instances: what is reported, or else what is filled in."""
    load, column = grid["load_mean"], np.arange(grid.there.shape[1])
    told = ~np.isnan(load)
    number, total = told.sum(axis=0), np.nansum(load, axis=0)
    mean = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
    others = total - load
    relative = np.divide(load * (number - 1), others, out=np.full_like(load, np.nan), where=others > 0)
    # The last five minutes before silence are half of it: the level is that of the ten minutes before them.
    level = last(np.where(told, _or(mean_around(load, -2, -1), load), np.nan))
    relation = last(np.where(told, _or(mean_around(relative, -2, -1), relative), np.nan))
    rise = np.where(told, mean_around(load, 0, 1) - mean_around(load, -3, -2), np.nan)
    seen = np.maximum.accumulate(np.where(told, column, -len(column)), axis=1)
    silent = grid.there & ~told & (seen >= 0) & (column - seen <= AWAY)
    first = silent & (column - seen == 1)
    risen, lost = np.nansum(rise, axis=0), np.where(first, level, 0.0).sum(axis=0)
    share = np.clip(np.divide(risen, lost, out=np.zeros(len(lost)), where=lost > 0), 0.0, 1.0)
    # What was taken over when a silence began holds for all of it.
    taken = np.take_along_axis(np.where(first, share, 0.0), np.clip(seen + 1, 0, len(column) - 1), axis=1)
    return np.where(silent, _or(relation * mean, level) * (1 - taken), load)


def _loads(grid: Grid) -> Floats:
    """Return the mean load of each instance in each hour, over the time that it was up, NaN where none is known."""
    shape = (len(grid.instances), HOURS, HOUR)
    up = np.where(np.isnan(grid["load_mean"]), 0.0, grid["up_s"]).reshape(shape)
    total, time = np.nansum(grid["load_mean"].reshape(shape) * up, axis=2), up.sum(axis=2)
    mean: Floats = np.divide(total, time, out=np.full_like(total, np.nan), where=time > 0)
    return np.round(mean, DIGITS)


def _or(values: Floats, otherwise: Floats) -> Floats:
    return np.where(np.isnan(values), otherwise, values)


def _mean(values: Floats, weight: Floats) -> float | None:
    """Return the weighted mean of what is known."""
    known = ~np.isnan(values)
    return _rounded((values[known] * weight[known]).sum() / weight[known].sum()) if known.any() else None


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)
