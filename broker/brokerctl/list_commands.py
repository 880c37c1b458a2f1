"""The lists: services, providers, loads, sessions and so on, and any view by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from broker.brokerctl.answers import Exit, Failure, mapping, rows
from broker.brokerctl.command_session import remote, session_of
from broker.brokerctl.output import Column, Output, sparkline
from broker.brokerctl.plain_client import ApiClient, segment

PAGE = 100
"""Rows shown without ``--limit``."""

LARGEST_PAGE = 1_000
"""Rows that the API gives in one answer at most."""

MAX_ROWS = 1_000_000
"""Rows that ``--all`` fetches at most: some 300 MB of memory."""

SECONDS = "seconds"


class Listing(msgspec.Struct, frozen=True):
    """A list of the API: its path, its help, and its columns in order of importance."""

    path: str
    help: str
    columns: Sequence[Column] = ()


def _columns(*names: str, wide: Sequence[str] = (), **units: str) -> list[Column]:
    return [Column(name, units.get(name, "")) for name in names] + [
        Column(name, units.get(name, ""), wide=True) for name in wide
    ]


LISTINGS = {
    "catalog": Listing(
        "/v1/catalog",
        "List the names of services, each with its instances by state.",
        _columns(
            "service",
            "instances",
            "passing",
            "doubtful",
            "failing",
            "untested",
            "restored",
            "load",
            "requests",
            "errors",
            "wires",
            "verdict",
            wide=("lowest", "highest", "protocols", "zones"),
        ),
    ),
    "services": Listing(
        "/v1/services",
        "List the services of all wires.",
        _columns(
            "service",
            "hostport",
            "broker",
            "provider",
            "check",
            "protocol",
            "label",
            "zone",
            "wire",
            "load",
            wide=("tags", "meta", "reason", "remark", "secret"),
        ),
    ),
    "providers": Listing(
        "/v1/providers",
        "List the providers: the peers that offer services.",
        _columns(
            "provider",
            "label",
            "broker",
            "wire",
            "address",
            "load",
            "services",
            "heard",
            "age",
            heard=SECONDS,
            age=SECONDS,
        ),
    ),
    "loads": Listing(
        "/v1/loads",
        "List the load of each provider.",
        _columns("provider", "label", "load", "broker", "wire", "in_flight", "latency_ms", "requests", "errors"),
    ),
    "sessions": Listing(
        "/v1/sessions",
        "List the sessions of every wire.",
        _columns("wire", "session", "address", "label", "user", "identity", "heard", heard=SECONDS, age=SECONDS),
    ),
    "topics": Listing(
        "/v1/topics", "List the topics.", _columns("topic", "subscribers", "published", "wire", wide=("help",))
    ),
    "queues": Listing(
        "/v1/queues",
        "List the work queues.",
        _columns("queue", "host", "ready", "unconfirmed", "bytes", "readers", "durable", "left", "wire", bytes="bytes"),
    ),
    "listeners": Listing(
        "/v1/listeners",
        "List the listeners of the broker, with the reason of each that is not open.",
        _columns("name", "where", "ready", "reason", "seconds", seconds=SECONDS),
    ),
    "bridges": Listing(
        "/v1/views/broker/bridges",
        "List the bridges to brokers of other sites.",
        _columns(
            "name",
            "state",
            "since",
            "address",
            "services_out",
            "services_in",
            "messages_out",
            "messages_in",
            "error",
            since=SECONDS,
            wide=("lost", "refused", "dropped"),
        ),
    ),
    "counters": Listing(
        "/v1/counters",
        "List the counters of the broker.",
        _columns("name", "value", "per_second", "unit", wide=("now", "help")),
    ),
}
"""The lists of the whole farm."""


HISTORY = _columns("provider", "label", "load", "highest", "loads")
"""The columns of the last hour."""


class Selection(msgspec.Struct, frozen=True):
    """The rows to fetch: the common query of lists. ``limit`` is None for all rows."""

    pattern: str | None = None
    sort: str | None = None
    where: Sequence[str] = ()
    offset: int = 0
    limit: int | None = PAGE
    filter: str | None = None

    def query(self, offset: int, count: int) -> dict[str, Any]:
        """Return the query of one page."""
        query: dict[str, Any] = {"offset": offset, "limit": count}
        if self.pattern is not None:
            query["pattern"] = self.pattern
        if self.sort is not None:
            query["sort"] = self.sort
        if self.where:
            query["where"] = list(self.where)
        if self.filter is not None:
            query["filter"] = self.filter
        return query


async def fetch(client: ApiClient, path: str, selection: Selection) -> dict[str, Any]:
    """Return one answer with the selected rows of several pages. Raises `Failure`."""
    wanted = MAX_ROWS if selection.limit is None else selection.limit
    answer: dict[str, Any] = {}
    found: list[Mapping[str, Any]] = []
    while True:
        count = min(LARGEST_PAGE, wanted - len(found))
        page = mapping(await client.get(path, selection.query(selection.offset + len(found), count)))
        new = rows(page)
        if not answer:
            answer = dict(page)
        found += new[:count]
        total = page.get("total")
        # A server whose pages are empty, whatever its total, gives no more.
        if not new or len(found) >= wanted or not isinstance(total, int) or selection.offset + len(found) >= total:
            return {**answer, "rows": found, "limit": wanted}


def show(output: Output, name: str, answer: Mapping[str, Any], columns: Sequence[Column]) -> None:
    """Print the rows of an answer, and the number of those left out."""
    found = rows(answer)
    output.rows(found, columns, answer)
    total, offset = answer.get("total"), answer.get("offset", 0)
    if not output.for_people:
        return
    if not found:
        output.note(f"no {name}" if not offset else f"no {name} after the first {offset}")
    elif isinstance(total, int) and total > len(found) and isinstance(offset, int):
        output.note(f"{len(found):,} of {total:,} {name}; --limit N or --all shows more, a PATTERN fewer")


MATCHING = click.option(
    "-f", "--filter", metavar="FILTER", help="Only services that match, such as zone=b and v2 in tags."
)
"""The option of commands that filter services by `broker.core.service_filter`."""

FILTERED = ("catalog", "services")
"""Lists with that option."""


def selecting(command: Any) -> Any:
    """Add the options of the common query."""
    for option in reversed(
        [
            click.option("-s", "--sort", metavar="COLUMN", help="Sort by a column; -COLUMN for the highest first."),
            click.option("-w", "--where", multiple=True, metavar="COLUMN=VALUE", help="Only such rows; repeatable."),
            click.option("--offset", type=click.IntRange(0), default=0, help="Leave out the first rows."),
            click.option(
                "-n", "--limit", type=click.IntRange(1, MAX_ROWS), default=PAGE, show_default=True, help="Rows."
            ),
            click.option("-a", "--all", "everything", is_flag=True, help="All rows."),
        ]
    ):
        command = option(command)
    return click.argument("pattern", required=False)(command)


def selection_of(
    pattern: str | None,
    sort: str | None,
    where: Sequence[str],
    offset: int,
    limit: int,
    everything: bool,
    filter: str | None = None,
) -> Selection:
    """Return the selection of a command line. Raises a usage error."""
    for condition in where:
        if "=" not in condition:
            raise click.UsageError(f"--where needs COLUMN=VALUE, and {condition!r} has no '='")
    return Selection(pattern, sort, where, offset, None if everything else limit, filter)


def list_command(name: str, listing: Listing) -> click.Command:
    """Return the command of a list."""

    more = "\n\nqueues move carries messages of a former store over." if name == "queues" else ""
    kind = QueuesCommand if name == "queues" else click.Command

    @click.command(
        name, kind, help=f"{listing.help}{more}\n\nPATTERN is a shell pattern such as 'web*' for names and labels."
    )
    @selecting
    @remote
    @click.pass_context
    def command(context: click.Context, /, **options: Any) -> None:
        session = session_of(context)
        selection = selection_of(**options)
        answer = session.run(lambda client: fetch(client, listing.path, selection))
        show(session.output, name, answer, listing.columns)

    return MATCHING(command) if name in FILTERED else command


class QueuesCommand(click.Command):
    """The list of queues, with one word that is no pattern: ``queues move``."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the list, or that of the action."""
        if args[:1] != ["move"]:
            return super().make_context(info_name, args, parent, **extra)
        from broker.brokerctl.action_commands import command

        return command("move").make_context("queues move", args[1:], parent, **extra)


