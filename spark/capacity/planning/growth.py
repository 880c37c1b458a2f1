"""Growth: the trend of the weekly peaks of a service, and the week from which the providers of now are too few by it.

Rules:
- A week's peak is its highest minute; weeks are counted back from the time of the plan. If an hour of an older table is
  among them, which has no minutes, all peaks are of five minutes: finer ones are higher, and would look like growth.
- The first week of a service's history counts for the growth only if it is whole: the peak of a part of a week is
  lower, and the next week would look like growth.
- The growth is the Theil-Sen slope of the last `WEEKS` weekly peaks, which a single week does not bend. With less than
  `FEWEST` known weeks there is none.
- The date is the first of the coming `WEEKS` weeks in which the level, with the headroom of the policy on
  top, needs more than there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs
import numpy as np

from spark.capacity.tables.schema import PEAKS

WEEK = timedelta(weeks=1)

WEEKS = 13
"""A quarter of a year, back and ahead: no purchase is made for later, and the slope does not hold for longer."""

FEWEST = 4
"""Of three weeks, one is a third of the slope."""


@attrs.frozen
class Growth:
    """The peak of the last week by the trend, and its change from week to week."""

    level: float
    slope: float

    def in_weeks(self, number: int) -> float:
        """Return the weekly peak so many weeks later, if the growth goes on."""
        return max(0.0, self.level + self.slope * number)

    @property
    def share(self) -> float | None:
        """Return the growth of a week as a share of the level."""
        return self.slope / self.level if self.level > 0.0 else None


def finest(hour: Mapping[str, Any], names: Sequence[str] = PEAKS) -> float | None:
    """Return the finest peak of an hour that is known."""
    return next((hour[name] for name in names if hour.get(name) is not None), None)


def weekly_peaks(hours: Iterable[Mapping[str, Any]], issued: datetime) -> list[float | None]:
    """Return the peaks of the last `WEEKS` weeks of a service, oldest first; None for a week without a known hour."""
    # A week that has just ended is number -1.
    weeks = [((row["h"] - issued) // WEEK, row) for row in hours]
    known = [(week, row) for week, row in weeks if -WEEKS <= week < 0 and finest(row) is not None]
    names = PEAKS[any(row.get(PEAKS[0]) is None for _, row in known) :]
    peaks: dict[int, float] = {}
    for week, row in known:
        peaks[week] = max(finest(row, names) or 0.0, peaks.get(week, 0.0))
    return [peaks.get(week) for week in range(-WEEKS, 0)]


def whole_weeks(hours: Iterable[Mapping[str, Any]], issued: datetime) -> int:
    """Return the number of whole weeks since the first hour of a service that is known."""
    first = min((row["h"] for row in hours if finest(row) is not None), default=issued)
    return max(0, (issued - first) // WEEK)


def growth(peaks: Sequence[float | None], whole: int = WEEKS) -> Growth | None:
    """Return the growth of a service, from the peaks of its weeks, oldest first; the last week has just ended.

    Only the last ``whole`` of them count.
    """
    first = len(peaks) - whole
    known = [(n - len(peaks), peak) for n, peak in enumerate(peaks) if n >= first and peak is not None]
    if len(known) < FEWEST:
        return None
    weeks, values = np.array(known).T
    earlier, later = np.triu_indices(len(weeks), 1)
    slope = float(np.median((values[later] - values[earlier]) / (weeks[later] - weeks[earlier])))
    return Growth(float(np.median(values - slope * (weeks + 1))), slope)
