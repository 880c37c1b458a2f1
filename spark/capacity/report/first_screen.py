"""The first screen of the report: the verdict, and the services with the worst first."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs

from spark.capacity.planning.needs import State
from spark.capacity.report.chart import outlook
from spark.capacity.report.service_rows import (
    ServiceRows,
    Shortage,
    StateTotal,
    cost_now,
    missed_before,
    odds_of,
    planned_state,
    short_from,
    shortage,
    totals,
)
from spark.capacity.tables.row_values import number_of

SPAN_OF_ROW = timedelta(hours=1)
"""The last row of an hour ends so much later."""


@attrs.frozen
class Verdict:
    """The sentence to act on: the worst service, its state, and the missing or spare providers.

    `days` is the number of days from the plan to the shortage of a service that is below its policy.
    """

    states: Sequence[StateTotal]
    first: str = ""
    state: State | None = None
    since: Shortage | None = None
    days: int | None = None
    add: float | None = None

    @property
    def count(self) -> int:
        """The number of services in the worst state."""
        return sum(one.services for one in self.states if one.state is self.state)


def head(
    services: Sequence[ServiceRows], span: tuple[datetime, datetime] | None, until: datetime | None = None
) -> dict[str, Any]:
    """Return the head of the page: the numbers of services and of those with a plan, the measured time, and the time of
    the plan.

    ``span`` has the first and the last measured hour, ``until`` is the last record.
    """
    planned = [service for service in services if service.plan]
    return {
        "services": len(services),
        "planned": len(planned),
        # The last hour may still run.
        "measured": None if span is None else (span[0], min(span[1] + SPAN_OF_ROW, until or span[1] + SPAN_OF_ROW)),
        "issued": max((service.plan["issued"] for service in planned), default=None),
        "verdict": verdict(planned),
    }


def urgency(service: ServiceRows) -> tuple[int, float, float, float, str]:
    """Return a key that puts the worst service first: by its state, the date, the missing providers, and the cost."""
    since, plan = shortage(service.plan), service.plan
    at = {"now": 0.0, "date": since.at.timestamp() if since.at else 0.0}.get(since.kind, float("inf"))
    missing = (number_of(plan, "add") or 0) + (number_of(plan, "free") or 0)
    return (planned_state(plan).rank, at, -missing, -(cost_now(plan) or 0.0), service.name)


def verdict(services: Sequence[ServiceRows]) -> Verdict:
    """Return the sentence to act on."""
    states = [total for total in totals(service.plan for service in services) if total.services]
    short = [service for service in services if planned_state(service.plan).is_short]
    if not short:
        return Verdict(states)
    first = min(short, key=urgency)
    since = shortage(first.plan)
    days = (since.at.date() - first.plan["issued"].date()).days if since.at else None
    return Verdict(states, first.name, planned_state(first.plan), since, days, number_of(first.plan, "add"))


def glance(services: Sequence[ServiceRows]) -> list[dict[str, Any]]:
    """Return the rows of all services, the worst first; each links to its section, or to its page."""
    numbers = ("add", "free", "providers_now", "need_now", "need_horizon")
    return [
        {
            **{name: number_of(service.plan, name) for name in numbers},
            "name": service.name,
            "link": service.link,
            "state": planned_state(service.plan),
            "since": shortage(service.plan),
            "expected": short_from(service.plan, "exhaust_p50"),
            "trend": outlook(service.plan),
            "odds": odds_of(service.plan),
            "odds_week": odds_of(service.plan, "odds_week"),
            "misses": missed_before(service.plan),
        }
        for service in sorted(services, key=urgency)
    ]


def pooled(services: Sequence[ServiceRows], name: str = "odds") -> dict[str, float]:
    """Return the odds at the past moments of all services together, as said on average and as they came; ``name`` is
    that of `odds_of`.

    It has no confidence limit: the services share their days, and what causes one miss may cause others.
    """
    all_odds = (odds_of(service.plan, name) for service in services)
    known = [odds for odds in all_odds if odds is not None and odds.said is not None]
    trials = sum(odds.trials for odds in known)
    said = sum((odds.said or 0.0) * odds.trials for odds in known)
    return {"said": said / trials if trials else 0.0, "missed": sum(odds.missed for odds in known), "trials": trials}


def sharing(services: Sequence[ServiceRows]) -> int:
    """Return the number of services that share servers with others, and so a need."""
    return sum(service.plan.get("pool") is not None for service in services)
