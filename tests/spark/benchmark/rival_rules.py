"""Rules for a bound of the coming peak: our own, and those that others use, to be measured side by side.

Each takes what is known of the past hours, oldest first, and returns one number.

Rules:
- *Highest of eight weeks*: the peak times a constant, the one-liner. *By the history* is our own (`peak_bound`).
- *Like VPA*: the recommender of Kubernetes' Vertical Pod Autoscaler: a histogram with a half-life of 24 hours, its 90 %
  or 95 % quantile, and 15 % on top. Here of hourly peaks, not in buckets.
- *Like Crane*: the 99 % quantile of the last seven days, and 15 % on top.
- *Like AWS*: predictive scaling forecasts hours from two weeks. Here the mean of each hour of the day, the highest of
  them, and the 10 % on top that its users often choose (`MaxCapacityBuffer`).
- *Coarser*: the one-liner for half hours, and for hours, shows what finer peaks are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from spark.capacity.planning.models import Floats
from spark.capacity.planning.peak_bound import bound


@attrs.frozen(eq=False)
class Known:
    """The past of a series by steps, ``day`` of which make a day: finest peaks, highest half hours, means.

    ``horizon`` is the number of steps to come.
    """

    peaks: Floats
    half_hours: Floats
    means: Floats
    day: int
    horizon: int


Rule = Callable[[Known], float]

HALF_LIFE_DAYS = 1.0
MARGIN = 1.15
CRANE_DAYS = 7
AWS_DAYS, AWS_BUFFER = 14, 1.1


def _times(factor: float) -> Rule:
    return lambda known: bound(known.peaks, known.day, factor)


def _by_history(of: Callable[[Known], Floats]) -> Rule:
    return lambda known: bound(of(known), known.day, horizon=known.horizon)


def _like_vpa(quantile: float) -> Rule:
    def rule(known: Known) -> float:
        peaks, there = known.peaks, ~np.isnan(known.peaks)
        age = np.arange(len(peaks) - 1, -1, -1) / known.day
        values, weights = peaks[there], 0.5 ** (age[there] / HALF_LIFE_DAYS)
        order = np.argsort(values)
        reached = np.cumsum(weights[order]) / weights.sum()
        return float(values[order][np.searchsorted(reached, quantile)]) * MARGIN

    return rule


def _like_crane(known: Known) -> float:
    recent = known.peaks[-CRANE_DAYS * known.day :]
    return float(np.nanquantile(recent if not np.isnan(recent).all() else known.peaks, 0.99)) * MARGIN


def _like_aws(known: Known) -> float:
    days = known.means[-(min(AWS_DAYS * known.day, len(known.means)) // known.day) * known.day :].reshape(-1, known.day)
    hours = np.nansum(days, axis=0) / np.maximum(1, (~np.isnan(days)).sum(axis=0))
    return float(hours.max()) * AWS_BUFFER


RULES: Mapping[str, Rule] = {
    "highest five minutes, by the history (ours)": _by_history(lambda known: known.peaks),
    "highest five minutes of eight weeks x 1.2": _times(1.2),
    "highest five minutes of eight weeks x 1.3": _times(1.3),
    "highest five minutes of eight weeks x 1.5": _times(1.5),
    "highest half hour, by the history": _by_history(lambda known: known.half_hours),
    "highest hourly mean, by the history": _by_history(lambda known: known.means),
    "like VPA, 90 %": _like_vpa(0.90),
    "like VPA, 95 %": _like_vpa(0.95),
    "like Crane, 99 % of seven days": _like_crane,
    "like AWS, hours of 14 days": _like_aws,
}
