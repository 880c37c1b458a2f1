"""The first screen of the report: the verdict in a sentence, the services with the worst first, and a legend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from spark.capacity.planning.peak_bound import upper_limit
from spark.capacity.report.chart import escape
from spark.capacity.report.markup import (
    DASH,
    bdi,
    counted,
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
from spark.capacity.report.service_section import ServiceRows, marked, missed_before, short_from
from spark.capacity.report.trend_chart import limit_of

LEGEND = (
    ("Providers now", "servers that offered the service in the last full hour, by the time that each was up"),
    ("Needed now", "servers for the highest five minutes of the last full hour, spares included"),
    ("Needed in the horizon", "servers for the peak bound of the coming hours, spares included"),
    ("To add", "servers that are missing, now or in the horizon"),
    ("Spare", "servers beyond those that carry the load: one may fail while another is restarted"),
    ("Too few from", "the first hour whose own bound needs more servers than there are now"),
    (
        "By the trend",
        "the week in which the growth of the weekly peaks, if it goes on, needs more servers than there are",
    ),
    ("Peak bound", "the highest five minutes of the last eight weeks, times 1.3"),
    (
        "Bound missed before",
        "past moments at which the load exceeded this bound, and the rate that this leaves possible",
    ),
    ("p50, p95", "the forecast of each hour's mean load: exceeded half of the time, and one hour in twenty"),
    ("Load", "what the providers report, in their own unit; full at the full load of the broker's configuration"),
)


def header(services: Sequence[ServiceRows], span: tuple[datetime, datetime] | None) -> str:
    """Return the head of the page: title, verdict, and links. ``span`` has the first and the last measured hour."""
    said = f"{counted(len(services), 'service')}."
    if span is not None:
        said += f" Measured from {when(span[0])} to {when(span[1] + timedelta(hours=1))}."
    if (issued := _issued(services)) is not None:
        said += f" Planned as of {when(issued)}."
    links = "".join(
        f'<li><a href="#{ident}">{escape(text)}</a></li>'
        for ident, text in (
            ("glance", "At a glance"),
            ("flaky", "Flaky providers"),
            ("balance", "Unbalanced services"),
            ("promises", "Promises and what became of them"),
            ("quality", "Quality of the data"),
            ("unclaimed", "What is not claimed"),
        )
    )
    verdict_html = f'<p class="verdict">{verdict(services)}</p>' if services else ""
    return f"<header><h1>Capacity plan</h1>{verdict_html}{para(said)}<nav><ul>{links}</ul></nav></header>\n"


def _issued(services: Sequence[ServiceRows]) -> datetime | None:
    issued = [at for service in services if (at := time_of(service.plan, "issued"))]
    return max(issued, default=None)


def urgency(service: ServiceRows) -> tuple[int, float, float, str]:
    """Return a key that puts the worst service first: short now, then by the date, then by how many are missing."""
    plan = service.plan
    add = number_of(plan, "add")
    if not add:
        return (2 if add is None else 3, 0.0, 0.0, service.name)
    need_now, now, date = number_of(plan, "need_now") or 0.0, number_of(plan, "providers_now") or 0.0, _date(service)
    return (0 if need_now > now else 1, date.timestamp() if date else float("inf"), -add, service.name)


def _date(service: ServiceRows) -> datetime | None:
    return time_of(service.plan, "exhaust_bound")


def verdict(services: Sequence[ServiceRows]) -> str:
    """Return the sentence to act on, as HTML."""
    short = sorted((service for service in services if number_of(service.plan, "add")), key=urgency)
    unknown = sum(number_of(service.plan, "add") is None for service in services)
    rest = ""
    if unknown:
        rest = f" Of {counted(unknown, 'service')} nothing is claimed: without a full load, or without a plan."
    all_of_them = counted(len(services), "service")
    if not short:
        return f"<strong class='good'>None of {all_of_them} is short of providers.</strong>{rest}"
    first = short[0]
    verb = "is" if len(short) == 1 else "are"
    said = f"<strong class='bad'>{plain(len(short), 0)} of {all_of_them} {verb} short of providers"
    add = plain(number_of(first.plan, "add"), 0)
    return f"{said}; {bdi(first.name)} first, {_from(first)}: add {add}.</strong>{rest}"


def _from(service: ServiceRows) -> str:
    """Say from when on a service is short."""
    plan, date, issued = service.plan, _date(service), time_of(service.plan, "issued")
    if (number_of(plan, "need_now") or 0.0) > (number_of(plan, "providers_now") or 0.0):
        return "already now"
    if date is None or issued is None:
        return "at its highest peak"
    days = (utc(date).date() - utc(issued).date()).days
    day = {0: "today", 1: "tomorrow"}.get(days, f"{date:%A}, {date:%Y-%m-%d}")
    return f"{day} {date:%H:%M} UTC"


def glance(services: Sequence[ServiceRows], pages: bool = False) -> str:
    """Return the table of all services, the worst first; each links to its section, or to its page."""
    rows = []
    for service in sorted(services, key=urgency):
        plan = service.plan
        now, add = number_of(plan, "providers_now"), number_of(plan, "add")
        link = service.page if pages else service.section
        rows.append(
            [
                f'<a href="{link}">{bdi(service.name)}</a>',
                # First what is to be done: the others may be beyond the edge of a phone.
                DASH if add is None else f"+{plain(add, 0)}" if add else "none",
                short_from(service)[0],
                plain(now, 0),
                marked(number_of(plan, "need_now"), now),
                marked(number_of(plan, "need_horizon"), now),
                plain(number_of(plan, "spare"), 0),
                _trend(service),
                missed_before(plan),
            ]
        )
    heads = (
        "Service",
        "To add",
        "Too few from",
        "Providers now",
        "Needed now",
        "Needed in the horizon",
        "Spare in that",
        "By the trend",
        "Bound missed before",
    )
    empty = "There are no services: the journal has no reports of load yet."
    table = table_html("Providers and dates, the worst first", heads, rows, empty, len(rows))
    return section_html("glance", "At a glance", table, _pooled(services), _legend() if rows else "")


def _trend(service: ServiceRows) -> str:
    date = time_of(service.plan, "exhaust_trend")
    if date is not None:
        issued = time_of(service.plan, "issued")
        return "already" if issued is not None and date <= issued else f"{date:%Y-%m-%d}"
    claimed = number_of(service.plan, "growth_per_week") is not None and limit_of(service.plan) is not None
    return "not in 13 weeks" if claimed else DASH


def _pooled(services: Sequence[ServiceRows]) -> str:
    """Say how the bound did at the past moments of all services together."""
    trials = int(sum(number_of(service.plan, "bound_trials") or 0 for service in services))
    missed = int(sum(number_of(service.plan, "bound_missed") or 0 for service in services))
    if not trials:
        return ""
    most = percent(upper_limit(missed, trials), 0)
    said = f"Of all services together the bound was missed at {missed:,} of {trials:,} past moments"
    return para(f"{said} (95 %: at most {most}).")


def _legend() -> str:
    terms = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(meaning)}</dd></div>" for term, meaning in LEGEND)
    return f'<details><summary>What the words mean</summary><dl class="legend">{terms}</dl></details>'
