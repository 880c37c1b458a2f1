"""Minutes of a service: by how much the demand of a window rose above its mean, in the highest of its minutes.

Rules:
- The loads of the instances that have minutes are added up. What they rise by, above their mean in the window, is the
  rise of the service; all others count as even.
- Load that moves between instances is no rise. If one starts, ends, or is not up all the time, others may have had its
  load for some minutes: those before its start, those after its end, and those until a silent one counts as down. So
  the load of instances that came or went is taken off, in that window and in those beside it.
- Without a rise the five minutes stand: a peak of minutes is never below one of windows.
"""

import numpy as np

from spark.capacity.service.grids import SUM, added, maximum
from spark.capacity.service.silences import Instances
from spark.capacity.tables.time_windows import MINUTES, Flags, Floats

LOADS = tuple(f"{SUM}load_{number + 1}" for number in range(MINUTES))
"""Sums of the loads in each minute of a window."""


class Rises:
    """The minutes of all instances of a service, in the last windows of their grids."""

    def __init__(self, windows: int) -> None:
        self._windows = windows
        self._loads = np.full((MINUTES, windows), np.nan)
        self._moved = np.zeros(windows)

    def add(self, some: Instances) -> None:
        """Add instances."""
        grid = some.grid.columns(-self._windows)
        self._loads = added(self._loads, np.concatenate([grid[name] for name in LOADS]))
        self._moved += _moved(some, self._windows)

    def highest(self) -> Floats:
        """Return the rise of the highest minute of each window: nothing, or more than that."""
        rise = self._loads.max(axis=0) - (self._loads / MINUTES).sum(axis=0)
        known: Floats = np.nan_to_num(rise)
        return np.maximum(known - self._moved, 0.0)


def _moved(some: Instances, windows: int) -> Floats:
    """Return the load of instances that came or went in a window or beside it: the highest of the three windows."""
    first = -windows - 1
    load = some.load[:, first:]
    there = some.told[:, first:] & (some.grid["up_s"][:, first:] >= some.grid["broker_up_s"][:, first:])
    settled: Flags = np.fmin.reduce(_beside(there.astype(np.float64)), axis=0) > 0
    moved: Floats = np.where(settled, 0.0, np.nan_to_num(maximum(_beside(load)))).sum(axis=0)
    return moved


def _beside(values: Floats) -> Floats:
    """Return each window but the first, with the one before it and the one after it, NaN where there is none."""
    after = np.full((len(values), 1), np.nan)
    return np.stack([values[:, 1:], values[:, :-1], np.append(values[:, 2:], after, axis=1)])
