"""Service load: the demand of each service and the providers that were there to meet it, for each hour.

Demand is the sum of the loads of the service's instances. When one is down its load is not reported, which must not
look like demand that fell; but if the others took its load over, it is in their reports, and must not be counted twice.

Rules:
- A window counts each instance by the share of the broker's time for which it was up, for load, providers and capacity
  alike: five instances of a minute each, one after the other, are one provider.
- An instance that is known but reports no load (it is down, or it came back and has not reported yet) is filled in for
  a day at most. An instance that withdrew has no rows and is not filled in.
- The filled load is the mean of the others at that time, times the load that the instance carried in relation to that
  mean just before it fell silent. So it follows the day's rise and fall. If no other reports, it is the instance's own
  last load.
- The share which the others took over is left out: the rise of the sum of those that were there before and after, or
  are new, when it fell silent (from 15 to 10 minutes before until 10 minutes after), over the load lost in that moment,
  between nothing and all. Demand that rises by itself in these minutes is taken for that too; the error is less than
  one provider's load, and the larger the service, the less that is.
- An instance that never comes back, and beside whose end a new one appeared, is replaced by it: a rolling deployment.
  Each new instance replaces one at most, and nothing is filled in for a replaced one.
- Windows count by how much of them the broker was up. An hour without a broker has no row: nothing is known of it.
- `demand_max` is the highest window of the hour; windows of which the broker saw less than `SEEN` do not count for it.
- Capacity and use are told only where `full_load` is set.
"""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from spark.capacity.service.balance import spread
from spark.capacity.service.grids import Grid, last, maximum, mean_around, sum_known
from spark.capacity.tables.time_windows import ABSENCE, DAY, DIGITS, FIVE_MINUTES, Flags, Floats, midnight

LOOKBACK = timedelta(days=2)
"""Minutes needed of the time before: an absence lasts a day at most, and its beginning needs minutes before it."""

REQUESTS = ("+requests", "+errors", "+busy_s", "+timed")
"""Sums of the requests that providers report."""

MEASURES = ("load_mean", "up_s", "down_s", "awaited_s", "full_load", "broker_up_s", *REQUESTS, "+in_flight")
"""Input columns."""

HOUR = 12
"""Five minutes of an hour."""

HOURS = DAY // FIVE_MINUTES // HOUR

AWAY = ABSENCE // FIVE_MINUTES
"""Windows for which an instance is filled in."""

CHUNK = 1000
"""Instances that are looked at together: some 100 MB of intermediate results."""

BEFORE, AFTER = 3, 1
"""Windows before and after the end of an instance in which a new one may appear to replace it: with a surge it is
started some minutes before, and without one it may take some minutes to start."""

SEEN = 60.0
"""Seconds of a window that the broker must have been up for it to be the hour's highest: the loads of less than a
minute after a broker's start are those of the first providers to return."""


