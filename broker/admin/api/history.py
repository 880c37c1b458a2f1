"""The endpoint of the loads of the last hour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import attrs
from msgspec import Meta

from broker.admin.api.lists import ListQuery, listing
from broker.admin.registry_views import present_providers, shows_provider
from broker.core.interfaces import IRegistry
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import Provider
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("provider", "Id of the provider"),
    Column("label", "Label that it gave"),
    Column("load", "Load that it reported last"),
    Column("loads", "Loads of the last hour, one a minute, the newest last; null for a minute without a sample"),
)


MAX_IDS = 100
"""Providers that are named in one query: those of one page."""


@attrs.frozen
class HistoryQuery(ListQuery):
    """The query of load histories: ``provider`` names the providers, in place of all."""

    provider: Annotated[
        tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=MAX_IDS, description="id of a provider; repeatable")
    ] = ()


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
    every = _view(history, lambda: present_providers(registry))

    def handle(call: Call) -> Response:
        ids = call.query.provider
        view = _view(history, lambda: _present(registry, ids)) if ids else every
        return listing(call, view, registry, {"step": STEP})

    return [
        Endpoint(
            "GET",
            "/v1/loads/history",
            "list_load_histories",
            "Lists the loads of the last hour by provider.",
            handle,
            query=HistoryQuery,
            answer=LoadHistories,
        )
    ]


def _present(registry: IRegistry, ids: Iterable[int]) -> Iterator[Provider]:
    return (provider for id in ids if (provider := registry.provider(id)) is not None)


def _view(history: LoadHistory, providers: Callable[[], Iterable[Provider]]) -> AnyView:
    def row(provider: Provider) -> Row:
        loads = history.of(provider.id)
        return {"provider": provider.id, "label": provider.label, "load": provider.load, "loads": loads}

    return View(
        "broker history",
        "Shows the loads of the last hour by provider. A pattern selects labels or wires.",
        COLUMNS,
        providers,
        row,
        lambda provider: (provider.label, provider.wire),
        shown=shows_provider,
    )
