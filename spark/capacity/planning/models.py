"""Forecasting models for the demand of one service, and which of them is believed. Pure numpy: no Spark in here.

A series is one value for each step (an hour, as the jobs use it), oldest first; NaN where nothing is known.

Rules:
- The season is a week where there are at least `SEASONS` weeks of history, else a day.
- The floor is the seasonal naive model: the last season again. Another model replaces it only if it won on past folds
  of this very series: on `FEWEST_FOLDS` of them at least, by `MARGIN` in total, and in `WON` of the folds one by one.
- The load since the last whole fold began is looked at as well, in *looks* that end with the history and begin at one
  step of the folds after the other. A model that was worse than the floor there is not believed, whatever it did
  before: the load has become another.
- The winner does not replace all of it: a `HEDGE` of every model is the floor. So it is judged, and so it speaks.
- A fold is a moment of the past: the models see the data known then, and are judged by the outcome. Folds begin every
  day (every half day where the horizon is a day), and reach back `FOLD_DAYS` days.
- With less than two horizons of history to judge by, the folds look less far ahead than the forecast; that is flagged.
- p50 is the model's own forecast. p95 is p50 and the 95 % quantile of the excess of the folds' steps.
- The quality in a forecast (MASE, coverage) was achieved on the past folds by which the model was chosen,
  so it flatters a little. For p95 each fold was given only folds that had ended when it began.
- The bound on which a plan is made is not in here: `peak_bound`.
- Under `SEASONS` seasons there is nothing to choose by: the seasonal naive model, flagged. Under one season: the last
  value, flagged. Both are better than no answer, and neither should be believed for long.
- Gaps are filled from the same step of the season before, else by a line between their ends, for the models only: no
  error is counted in a step of which nothing is known.
- Forecasts do not fall below the lowest value seen, or 0 if that is lower: load is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Values of a series, or of a forecast."""

DAY = 24
"""Steps of a day, where a step is an hour."""

WEEK_DAYS = 7

SEASONS = 3
"""Fewer seasons than this leave, after the two that a model needs to begin with, none to be judged by."""

PROFILE_SEASONS = 4
"""Seasons in a mean profile: enough to halve the noise of one, and few enough to follow a farm that changes."""

TREND_SEASONS = 8
"""Seasons in a trend and in a median profile. A slope of fewer is mostly noise."""

DAMPING = 0.8
"""Damping of a trend's step from one season to the next: no growth goes on for ever, and a slope that is wrong
then does at most four times its step of harm."""

FOLD_DAYS = 56
"""Days that folds reach back: a season older than eight weeks says little."""

FEWEST_FOLDS = 4
"""Fewer folds prove nothing: they overlap by half, or by more. On three, of series of five days, one choice in twenty
made a series worse by more than 5 %."""

MARGIN = 0.10
"""The part of the naive model's error by which another must be better. In back-tests the models differ by 5 to 9 % on
average, which luck achieves on ten folds; with less than 10 % the choice is as often wrong as right."""

WON = 0.6
"""The share of folds that the winner must have won one by one: one lucky fold, such as an outage, is not enough."""

LATEST = 1.0
"""Of the floor's error in the latest looks: a model that did worse than this is out. Without this rule, a load that had
fallen or risen for good was forecast from the profile of the weeks before for as long as these outnumbered the new."""

SINGLE_LOOK = 1.2
"""The same where there is one look only: half a day says less."""

HEDGE = 1.0 / 3.0
"""The part of the floor in every other model. The error of a mix is at most the mix of the errors, so a choice that
turns out wrong costs a third less; one that is right loses hardly anything, for the two seldom err on the same side."""

UPPER = 0.95
"""The quantile of p95."""

ROUNDING = 1e-9
"""Of the size of a series: changes that are smaller are rounding, and nothing that an error could be compared with."""

HISTORY_DAYS = FOLD_DAYS * 2
"""Days of history that are used: the folds, and the seasons that the oldest fold's models look at."""

