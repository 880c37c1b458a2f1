"""The first screen of the report: the verdict, and the services with the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from spark.capacity.report.row_values import number_of, time_of
from spark.capacity.report.service_rows import (
    Misses,
    ServiceRows,
    Shortage,
    missed_before,
    shortage,
    shortage_by_p50,
)
from spark.capacity.report.trend_chart import Outlook, outlook

SPAN_OF_ROW = timedelta(hours=1)
"""The last row of an hour ends so much later."""


@attrs.frozen
class Verdict:
    """The sentence to act on: `short` of all services have too few providers, `first` before the others.

    Of `unknown` ones nothing is claimed. `days` is the number of days from the plan to the shortage of the first.
    """

    short: int
    unknown: int
    first: str = ""
    since: Shortage | None = None
    days: int | None = None
    add: float | None = None


@attrs.frozen
class Head:
    """The head of the page: the number of services and of those with a plan, the measured time, the plan's moment."""

    services: int
    planned: int
    measured: tuple[datetime, datetime] | None
    issued: datetime | None
    verdict: Verdict


@attrs.frozen
class GlanceRow:
    """A service in the table of all services."""

    name: str
    link: str
    add: float | None
    since: Shortage
    expected: Shortage
    now: float | None
    need_now: float | None
    need_horizon: float | None
    trend: Outlook
    misses: Misses | None


@attrs.frozen
class Pooled:
    """The misses of the bound at the past moments of all services together."""

    missed: float
    trials: float


def head(
    services: Sequence[ServiceRows], span: tuple[datetime, datetime] | None, until: datetime | None = None
) -> Head:
    """Return the head of the page. ``span`` has the first and the last measured hour, ``until`` is the last record."""
    planned = [service for service in services if service.plan]
    issued = [at for service in planned if (at := time_of(service.plan, "issued"))]
    # The last hour may still run.
    measured = None if span is None else (span[0], min(span[1] + SPAN_OF_ROW, until or span[1] + SPAN_OF_ROW))
    return Head(len(services), len(planned), measured, max(issued, default=None), verdict(planned))


def urgency(service: ServiceRows) -> tuple[int, float, float, str]:
    """Return a key that puts the worst service first: short now, then by the date, then by how many are missing."""
    plan = service.plan
    add = number_of(plan, "add")
    if not add:
        return (2 if add is None else 3, 0.0, 0.0, service.name)
    since = shortage(plan)
    if since.kind == "now":
        return (0, 0.0, -add, service.name)
    return (1, since.at.timestamp() if since.at else float("inf"), -add, service.name)


def verdict(services: Sequence[ServiceRows]) -> Verdict:
    short = sorted((service for service in services if number_of(service.plan, "add")), key=urgency)
    unknown = sum(number_of(service.plan, "add") is None for service in services)
    if not short:
        return Verdict(0, unknown)
    plan = short[0].plan
    since, issued = shortage(plan), time_of(plan, "issued")
    days = (since.at.date() - issued.date()).days if since.at and issued else None
    return Verdict(len(short), unknown, short[0].name, since, days, number_of(plan, "add"))


def glance(services: Sequence[ServiceRows], pages: bool = False) -> list[GlanceRow]:
    """Return the rows of all services, the worst first; each links to its section, or to its page."""
    return [
        GlanceRow(
            service.name,
            service.page if pages else service.section,
            number_of(service.plan, "add"),
            service.shortage,
            shortage_by_p50(service.plan),
            number_of(service.plan, "providers_now"),
            number_of(service.plan, "need_now"),
            number_of(service.plan, "need_horizon"),
            outlook(service.plan),
            missed_before(service.plan),
        )
        for service in sorted(services, key=urgency)
    ]


def pooled(services: Sequence[ServiceRows]) -> Pooled:
    """Return the record of the bound at the past moments of all services together.

    It has no limit with a confidence: the moments of services are the same, and what makes one miss may make others.
    """
    missed, trials = (
        sum(number_of(service.plan, name) or 0 for service in services) for name in ("bound_missed", "bound_trials")
    )
    return Pooled(missed, trials)


def sharing(services: Sequence[ServiceRows]) -> int:
    """Return the number of services some of whose providers offer other services as well."""
    return sum(bool(number_of(service.plan, "shared_providers")) for service in services)
