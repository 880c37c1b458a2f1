"""The peak bound: a load that the demand of a service hardly exceeds, with the number of past moments at which it did.

Peaks are maxima of minutes, or of five where no minutes are known: one value for each step (an hour, as the jobs use
it), oldest first; NaN where nothing is known. Pure numpy: no Spark in here.

Rules:
- The bound of a horizon is the highest peak of the last `SPAN_DAYS` days times a headroom, `HEADROOM` unless the policy
  of the service has another. Nothing in it is fitted to a service, so its past misses are those of a rule that did not
  see them.
- The bound of an hour is made in the same way of the peaks of that hour of the week (of the day, while there are less
  than three weeks) and of the hours beside it. It serves schedules and dates, and is never above the bound.
- The record of a service: the same rule at past moments, one horizon apart, each given only the data known then. With
  less than `FIRST` horizons of history the record looks a day ahead; with less than `FIRST` days there is none.
- The odds that the peak of the next day is above the bound: a beta-binomial rate, whose prior is the pooled rate of
  public series with as long a history, and whose data are the service's own past days. On each past day the odds are
  those that would have been said then, so that the odds have a record of their own. No odds are said of a week ahead:
  two public series of months are too few to calibrate them.
- The promise of the record is an upper limit: a rate of misses that is higher would have shown more of them on 19
  services of 20 (the one-sided limit of Clopper and Pearson).

No rule with more in it was clearly better; docs/adr/0032 has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from spark.capacity.planning.models import DAY, Floats, season_of

HEADROOM = 1.3
"""Over the highest peak: on the first 60 % of 19 public series the bound then was missed at 3 of 86 horizons."""

SPAN_DAYS = 56
"""Days of which the highest peak is taken: eight weeks hold eight weekly peaks."""

FIRST = 4
"""Horizons of history before the first moment of the record."""

LEVEL = 0.95
"""Of the upper limit."""


PRIORS = ((14, 0.055), (math.inf, 0.007))
"""Pooled rates of days with a peak above the bound, by the days of history up to which they hold: 13 of 250 and 1 of
255 on 20 public series, each counted with half a miss more. Longer histories are those of few series."""

WEIGHT = 40.0
"""Days that a prior counts for. The weights 2, 5, 10, 20 and 40 were compared with each series left out of its priors,
and this one had the least log loss: odds below 1 % (0.6 % on average) came on 0.5 % of 221 days, odds of 4 to 8 %
(5.3 %) on 4.1 % of 245."""


@attrs.frozen
class Odds:
    """Odds that the peak of the next day is above the bound, and their record on past days.

    ``said`` is the mean of the odds on ``trials`` past days, of which ``missed`` had such a peak; NaN without any.
    """

    now: float
    trials: int
    missed: int
    said: float


@attrs.frozen
class Record:
    """Record of the bound at past moments: misses, and cost, bound by peak, in the median.

    ``ahead`` is the horizon of the record in steps; 0 where there is none.
    """

    trials: int
    missed: int
    ahead: int
    over: float

    @property
    def at_most(self) -> float:
        """The rate of misses that the record leaves possible."""
        return upper_limit(self.missed, self.trials)


def highest(peaks: Floats, day: int = DAY) -> float:
    """Return the highest peak that the bound looks at; NaN if none is known."""
    known = peaks[~np.isnan(peaks)]
    recent = peaks[-SPAN_DAYS * day :]
    recent = recent[~np.isnan(recent)]
    if len(recent):
        return float(recent.max())
    return float(known.max()) if len(known) else math.nan


def _raised(value: Floats | float, headroom: float) -> Floats:
    return np.asarray(value + (headroom - 1.0) * np.abs(value))


def bound(peaks: Floats, day: int = DAY, headroom: float = HEADROOM) -> float:
    """Return the bound of any horizon that begins where the peaks end; 0 where nothing is known."""
    top = highest(peaks, day)
    return 0.0 if math.isnan(top) else float(_raised(top, headroom))


def by_hour(peaks: Floats, horizon: int, day: int = DAY, headroom: float = HEADROOM) -> Floats:
    """Return the bound of each step of the horizon."""
    season, most = season_of(len(peaks), day), bound(peaks, day, headroom)
    recent = peaks[-SPAN_DAYS * day :]
    ahead = -(-len(recent) // season) * season - len(recent)
    seasons = np.concatenate([np.full(ahead, np.nan), recent]).reshape(-1, season)
    slots = np.fmax.reduce(seasons, axis=0, initial=np.nan)
    near = np.fmax(np.fmax(np.roll(slots, 1), np.roll(slots, -1)), slots)
    raised = np.where(np.isnan(near), most, np.minimum(_raised(near, headroom), most))
    # The history ends with the last slot of a season.
    return np.resize(raised, horizon)


def record(peaks: Floats, horizon: int, day: int = DAY, headroom: float = HEADROOM) -> Record:
    """Look back: how often would the bound have been missed?"""
    ahead = horizon if len(peaks) >= (FIRST + 1) * horizon else day
    past = list(_past(peaks, ahead, FIRST * ahead, day, headroom))
    ratios = [said / peak for _, said, peak in past if peak > 0.0]
    missed = sum(said < peak for _, said, peak in past)
    return Record(len(past), missed, ahead if past else 0, float(np.median(ratios)) if ratios else math.nan)


def odds(peaks: Floats, day: int = DAY, headroom: float = HEADROOM) -> Odds:
    """Return the odds of the next day."""
    past = past_odds(peaks, day, headroom)
    missed = sum(miss for _, miss in past)
    said = sum(each for each, _ in past) / len(past) if past else math.nan
    return Odds(_rate(len(peaks) / day, len(past), missed), len(past), missed, said)


def past_odds(peaks: Floats, day: int = DAY, headroom: float = HEADROOM) -> list[tuple[float, bool]]:
    """Return the odds that would have been said on each past day, and whether its peak was above the bound."""
    made: list[tuple[float, bool]] = []
    missed = 0
    for origin, said, peak in _past(peaks, day, 1, day, headroom):
        miss = said < peak
        made.append((_rate(origin / day, len(made), missed), miss))
        missed += miss
    return made


def _past(peaks: Floats, ahead: int, first: int, day: int, headroom: float) -> Iterator[tuple[int, float, float]]:
    """Yield past moments from the step ``first`` on, the last of them ``ahead`` steps before the end, and as many from
    one to the next: the step, the bound that would have been said then, and the peak of the steps ahead.

    Moments before or after which nothing is known are left out.
    """
    for origin in reversed(range(len(peaks) - ahead, first - 1, -ahead)):
        came, before = peaks[origin : origin + ahead], peaks[:origin]
        if not np.isnan(came).all() and not np.isnan(before).all():
            yield origin, bound(before, day, headroom), float(np.nanmax(came))


def _rate(days: float, trials: int, missed: int) -> float:
    """Return the rate of days above the bound, after so many of history and such a record."""
    prior = next(rate for until, rate in PRIORS if days < until)
    return (prior * WEIGHT + missed) / (WEIGHT + trials)


def upper_limit(missed: int, trials: int, level: float = LEVEL) -> float:
    """Return the highest rate with which so few misses are not rarer than 1 - level; 1 where nothing was tried."""
    if missed >= trials:
        return 1.0
    # Logarithms: the binomial coefficients of some thousand trials are larger than a float can be.
    counts = np.arange(missed + 1)
    ways = np.concatenate(([0.0], np.cumsum(np.log((trials - counts[:-1]) / counts[1:]))))
    low, high = 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2.0
        few = float(np.exp(ways + counts * math.log(rate) + (trials - counts) * math.log1p(-rate)).sum())
        low, high = (rate, high) if few > 1.0 - level else (low, rate)
    return high
