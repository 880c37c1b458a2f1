"""The forecast of the demand of one service. Pure numpy: no Spark in here.

A series is one value for each step (an hour, as the jobs use it), oldest first; NaN where nothing is known.

Rules:
- The season is a week where there are at least `SEASONS` weeks of history, else a day.
- p50 is the mean of three forecasts: the last season again (the seasonal naive model), the median of the last
  `PROFILE_SEASONS` seasons, and this median at the level of the last day. It is not below the lowest known value, or 0
  if that is lower: load is not negative.
- p95 is p50 and the 95 % quantile of the excess of past steps over the same forecast.
- Past forecasts begin every day (every half day where the horizon is a day), and reach back `PAST_DAYS` days. The
  coverage in a forecast is theirs; each is given the p95 of those that had ended.
- With less than two horizons of history to judge by, past forecasts look less far ahead; that is flagged.
- No number of providers is made of a forecast: plans are made on the bounds of `peak_bound`.
- Under `SEASONS` seasons there is nothing to judge by: the seasonal naive model, flagged. Under one season: the last
  value, flagged. Both are better than no answer, and neither should be believed for long.
- Gaps are filled from the same step of the day before, else by a line between their ends, for the forecast only: no
  error is counted in a step of which nothing is known.

docs/adr/0074 has the measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Values of a series, or of a forecast."""

DAY = 24
"""Steps of a day, where a step is an hour."""

WEEK_DAYS = 7

SEASONS = 3
"""Fewer seasons than this leave, after the two that a forecast needs to begin with, none to be judged by."""

PROFILE_SEASONS = 4
"""Seasons in a median: enough to leave one outage or spike out, and few enough to follow a farm that changes."""

PAST_DAYS = 56
"""Days that past forecasts reach back: a season older than eight weeks says little."""

UPPER = 0.95
"""The quantile of p95."""

HISTORY_DAYS = PAST_DAYS * 2
"""Days of history that are used: those, and the seasons before the oldest of them."""

FLAG_EMPTY = "no history"
FLAG_TINY = "under one season: last value"
FLAG_SHORT = "under three seasons: seasonal naive"
FLAG_CONSTANT = "constant"
FLAG_SHORT_AHEAD = "judged on a shorter horizon"
FLAG_GAPS = "more than a tenth of the hours unknown"

GAPS = 0.1
"""The share of unknown steps from which a forecast says so."""


@attrs.frozen(eq=False)
class Forecast:
    """Forecast, step by step. ``coverage`` is the share of past steps at or below p95, NaN where none could tell."""

    model: str
    p50: Floats
    p95: Floats
    season: int
    seasons: float
    coverage: float
    flag: str


@attrs.frozen(eq=False)
class Past:
    """A forecast of a past moment, ``origin``: by how much each step that came was above it, NaN where nothing is
    known."""

    origin: int
    excess: Floats

    def had_ended(self, at: int) -> bool:
        """Return True if its last step was before another one."""
        return self.origin + len(self.excess) <= at


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


def naive(full: Floats, season: int, horizon: int) -> Floats:
    """Return the last season again."""
    return np.resize(full[-season:], horizon)


def profile(full: Floats, season: int, horizon: int, day: int = DAY) -> Floats:
    """Return the mean of the last season, the median of some, and that median at the level of the last day."""
    count = min(PROFILE_SEASONS, len(full) // season)
    usual = np.median(full[len(full) - count * season :].reshape(count, season), axis=0)
    level = full[-day:].mean() - usual[-day:].mean()
    # From the median on, so that what repeats exactly is forecast exactly.
    said = usual + (full[-season:] - usual + level) / 3.0
    return np.resize(np.maximum(said, min(0.0, float(full.min()))), horizon)


def _ahead(length: int, season: int, horizon: int, day: int) -> int:
    """Return the horizon of past forecasts in whole days: that of the forecast, or one that leaves room for several."""
    room = (length - 2 * season) // 2
    return min(horizon, max(day, room // day * day))


def past_forecasts(series: Floats, season: int, ahead: int, day: int = DAY) -> Iterator[Past]:
    """Yield the past forecasts of a series, oldest first. One of whose future nothing is known is left out."""
    stride, last = day if ahead > day else max(1, day // 2), len(series) - ahead
    for origin in sorted(range(last, max(2 * season, len(series) - PAST_DAYS * day) - 1, -stride)):
        came, before = series[origin : origin + ahead], series[:origin]
        if np.isnan(came).all() or np.isnan(before).all():
            continue
        yield Past(origin, came - profile(filled(before, day), season, ahead, day))


def upper(past: Sequence[Past]) -> float:
    """Return the distance of p95 from p50, by the excess of past steps."""
    excess = np.concatenate([one.excess for one in past])
    return max(0.0, float(np.nanquantile(excess, UPPER)))


def coverage(past: Sequence[Past]) -> float:
    """Return the share of past steps at or below the p95 of the forecasts that had ended before; NaN without any."""
    judged = [(one, ended) for one in past if (ended := [other for other in past if other.had_ended(one.origin)])]
    covered = [float((one.excess[~np.isnan(one.excess)] <= upper(ended)).mean()) for one, ended in judged]
    return float(np.mean(covered)) if covered else np.nan


def recent(series: Floats, day: int = DAY) -> Floats:
    """Return the history that is used, from its first known step on; nothing, if nothing is known."""
    series = np.asarray(series, dtype=np.float64)
    series = np.where(np.isfinite(series), series, np.nan)[-HISTORY_DAYS * day :]
    known = np.flatnonzero(~np.isnan(series))
    return series[known[0] :] if len(known) else series[:0]


def forecast(series: Floats, horizon: int, day: int = DAY) -> Forecast:
    """Forecast a series, with the quality that the forecast had in the past."""
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
    ahead = _ahead(length, season, horizon, day)
    past = list(past_forecasts(series, season, ahead, day))
    said = profile(full, season, horizon, day)
    return Forecast(
        model="profile-week" if season > day else "profile-day",
        p50=said,
        p95=said + (upper(past) if past else 0.0),
        season=season,
        seasons=length / season,
        coverage=coverage(past),
        flag=_flag(series, short=not past or ahead < horizon),
    )


def _plain(model: str, said: Floats, season: int, seasons: float, flag: str) -> Forecast:
    """Return a forecast of which no past one can tell anything: its p95 is its p50."""
    return Forecast(model, said, said, season, seasons, float("nan"), flag)


def _flag(series: Floats, *, short: bool) -> str:
    """Return a reason to trust the forecast less, or nothing."""
    known = series[~np.isnan(series)]
    flags = []
    if known.max() == known.min():
        flags.append(FLAG_CONSTANT)
    if short:
        flags.append(FLAG_SHORT_AHEAD)
    if len(known) < (1.0 - GAPS) * len(series):
        flags.append(FLAG_GAPS)
    return "; ".join(flags)
