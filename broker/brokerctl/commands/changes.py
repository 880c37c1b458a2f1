"""The commands ``watch`` and ``events``: changes of the registry as they happen, and the recent ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from broker.brokerctl.following import Finished, changes, follow
from broker.brokerctl.http.answers import mapping, rows
from broker.brokerctl.http.client import Client
from broker.brokerctl.options import remote, session_of
from broker.brokerctl.output.clean import clean
from broker.brokerctl.output.output import Format, Output
from broker.brokerctl.output.tables import Column
from broker.brokerctl.output.units import text

SINCE = re.compile(r"\d+-\d+")
EVENTS = [
    Column("revision"),
    Column("at"),
    Column("kind"),
    Column("service"),
    Column("provider"),
    Column("hostport"),
    Column("label"),
    Column("wire"),
    Column("load"),
]

_STYLES = {"joined": "green", "offered": "green", "left": "red", "withdrawn": "red"}
"""Styles of kinds of changes."""


def _since(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not SINCE.fullmatch(value):
        raise click.BadParameter("has the form EPOCH-REVISION, as events show it")
    return value


since_option = click.option("--since", metavar="EPOCH-REVISION", callback=_since, help="Begin after that revision.")

KINDS = ("joined", "left", "offered", "withdrawn", "amended", "load", "checked", "hidden", "shown")


def selecting(command: Any) -> Any:
    """Add the selection of changes."""
    for option in (
        click.option("-k", "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these; repeatable."),
        since_option,
        click.argument("pattern", required=False),
    ):
        command = option(command)
    return command


def _query(pattern: str | None, kinds: tuple[str, ...]) -> dict[str, Any]:
    query: dict[str, Any] = {"kinds": list(kinds)} if kinds else {}
    return query if pattern is None else {**query, "pattern": pattern}


@click.command()
@selecting
@click.option("-n", "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Changes.")
@remote
@click.pass_context
def events(context: click.Context, pattern: str | None, since: str | None, kinds: tuple[str, ...], limit: int) -> None:
    """List the recent changes of the registry, the oldest first.

    PATTERN is a shell pattern for the names of services.
    """
    session = session_of(context)
    query = {**_query(pattern, kinds), "limit": limit, **({"since": since} if since else {})}
    answer = mapping(session.run(lambda client: client.get("/v1/events", query)))
    found = rows(answer, "events")
    output = session.output
    output.rows(found, EVENTS, answer)
    if output.for_people:
        if answer.get("resync") is True:
            output.note("the broker has forgotten the changes after that revision", "yellow")
        elif not found:
            output.note("no changes")


@click.command()
@selecting
@click.option("-n", "--count", type=click.IntRange(1), help="End after that many changes.")
@remote
@click.pass_context
def watch(
    context: click.Context, pattern: str | None, since: str | None, kinds: tuple[str, ...], count: int | None
) -> None:
    """Show the changes of the registry as they happen, until Ctrl-C.

    After an interruption the stream is resumed without a gap. If the broker has no longer all changes since
    then, or has restarted, a line says so. With --json, each change is one line of JSON.
    """
    session = session_of(context)
    output = session.output
    left = count

    def receive(kind: str, value: Mapping[str, Any]) -> None:
        nonlocal left
        if kind == "resync" or value.get("resync") is True:
            if output.format is Format.JSON:
                output.json({"kind": "resync", **value}, 0)
            else:
                output.note("resync: changes may be missing here; services lists the present state", "yellow")
        for change in changes(value):
            show_change(output, change)
            if left is not None:
                left -= 1
                if left == 0:
                    raise Finished

    def notify(sentence: str) -> None:
        output.note(sentence, "yellow")

    async def work(client: Client) -> None:
        await follow(
            client,
            "/v1/watch",
            _query(pattern, kinds),
            receive,
            lambda sentence: output.note(sentence, "yellow"),
            since or "",
        )

    session.run(work)


def show_change(output: Output, change: Mapping[str, Any]) -> None:
    """Print a change in one line."""
    if output.format is Format.JSON:
        output.json(change, 0)
        return
    kind = text(change.get("kind"))
    line = Text()
    if "at" in change:
        line.append(f"{text(change['at'])} ", "dim")
    line.append(f"{text(change.get('revision'), 'id'):>8} ", "dim")
    line.append(f"{kind:<10} ", _STYLES.get(kind, "cyan"))
    line.append(text(change.get("service", change.get("label"))), "bold")
    for name, value in change.items():
        if name not in ("revision", "at", "kind", "service", "epoch") and value not in (None, ""):
            line.append(f"  {clean(name)}=", "dim").append(text(value, "", name))
    output.console.print(line, soft_wrap=True)
    output.console.file.flush()
