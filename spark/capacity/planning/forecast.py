"""Jobs: the demand of each service to come, hour by hour, from its past demand; past forecasts, outcome beside promise.

Rules of forecasts:
- The history of a service is `demand_mean` of its hours before ``now``, from the first to the last full hour, and for
  the peak bound `demand_peak` of the same hours. An hour without a row, or without a demand in it, is
  unknown, not zero.
- Hours of an exclusion (`policy`) are unknown to the forecast and to the peak bound. A headroom of the policy is that
  of the bound.
- Growth and events of the policy file change no forecast: each hour has their ``factor`` beside it, for the plan.
- The forecast begins with the hour ``now`` and has a row for each hour of the horizon.
- A service that had neither a provider nor a demand for the length of the horizon, and of `HORIZON`, is *withdrawn*:
  it has no forecast, and so no plan. Before that its providers may have failed, and are to return.
- Nothing depends on the wall clock: the same rows and the same ``now`` give the same forecast.

One pandas function for each service does the work, for it is a few thousand numbers; all the rest is Spark's own.

Rules of their evaluation:
- A forecast is compared with the hours of its horizon that are over at ``now`` and of which the demand is known;
  `horizon_h` says how many those are. It has no row before there is one.
- `mape` is the mean absolute error of p50 divided by the mean demand of the same hours. Errors in percent of each hour
  would make much of a quiet night. It is null where the demand was 0 throughout.
- The peak was missed if the highest `demand_peak` of those hours was above the peak bound.
- A run evaluates the forecasts whose horizon is not over, and those of which hours were computed again.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import attrs
import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.capacity.planning import models, peak_bound
from spark.capacity.planning.policy import Assumptions
from spark.capacity.tables.schema import EVALUATION, GOLD_FORECAST
from spark.capacity.tables.time_windows import utc

HORIZON = 168
"""Hours that are forecast: a week shows every peak that a week has, and leaves time to buy a machine."""

LONGEST_HORIZON = 24 * 7 * 13
"""A quarter of a year: beyond that no season of the history says anything."""

QUIET = 24
"""Hours without a known demand after which the forecast says so."""


def full_hour(now: datetime) -> datetime:
    """Return the hour of a moment, in UTC; a moment without a zone is one of UTC."""
    return utc(now).replace(minute=0, second=0, microsecond=0)


def forecast(load: DataFrame, now: datetime, horizon: int, assumed: Assumptions) -> DataFrame:
    """Return the rows of gold_forecast that are issued at ``now``, from gold_service_1h."""
    issued = full_hour(now)
    since = F.lit(issued) - F.expr(f"INTERVAL {models.HISTORY_DAYS} DAYS")
    known = load.where((F.col("h") < F.lit(issued)) & (F.col("h") >= since))
    history = known.select("service", "h", "demand_mean", "demand_peak", "providers_mean")
    return history.groupBy("service").applyInPandas(_for_service(issued, horizon, assumed), GOLD_FORECAST.schema)


def _for_service(issued: datetime, horizon: int, assumed: Assumptions) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return the function that forecasts one service."""
    start = pd.Timestamp(issued).tz_localize(None)
    since = start - pd.Timedelta(hours=max(horizon, HORIZON))

    def rows(hours: pd.DataFrame) -> pd.DataFrame:
        if _is_withdrawn(hours, since):
            return pd.DataFrame(columns=GOLD_FORECAST.schema.names)
        service = hours["service"].iloc[0]
        series = hourly(hours["h"], usual(hours, hours["demand_mean"], assumed), start)
        told = models.forecast(series, horizon)
        headroom, peaks = assumed.of(service).headroom, peaks_of(hours, start, assumed)
        record = peak_bound.record(peaks, horizon, headroom=headroom)
        odds = peak_bound.odds(peaks, headroom=headroom, horizon=horizon)
        week = peak_bound.odds(peaks, headroom=headroom, days=models.WEEK_DAYS, horizon=horizon)
        to_come = pd.date_range(start, periods=horizon, freq="h")
        return pd.DataFrame(
            {
                "date": issued.date(),
                "service": service,
                "issued": start,
                "h": to_come,
                "model": told.model,
                "p50": told.p50,
                **bounds(peaks, horizon, start, headroom),
                "factor": [assumed.factor(service, hour) for hour in to_come],
                "bound_trials": record.trials,
                "bound_missed": record.missed,
                "bound_miss_most": record.at_most,
                "bound_ahead_h": record.ahead,
                **_odds("odds_day", "odds", odds),
                **_odds("odds_week", "odds_week", week),
                **attrs.asdict(peak_bound.schedule_record(peaks, headroom=headroom)),
                "over_provision": record.over,
                "seasons": told.seasons,
                "flag": "; ".join(flag for flag in (told.flag, _quiet(series)) if flag),
            }
        )

    return rows