def service_load(grid: Grid, day: date) -> list[dict[str, Any]]:
    """Return the hours of a service on a date, from the windows of that date and of `LOOKBACK` before it."""
    demand = demand_of(grid)[-HOURS * HOUR :]
    grid = grid.columns(-HOURS * HOUR)
    providers = presence(grid, "up_s", "awaited_s").sum(axis=0)
    # The measure of fullness is the service's: an instance that has not reported yet has the same one.
    full = maximum(grid["full_load"].reshape(-1, HOUR * HOURS)).reshape(HOURS, HOUR)
    full_load = maximum(full.T)
    weight, values = maximum(grid["broker_up_s"]), _loads(grid)
    asked = {name.removeprefix("+"): grid[name][0] for name in REQUESTS}
    in_flight = grid["+in_flight"][0]
    rows = []
    for hour in range(HOURS):
        places = np.arange(hour * HOUR, (hour + 1) * HOUR)
        places = places[weight[places] > 0]
        if not len(places):
            continue
        known = _known(demand[places])
        seen = demand[places][(weight[places] >= SEEN) & ~np.isnan(demand[places])]
        told = {name: _known(sums[places]) for name, sums in asked.items()}
        of_hour = {name: float(sums.sum()) for name, sums in told.items() if len(sums)}
        mean, room = (_mean(one[places], weight[places]) for one in (demand, providers * full_load[hour]))
        row = {
            "date": day,
            "service": grid.service,
            "h": midnight(day) + hour * HOUR * FIVE_MINUTES,
            "demand_mean": mean,
            "demand_p95": _rounded(np.percentile(known, 95)) if len(known) else None,
            "demand_max": _rounded(seen.max()) if len(seen) else mean,
            "capacity": room,
            "full_load": None if np.isnan(full_load[hour]) else float(full_load[hour]),
            "providers_mean": _mean(providers[places], weight[places]),
            "providers_min": int(providers[places].min() + 0.5),
            "util": _rounded(mean / room) if mean is not None and room else None,
            "requests": int(of_hour["requests"]) if "requests" in of_hour else None,
            "errors": int(of_hour["errors"]) if "errors" in of_hour else None,
            "service_s": _rounded(of_hour["busy_s"] / of_hour["timed"]) if of_hour.get("timed") else None,
            "in_flight": _mean(in_flight[places], weight[places]),
            **spread(values[:, hour][~np.isnan(values[:, hour])]),
        }
        rows.append(row)
    return rows


def presence(grid: Grid, *kinds: str) -> Floats:
    """Return the share of the broker's time for which each instance was in one of some states, window by window."""
    spent, time = sum(np.nan_to_num(grid[kind]) for kind in kinds), np.nan_to_num(grid["broker_up_s"])
    return np.clip(np.divide(spent, time, out=np.zeros_like(time), where=time > 0), 0.0, 1.0)


class Part:
    """Some instances of a service, each with its own reports."""

    def __init__(self, grid: Grid, replaced: Sequence[tuple[int, int]]) -> None:
        self.load, self.there, self.replaced = grid["load_mean"], grid.there, replaced
        self.told = ~np.isnan(self.load)
        self.up, self.down = presence(grid, "up_s", "awaited_s"), presence(grid, "down_s")
        self.absent = presence(grid, "up_s", "awaited_s", "down_s")
        # Of an instance that is not there it is known that it carries nothing.
        self.carried = np.where(self.told, self.load * self.up, np.where(self.there, np.nan, 0.0))
        column = np.arange(self.load.shape[1])
        self.seen = np.maximum.accumulate(np.where(self.told, column, -len(column)), axis=1)
        self.silent = self.there & ~self.told & (self.seen >= 0) & (column - self.seen <= AWAY)
        self.first = self.silent & (column - self.seen == 1)

    def carries(self) -> tuple[Floats, Floats]:
        """Return the load that is told in each window, and by how many instances."""
        return np.nansum(np.where(self.told, self.carried, 0.0), axis=0), np.where(self.told, self.up, 0.0).sum(axis=0)

    def moves(self) -> tuple[Floats, Floats]:
        """Return by how much others rose in each window, and how much fell silent in it."""
        before = mean_around(np.where(self.told, self.carried, np.nan), -2, -1)
        share_of = last(np.where(self.told, _or(before, self.carried), np.nan))
        rise = np.where(self.told, mean_around(self.carried, 0, 1) - mean_around(self.carried, -3, -2), np.nan)
        return np.nansum(rise, axis=0), np.where(self.first, share_of, 0.0).sum(axis=0)

    def filled(self, total: Floats, number: Floats, share: Floats) -> Floats:
        """Return the part of each instance in the demand: the reported load, or else the filled one."""
        mean = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
        others = total - np.where(self.told, self.carried, 0.0)
        relative = self.load * (number - self.up)
        relative = np.divide(relative, others, out=np.full_like(self.load, np.nan), where=self.told & (others > 0))
        # The last five minutes before silence are half of it: the level is that of the ten minutes before them.
        level = last(np.where(self.told, _or(mean_around(self.load, -2, -1), self.load), np.nan))
        relation = last(np.where(self.told, _or(mean_around(relative, -2, -1), relative), np.nan))
        # The share that was taken over when a silence began holds for all of it.
        taken = np.append(np.where(self.first, share, 0.0), np.zeros((len(self.load), 1)), axis=1)
        for row, place in self.replaced:
            taken[row, place] = 1.0
        of_silence = np.take_along_axis(taken, np.clip(self.seen + 1, 0, len(total)), axis=1)
        fill = _or(relation * mean, level) * (1 - of_silence) * self.absent
        # A window in which an instance fell silent, or came back, has both kinds of time.
        there = np.where(self.told, self.load * (self.up + self.down * (1 - taken[:, 1:])), np.nan)
        return np.where(self.silent, fill, there)


