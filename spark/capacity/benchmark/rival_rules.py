"""Rules for a bound of the coming peak: our own, and those that others use, to be measured side by side.

Each takes the five-minute peaks and the means of the past hours, oldest first, and returns one number.

Rules:
- *Highest of eight weeks*: the peak times a constant, the one-liner. 1.3 is our own (`peak_bound`).
- *Like VPA*: the recommender of Kubernetes' Vertical Pod Autoscaler: a histogram with a half-life of 24 hours, its 90 %
  or 95 % quantile, and 15 % on top. Here of hourly peaks, not in buckets.
- *Like Crane*: the 99 % quantile of the last seven days, and 15 % on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spark.capacity.planning.models import Floats
from spark.capacity.planning.peak_bound import bound, highest

Rule = Callable[[Floats, Floats, int], float]

HALF_LIFE_DAYS = 1.0
MARGIN = 1.15
CRANE_DAYS = 7


def _times(factor: float) -> Rule:
    return lambda peaks, means, day: highest(peaks, day) * factor


def _like_vpa(quantile: float) -> Rule:
    def rule(peaks: Floats, means: Floats, day: int) -> float:
        known = ~np.isnan(peaks)
        age = np.arange(len(peaks) - 1, -1, -1) / day
        values, weights = peaks[known], 0.5 ** (age[known] / HALF_LIFE_DAYS)
        order = np.argsort(values)
        reached = np.cumsum(weights[order]) / weights.sum()
        return float(values[order][np.searchsorted(reached, quantile)]) * MARGIN

    return rule


def _like_crane(peaks: Floats, means: Floats, day: int) -> float:
    recent = peaks[-CRANE_DAYS * day :]
    return float(np.nanquantile(recent if not np.isnan(recent).all() else peaks, 0.99)) * MARGIN


def _mean_times(factor: float) -> Rule:
    return lambda peaks, means, day: highest(means, day) * factor


RULES: Mapping[str, Rule] = {
    "highest five minutes of eight weeks x 1.3 (ours)": lambda peaks, means, day: bound(peaks, day),
    "highest five minutes of eight weeks x 1.2": _times(1.2),
    "highest five minutes of eight weeks x 1.5": _times(1.5),
    "highest hourly mean of eight weeks x 1.3": _mean_times(1.3),
    "like VPA, 90 %": _like_vpa(0.90),
    "like VPA, 95 %": _like_vpa(0.95),
    "like Crane, 99 % of seven days": _like_crane,
}
