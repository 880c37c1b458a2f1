"""The endpoint of the loads of the last hour."""

from __future__ import annotations

from typing import Any

import attrs

from broker.admin.api.lists import ListQuery, listing
from broker.admin.registry_views import present_providers
from broker.core.interfaces import IRegistry
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import Provider
from broker.web.endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("label", "Label that it gave"),
    Column("load", "Load that it reported last"),
    Column("loads", "Loads of the last hour, one a minute, the newest last; null for a minute without a sample"),
)


@attrs.frozen
class LoadHistories:
    """The loads of the last hour. ``step`` is the time between two loads in seconds."""

    step: int
    rows: list[dict[str, Any]]
    total: int
    offset: int
    limit: int
    epoch: int
    revision: int


def endpoints(registry: IRegistry, history: LoadHistory) -> list[Endpoint]:
    """Return the endpoint of load histories."""
    view = _view(registry, history)

    def handle(call: Call) -> Response:
        return listing(call, view, registry, {"step": STEP})

    return [
        Endpoint(
            "GET",
            "/v1/loads/history",
            "list_load_histories",
            "Lists the loads of the last hour by provider.",
            handle,
            query=ListQuery,
            answer=LoadHistories,
        )
    ]


def _view(registry: IRegistry, history: LoadHistory) -> AnyView:
    def row(provider: Provider) -> Row:
        loads = history.of(provider.id)
        return {"provider": provider.id, "label": provider.label, "load": provider.load, "loads": loads}

    return View(
        "broker history",
        "Shows the loads of the last hour by provider. A pattern selects labels or wires.",
        COLUMNS,
        lambda: present_providers(registry),
        row,
        lambda provider: (provider.label, provider.wire),
    )