def demand_of(grid: Grid) -> Floats:
    """Return the demand of each window: the sum of reported and filled loads, NaN where none is known.

    Some instances at a time, so that the memory is that of the grid and little more, whatever the service.
    """
    told = ~np.isnan(grid["load_mean"])
    replaced = _replaced(grid.there, told, presence(grid.columns(-1), "down_s"))
    begins = range(0, len(told), CHUNK)

    def part(begin: int) -> Part:
        mine = [(row - begin, place) for row, place in replaced if begin <= row < begin + CHUNK]
        return Part(grid.rows(begin, begin + CHUNK), mine)

    # One part is kept; several are made again for each step.
    kept = part(0) if len(begins) == 1 else None

    def parts() -> Iterator[Part]:
        return (part(begin) if kept is None else kept for begin in begins)

    total, number = (np.sum(sums, axis=0) for sums in zip(*(one.carries() for one in parts()), strict=True))
    risen, lost = (np.sum(sums, axis=0) for sums in zip(*(one.moves() for one in parts()), strict=True))
    share = np.clip(np.divide(risen, lost, out=np.zeros(len(lost)), where=lost > 0), 0.0, 1.0)
    return sum_known(np.array([sum_known(one.filled(total, number, share)) for one in parts()]))


def _replaced(there: Flags, told: Flags, down: Floats) -> list[tuple[int, int]]:
    """Return the last silences, as rows and first columns, beside which a new instance each appeared.

    One that began in the last window, of which ``down`` tells the share of down time, has the column behind it.
    """
    there = np.append(there, (down > 0) & told[:, -1:], axis=1)
    told = np.append(told, np.zeros((len(told), 1), bool), axis=1)
    column = np.arange(there.shape[1])
    appeared = np.where(there.any(axis=1), there.argmax(axis=1), 0)
    new = sorted(appeared[appeared > 0].tolist())
    last_told = np.where(told, column, -1).max(axis=1)
    away = there & (column > last_told[:, None]) & (last_told >= 0)[:, None]
    # While the broker is away there are no rows: the silence shows after its return.
    shown = away.argmax(axis=1).tolist()
    made = []
    for row in sorted(np.flatnonzero(away.any(axis=1)).tolist(), key=lambda row: (int(last_told[row]), shown[row])):
        place = int(last_told[row]) + 1
        while new and new[0] < place - BEFORE:
            new.pop(0)
        if new and new[0] <= shown[row] + AFTER:
            new.pop(0)
            made.append((row, place))
    return made


def _loads(grid: Grid) -> Floats:
    """Return the mean load of each instance in each hour, over the time that it was up, NaN where none is known."""
    shape = (len(grid.instances), HOURS, HOUR)
    up = np.where(np.isnan(grid["load_mean"]), 0.0, grid["up_s"]).reshape(shape)
    total, time = np.nansum(grid["load_mean"].reshape(shape) * up, axis=2), up.sum(axis=2)
    mean: Floats = np.divide(total, time, out=np.full_like(total, np.nan), where=time > 0)
    return np.round(mean, DIGITS)


def _or(values: Floats, otherwise: Floats) -> Floats:
    return np.where(np.isnan(values), otherwise, values)


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _mean(values: Floats, weight: Floats) -> float | None:
    """Return the weighted mean of the known values."""
    known = ~np.isnan(values)
    return _rounded((values[known] * weight[known]).sum() / weight[known].sum()) if known.any() else None


def _rounded(value: float) -> float:
    return round(float(value), DIGITS)