def loads_command() -> click.Command:
    """Return the command ``loads``, which shows the last hour too."""

    @click.command("loads", help=LISTINGS["loads"].help)
    @click.option("--history", is_flag=True, help="The last hour of each provider, as a line of bars.")
    @selecting
    @remote
    @click.pass_context
    def command(context: click.Context, /, history: bool, **options: Any) -> None:
        session = session_of(context)
        selection = selection_of(**options)
        path = "/v1/loads/history" if history else LISTINGS["loads"].path
        answer = session.run(lambda client: fetch(client, path, selection))
        output = session.output
        if history and output.for_people:
            answer["rows"] = [_with_bars(row) for row in answer["rows"]]
        show(output, "providers", answer, HISTORY if history else LISTINGS["loads"].columns)

    return command


def _with_bars(row: Mapping[str, Any]) -> Mapping[str, Any]:
    loads = row.get("loads")
    values = loads if isinstance(loads, list) else []
    known = [value for value in values if isinstance(value, int | float)]
    shown = {key: value for key, value in row.items() if key != "loads"}
    return {
        **shown,
        "last": known[-1] if known else None,
        "highest": max(known, default=None),
        "loads": sparkline(values),
    }


@click.command("views")
@click.argument("wire", required=False)
@click.argument("table", required=False)
@selecting
@remote
@click.pass_context
def views(context: click.Context, /, wire: str | None, table: str | None, **options: Any) -> None:
    """List all views, or the rows of one: views mtl sessions.

    Each wire has tables of its own. Without arguments, the command lists their names and meanings.
    """
    session = session_of(context)
    selection = selection_of(**options)
    if wire is not None and table is None:
        raise click.UsageError("a view has two words: WIRE TABLE; without arguments, views lists all")
    answer, columns = session.run(lambda client: described(client, wire, table, selection))
    show(session.output, "rows" if wire else "views", answer, columns)


async def described(
    client: ApiClient, wire: str | None, table: str | None, selection: Selection
) -> tuple[dict[str, Any], list[Column]]:
    """Return the rows of a view with its columns, or all views. Raises `Failure`."""
    about = rows(await client.get("/v1/views"))
    if wire is None or table is None:
        return {"rows": about}, _columns("name", "help", wide=("path", "columns"))
    name = f"{wire} {table}"
    view = next((view for view in about if view.get("name") == name), None)
    if view is None:
        near = ", ".join(
            sorted(str(each.get("name")) for each in about if str(each.get("name")).startswith(f"{wire} "))
        )
        raise Failure(f"there is no view {name!r}{'; of that wire: ' + near if near else ''}", Exit.NOT_FOUND)
    answer = await fetch(client, f"/v1/views/{segment(wire)}/{segment(table)}", selection)
    found = view.get("columns")
    columns = [
        Column(each["name"], str(each.get("unit", "")))
        for each in (found if isinstance(found, list) else [])
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    return answer, columns
