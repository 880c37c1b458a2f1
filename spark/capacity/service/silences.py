"""Silences: the loads that are filled in for instances which are known, but report none.

Rules:
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
  Each new instance replaces one at most, and nothing is filled in for a replaced one. If more fell silent at the same
  time than appeared, each of them is replaced in part: it is unknown which of them it was.

Sums over all instances come first, and then what is filled in. So some instances can be looked at together, whatever
the number of a service's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from spark.capacity.service.grids import Grid, added, last, mean_around, sum_known
from spark.capacity.tables.time_windows import ABSENCE, FIVE_MINUTES, Floats, Ints

AWAY = ABSENCE // FIVE_MINUTES
"""Windows for which an instance is filled in."""

BEFORE, AFTER = 3, 1
"""Windows before and after the end of an instance in which a new one may appear to replace it: with a surge it is
started some minutes before, and without one it may take some minutes to start."""

End = tuple[int, int]
"""The end of an instance: the column in which its last silence began, and the one in which that shows first."""


def presence(grid: Grid, *kinds: str) -> Floats:
    """Return the share of the broker's time for which each instance was in one of some states, window by window."""
    spent, time = sum(np.nan_to_num(grid[kind]) for kind in kinds), np.nan_to_num(grid["broker_up_s"])
    return np.clip(np.divide(spent, time, out=np.zeros_like(time), where=time > 0), 0.0, 1.0)


class Sums:
    """Sums over all instances of a service, window by window."""

    def __init__(self, width: int) -> None:
        self.total, self.number = np.zeros(width), np.zeros(width)
        """The load that is reported, and by how many instances."""
        self._risen, self._lost = np.zeros(width), np.zeros(width)
        self._new, self._ends = np.zeros(width + 1, np.int64), Counter[End]()
        """The instances that appeared in each column, and those of each end."""

    def add(self, some: "Instances") -> None:
        """Add instances."""
        total, number = some.carries()
        risen, lost = some.moves()
        self.total, self.number = self.total + total, self.number + number
        self._risen, self._lost = self._risen + risen, self._lost + lost
        self._new += np.bincount(some.appeared, minlength=len(self._new))
        self._ends.update(zip(some.ended.tolist(), some.shown.tolist(), strict=True))

    def taken_over(self) -> Floats:
        """Return the share of the load that fell silent in each window which the others took over."""
        share = np.divide(self._risen, self._lost, out=np.zeros(len(self._lost)), where=self._lost > 0)
        return np.clip(share, 0.0, 1.0)

    def replaced(self) -> dict[End, float]:
        """Return the share of the instances of each end that new ones replaced."""
        left, column = self._new.copy(), 0
        made = {}
        for end, count in sorted(self._ends.items()):
            ended, shown = end
            column, free = max(column, ended - BEFORE), count
            while free and column <= min(shown + AFTER, len(left) - 1):
                used = min(free, int(left[column]))
                left[column] -= used
                free -= used
                column += not left[column]
            made[end] = (count - free) / count
        return made


class Instances:
    """Some instances of a service, each with its own reports."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.load, self.there = grid, grid["load_mean"], grid.there
        self.told = ~np.isnan(self.load)
        self.up, self.down = presence(grid, "up_s", "awaited_s"), presence(grid, "down_s")
        self.absent = presence(grid, "up_s", "awaited_s", "down_s")
        # Of an instance that is not there it is known that it carries nothing.
        self.carried = np.where(self.told, self.load * self.up, np.where(self.there, np.nan, 0.0))
        column = np.arange(self.load.shape[1])
        self.seen = np.maximum.accumulate(np.where(self.told, column, -len(column)), axis=1)
        self.silent = self.there & ~self.told & (self.seen >= 0) & (column - self.seen <= AWAY)
        self.first = self.silent & (column - self.seen == 1)
        self._find_ends()

    def _find_ends(self) -> None:
        """Find the columns in which instances appeared, the last silences, and the columns of these (`End`)."""
        # One that began in the last window shows in the column behind it.
        there = np.append(self.there, (self.down[:, -1:] > 0) & self.told[:, -1:], axis=1)
        appeared = there.argmax(axis=1)
        self.appeared: Ints = appeared[appeared > 0]
        last_told = self.seen[:, -1]
        away = there & (np.arange(there.shape[1]) > last_told[:, np.newaxis]) & (last_told >= 0)[:, np.newaxis]
        self.rows: Ints = np.flatnonzero(away.any(axis=1))
        # While the broker is away there are no rows: the silence shows after its return.
        self.ended: Ints = last_told[self.rows] + 1
        self.shown: Ints = away.argmax(axis=1)[self.rows]

    def carries(self) -> tuple[Floats, Floats]:
        """Return the load that is reported in each window, and by how many instances."""
        return np.nansum(np.where(self.told, self.carried, 0.0), axis=0), np.where(self.told, self.up, 0.0).sum(axis=0)

    def moves(self) -> tuple[Floats, Floats]:
        """Return by how much others rose in each window, and how much fell silent in it."""
        before = mean_around(np.where(self.told, self.carried, np.nan), -2, -1)
        share_of = last(np.where(self.told, _or(before, self.carried), np.nan))
        rise = np.where(self.told, mean_around(self.carried, 0, 1) - mean_around(self.carried, -3, -2), np.nan)
        return np.nansum(rise, axis=0), np.where(self.first, share_of, 0.0).sum(axis=0)

    def filled(self, sums: Sums, share: Floats, replaced: Mapping[End, float]) -> Floats:
        """Return the part of each instance in the demand: the reported load, or else the filled one."""
        total, number = sums.total, sums.number
        mean = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
        others = total - np.where(self.told, self.carried, 0.0)
        relative = self.load * (number - self.up)
        relative = np.divide(relative, others, out=np.full_like(self.load, np.nan), where=self.told & (others > 0))
        # The last five minutes before silence are half of it: the level is that of the ten minutes before them.
        level = last(np.where(self.told, _or(mean_around(self.load, -2, -1), self.load), np.nan))
        relation = last(np.where(self.told, _or(mean_around(relative, -2, -1), relative), np.nan))
        # The share that was taken over when a silence began holds for all of it.
        taken = np.append(np.where(self.first, share, 0.0), np.zeros((len(self.load), 1)), axis=1)
        part = np.array([replaced[end] for end in zip(self.ended.tolist(), self.shown.tolist(), strict=True)])
        taken[self.rows, self.ended] += part * (1 - taken[self.rows, self.ended])
        of_silence = np.take_along_axis(taken, np.clip(self.seen + 1, 0, len(total)), axis=1)
        fill = _or(relation * mean, level) * (1 - of_silence) * self.absent
        # A window in which an instance fell silent, or came back, has both kinds of time.
        there = np.where(self.told, self.load * (self.up + self.down * (1 - taken[:, 1:])), np.nan)
        return np.where(self.silent, fill, there)


def demand_of(parts: Iterable[Instances], sums: Sums) -> Floats:
    """Return the demand of each window: the sum of reported and filled loads, NaN where none is known."""
    share, replaced = sums.taken_over(), sums.replaced()
    demand = np.full(len(share), np.nan)
    for some in parts:
        demand = added(demand, sum_known(some.filled(sums, share, replaced)))
    return demand


def _or(values: Floats, otherwise: Floats) -> Floats:
    return np.where(np.isnan(values), otherwise, values)