FLAG_EMPTY = "no history"
FLAG_TINY = "under one season: last value"
FLAG_SHORT = "under three seasons: seasonal naive"
FLAG_CONSTANT = "constant"
FLAG_SHORT_FOLDS = "judged on a shorter horizon"
FLAG_GAPS = "more than a tenth of the hours unknown"

GAPS = 0.1
"""The share of unknown steps from which a forecast says so."""


@attrs.frozen(eq=False)
class Forecast:
    """Forecast, step by step, with its errors in the past.

    ``mase`` is the mean absolute error divided by that of the seasonal naive model within the history; ``mase_naive``
    is the floor's on the same folds. ``coverage`` is the share of steps at or below p95. They are NaN where no
    fold could tell.
    """

    model: str
    p50: Floats
    p95: Floats
    season: int
    seasons: float
    folds: int
    mase: float
    mase_naive: float
    coverage: float
    flag: str


@attrs.frozen(eq=False)
class Fold:
    """A moment of the past: the forecast of each model, and the outcome."""

    origin: int
    actual: Floats
    said: Mapping[str, Floats]
    scale: float

    def error(self, model: str) -> float:
        """Return the model's mean absolute error."""
        return float(np.nanmean(np.abs(self.actual - self.said[model])))

    def excess(self, model: str) -> Floats:
        """Return by how much each known step was above the forecast."""
        above = self.actual - self.said[model]
        return above[~np.isnan(above)]


def season_of(length: int, day: int = DAY) -> int:
    """Return the season of a series of that many steps."""
    week = WEEK_DAYS * day
    return week if length >= SEASONS * week else day


def filled(series: Floats, day: int = DAY) -> Floats:
    """Return the series without gaps: from the day before, else by a line between their ends."""
    full = series.astype(np.float64, copy=True)
    known = ~np.isnan(full)
    if known.all():
        return full
    if not known.any():
        return np.zeros_like(full)
    for start in range(day, len(full), day):
        today, before = full[start : start + day], full[start - day : start]
        gaps = np.isnan(today)
        today[gaps] = before[: len(today)][gaps]
    gaps = np.isnan(full)
    steps = np.arange(len(full))
    full[gaps] = np.interp(steps[gaps], steps[~gaps], full[~gaps])
    return full


def naive_scale(series: Floats, season: int) -> float:
    """Return the divisor of errors: the seasonal naive model's mean error within the series, and never 0."""
    known = np.abs(series[~np.isnan(series)])
    size = float(known.mean()) if len(known) else 0.0
    for lag in (season, 1):
        if len(series) > lag:
            changes = np.abs(series[lag:] - series[:-lag])
            changes = changes[~np.isnan(changes)]
            if len(changes) and changes.mean() > ROUNDING * size:
                return float(changes.mean())
    return size if size > 0.0 else 1.0


