"""A service in the report: its rows of all tables, and the section with its chart and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property

import attrs

from spark.capacity.planning.erlang import MOST_ERLANGS, WAIT_SHARE, providers_for
from spark.capacity.report.chart import Band, Line, Mark, chart
from spark.capacity.report.markup import (
    DASH,
    ROWS,
    Row,
    Tables,
    bdi,
    highest_of,
    mean_of,
    missing,
    number_of,
    para,
    percent,
    plain,
    section_html,
    table_html,
    time_of,
    utc,
    when,
)
from spark.capacity.report.rows_by_service import RowsByService
from spark.capacity.report.trend_chart import trend_figure

SHOWN = timedelta(days=35)
"""History in a chart: five weeks, so that the weekly wave is seen and an hour still has a part of a pixel."""


@attrs.frozen
class ServiceRows:
    """A service in the report. Its hours are looked up when they are asked for."""

    name: str
    ident: str
    plan: Row
    evaluations: list[Row]
    _hours: Mapping[str, Sequence[Row]]
    _steps: Mapping[str, Sequence[Row]]

    @property
    def section(self) -> str:
        """The reference to its section, in a report of one page."""
        return f"#{self.ident}"

    @property
    def page(self) -> str:
        """The path of its page, relative to the report, in a report of several pages."""
        return f"services/{self.ident}.html"

    @property
    def history(self) -> list[Row]:
        """Its hours, oldest first."""
        return _ordered(self._hours, self.name)

    @property
    def forecast(self) -> list[Row]:
        """The hours of the last forecast."""
        return _ordered(self._steps, self.name)

    @property
    def measured(self) -> bool:
        """True if any of its hours is known."""
        return self.name in self._hours

    @cached_property
    def told(self) -> Row:
        """The members that all rows of the forecast share."""
        return next(iter(self.forecast), {})

    @cached_property
    def capacity(self) -> float | None:
        """The last known capacity."""
        known = (number_of(row, "capacity") for row in reversed(self.history))
        return next((value for value in known if value is not None), None)


def _ordered(rows: Mapping[str, Sequence[Row]], service: str) -> list[Row]:
    """Return the rows of a service by their hours; a `RowsByService` has them in order, and of one issue."""
    mine = rows.get(service, ())
    return list(mine) if isinstance(rows, RowsByService) else in_time(latest(mine), "h")


def latest(rows: Sequence[Row]) -> list[Row]:
    """Those of the last issue."""
    issues = [at for row in rows if (at := time_of(row, "issued")) is not None]
    return [row for row in rows if time_of(row, "issued") == max(issues)] if issues else list(rows)


def by_service(rows: Sequence[Row] | RowsByService) -> Mapping[str, Sequence[Row]]:
    """Return the rows of each service."""
    if isinstance(rows, RowsByService):
        return rows
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row.get("service")), []).append(row)
    return found


def in_time(rows: Sequence[Row], name: str) -> list[Row]:
    return sorted((row for row in rows if time_of(row, name) is not None), key=lambda row: utc(row[name]))


def services_of(tables: Tables) -> list[ServiceRows]:
    history, forecast, plan, evaluation = (
        by_service(tables.get(name, ())) for name in ("gold_service_1h", "gold_forecast", "gold_plan", "evaluation")
    )
    others = (by_service(tables.get(name, ())) for name in ("gold_provider_day", "gold_balance_day"))
    names = sorted(set(history) | set(forecast) | set(plan) | {name for other in others for name in other})
    return [
        ServiceRows(
            name,
            f"s{number}",
            (latest(plan.get(name, ())) or [{}])[-1],
            in_time(evaluation.get(name, ()), "issued"),
            history,
            forecast,
        )
        for number, name in enumerate(names)
    ]


def short_from(service: ServiceRows) -> tuple[str, str]:
    """Return the times at which the bound and the median of the forecast reach the capacity."""
    if service.capacity is None or not service.plan:
        return DASH, DASH
    bound, middle = (time_of(service.plan, name) for name in ("exhaust_bound", "exhaust_p50"))
    if (number_of(service.plan, "need_now") or 0) > (number_of(service.plan, "providers_now") or 0):
        return "already now", when(middle) if middle else "not in the horizon"
    if bound is None and (number_of(service.plan, "add") or 0) > 0:
        return "at the highest peak, at no certain hour", when(middle) if middle else "not in the horizon"
    return (when(bound) if bound else "not in the horizon"), (when(middle) if middle else "not in the horizon")


def marked(need: float | None, now: float | None) -> str:
    """Mark a need that is more than there are."""
    if need is None:
        return DASH
    return f'<strong class="{"bad" if now is not None and need > now else "good"}">{plain(need, 0)}</strong>'


def missed_before(row: Row) -> str:
    """Say how often the bound would have been missed, and what rate that leaves possible."""
    trials, missed = number_of(row, "bound_trials"), number_of(row, "bound_missed")
    if not trials or missed is None:
        return "never tried"
    most = percent(number_of(row, "bound_miss_most"), 0)
    return f"{plain(missed, 0)} of {plain(trials, 0)}; 95 %: at most {most}"


def service_section(service: ServiceRows) -> str:
    parts = [_chart(service), *_said(service), trend_figure(service.ident, service.name, service.plan)]
    if service.history or service.forecast:
        parts.append(f"<details><summary>The same in numbers, day by day</summary>{_days(service)}</details>")
    return section_html(service.ident, f"Service {bdi(service.name)}", *parts)


def _chart(service: ServiceRows) -> str:
    target = number_of(service.plan, "target_utilisation")
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

    capacity = points(history, "capacity")
    if service.capacity is not None and service.forecast:
        # The capacity of the providers of today, as far as the forecast goes.
        capacity += [(utc(row["h"]).timestamp(), service.capacity) for row in service.forecast]
    lines = [
        Line("demand", "demand", points(history, "demand_mean")),
        Line("forecast (p50)", "p50", points(service.forecast, "p50")),
        Line("bound of the hour", "bound", points(service.forecast, "hour_bound")),
        Line("capacity", "capacity", capacity),
    ]
    if target is not None and service.capacity is not None:
        wanted = [(at, value * target if value is not None else None) for at, value in capacity]
        lines.append(Line(f"{percent(target, 0)} of it", "target", wanted))
    band = [
        (utc(row["h"]).timestamp(), low, max(low, high))
        for row in service.forecast
        if (low := number_of(row, "p50")) is not None and (high := number_of(row, "p95")) is not None
    ]
    dates = [
        ("now", "now", time_of(service.plan, "issued") or time_of(service.told, "issued")),
        ("bound at the limit", "crossed", time_of(service.plan, "exhaust_bound")),
        ("p50 at the limit", "crossed", time_of(service.plan, "exhaust_p50")),
    ]
    title = f"Demand and forecast of {service.name}"
    drawn = chart(
        service.ident,
        title,
        f"Load by the hour. The bound reaches the limit: {short_from(service)[0]}. The numbers follow as a table.",
        "load (as reported)",
        lines,
        [Band("p50 to p95", "band", band)],
        [Mark(label, kind, at.timestamp()) for label, kind, at in dates if at],
    )
    if not drawn:
        return para("There is no chart: no hour of this service has a known load.", "empty")
    caption = f"<figcaption>Demand and forecast of {bdi(service.name)}</figcaption>"
    return f'<figure class="wide" tabindex="0">{drawn}{caption}</figure>'


def _said(service: ServiceRows) -> Iterable[str]:
    plan, told = service.plan, service.told
    if not plan:
        yield para("There is no plan for this service: it was not planned in the last run.", "empty")
    else:
        bound, middle = short_from(service)
        facts = [
            ("Providers now", plain(number_of(plan, "providers_now"), 0)),
            ("Needed now", plain(number_of(plan, "need_now"), 0)),
            ("Needed in the horizon", plain(number_of(plan, "need_horizon"), 0)),
            ("Spare in that", plain(number_of(plan, "spare"), 0)),
            ("Rule that decided", bdi(plan["rule"]) if not missing(plan.get("rule")) else DASH),
            ("Highest bound", f"{plain(number_of(plan, 'peak_bound'))} (load)"),
            ("Too few from, by the bound", bound),
            ("Too few from, by p50", middle),
            ("Bound missed before", missed_before(plan)),
        ]
        facts += _requests(service)
        yield '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts) + "</dl>"
        if not missing(plan.get("note")) and plan["note"]:
            yield f'<p class="note">{bdi(plan["note"])}</p>'
    if told:
        mase, naive = number_of(told, "mase"), number_of(told, "mase_naive")
        yield (
            f"<p>Model: {bdi(told.get('model'))}, on {plain(number_of(told, 'seasons'))} seasons. On past parts of "
            f"this very series its error (MASE) was {plain(mase, 2)}, that of the seasonal naive {plain(naive, 2)}; "
            f"p95 held in {percent(number_of(told, 'coverage'))} of the hours. At past moments the bound was missed: "
            f"{missed_before(told)}, {plain(number_of(told, 'bound_ahead_h'), 0)} hours ahead; it stood at "
            f"{plain(number_of(told, 'over_provision'), 2)} times the peak in the median.</p>"
        )
        if not missing(told.get("flag")) and told["flag"]:
            yield f'<p class="note">Flag: {bdi(told["flag"])}</p>'
    else:
        yield para("There is no forecast for this service.", "empty")


def _requests(service: ServiceRows) -> list[tuple[str, str]]:
    """Return what is known of the requests of the last full hour; nothing where providers report none."""
    plan, last = service.plan, service.history[-1] if service.history else {}
    requests, erlangs = number_of(last, "requests"), number_of(plan, "erlangs")
    facts = []
    if requests is not None:
        errors = number_of(last, "errors")
        failed = "" if errors is None else f", of which {plain(errors, 0)} failed"
        facts.append(("Requests of the last full hour", plain(requests, 0) + failed))
    if (seconds := number_of(plan, "service_s")) is not None:
        facts.append(("Mean time of a request", f"{plain(seconds * 1000, 1)} ms"))
    if erlangs is not None:
        facts.append(("Requests in service at a time", f"{plain(erlangs, 1)} (erlangs)"))
        if 0 <= erlangs <= min(MOST_ERLANGS, number_of(plan, "providers_now") or 0):
            needed = plain(providers_for(erlangs), 0)
            facts.append((f"Busy providers with which at most {percent(WAIT_SHARE, 0)} of them wait", needed))
    return facts


def _days(service: ServiceRows) -> str:
    days: dict[str, tuple[list[Row], list[Row]]] = {}
    for place, rows in enumerate((service.history, service.forecast)):
        for row in rows:
            days.setdefault(utc(row["h"]).strftime("%Y-%m-%d"), ([], []))[place].append(row)
    cells = [
        [
            day,
            plain(mean_of(number_of(row, "demand_mean") for row in past)),
            plain(highest_of(number_of(row, "demand_mean") for row in past)),
            plain(highest_of(number_of(row, "capacity") for row in past)),
            plain(highest_of(number_of(row, "providers_min") for row in past), 0),
            plain(highest_of(number_of(row, "p50") for row in to_come)),
            plain(highest_of(number_of(row, "p95") for row in to_come)),
            plain(highest_of(number_of(row, "hour_bound") for row in to_come)),
        ]
        for day, (past, to_come) in sorted(days.items(), reverse=True)
    ]
    heads = ("Day (UTC)", "Demand, mean", "highest hour", "Capacity", "Providers", "p50, highest", "p95", "Bound")
    return table_html("Load by day", heads, cells, "", cut=2 * ROWS)
