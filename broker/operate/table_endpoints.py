"""Endpoints of views: the list of all views, each view, and the tables of the whole farm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import attrs
from msgspec import Meta
from twisted.internet.defer import Deferred

from broker.access.rights import RegistryReading
from broker.core.cluster.cluster_interfaces import IMembers
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry
from broker.core.load_history import STEP, LoadHistory
from broker.core.model import NotReady, Provider, Verified
from broker.core.service_filter import MAX_LENGTH
from broker.operate.broker_tables import member_row, present_providers, shows_provider
from broker.operate.daemon_endpoints import Obstacle
from broker.rest.http_endpoint import Call, Endpoint
from broker.rest.messages import Response, answer, array, entity_tag, is_current, members, not_modified, streamed
from broker.rest.problem import Problem
from broker.wires.tables import ID, AnyView, Column, Row, Scan, Selection, View, join

# Lists: the common query of all of them, and their answers.

PAGE = 100
"""Rows of a page by default."""

MAX_LIMIT = 1_000
"""Rows of the largest page: some 3 ms of work, in pieces."""

MAX_TEXT = 255
"""Characters of a pattern or condition: as many as the longest service name."""

MAX_OFFSET = 1_000_000
"""Rows that may be skipped: more than any table has."""

MAX_CONDITIONS = 10
"""Conditions of one query."""


@attrs.frozen
class ListQuery:
    """The common query of lists."""

    pattern: Annotated[
        str,
        Meta(
            max_length=MAX_TEXT,
            description="shell pattern (`*`, `?`, `[...]`, case-sensitive) of names, labels or addresses, as the "
            "view's `help` says",
        ),
    ] = "*"
    search: Annotated[
        str,
        Meta(
            max_length=MAX_TEXT,
            description="a part of such a text, in either case; with `*`, `?` or `[` (not that of an IPv6 address) a "
            "pattern",
        ),
    ] = ""
    sort: Annotated[
        str,
        Meta(
            max_length=MAX_TEXT,
            description="a column; `-column` for descending order. Rows without the column come last",
        ),
    ] = ""
    offset: Annotated[int, Meta(ge=0, le=MAX_OFFSET, description="rows to skip")] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="rows per page")] = PAGE
    where: Annotated[
        tuple[Annotated[str, Meta(max_length=2 * MAX_TEXT)], ...],
        Meta(
            max_length=MAX_CONDITIONS,
            description="`column=value`: rows with that value; if it is repeated, all must match. `reason=` selects "
            "rows without a reason",
        ),
    ] = ()
    filter: Annotated[
        str, Meta(max_length=MAX_LENGTH, description='of services and the catalog: `zone=b and "v2" in tags`')
    ] = ""


@attrs.frozen
class Rows:
    """A page of a list.

    ``total`` is the number of rows on all pages. ``epoch`` and ``revision`` are those of the registry at the start.
    """

    rows: list[dict[str, Any]]
    total: int
    offset: int
    limit: int
    epoch: int
    revision: int


def listing(call: Call, view: AnyView, registry: IRegistry, more: Mapping[str, object] | None = None) -> Response:
    """Return a page of a view as the query of the call selects it; ``more`` are other members of the answer."""
    query: ListQuery = call.query
    conditions = tuple(map(_condition, query.where))
    reading = RegistryReading.of(call.grants)
    selection = Selection(query.pattern, query.sort, conditions, query.offset, query.limit, query.filter, query.search)
    scan = Scan(view, selection, reading)
    about = {
        "offset": query.offset,
        "limit": query.limit,
        "epoch": registry.epoch,
        "revision": registry.revision,
        **(more or {}),
    }
    # The tag is that of the registry, not that of what a user is shown of it.
    variant = str(registry.unnumbered or "")
    tag = entity_tag(registry.epoch, registry.revision, variant) if view.tagged and reading.every else None
    if tag is not None and is_current(call.request, tag):
        return not_modified(tag)
    return streamed(_body(scan, about), tag)


def _body(scan: Scan, about: Mapping[str, object]) -> Iterator[bytes]:
    yield b'{"rows":'
    yield from array(scan)
    yield b"," + members({"total": scan.total, **about}) + b"}"


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise Refusal(Reason.PARAMETER, "where: a condition has the form column=value")
    return column, value


Views = Callable[[], Mapping[str, AnyView]]
"""The views that exist now, by name: those of a wire appear when it is open."""

FARM = {
    "catalog": "Lists the names of services, with the numbers of their instances by state.",
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
    """A column of a view; ``unit`` is that of its numbers: "id" for those that name something, empty for a plain
    number or a text."""

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


def table_endpoints(views: Views, registry: IRegistry) -> list[Endpoint]:
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


# The endpoint of the loads of the last hour.

HISTORY_COLUMNS = (
    Column("provider", "Id of the provider", ID),
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
class LoadHistories(Rows):
    """The loads of the last hour. ``step`` is the time between two loads in seconds."""

    step: int


def history_endpoints(registry: IRegistry, history: LoadHistory) -> list[Endpoint]:
    """Return the endpoint of load histories."""
    every = _history_view(history, lambda: present_providers(registry))

    def handle(call: Call) -> Response:
        ids = call.query.provider
        view = _history_view(history, lambda: _present(registry, ids)) if ids else every
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


def _history_view(history: LoadHistory, providers: Callable[[], Iterable[Provider]]) -> AnyView:
    def row(provider: Provider) -> Row:
        loads = history.of(provider.id)
        return {"provider": provider.id, "label": provider.label, "load": provider.load, "loads": loads}

    return View(
        "broker history",
        "Shows the loads of the last hour by provider. A pattern selects labels or wires.",
        HISTORY_COLUMNS,
        providers,
        row,
        lambda provider: (provider.label, provider.wire),
        shown=shows_provider,
    )


# Endpoint of the cluster: its members, and the state of this broker among them.


@attrs.frozen
class ClusterAbout:
    """The cluster as this broker sees it.

    ``clustered`` is False for a broker that runs alone: then the rest is empty. ``name`` is that of this broker,
    ``farm`` that of the cluster. ``members`` has the rows of the view ``cluster members``. ``degraded`` has the reasons
    for which this broker serves with less than everything.
    """

    clustered: bool
    name: str
    farm: str
    members: list[dict[str, Any]]
    degraded: list[Obstacle]


def cluster_endpoints(members: IMembers, farm: str, degraded: Callable[[], Iterable[NotReady]]) -> list[Endpoint]:
    """Return the endpoint. ``farm`` is the name of the cluster; ``degraded`` returns the reasons of this broker."""

    def cluster(call: Call) -> Response:
        rows = [dict(member_row(each)) for each in members.health()]
        degradations = [Obstacle(each.what, each.reason) for each in degraded()]
        name = farm if members.clustered else ""
        return answer(ClusterAbout(members.clustered, members.name, name, rows, degradations))

    return [
        Endpoint(
            "GET",
            "/v1/cluster",
            "get_cluster",
            "Describes the brokers of the cluster, with their lag and the numbers of their providers.",
            cluster,
            answer=ClusterAbout,
        )
    ]


# The endpoint that compares the rows of the stores with their checksums.


@attrs.frozen
class StoreVerified:
    """The result for one store: rows that were compared, rows that do not match their checksums, a line for each of the
    first hundred of these, and rows that were set aside before."""

    store: str
    rows: int
    damaged: int
    named: Sequence[str]
    aside: int


@attrs.frozen
class Verification:
    """The results for all stores."""

    stores: Sequence[StoreVerified]


def verification_endpoints(verify: Callable[[], Deferred[list[tuple[str, Verified]]]]) -> list[Endpoint]:
    """Return the endpoint. ``verify`` compares all rows, or fails with a `broker.core.errors.Refusal`."""

    def shown(results: list[tuple[str, Verified]]) -> Response:
        return answer(Verification([StoreVerified(name, r.rows, r.damaged, r.named, r.aside) for name, r in results]))

    def verification(call: Call) -> Deferred[Response]:
        return verify().addCallback(shown)

    return [
        Endpoint(
            "GET",
            "/v1/verification",
            "verify_state",
            "Compares all rows of the stores with their checksums, and changes nothing.",
            verification,
            answer=Verification,
            tag="health",
        )
    ]