def _seasons(full: Floats, season: int, most: int) -> Floats:
    """Return the last seasons, one in a row."""
    count = min(most, len(full) // season)
    return full[len(full) - count * season :].reshape(count, season)


def naive(full: Floats, season: int, horizon: int) -> Floats:
    """Say the last season again."""
    return np.resize(full[-season:], horizon)


def mean_profile(full: Floats, season: int, horizon: int) -> Floats:
    """Say the mean of the last `PROFILE_SEASONS` seasons."""
    return np.resize(_seasons(full, season, PROFILE_SEASONS).mean(axis=0), horizon)


def median_profile(full: Floats, season: int, horizon: int) -> Floats:
    """Say the median of the last `TREND_SEASONS` seasons, which a single outage or spike does not touch."""
    return np.resize(np.median(_seasons(full, season, TREND_SEASONS), axis=0), horizon)


def trend(full: Floats, season: int, horizon: int) -> Floats:
    """Say the median profile on a level that goes on as its Theil-Sen slope did, damped."""
    rows = _seasons(full, season, TREND_SEASONS)
    levels = rows.mean(axis=1)
    profile = np.median(rows - levels[:, None], axis=0)
    earlier, later = np.triu_indices(len(levels), 1)
    slope = float(np.median((levels[later] - levels[earlier]) / (later - earlier))) if len(levels) > 1 else 0.0
    numbers = np.arange(len(levels))
    level = float(np.median(levels - slope * numbers)) + slope * numbers[-1]
    ahead = np.arange(horizon) // season
    growth = np.cumsum(DAMPING ** np.arange(1, ahead[-1] + 2))
    return np.asarray(np.resize(profile, horizon) + level + slope * growth[ahead])


def level(full: Floats, season: int, horizon: int, day: int = DAY) -> Floats:
    """Say the mean profile, moved to the level of the last day: for a farm whose load has just changed."""
    profile = _seasons(full, season, PROFILE_SEASONS).mean(axis=0)
    return np.resize(profile, horizon) + float(full[-day:].mean() - profile[-day:].mean())


def flat(full: Floats, horizon: int, day: int = DAY) -> Floats:
    """Say the median of the last day throughout: for load that has no season."""
    return np.full(horizon, np.median(full[-day:]))


SEASONAL: Mapping[str, Callable[[Floats, int, int], Floats]] = {
    "naive": naive,
    "mean": mean_profile,
    "median": median_profile,
    "trend": trend,
}


def candidates(full: Floats, season: int, horizon: int, day: int = DAY) -> dict[str, Floats]:
    """Return the forecast of each model after this history, by name: for the seasons of which there are two.

    ``season`` is the floor's.
    """
    least = min(0.0, float(full.min()))
    said: dict[str, Floats] = {}
    for name, period in (("day", day), ("week", WEEK_DAYS * day)):
        if len(full) < 2 * period:
            continue
        for model, say in SEASONAL.items():
            said[f"{model}-{name}"] = say(full, period, horizon)
        said[f"level-{name}"] = level(full, period, horizon, day)
    if said:
        said["middle"] = np.median(np.array(list(said.values())), axis=0)
        said["flat"] = flat(full, horizon, day)
    floor = naive(full, season, horizon)
    for model, steps in said.items():
        mixed = steps if model.startswith("naive-") else (1.0 - HEDGE) * steps + HEDGE * floor
        said[model] = np.maximum(mixed, least)
    return said


def _fold_horizon(length: int, season: int, horizon: int, day: int) -> int:
    """Return the horizon of folds: that of the forecast, or one that leaves room for several folds, in whole days."""
    room = (length - 2 * season) // 2
    return min(horizon, max(day, room // day * day))


def past_folds(series: Floats, season: int, horizon: int, day: int = DAY) -> list[Fold]:
    """Return the folds of a series, oldest first."""
    ahead = _fold_horizon(len(series), season, horizon, day)
    last = len(series) - ahead
    reach = FOLD_DAYS * day
    origins = range(last, max(2 * season, len(series) - reach) - 1, -_stride(ahead, day))
    return list(_folds(series, sorted(origins), season, ahead, day))


def latest_looks(series: Floats, season: int, horizon: int, day: int = DAY) -> list[Fold]:
    """Return the forecasts since the last whole fold began with the outcome so far, oldest first."""
    ahead = _fold_horizon(len(series), season, horizon, day)
    stride = _stride(ahead, day)
    first = max(2 * season, len(series) - ahead + stride)
    return list(_folds(series, list(range(first, len(series), stride)), season, ahead, day))


def _stride(ahead: int, day: int) -> int:
    """Return the steps from one fold to the next."""
    return day if ahead > day else max(1, day // 2)


def _folds(series: Floats, origins: list[int], season: int, ahead: int, day: int) -> Iterator[Fold]:
    """Make the folds; one of whose future nothing is known is left out."""
    for origin in origins:
        actual = series[origin : origin + ahead]
        before = series[:origin]
        if np.isnan(actual).all() or np.isnan(before).all():
            continue
        yield Fold(
            origin=origin,
            actual=actual,
            said=candidates(filled(before, day), season, len(actual), day),
            scale=naive_scale(before, season),
        )


def choose(folds: list[Fold], floor: str, looks: Sequence[Fold] = ()) -> str:
    """Return the model to believe: the floor, or one that has won by enough on enough of the folds, and of late."""
    judged = [fold for fold in folds if floor in fold.said]
    if len(judged) < FEWEST_FOLDS:
        return floor
    floors = np.array([fold.error(floor) for fold in judged])
    best, least = floor, (1.0 - MARGIN) * floors.sum()
    allowed = (LATEST if len(looks) > 1 else SINGLE_LOOK) * sum(look.error(floor) for look in looks)
    for model in judged[-1].said:
        if any(model not in fold.said for fold in judged):
            continue
        if looks and sum(look.error(model) for look in looks) > allowed:
            continue
        errors = np.array([fold.error(model) for fold in judged])
        if errors.sum() < least and (errors < floors).mean() >= WON:
            best, least = model, errors.sum()
    return best


def offset(folds: Sequence[Fold], model: str) -> float:
    """Return the distance of p95 from p50, by the excess of the folds' steps."""
    return max(0.0, float(np.quantile(np.concatenate([fold.excess(model) for fold in folds]), UPPER)))


def coverage(folds: Sequence[Fold], model: str) -> float:
    """Give each fold the p95 of the folds that had ended before it, and compare that with the outcome."""
    covered: list[float] = []
    for fold in folds:
        ended = [other for other in folds if other.origin + len(other.actual) <= fold.origin]
        if ended:
            known = ~np.isnan(fold.actual)
            above = fold.said[model][known] + offset(ended, model)
            covered.append(float((fold.actual[known] <= above).mean()))
    return float(np.mean(covered)) if covered else np.nan


def recent(series: Floats, day: int = DAY) -> Floats:
    """Return the history that is used, from its first known step on; nothing, if nothing is known."""
    series = np.asarray(series, dtype=np.float64)
    series = np.where(np.isfinite(series), series, np.nan)[-HISTORY_DAYS * day :]
    known = np.flatnonzero(~np.isnan(series))
    return series[known[0] :] if len(known) else series[:0]


def forecast(series: Floats, horizon: int, day: int = DAY) -> Forecast:
    """Forecast a series: choose a model, and say how it did in the past."""
    if horizon < 1 or day < 1:
        raise ValueError("the horizon and the day must be one step at least")
    series = recent(series, day)
    length = len(series)
    if not length:
        return _plain("none", np.zeros(horizon), day, 0.0, FLAG_EMPTY)
    season = season_of(length, day)
    full = filled(series, day)
    if length < day:
        said = np.full(horizon, series[~np.isnan(series)][-1])
        return _plain("last", said, season, length / season, FLAG_TINY)
    if length < SEASONS * season:
        return _plain("naive-day", naive(full, season, horizon), season, length / season, FLAG_SHORT)
    folds = past_folds(series, season, horizon, day)
    floor = "naive-week" if season > day else "naive-day"
    model = choose(folds, floor, latest_looks(series, season, horizon, day))
    said = candidates(full, season, horizon, day)[model]
    return Forecast(
        model=model,
        p50=said,
        p95=said + (offset(folds, model) if folds else 0.0),
        season=season,
        seasons=length / season,
        folds=len(folds),
        mase=float(np.mean([fold.error(model) / fold.scale for fold in folds])) if folds else np.nan,
        mase_naive=float(np.mean([fold.error(floor) / fold.scale for fold in folds])) if folds else np.nan,
        coverage=coverage(folds, model) if folds else np.nan,
        flag=_flag(series, folds, horizon),
    )


def _plain(model: str, said: Floats, season: int, seasons: float, flag: str) -> Forecast:
    """Return a forecast of which no fold can tell anything: its p95 is its p50."""
    nan = float("nan")
    return Forecast(model, said, said, season, seasons, 0, nan, nan, nan, flag)


def _flag(series: Floats, folds: list[Fold], horizon: int) -> str:
    """Return a reason to trust the forecast less, or nothing."""
    known = series[~np.isnan(series)]
    flags = []
    if known.max() == known.min():
        flags.append(FLAG_CONSTANT)
    if not folds or len(folds[-1].actual) < horizon:
        flags.append(FLAG_SHORT_FOLDS)
    if len(known) < (1.0 - GAPS) * len(series):
        flags.append(FLAG_GAPS)
    return "; ".join(flags)
