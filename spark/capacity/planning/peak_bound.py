"""The peak bound: a load that the demand of a service hardly exceeds, with the number of past moments at which it did.

Peaks are maxima of minutes, or of five where no minutes are known: one value for each step (an hour, as the jobs use
it), oldest first; NaN where nothing is known. Pure numpy: no Spark in here.

Rules:
- The bound of a horizon is the highest peak of the last week times a headroom, that of the history and the horizon
  (`headroom_of`), and at least the highest peak of the last `SPAN_DAYS` days. If the policy of the service has a
  headroom, the bound is the latter peak times that. Nothing in it is fitted to a service, so its past misses are those
  of a rule that did not see them.
- The bound of an hour is the highest peak of that hour of the week (of the day, while there are less than three weeks)
  and of the hours beside it in the last `SPAN_DAYS` days, times the headroom. It serves schedules and dates, and is
  never above the bound.
- The record of a service: the same rule at past moments, one horizon apart, each given only the data known then. With
  less than `FIRST` horizons of history the record looks a day ahead; with less than `FIRST` days there is none.
- The odds that the peak of the next day, or of the next week, is above the bound: a beta-binomial rate, whose prior is
  the pooled rate of public series, and whose data are the service's own past days or weeks. At each past moment the
  odds are those that would have been said then, so that the odds have a record of their own. With less than
  `ODDS_FROM_DAYS` of history nothing is said.
- The promise of the record is an upper limit: a rate of misses that is higher would have shown more of them on 19
  services of 20 (the one-sided limit of Clopper and Pearson).

docs/adr/0032, 0059, 0073 and 0075 have the measurements.
"""

import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from spark.capacity.planning.models import DAY, WEEK_DAYS, Floats, season_of

SPAN_DAYS = 56
"""Days of which the highest peak is taken: eight weeks hold eight weekly peaks."""

FIRST = 4
"""Horizons of history before the first moment of the record."""

LEVEL = 0.95
"""Of the upper limit."""


MOST_HEADROOM = 1.8
"""Beyond it the days after a history of less than a week had no fewer misses."""

ODDS_FROM_DAYS = 14
"""Days of history from which there are odds. After less the rates of public sets of series differ by more than a factor
of 2: of days after ten to fourteen days of history 6.3 % of servers' were above the bound, and 2.5 % of others'."""

WEIGHT_DAYS = 1_000
"""Days, in days or weeks, that a prior counts for. With each set of series left out of its priors, 3,000 had the same
log loss in four decimals and larger errors on the worst sets; with 400, services with a miss behind them were said 1.1
%, and had 0.2 %."""

OWN_WEIGHT_DAYS = 60
"""The same for a headroom of the policy, for which no prior was measured: the service's own days count soon."""


@attrs.frozen
class Ahead:
    """The headroom of a horizon, 1 + ``fall`` / weeks of history and at least ``least``, and the priors of its odds.

    A prior is the rate of days, or weeks, with a peak above the bound on 85 public series; that of days for histories
    of up to so many days. None: nothing is said of a week.
    """

    fall: float
    least: float
    day_priors: Sequence[tuple[float, float]]
    week_prior: float | None


A_DAY = Ahead(0.6, 1.15, ((56, 0.0128), (math.inf, 0.0065)), None)
"""A day ahead: 1.1 % of days had a peak above such a bound, at 0.87 of the cost of the highest peak of eight weeks
times 1.3, with 0.6 %. Of histories under 1, 2, 4, 8 and more weeks 0.9, 2.2, 1.3, 1.3 and 0.6 % had."""

A_WEEK = Ahead(0.6, 1.22, ((math.inf, 0.0074),), 0.0544)
"""A week ahead, and for longer: of histories under 2, 4, 8 and more weeks 6.2, 6.7, 6.6 and 4.1 % were followed by a
week with a peak above such a bound. With a least headroom of 1.2 it would be 5.8 % of all weeks instead of 5.5 %."""


