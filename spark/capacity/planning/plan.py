"""Job: the providers that each service needs, now and for the horizon, and the time at which those of now are too few.

Rules:
- One rule (`needs`) makes all needs: that of the horizon from the peak bound, that of an hour from the bound of the
  hour. The need of now is that of the hour ``now``, with which the horizon begins.
- The policy of a service (`policy`) decides on its needs; its state (`needs`) keeps apart what was measured and what is
  bound. An hour of an exclusion is no peak.
- The providers run out in the first hour whose need is more than there are now: at the earliest by the bound of that
  hour, as expected by its p50. So a service is short by its need of now just where that first hour is ``now``.
- Services that share servers have one need, made of the hours of all their servers (`service/pools.py`), and one state.
  A service of them whose own servers are overloaded is so, whatever the others have to spare.

A service's plan is plain Python on a few hundred numbers; Spark only brings them together, service by service.

Rules of the growth, the trend of the weekly peaks, and of the week from which the providers of now are too few by it:
- A week's peak is that of its hours; weeks are counted back from the time of the plan.
- The first week of a service's history counts for the growth only if it is whole: the peak of a part of a week is
  lower, and the next week would look like growth.
- The growth is the Theil-Sen slope of the last `WEEKS` weekly peaks, which a single week does not bend. With less than
  `FEWEST` known weeks there is none.
- The date is the first of the coming `WEEKS` weeks in which the level, with the headroom of the policy on
  top, needs more than there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

import attrs
import msgspec
import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.capacity.planning.forecast import full_hour
from spark.capacity.planning.needs import MOST_ERLANGS, POLICY_COLUMNS, Needs, State, service_needs, several, state_of
from spark.capacity.planning.policy import Assumptions, Policy
from spark.capacity.tables.row_values import Row
from spark.capacity.tables.schema import GOLD_PLAN, ODDS, OWN_PEAK, OWN_PROVIDERS

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


def weekly_peaks(hours: Iterable[Row], issued: datetime) -> list[float | None]:
    """Return the peaks of the last `WEEKS` weeks of a service, oldest first; None for a week without a known hour."""
    peaks: dict[int, float] = {}
    for row in hours:
        if (peak := row["demand_peak"]) is not None:
            # A week that has just ended is number -1.
            week = (row["h"] - issued) // WEEK
            peaks[week] = max(peak, peaks.get(week, 0.0))
    return [peaks.get(week) for week in range(-WEEKS, 0)]


def whole_weeks(hours: Iterable[Row], issued: datetime) -> int:
    """Return the number of whole weeks since the first hour of a service that is known."""
    first = min((row["h"] for row in hours if row["demand_peak"] is not None), default=issued)
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


NO_FULL_LOAD = "full_load is not set for this service: nothing is claimed about its capacity"
GONE = "no provider was there in the last full hour"
RUNS_OUT = "the bound needs more providers than there are now"
POOLED = "the numbers are those of all servers that it shares with other services, the same for each (pool {!r})"
SEVERAL = "providers handle several requests at a time: Erlang's formula is not used"


def times(load: float, factor: float) -> float:
    """Return a load times a factor, each of which may be infinite: zero, not NaN, if the other one is zero."""
    return load * factor if load and factor else 0.0


def _grown(load: float | None, factor: float) -> float | None:
    return None if load is None else times(load, factor)


@attrs.frozen
class Options:
    """Parameters of a plan: the policy file, and the rest for what-if questions.

    ``growth`` multiplies the demand; ``full_load``, ``target`` and ``cost`` replace the load that a provider carries,
    the part of it that it may, and its cost; ``without`` takes so many providers away, by service.
    """

    assumed: Assumptions = attrs.field(factory=Assumptions)
    growth: float = 1.0
    full_load: float | None = None
    target: float | None = None
    cost: float | None = None
    without: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def grown(self) -> float:
        """The factor of the demand without any event."""
        return self.growth * self.assumed.growth

    def factor(self, service: str, hour: datetime) -> float:
        """Return the factor of the demand in an hour. A time without a zone is in UTC."""
        return self.growth * self.assumed.factor(service, hour)

    def load(self, step: Row, of: str) -> float | None:
        """Return a load of a step of the forecast, such as its ``p50``, times the factor of its hour; None where it is
        not known."""
        return _grown(step[of], self.factor(step["service"], step["h"]))

    def policy(self, service: str) -> Policy:
        """Return the policy of a service."""
        policy = self.assumed.of(service)
        target = policy.target if self.target is None else self.target
        return msgspec.structs.replace(policy, target=target, cost=policy.cost if self.cost is None else self.cost)


PLAIN = Options()


def plan(
    load: DataFrame, forecasts: DataFrame, now: datetime, options: Options, shared: Mapping[str, int]
) -> DataFrame:
    """Return the rows of gold_plan for the forecasts that were issued at ``now``.

    ``load`` has rows of gold_pool_1h; ``shared`` tells how many providers of a service offer others as well.
    """
    issued = full_hour(now)
    columns = ("full_load", "providers_mean", "demand_mean", "demand_peak", "requests", "service_s", "in_flight")
    others = ("observed_s", "pool", OWN_PROVIDERS, OWN_PEAK)
    known = load.where(F.col("h") < F.lit(issued)).select("service", "h", *columns, *others)
    told = forecasts.where(F.col("issued") == F.lit(issued))

    def of_service(steps: pd.DataFrame, hours: pd.DataFrame) -> pd.DataFrame:
        if steps.empty:
            return pd.DataFrame(columns=GOLD_PLAN.schema.names)
        at = pd.Timestamp(issued).tz_localize(None)
        row = plan_service(known_rows(steps.sort_values("h")), known_rows(hours.sort_values("h")), at, options)
        row["shared_providers"] = shared.get(row["service"], 0)
        return pd.DataFrame([row], columns=GOLD_PLAN.schema.names).astype(object)

    grouped = told.groupBy("service").cogroup(known.groupBy("service"))
    return grouped.applyInPandas(of_service, GOLD_PLAN.schema)


def known_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame, in which None is unknown."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def plan_service(
    steps: Sequence[Row], hours: Sequence[Row], issued: datetime, options: Options = PLAIN
) -> dict[str, Any]:
    """Plan for one service: ``steps`` are the rows of its forecast, ``hours`` those of its past, both in order."""
    first = steps[0]
    service = first["service"]
    headroom = first["headroom"]
    policy = msgspec.structs.replace(options.policy(service), headroom=headroom)
    last = hours[-1] if hours and hours[-1]["h"] == issued - timedelta(hours=1) else {}
    full_load = options.full_load or next((row["full_load"] for row in reversed(hours) if row["full_load"]), None)
    there = round(last.get("providers_mean") or 0)
    providers = max(0, there - options.without.get(service, 0))
    demand = _grown(last.get("demand_peak"), options.grown)
    day = [row["demand_peak"] for row in hours if row["h"] >= issued - timedelta(days=1)]
    highest = max((times(peak, options.grown) for peak in day if peak is not None), default=None)
    # In an event the whole week may be as high as its highest peak: nothing is known of when in it that comes.
    bound = _grown(first["peak_bound"], max(options.factor(service, row["h"]) for row in steps))
    erlangs = _erlangs(last)
    needs = service_needs(full_load, policy, erlangs, there, last.get("demand_mean"))
    usual = [row for row in hours if not options.assumed.excluded(service, row["h"])]
    peaks = weekly_peaks(usual, issued)
    trend = growth(peaks, whole_weeks(usual, issued))
    need_now = needs.of(options.load(first, "hour_bound"))
    busy, need = needs.busy(bound), needs.of(bound)
    known = sum(row["demand_peak"] is not None for row in hours)
    state = state_of(needs, providers, demand, highest, bound, known)
    own = times(last.get(OWN_PEAK) or 0.0, options.grown)
    if needs.overloads(own, round(last.get(OWN_PROVIDERS) or providers)):
        state = State.OVERLOADED
    notes = [
        NO_FULL_LOAD if full_load is None else None,
        GONE if not providers else None,
        RUNS_OUT if providers and need is not None and need > providers else None,
        POOLED.format(last["pool"]) if last.get("pool") else None,
        SEVERAL if erlangs is not None and several(erlangs, there) else None,
        first["flag"] or None,
    ]
    return {
        "date": issued.date(),
        "service": service,
        "issued": issued,
        "state": state.value,
        "providers_now": providers,
        "need_now": need_now,
        "need_horizon": need,
        "add": None if need is None else max(0, need - providers),
        "free": providers - need if need is not None and state is State.FREE else 0,
        "spare": None if need is None or busy is None else max(0, need - busy),
        "rule": needs.rule(bound),
        "exhaust_p50": _short_from(steps, "p50", needs, providers, options),
        "exhaust_bound": _short_from(steps, "hour_bound", needs, providers, options),
        "growth_per_week": None if trend is None else trend.share,
        "weekly_peaks": peaks,
        "trend_level": None if trend is None else trend.level,
        "exhaust_trend": _short_week(trend, needs, providers, issued, options.grown * headroom),
        "demand_now": demand,
        "demand_day": highest,
        "demand_mean": last.get("demand_mean"),
        "peak_bound": bound,
        **{name: first[name] for name in ("highest", "highest_at", *ODDS.split())},
        "known_hours": known,
        "full_load": full_load,
        "policy": policy.services,
        **{column: getattr(policy, name) for name, column in POLICY_COLUMNS.items()},
        "erlangs": erlangs,
        "service_s": last.get("service_s"),
        "pool": last.get("pool"),
        "note": "; ".join(note for note in notes if note),
    }


def _erlangs(last: Row) -> float | None:
    """Return the mean number of requests in service in the last hour; None where it is unknown or absurd."""
    requests, seconds, in_flight = (last.get(name) for name in ("requests", "service_s", "in_flight"))
    if requests is not None and seconds is not None:
        # Requests are those of the time in which the broker was up.
        made = requests / last["observed_s"] * seconds
    elif in_flight is not None:
        made = in_flight
    else:
        return None
    return float(made) if isfinite(made) and 0.0 <= made <= MOST_ERLANGS else None


def _short_from(steps: Sequence[Row], of: str, needs: Needs, providers: int, options: Options) -> datetime | None:
    """Return the first hour of which the need is more than there are providers."""
    return next((row["h"] for row in steps if needs.exceed(options.load(row, of), providers)), None)


def _short_week(trend: Growth | None, needs: Needs, providers: int, issued: datetime, factor: float) -> datetime | None:
    """Return the first week whose peak by the trend, times a factor, needs more than there are providers."""
    if trend is None or trend.slope <= 0.0:
        return None
    short = (number for number in range(1, WEEKS + 1) if needs.exceed(factor * trend.in_weeks(number), providers))
    return next((issued + (number - 1) * WEEK for number in short), None)
