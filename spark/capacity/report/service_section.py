"""The section of a service: its charts, the numbers of its plan, and its days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import attrs

from spark.capacity.planning.needs import MOST_ERLANGS, WAIT_SHARE, State, needs_of, policy_of, providers_for
from spark.capacity.planning.policy import Policy
from spark.capacity.report.chart import Band, Drawing, Line, Mark, Trend, chart, limit_of, trend_of
from spark.capacity.report.plan_json import saved, schedule
from spark.capacity.report.row_values import Row, highest_of, mean_of, number_of, text_of, time_of
from spark.capacity.report.service_rows import (
    Misses,
    Odds,
    ServiceRows,
    Shortage,
    missed_before,
    odds_of,
    shortage_by_p50,
)
from spark.capacity.utc import utc

SHOWN = timedelta(days=35)
"""History in a chart: five weeks, so that the weekly wave is seen and an hour still has a part of a pixel."""


@attrs.frozen
class Requests:
    """Requests of the last full hour; each member is None where providers do not report it.

    `providers` keep all but a share of `wait_share` of the requests from waiting.
    """

    number: float | None
    errors: float | None
    service_s: float | None
    erlangs: float | None
    providers: float | None
    wait_share: float = WAIT_SHARE


@attrs.frozen
class Origin:
    """The highest peak, of which the bound of the horizon is made, with its hour and the headroom.

    `more` is the remaining factor of the bound: that of the forecast, of growth, or of an event.
    """

    peak: float
    at: datetime
    headroom: float
    more: float


@attrs.frozen
class HourRecord:
    """The record of the bounds of hours: `missed` of `hours` of past weeks, and `weeks_missed` of `weeks`.

    `saved` is the part of the provider-hours of the need of the horizon that the schedule does without.
    """

    hours: float
    missed: float
    weeks: float
    weeks_missed: float
    saved: float | None


@attrs.frozen
class PlanFacts:
    """The numbers of a plan."""

    now: float | None
    need_now: float | None
    need_horizon: float | None
    rule: str | None
    demand_now: float | None
    peak_bound: float | None
    since: Shortage
    since_p50: Shortage
    misses: Misses | None
    odds: Odds | None
    odds_week: Odds | None
    hours: HourRecord | None
    origin: Origin | None
    now_by_rule: Mapping[str, int]
    need_by_rule: Mapping[str, int]
    """The providers that each rule of the policy wants, for the hour of the plan and for the horizon."""
    requests: Requests
    state: State
    free: float
    demand_day: float | None
    full_load: float | None
    limit: float | None
    policy: Policy
    shared: float
    """Providers that offer other services as well."""
    pool: str | None
    note: str | None


@attrs.frozen
class ModelFacts:
    """The model of a forecast, and its record on the past of the series."""

    name: str
    seasons: float | None
    mase: float | None
    mase_naive: float | None
    coverage: float | None
    misses: Misses | None
    over_provision: float | None
    flag: str | None


@attrs.frozen
class Day:
    """The load of a day, measured or forecast."""

    day: str
    demand_mean: float | None
    demand_most: float | None
    capacity: float | None
    providers: float | None
    p50: float | None
    p95: float | None
    bound: float | None


@attrs.frozen
class Section:
    """The section of a service; a part is None where its table has no row of the service."""

    ident: str
    name: str
    drawing: Drawing | None
    since: Shortage
    plan: PlanFacts | None
    model: ModelFacts | None
    trend: Trend | None
    days: Sequence[Day]


def section_of(service: ServiceRows) -> Section:
    return Section(
        service.ident,
        service.name,
        _drawing(service),
        service.shortage,
        _plan_facts(service) if service.plan else None,
        _model_facts(service.told) if service.told else None,
        trend_of(service.plan),
        _days(service),
    )


def _drawing(service: ServiceRows) -> Drawing | None:
    limit = limit_of(service.plan)
    ends = [at for row in service.history[-1:] if (at := time_of(row, "h"))]
    history = [row for row in service.history if ends and utc(row["h"]) > ends[0] - SHOWN]

    def points(rows: Sequence[Row], name: str) -> list[tuple[float, float | None]]:
        """With a gap where hours are missing."""
        found: list[tuple[float, float | None]] = []
        for row in rows:
            at = utc(row["h"]).timestamp()
            if found and at - found[-1][0] > 3600:
                found.append((found[-1][0] + 3600, None))
            found.append((at, number_of(row, name)))
        return found

    lines = [
        Line("demand", "demand", points(history, "demand_mean")),
        Line("forecast (p50)", "p50", points(service.forecast, "p50")),
        Line("bound of the hour", "bound", points(service.forecast, "hour_bound")),
    ]
    if limit is not None:
        # The plan says that the providers are too few just where a bound is above it.
        times = [utc(row["h"]).timestamp() for row in (*history, *service.forecast)]
        lines.append(Line("limit of the providers now", "capacity", [(at, limit) for at in times]))
    band = [
        (utc(row["h"]).timestamp(), low, max(low, high))
        for row in service.forecast
        if (low := number_of(row, "p50")) is not None and (high := number_of(row, "p95")) is not None
    ]
    dates = [
        ("now", "now", time_of(service.plan, "issued") or time_of(service.told, "issued")),
        ("too few at the earliest", "crossed", time_of(service.plan, "exhaust_bound")),
        ("too few as expected", "crossed", time_of(service.plan, "exhaust_p50")),
    ]
    return chart(
        lines,
        [Band("p50 to p95", "band", band)],
        [Mark(label, kind, at.timestamp()) for label, kind, at in dates if at],
    )


def _plan_facts(service: ServiceRows) -> PlanFacts:
    plan = service.plan
    needs = needs_of(plan)
    return PlanFacts(
        number_of(plan, "providers_now"),
        number_of(plan, "need_now"),
        number_of(plan, "need_horizon"),
        text_of(plan, "rule"),
        number_of(plan, "demand_now"),
        number_of(plan, "peak_bound"),
        service.shortage,
        shortage_by_p50(plan),
        missed_before(plan),
        odds_of(plan),
        odds_of(plan, "odds_week"),
        _hour_record(service),
        _origin(plan),
        needs.wanted(number_of(next(iter(service.forecast), {}), "hour_bound") or 0.0),
        needs.wanted(number_of(plan, "peak_bound") or 0.0),
        _requests(service),
        service.state,
        number_of(plan, "free") or 0,
        number_of(plan, "demand_day"),
        number_of(plan, "full_load"),
        limit_of(plan),
        policy_of(plan),
        number_of(plan, "shared_providers") or 0,
        text_of(plan, "pool"),
        text_of(plan, "note"),
    )


def _origin(plan: Row) -> Origin | None:
    """Return the origin of the bound; None in a plan of an older version, or where the bound is 0."""
    peak, at, bound = number_of(plan, "highest"), time_of(plan, "highest_at"), number_of(plan, "peak_bound")
    headroom = policy_of(plan).headroom
    if not peak or at is None or not bound or headroom is None:
        return None
    return Origin(peak, at, headroom, bound / (peak * headroom))


def _hour_record(service: ServiceRows) -> HourRecord | None:
    """Return the record of the bounds of hours; None where they were never tried."""
    hours, missed, weeks, weeks_missed = (
        number_of(service.plan, name) or 0 for name in ("hours_tried", "hours_missed", "weeks_tried", "weeks_missed")
    )
    by_hour = schedule(service.plan, service.forecast)
    return HourRecord(hours, missed, weeks, weeks_missed, saved(service.plan, by_hour)) if weeks else None


def _model_facts(told: Row) -> ModelFacts:
    return ModelFacts(
        str(told.get("model")),
        number_of(told, "seasons"),
        number_of(told, "mase"),
        number_of(told, "mase_naive"),
        number_of(told, "coverage"),
        missed_before(told),
        number_of(told, "over_provision"),
        text_of(told, "flag"),
    )


def _requests(service: ServiceRows) -> Requests:
    last = _last_full_hour(service)
    erlangs, now = number_of(service.plan, "erlangs"), number_of(service.plan, "providers_now") or 0
    # The formula says nothing where more requests are in service than there are providers.
    held = erlangs is not None and 0 <= erlangs <= min(MOST_ERLANGS, now)
    return Requests(
        number_of(last, "requests"),
        number_of(last, "errors"),
        number_of(service.plan, "service_s"),
        erlangs,
        providers_for(erlangs) if erlangs is not None and held else None,
    )


def _last_full_hour(service: ServiceRows) -> Row:
    """Return the hour before that of the plan, which may still run; an empty row where nothing is known of it."""
    issued = time_of(service.plan, "issued")
    hours = (row for row in reversed(service.history) if issued and utc(row["h"]) == utc(issued) - timedelta(hours=1))
    return next(hours, {})


def _days(service: ServiceRows) -> list[Day]:
    """Return the days of history and forecast, the last first."""
    days: dict[str, tuple[list[Row], list[Row]]] = {}
    for place, rows in enumerate((service.history, service.forecast)):
        for row in rows:
            days.setdefault(utc(row["h"]).strftime("%Y-%m-%d"), ([], []))[place].append(row)
    return [
        Day(
            day,
            mean_of(number_of(row, "demand_mean") for row in past),
            highest_of(number_of(row, "demand_mean") for row in past),
            highest_of(number_of(row, "capacity") for row in past),
            highest_of(number_of(row, "providers_min") for row in past),
            highest_of(number_of(row, "p50") for row in to_come),
            highest_of(number_of(row, "p95") for row in to_come),
            highest_of(number_of(row, "hour_bound") for row in to_come),
        )
        for day, (past, to_come) in sorted(days.items(), reverse=True)
    ]