@attrs.frozen
class Odds:
    """Odds that the peak of the next day or week is above the bound, and their record.

    ``said`` is the mean of the odds at ``trials`` past moments, of which ``missed`` had such a peak; None without any.
    """

    now: float
    trials: int
    missed: int
    said: float | None


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


@attrs.define
class ScheduleRecord:
    """Record of the bounds of hours in past weeks: ``hours_missed`` of ``hours_tried`` had a peak above theirs, in
    ``weeks_missed`` of ``weeks_tried``. The names are those of the columns."""

    hours_tried: int = 0
    hours_missed: int = 0
    weeks_tried: int = 0
    weeks_missed: int = 0


def highest_at(peaks: Floats, days: int = SPAN_DAYS, day: int = DAY) -> int | None:
    """Return the step of the highest peak of the last days, the first of equal ones; None if none is known.

    If no peak of these days is known, it is that of `SPAN_DAYS`, or of all.
    """
    for span in (days * day, SPAN_DAYS * day, len(peaks)):
        first = max(0, len(peaks) - span)
        if not np.isnan(peaks[first:]).all():
            return first + int(np.nanargmax(peaks[first:]))
    return None


def basis(
    peaks: Floats, day: int = DAY, headroom: float | None = None, horizon: int | None = None
) -> tuple[int, float] | None:
    """Return the step of the peak that the bound is made of, and its factor; None if no peak is known."""
    at, of_week = highest_at(peaks, day=day), highest_at(peaks, WEEK_DAYS, day)
    if at is None or of_week is None:
        return None
    if headroom:
        return at, headroom
    raised = headroom_of(len(peaks), day, horizon)
    return (of_week, raised) if _raised(peaks[of_week], raised) >= peaks[at] else (at, 1.0)


def ahead_of(horizon: int | None, day: int = DAY) -> Ahead:
    """Return the rule of a horizon in steps; None is a week."""
    return A_DAY if horizon is not None and horizon <= day else A_WEEK


def headroom_of(steps: int, day: int = DAY, horizon: int | None = None) -> float:
    """Return the headroom after so many steps of history."""
    rule, weeks = ahead_of(horizon, day), min(steps, SPAN_DAYS * day) / (WEEK_DAYS * day)
    return min(MOST_HEADROOM, max(rule.least, 1.0 + rule.fall / weeks)) if weeks else MOST_HEADROOM


def _raised(value: Floats | float, headroom: float) -> Floats:
    return np.asarray(value + (headroom - 1.0) * np.abs(value))


def bound(peaks: Floats, day: int = DAY, headroom: float | None = None, horizon: int | None = None) -> float:
    """Return the bound of a horizon that begins where the peaks end; NaN where nothing is known."""
    made_of = basis(peaks, day, headroom, horizon)
    return math.nan if made_of is None else float(_raised(peaks[made_of[0]], made_of[1]))


