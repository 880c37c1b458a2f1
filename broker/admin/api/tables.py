"""Endpoints of views: the list of all views, each view, and the tables of the whole farm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from broker.admin.api.lists import ListQuery, Rows, listing
from broker.admin.api.pieces import answer
from broker.core.errors import Reason
from broker.core.interfaces import IRegistry
from broker.web.http_endpoint import Call, Endpoint
from broker.web.messages import Response
from broker.web.problem import Problem
from broker.wires.views import AnyView, join

Views = Callable[[], Mapping[str, AnyView]]
"""The views that exist now, by name: those of a wire appear when it is open."""

FARM = {
    "providers": "Lists the providers of all wires.",
    "services": "Lists the services of all wires.",
    "loads": "Lists the loads of all providers.",
    "listeners": "Lists the listeners of the daemon.",
    "checks": "Lists the health checks of services.",
    "certificates": "Lists the certificates of listeners.",
    "counters": "Lists all counters with their meaning.",
}
"""Tables that the daemon itself has, with a path each."""

JOINED = {
    "sessions": "Lists the sessions of every wire, with the wire in a column.",
    "topics": "Lists the topics.",
    "queues": "Lists the queues.",
}
"""Tables that several wires have, joined under one path."""


@attrs.frozen
class ColumnAbout:
    """A column of a view; ``unit`` is that of its numbers, empty for a plain number or a text."""

    name: str
    help: str
    unit: str


@attrs.frozen
class ViewAbout:
    """A view: its rows are at ``path``. ``title`` is its name as a heading."""

    name: str
    title: str
    path: str
    help: str
    columns: list[ColumnAbout]


@attrs.frozen
class ViewsAnswer:
    """All views."""

    rows: list[ViewAbout]


def endpoints(views: Views, registry: IRegistry) -> list[Endpoint]:
    """Return the endpoints of all tables."""
    tables = _Tables(views, registry)
    statuses = {304: "the client's copy is current"}
    return [
        Endpoint(
            "GET",
            "/v1/views",
            "list_views",
            "Describes all views, with their columns.",
            tables.all,
            answer=ViewsAnswer,
            tag="views",
        ),
        Endpoint(
            "GET",
            "/v1/views/{wire}/{table}",
            "get_view",
            "Lists the rows of a view.",
            tables.view,
            query=ListQuery,
            answer=Rows,
            statuses=statuses,
            tag="views",
        ),
        Endpoint(
            "GET",
            "/v1/director/{table}",
            "list_director_table",
            "Lists the rows of a view of the director: `providers`, `contexts` or `users`.",
            tables.director,
            query=ListQuery,
            answer=Rows,
        ),
        *(
            Endpoint(
                "GET",
                f"/v1/{table}",
                f"list_{table}",
                summary,
                tables.own(f"broker {table}"),
                query=ListQuery,
                answer=Rows,
                statuses=statuses,
            )
            for table, summary in FARM.items()
        ),
        *(
            Endpoint("GET", f"/v1/{table}", f"list_{table}", about, tables.joined(table), query=ListQuery, answer=Rows)
            for table, about in JOINED.items()
        ),
    ]


class _Tables:
    def __init__(self, views: Views, registry: IRegistry) -> None:
        self._views = views
        self._registry = registry

    def all(self, call: Call) -> Response:
        return answer(
            ViewsAnswer(
                [
                    ViewAbout(
                        view.name,
                        view.title,
                        f"/v1/views/{view.wire}/{view.table}",
                        view.help,
                        [ColumnAbout(column.name, column.help, column.unit) for column in view.columns],
                    )
                    for view in self._views().values()
                ]
            )
        )

    def view(self, call: Call) -> Response:
        return self._list(call, f"{call.path['wire']} {call.path['table']}")

    def director(self, call: Call) -> Response:
        return self._list(call, f"director {call.path['table']}")

    def own(self, name: str) -> Callable[[Call], Response]:
        return lambda call: self._list(call, name)

    def joined(self, table: str) -> Callable[[Call], Response]:
        def handle(call: Call) -> Response:
            views = [view for view in self._views().values() if view.table == table]
            return listing(call, join(f"broker {table}", JOINED[table], views), self._registry)

        return handle

    def _list(self, call: Call, name: str) -> Response:
        view = self._views().get(name)
        if view is None:
            raise Problem(404, f"there is no view {name[:80]!r}; /v1/views lists all", Reason.UNKNOWN_TARGET)
        return listing(call, view, self._registry)
