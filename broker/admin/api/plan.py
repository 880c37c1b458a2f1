"""The endpoint of the capacity plan."""

from __future__ import annotations

from typing import Any

import attrs

from broker.admin.api.lists import ListQuery, listing
from broker.admin.api.pieces import moment
from broker.admin.plan_views import plan_view
from broker.core.interfaces import IRegistry
from broker.core.plan import IPlan
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response


@attrs.frozen
class PlanAnswer:
    """The capacity plan as it was read last.

    ``made`` is the moment for which it was made, ``age`` the time since then in seconds; both are null without a plan.
    ``problem`` is the reason for which the file could not be read the last time; then the plan is an older one. Rows
    are the services, the worst first.
    """

    made: str | None
    age: float | None
    problem: str | None
    rows: list[dict[str, Any]]
    total: int
    offset: int
    limit: int
    epoch: int
    revision: int


def endpoints(plan: IPlan, registry: IRegistry, clock: Any) -> list[Endpoint]:
    """Return the endpoint of the plan."""
    view = plan_view(plan, clock)

    def handle(call: Call) -> Response:
        current, age = plan.current(), plan.age()
        about = {
            "made": None if current is None else moment(current.made),
            "age": None if age is None else round(age),
            "problem": plan.problem(),
        }
        return listing(call, view, registry, about)

    return [
        Endpoint(
            "GET",
            "/v1/plan",
            "get_plan",
            "Lists the verdict of the capacity plan on each service, the worst first.",
            handle,
            query=ListQuery,
            answer=PlanAnswer,
        )
    ]
