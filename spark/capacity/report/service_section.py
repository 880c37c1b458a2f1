"""The section of a service: its charts, the numbers of its plan, and its days."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from spark.capacity.planning.needs import WAIT_SHARE, needs_of, policy_of, providers_for
from spark.capacity.report.chart import Drawing, Line, Mark, chart, limit_of, trend_of
from spark.capacity.report.plan_json import saved, schedule
from spark.capacity.report.service_rows import ServiceRows, missed_before, odds_of, planned_state, short_from, shortage
from spark.capacity.tables.row_values import Row, highest_of, mean_of, number_of

SHOWN = timedelta(days=35)
"""History in a chart: five weeks, so that the weekly wave is seen and an hour still has a part of a pixel."""

ROUNDING = 1e-6
"""Part of a load by which one is above a limit for certain."""


def section_of(service: ServiceRows) -> dict[str, Any]:
    """Return the values of `service_section.html`; a part is None where its table has no row of the service."""
    return {
        "ident": service.ident,
        "name": service.name,
        "drawing": _drawing(service),
        "since": shortage(service.plan),
        "plan": _plan_facts(service) if service.plan else None,
        "model": service.told or None,
        "record": missed_before(service.told),
        "trend": trend_of(service.plan) if service.plan else None,
        "days": _days(service),
    }


def _drawing(service: ServiceRows) -> Drawing | None:
    plan, hours, limit = service.plan, service.history, limit_of(service.plan)
    history = [row for row in hours if row["h"] > hours[-1]["h"] - SHOWN]

    def points(rows: Sequence[Row], name: str) -> list[tuple[float, float | None]]:
        """With a gap where hours are missing."""
        found: list[tuple[float, float | None]] = []
        for row in rows:
            at = row["h"].timestamp()
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
        times = [row["h"].timestamp() for row in (*history, *service.forecast)]
        lines.append(Line("limit of the providers now", "capacity", [(at, limit) for at in times]))
    marks = [
        Mark("now", "now", plan.get("issued") or service.told.get("issued")),
        Mark("too few at the earliest", "crossed", plan.get("exhaust_bound")),
        Mark("too few as expected", "crossed", plan.get("exhaust_p50")),
    ]
    return chart(lines, marks)


def _plan_facts(service: ServiceRows) -> dict[str, Any]:
    plan = service.plan
    needs, limit = needs_of(plan), limit_of(plan)
    return {
        **plan,
        "state": planned_state(plan),
        "policy": policy_of(plan),
        "limit": limit,
        # The rule by which a little more than the limit needs more providers.
        "limit_rule": None if limit is None else needs.rule(limit * (1.0 + ROUNDING) + ROUNDING),
        "since": shortage(plan),
        "since_p50": short_from(plan, "exhaust_p50"),
        "misses": missed_before(plan),
        "odds": odds_of(plan),
        "odds_week": odds_of(plan, "odds_week"),
        # The part of the provider-hours of the need of the horizon that the schedule does without.
        "saved": saved(plan, schedule(plan, service.forecast)),
        "origin": _origin(plan, service.told),
        # The providers that each rule of the policy wants, for the hour of the plan and for the horizon.
        "now_by_rule": needs.wanted(number_of(next(iter(service.forecast), {}), "hour_bound")),
        "need_by_rule": needs.wanted(number_of(plan, "peak_bound")),
        "requests": _requests(service),
    }


def _origin(plan: Row, told: Row) -> dict[str, Any] | None:
    """Return the peak of which the bound of the horizon is made, with its hour, the factor of the forecast, and `more`:
    that of growth, or of an event. None where the bound is 0."""
    peak, bound, of_forecast = number_of(plan, "highest"), number_of(plan, "peak_bound"), number_of(told, "peak_bound")
    if not peak or not bound or not of_forecast:
        return None
    return {"peak": peak, "at": plan["highest_at"], "factor": of_forecast / peak, "more": bound / of_forecast}


def _requests(service: ServiceRows) -> dict[str, Any]:
    """Return the requests of the last full hour, each None where providers do not report it; `providers` keep all but a
    share of `wait_share` of them from waiting."""
    # The hour of the plan may still run.
    at, waiting = service.plan["issued"] - timedelta(hours=1), needs_of(service.plan).erlangs
    last: Row = next((row for row in reversed(service.history) if row["h"] == at), {})
    return {
        "number": number_of(last, "requests"),
        "errors": number_of(last, "errors"),
        "providers": None if waiting is None else providers_for(waiting),
        "wait_share": WAIT_SHARE,
    }


def _days(service: ServiceRows) -> list[dict[str, Any]]:
    """Return the days of history and forecast, the last first. The limit of a day to come is that of the providers of
    now."""
    days: dict[str, tuple[list[Row], list[Row]]] = {}
    for place, rows in enumerate((service.history, service.forecast)):
        for row in rows:
            days.setdefault(row["h"].strftime("%Y-%m-%d"), ([], []))[place].append(row)
    made = []
    for day, (past, to_come) in sorted(days.items(), reverse=True):
        providers = highest_of(number_of(row, "providers_min") for row in past)
        row = {
            "day": day,
            "demand_mean": mean_of(number_of(row, "demand_mean") for row in past),
            "demand_most": highest_of(number_of(row, "demand_mean") for row in past),
            "limit": limit_of(service.plan, providers),
            "providers": providers,
        }
        names = ("p50", "hour_bound")
        made.append({**row, **{name: highest_of(number_of(one, name) for one in to_come) for name in names}})
    return made