def _is_withdrawn(hours: pd.DataFrame, since: pd.Timestamp) -> bool:
    """Return True if a service had neither a provider nor a demand from a moment on."""
    seen = hours.loc[_moments(hours["h"]) >= since, ["providers_mean", "demand_mean"]]
    return not np.nan_to_num(seen.to_numpy(np.float64, na_value=np.nan)).any()


def peaks_of(hours: pd.DataFrame, start: pd.Timestamp, assumed: Assumptions) -> models.Floats:
    """Return the peaks of a service by the hour, from its rows of gold_service_1h, without the hours of exclusions."""
    return models.recent(hourly(hours["h"], usual(hours, hours["demand_peak"], assumed), start))


def usual(hours: pd.DataFrame, values: pd.Series, assumed: Assumptions) -> pd.Series:
    """Return values of the hours of a service, without those in exclusions."""
    if not assumed.exclusions:
        return values
    service = hours["service"].iloc[0]
    out = [assumed.excluded(service, at) for at in pd.to_datetime(hours["h"])]
    return values.astype("float64").mask(pd.Series(out, values.index))


def bounds(peaks: models.Floats, horizon: int, start: pd.Timestamp, headroom: float | None) -> dict[str, Any]:
    """Return the columns of gold_forecast that the peaks before ``start`` and the headroom decide on."""
    made_of = peak_bound.basis(peaks, headroom=headroom, horizon=horizon)
    return {
        "hour_bound": peak_bound.by_hour(peaks, horizon, headroom=headroom),
        "peak_bound": peak_bound.bound(peaks, headroom=headroom, horizon=horizon),
        "highest": None if made_of is None else peaks[made_of[0]],
        "highest_at": pd.NaT if made_of is None else start - pd.Timedelta(hours=len(peaks) - made_of[0]),
        "headroom": headroom or peak_bound.headroom_of(len(peaks), horizon=horizon),
    }


def hourly(hours: pd.Series, values: pd.Series, end: pd.Timestamp) -> models.Floats:
    """Return one value for each hour from the first one to the one before ``end``; NaN where there is none."""
    stamps = _moments(hours)
    known = pd.Series(values.to_numpy(dtype=np.float64, na_value=np.nan), index=stamps)
    grid = pd.date_range(stamps.min(), end, freq="h", inclusive="left")
    return np.asarray(known.reindex(grid), dtype=np.float64)


def _moments(hours: pd.Series) -> pd.Series:
    return pd.to_datetime(hours, utc=True).dt.tz_localize(None)


def _odds(now: str, record: str, odds: peak_bound.Odds) -> dict[str, Any]:
    """Return the columns of odds, and of their record, whose names begin with its own."""
    return {now: odds.now, **{f"{record}_{name}": getattr(odds, name) for name in ("said", "trials", "missed")}}


def _quiet(series: models.Floats) -> str:
    """Return a sentence about the time without reports, if it is long."""
    known = np.flatnonzero(~np.isnan(series))
    silent = len(series) - 1 - int(known[-1]) if len(known) else len(series)
    return f"nothing known of the last {silent} hours" if silent >= QUIET else ""


def evaluate(forecasts: DataFrame, load: DataFrame, now: datetime) -> DataFrame:
    """Return the rows of evaluation, from gold_forecast and gold_service_1h."""
    until = F.lit(full_hour(now))
    known = load.where((F.col("h") < until) & F.col("demand_mean").isNotNull())
    was = known.select("service", "h", "demand_mean", "demand_peak")
    error = F.abs(F.col("demand_mean") - F.col("p50"))
    return (
        forecasts.join(was, ["service", "h"])
        .groupBy("service", "issued")
        .agg(
            F.count(F.lit(1)).alias("horizon_h"),
            F.try_divide(F.sum(error), F.sum(F.abs(F.col("demand_mean")))).alias("mape"),
            (F.max("demand_peak") > F.max("peak_bound")).alias("peak_missed"),
            F.first("bound_miss_most").alias("promised_miss_most"),
        )
        .withColumn("date", F.to_date("issued"))
        .select(*EVALUATION.schema.names)
    )
