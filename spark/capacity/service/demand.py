"""Service load: the demand of each service and the providers that were there to meet it, for each hour.

Demand is the sum of the loads of the service's instances. When one is down its load is not reported, which must not
look like demand that fell; but if the others took its load over, it is in their reports, and must not be counted twice
(`silences`).

Rules:
- A window counts each instance by the share of the broker's time for which it was up, for load, providers and capacity
  alike: five instances of a minute each, one after the other, are one provider.
- Windows count by how much of them the broker was up. An hour without a broker has no row: nothing is known of it.
- `demand_max` is the highest window of the hour; windows of which the broker saw less than `SEEN` do not count for it.
- `demand_peak` is the highest minute of the hour, in the same windows: that of `demand_max` where no minutes are known,
  and never less (`Rises`).
- Capacity and use are given only where `full_load` is set.
"""

from datetime import date, timedelta
from typing import Any

import numpy as np

from spark.capacity.service.balance import spread
from spark.capacity.service.grids import HOUR, SUM, Grid, Service, added, maximum
from spark.capacity.service.silences import Instances, Sums, demand_of
from spark.capacity.tables.time_windows import DIGITS, FIVE_MINUTES, MINUTES, WINDOWS, Flags, Floats, midnight

LOADS = tuple(f"{SUM}load_{number + 1}" for number in range(MINUTES))
"""Sums of the loads in each minute of a window."""


class Rises:
    """The minutes of all instances of a service, on the date: by how much the demand of a window
    rose above its mean, in the highest of its minutes.

    - The loads of the instances that have minutes are added up. The rise of the service is theirs, above their mean in
      the window; all others count as even.
    - Load that moves between instances is no rise. If one starts, ends, or is not up all the time, others may have had
      its load for some minutes: those before its start, those after its end, and those until a silent one counts as
      down. So the load of instances that came or went is taken off, in that window and in those beside it.
    - Without a rise the five minutes stand: a peak of minutes is never below one of windows.
    """

    def __init__(self) -> None:
        self._loads = np.full((MINUTES, WINDOWS), np.nan)
        self._moved = np.zeros(WINDOWS)

    def add(self, some: Instances) -> None:
        """Add instances."""
        grid = some.grid.columns(-WINDOWS)
        self._loads = added(self._loads, np.concatenate([grid[name] for name in LOADS]))
        self._moved += _moved(some)

    def highest(self) -> Floats:
        """Return by how much the highest minute of each window exceeds the mean of the window; never negative."""
        rise = self._loads.max(axis=0) - (self._loads / MINUTES).sum(axis=0)
        known: Floats = np.nan_to_num(rise)
        return np.maximum(known - self._moved, 0.0)


def _moved(some: Instances) -> Floats:
    """Return the load of instances that came or went in a window or beside it: the highest of the three windows."""
    first = -WINDOWS - 1
    load = some.load[:, first:]
    there = some.told[:, first:] & (some.grid["up_s"][:, first:] >= some.grid["broker_up_s"][:, first:])
    settled: Flags = np.fmin.reduce(_beside(there.astype(np.float64)), axis=0) > 0
    moved: Floats = np.where(settled, 0.0, np.nan_to_num(maximum(_beside(load)))).sum(axis=0)
    return moved


def _beside(values: Floats) -> Floats:
    """Return each window but the first, with the one before it and the one after it, NaN where there is none."""
    after = np.full((len(values), 1), np.nan)
    return np.stack([values[:, 1:], values[:, :-1], np.append(values[:, 2:], after, axis=1)])


LOOKBACK = timedelta(days=2)
"""Minutes needed of the time before: an absence lasts a day at most, and its beginning needs minutes before it."""

REQUESTS = ("+requests", "+errors", "+busy_s", "+timed")
"""Sums of the requests that providers report."""

IN_FLIGHT = "+in_flight"

MEASURES = ("load_mean", "up_s", "down_s", "awaited_s", "full_load", "broker_up_s", *REQUESTS, IN_FLIGHT, *LOADS)
"""Input columns."""

HOURS = WINDOWS // HOUR

WIDTH = WINDOWS * (LOOKBACK.days + 1)
"""Five minutes of a grid: the last ones are those of the date."""

SEEN = 60.0
"""Seconds of a window that the broker must have been up for it to be the hour's highest: the loads of less than a
minute after a broker's start are those of the first providers to return."""