def by_hour(peaks: Floats, horizon: int, day: int = DAY, headroom: float | None = None) -> Floats:
    """Return the bound of each step of the horizon; NaN where nothing is known."""
    season, most = season_of(len(peaks), day), bound(peaks, day, headroom, horizon)
    headroom = headroom or headroom_of(len(peaks), day, horizon)
    recent = peaks[-SPAN_DAYS * day :]
    ahead = -(-len(recent) // season) * season - len(recent)
    seasons = np.concatenate([np.full(ahead, np.nan), recent]).reshape(-1, season)
    slots = np.fmax.reduce(seasons, axis=0, initial=np.nan)
    near = np.fmax(np.fmax(np.roll(slots, 1), np.roll(slots, -1)), slots)
    raised = np.where(np.isnan(near), most, np.minimum(_raised(near, headroom), most))
    # The history ends with the last slot of a season.
    return np.resize(raised, horizon)


def record(peaks: Floats, horizon: int, day: int = DAY, headroom: float | None = None) -> Record:
    """Return the misses of the bound at past moments."""
    ahead = horizon if len(peaks) >= (FIRST + 1) * horizon else day
    past = list(past_bounds(peaks, ahead, FIRST * ahead, day, headroom, horizon))
    ratios = [said / peak for _, said, peak in past if peak > 0.0]
    missed = sum(said < peak for _, said, peak in past)
    return Record(len(past), missed, ahead if past else 0, float(np.median(ratios)) if ratios else math.nan)


def odds(
    peaks: Floats, day: int = DAY, headroom: float | None = None, days: int = 1, horizon: int | None = None
) -> Odds:
    """Return the odds of the next day, or of the next ``days``: a week. With less than `ODDS_FROM_DAYS` of history they
    are NaN, and so are those of a week with a shorter ``horizon`` of the bound."""
    if len(peaks) < ODDS_FROM_DAYS * day or (days > 1 and ahead_of(horizon, day).week_prior is None):
        return Odds(math.nan, 0, 0, None)
    past = past_odds(peaks, day, headroom, days, horizon)
    missed = sum(miss for _, miss in past)
    said = sum(each for each, _ in past) / len(past) if past else None
    return Odds(_rate(len(peaks), len(past), missed, days, day, horizon, headroom), len(past), missed, said)


def past_odds(
    peaks: Floats, day: int = DAY, headroom: float | None = None, days: int = 1, horizon: int | None = None
) -> list[tuple[float, bool]]:
    """Return the odds that would have been said at each past moment, and whether the peak that came was above the
    bound."""
    made: list[tuple[float, bool]] = []
    missed = 0
    for origin, said, peak in past_bounds(peaks, days * day, ODDS_FROM_DAYS * day, day, headroom, horizon):
        miss = said < peak
        made.append((_rate(origin, len(made), missed, days, day, horizon, headroom), miss))
        missed += miss
    return made


def schedule_record(peaks: Floats, day: int = DAY, headroom: float | None = None) -> ScheduleRecord:
    """Return the hours of past weeks, and the weeks, with a peak above the bound of the hour."""
    week, made = WEEK_DAYS * day, ScheduleRecord()
    for origin in range(len(peaks) - week, week - 1, -week):
        before, came = peaks[:origin], peaks[origin : origin + week]
        known = ~np.isnan(came)
        if known.any() and not np.isnan(before).all():
            above = int((came[known] > by_hour(before, week, day, headroom)[known]).sum())
            made.hours_tried += int(known.sum())
            made.hours_missed += above
            made.weeks_tried += 1
            made.weeks_missed += above > 0
    return made


def past_bounds(
    peaks: Floats, ahead: int, first: int, day: int, headroom: float | None, horizon: int | None
) -> Iterator[tuple[int, float, float]]:
    """Yield past moments from the step ``first`` on, the last of them ``ahead`` steps before the end, and as many from
    one to the next: the step, the bound that would have been said then, and the peak of the steps ahead.

    Moments before or after which nothing is known are left out.
    """
    for origin in reversed(range(len(peaks) - ahead, first - 1, -ahead)):
        came, before = peaks[origin : origin + ahead], peaks[:origin]
        if not np.isnan(came).all() and not np.isnan(before).all():
            yield origin, bound(before, day, headroom, horizon), float(np.nanmax(came))


def _rate(
    history: int, trials: int, missed: int, days: int, day: int, horizon: int | None, headroom: float | None
) -> float:
    """Return the rate of times of so many ``days`` with a peak above the bound, after a history and a record."""
    rule = ahead_of(horizon, day)
    by_history = next(rate for until, rate in rule.day_priors if history < until * day)
    prior = by_history if days == 1 or rule.week_prior is None else rule.week_prior
    weight = (OWN_WEIGHT_DAYS if headroom else WEIGHT_DAYS) / days
    return (prior * weight + missed) / (weight + trials)


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
