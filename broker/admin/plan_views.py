"""The view of the capacity plan: the verdict on each service, the worst first."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

from twisted.internet.interfaces import IReactorTime

from broker.core.plan import IPlan, Plan, PlannedService, Verdict
from broker.wall_clock import wall
from broker.wires.views import AnyView, Column, Row, View

PLAN = "/plan"
"""Path of the files of the plan on the HTTP listener: `broker.admin.api.plan_report` serves some of them."""

REPORT = f"{PLAN}/report.html"
"""Path of the report there."""

COLUMNS = (
    Column("name", "Name of the service"),
    Column("verdict", f"State of the service: {', '.join(verdict.value for verdict in Verdict)}"),
    Column("days_until_short", "Time until there are too few providers, 0 if there are too few already", "days"),
    Column("short_at", "Time from which there are too few providers"),
    Column("add", "Providers that are missing in the horizon", "providers"),
    Column("free", "Providers that may go", "providers"),
    Column("has", "Providers at the time of the plan", "providers"),
    Column("need_now", "Providers needed for the bound of the hour that begins then, by the policy", "providers"),
    Column("need", "Providers needed for the bound of the horizon, by the policy", "providers"),
    Column("missed", "Past moments at which the bound behind the need was exceeded", "moments"),
    Column("trials", "Past moments at which the bound was tried", "moments"),
    Column("miss_at_most", "Highest rate of misses that this leaves possible, with 95 % confidence; a share"),
    Column("note", "Remark of the plan"),
    Column("report", "Path of the section or page on the service in the jobs' report, on the HTTP listener"),
    Column("age", "Age of the plan: time since the moment for which it was made", "seconds"),
)


def plan_view(plan: IPlan, clock: IReactorTime) -> AnyView:
    """Return the view of a plan."""

    def items() -> Iterable[tuple[Plan, PlannedService]]:
        current = plan.current()
        return () if current is None else [(current, service) for service in current.services.values()]

    return View(
        "broker plan",
        "Shows the verdict of the capacity plan on each service, the worst first. A pattern selects names.",
        COLUMNS,
        items,
        partial(_row, clock),
        lambda item: (item[1].name,),
        shown=lambda reading, item: reading.shows(item[1].name),
    )


def _row(clock: IReactorTime, item: tuple[Plan, PlannedService]) -> Row:
    plan, service = item
    now = wall(clock)
    days = service.days_until_short(now)
    row: dict[str, object | None] = {
        "name": service.name,
        "verdict": service.verdict.value,
        "days_until_short": None if days is None else round(days, 2),
        "short_at": None if service.short_at is None else _text(service.short_at),
        "add": service.add,
        "free": service.free or None,
        "has": service.has,
        "need_now": service.need_now,
        "need": service.need,
        "missed": service.missed,
        "trials": service.trials,
        "miss_at_most": service.miss_at_most,
        "note": service.note or None,
        "report": f"{PLAN}/{service.report}" if service.report else REPORT,
        "age": round(now - plan.made),
    }
    return {name: value for name, value in row.items() if value is not None}


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