class Hours:
    """Sums and maxima over all instances of a service on the date, and the load of each in each hour."""

    def __init__(self) -> None:
        self.providers = np.zeros(WINDOWS)
        self.full, self.broker_up = np.full(WINDOWS, np.nan), np.full(WINDOWS, np.nan)
        self.reports = {name: np.full(WINDOWS, np.nan) for name in (*REQUESTS, IN_FLIGHT)}
        self.loads = [np.zeros((0, HOURS))]
        self.rises = Rises()

    def add(self, some: Instances) -> None:
        """Add instances."""
        grid = some.grid.columns(-WINDOWS)
        self.providers += some.up[:, -WINDOWS:].sum(axis=0)
        self.full = np.fmax(self.full, maximum(grid["full_load"]))
        self.broker_up = np.fmax(self.broker_up, maximum(grid["broker_up_s"]))
        for name, total in self.reports.items():
            self.reports[name] = added(total, grid[name][0])
        self.loads.append(_loads(grid))
        self.rises.add(some)


def service_load(service: Service, day: date) -> list[dict[str, Any]]:
    """Return the hours of a service on a date, from the windows of that date and of `LOOKBACK` before it."""
    slices = service.each(Instances)
    sums, of_date = Sums(WIDTH), Hours()
    for some in slices:
        sums.add(some)
        of_date.add(some)
    demand = demand_of(slices, sums)[-WINDOWS:]
    # The measure of fullness is the service's: an instance that has not reported yet has the same one.
    full_load = maximum(of_date.full.reshape(HOURS, HOUR).T)
    weight, providers = of_date.broker_up, of_date.providers
    asked = {name.removeprefix(SUM): of_date.reports[name] for name in REQUESTS}
    in_flight, highest = of_date.reports[IN_FLIGHT], demand + of_date.rises.highest()
    loads = np.concatenate(of_date.loads)
    rows = []
    for hour in range(HOURS):
        places = np.arange(hour * HOUR, (hour + 1) * HOUR)
        places = places[weight[places] > 0]
        if not len(places):
            continue
        known = _known(demand[places])
        seen = places[(weight[places] >= SEEN) & ~np.isnan(demand[places])]
        told = {name: _known(sums[places]) for name, sums in asked.items()}
        of_hour = {name: float(sums.sum()) for name, sums in told.items() if len(sums)}
        mean, room = (_mean(one[places], weight[places]) for one in (demand, providers * full_load[hour]))
        row = {
            "date": day,
            "service": service.name,
            "h": midnight(day) + hour * HOUR * FIVE_MINUTES,
            "demand_mean": mean,
            "demand_p95": _rounded(np.percentile(known, 95)) if len(known) else None,
            "demand_max": _rounded(demand[seen].max()) if len(seen) else mean,
            "demand_peak": _rounded(highest[seen].max()) if len(seen) else mean,
            "capacity": room,
            "full_load": None if np.isnan(full_load[hour]) else float(full_load[hour]),
            "providers_mean": _mean(providers[places], weight[places]),
            "providers_min": int(providers[places].min() + 0.5),
            "util": _rounded(mean / room) if mean is not None and room else None,
            "requests": int(of_hour["requests"]) if "requests" in of_hour else None,
            "errors": int(of_hour["errors"]) if "errors" in of_hour else None,
            "service_s": _rounded(of_hour["busy_s"] / of_hour["timed"]) if of_hour.get("timed") else None,
            "in_flight": _mean(in_flight[places], weight[places]),
            "observed_s": _rounded(weight[places].sum()),
            **spread(_known(loads[:, hour])),
        }
        rows.append(row)
    return rows


def _loads(grid: Grid) -> Floats:
    """Return the mean load of each instance in each hour, over the time that it was up, NaN where none is known."""
    shape = (len(grid.instances), HOURS, HOUR)
    up = np.where(np.isnan(grid["load_mean"]), 0.0, grid["up_s"]).reshape(shape)
    total, time = np.nansum(grid["load_mean"].reshape(shape) * up, axis=2), up.sum(axis=2)
    mean: Floats = np.divide(total, time, out=np.full_like(total, np.nan), where=time > 0)
    return np.round(mean, DIGITS)


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _mean(values: Floats, weight: Floats) -> float | None:
    """Return the weighted mean of the known values."""
    known = ~np.isnan(values)
    return _rounded((values[known] * weight[known]).sum() / weight[known].sum()) if known.any() else None


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)
