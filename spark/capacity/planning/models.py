"""The forecast of the demand of one service. Pure numpy: no Spark in here.

A series is one value for each step (an hour, as the jobs use it), oldest first; NaN where nothing is known.

Rules:
- The season is a week where there are at least `SEASONS` weeks of history, else a day.
- p50 is the mean of three forecasts: the last season again (the seasonal naive model), the median of the last
  `PROFILE_SEASONS` seasons, and this median at the level of the last day. It is not below the lowest known value, or 0
  if that is lower: load is not negative.
- No number of providers is made of a forecast: plans are made on the bounds of `peak_bound`.
- Under `SEASONS` seasons it is the seasonal naive model, flagged. Under one season: the last value, flagged. Both are
  better than no answer, and neither should be believed for long.
- Gaps are filled from the same step of the day before, else by a line between their ends.

docs/adr/0074 has the measurements.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Values of a series, or of a forecast."""

DAY = 24
"""Steps of a day, where a step is an hour."""

WEEK_DAYS = 7

SEASONS = 3
"""Seasons of which a usual one can be told from a lucky one."""

PROFILE_SEASONS = 4
"""Seasons in a median: enough to leave one outage or spike out, and few enough to follow a farm that changes."""

HISTORY_DAYS = 112
"""Days of history that are used: the eight weeks of a bound (`peak_bound`), and as many before for its record."""

FLAG_EMPTY = "no history"
FLAG_TINY = "under one season: last value"
FLAG_SHORT = "under three seasons: seasonal naive"
FLAG_CONSTANT = "constant"
FLAG_GAPS = "more than a tenth of the hours unknown"

GAPS = 0.1
"""The share of unknown steps from which a forecast says so."""


LARGEST = float(np.finfo(np.float64).max)

UNIT = 2.0**-20
"""Factor by which series of the largest numbers are smaller while they are added up."""


@attrs.frozen(eq=False)
class Forecast:
    """Forecast, step by step."""

    model: str
    p50: Floats
    season: int
    seasons: float
    flag: str


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


def recent(series: Floats, day: int = DAY) -> Floats:
    """Return the history that is used, from its first known step on; nothing, if nothing is known."""
    series = np.asarray(series, dtype=np.float64)
    series = np.where(np.isfinite(series), series, np.nan)[-HISTORY_DAYS * day :]
    known = np.flatnonzero(~np.isnan(series))
    return series[known[0] :] if len(known) else series[:0]


def forecast(series: Floats, horizon: int, day: int = DAY) -> Forecast:
    """Forecast a series."""
    series = recent(series, day)
    length = len(series)
    if not length:
        return Forecast("none", np.full(horizon, np.nan), day, 0.0, FLAG_EMPTY)
    season = season_of(length, day)
    full = filled(series, day)
    if length < day:
        said = np.full(horizon, series[~np.isnan(series)][-1])
        return Forecast("last", said, season, length / season, FLAG_TINY)
    if length < SEASONS * season:
        return Forecast("naive-day", naive(full, season, horizon), season, length / season, FLAG_SHORT)
    model = "profile-week" if season > day else "profile-day"
    # The sum of the largest numbers is infinite, and the difference of two such sums is no number.
    unit = UNIT if np.abs(full).max() > LARGEST * UNIT else 1.0
    said = np.minimum(profile(full * unit, season, horizon, day), LARGEST * unit) / unit
    return Forecast(model, said, season, length / season, _flag(series))


def _flag(series: Floats) -> str:
    """Return a reason to trust the forecast less, or nothing."""
    known = series[~np.isnan(series)]
    found = {FLAG_CONSTANT: known.max() == known.min(), FLAG_GAPS: len(known) < (1.0 - GAPS) * len(series)}
    return "; ".join(flag for flag, is_so in found.items() if is_so)
