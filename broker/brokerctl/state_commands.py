"""The commands that read one thing: status, why, plan, whoami, journal, config, director."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from broker.brokerctl.answers import Exit, mapping, rows
from broker.brokerctl.command_session import remote, session_of
from broker.brokerctl.list_commands import PAGE, Selection, described, fetch, selecting, selection_of, show
from broker.brokerctl.output import Column, text
from broker.brokerctl.plain_client import ApiClient, segment

SECONDS = "seconds"
STATUS = [Column("uptime", SECONDS), Column("age", SECONDS)]
LISTENERS = [Column("wire"), Column("name"), Column("address"), Column("connections"), Column("full")]


@click.command()
@remote
@click.pass_context
def status(context: click.Context) -> int:
    """Show the broker: version, uptime, listeners, registry and readiness.

    The exit code is 1 if the broker is not ready: a listener is not open, or its state cannot be stored.
    """
    session = session_of(context)

    async def ask(client: ApiClient) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        about = mapping(await client.get("/v1/status"))
        # 503 is the answer of a broker that is not ready.
        answer = await client.request("GET", "/readyz")
        ready = answer.json() if answer.status in (200, 503) else answer.value()
        return about, mapping(ready)

    about, ready = session.run(ask)
    reasons, degraded = (rows(ready, each) if ready.get(each) else [] for each in ("reasons", "degraded"))
    is_ready = ready.get("ready", not reasons) is True
    output = session.output
    if not output.for_people:
        output.values({**about, "ready": is_ready, "reasons": reasons, "degraded": degraded})
    else:
        listeners = about.get("listeners")
        shown = {key: value for key, value in about.items() if key != "listeners"}
        output.values({**shown, "ready": is_ready}, STATUS)
        if isinstance(listeners, list) and all(isinstance(each, dict) for each in listeners):
            output.say("")
            output.rows(listeners, LISTENERS)
        for reason in reasons:
            output.say(f"not ready: {text(reason.get('what'))}: {text(reason.get('reason'))}", "bold red")
        for reason in degraded:
            output.say(f"degraded: {text(reason.get('what'))}: {text(reason.get('reason'))}", "bold yellow")
    return Exit.OK if is_ready else Exit.FAILED


WHY = [
    Column("wire"),
    Column("provider"),
    Column("broker"),
    Column("label"),
    Column("address"),
    Column("since"),
    Column("heard", SECONDS),
    Column("left", SECONDS),
    Column("alive_by"),
    Column("ends"),
    Column("check"),
]


@click.command()
@click.argument("name")
@remote
@click.pass_context
def why(context: click.Context, name: str) -> int:
    """Explain each entry of a service: its wire, peer, age, signs of life and expiry."""
    session = session_of(context)
    answer = mapping(session.run(lambda client: client.get(f"/v1/why/{segment(name)}")))
    output = session.output
    entries = rows(answer, "entries" if "entries" in answer else "rows")
    if not output.for_people:
        output.rows(entries, WHY, answer)
    for entry in entries if output.for_people else ():
        if entry is not entries[0]:
            output.say("")
        output.say(f"{name}  {text(entry.get('hostport'))}" if entry.get("hostport") else name, "bold")
        # A broker that runs alone has no name.
        hidden = ("hostport", "service", "name", *(("broker",) if not entry.get("broker") else ()))
        ordered = dict.fromkeys([column.name for column in WHY if column.name in entry] + list(entry))
        output.values({key: entry[key] for key in ordered if key not in hidden}, WHY)
    if not entries:
        output.note(f"there is no service {name!r}")
        return Exit.NOT_FOUND
    return Exit.OK


PLAN = [
    Column("name"),
    Column("verdict"),
    Column("days_until_short"),
    Column("short_at"),
    Column("add"),
    Column("free"),
    Column("has"),
    Column("need_now"),
    Column("need"),
    Column("age", SECONDS),
    Column("missed", wide=True),
]


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 if a service is or becomes short, or if there is no plan.")
@selecting
@remote
@click.pass_context
def plan(context: click.Context, /, check: bool, **options: Any) -> int:
    """Show the capacity plan: the need of each service, and the time at which it becomes short."""
    session = session_of(context)
    answer = session.run(lambda client: fetch(client, "/v1/plan", selection_of(**options)))
    output = session.output
    found = rows(answer)
    unplanned = not found and not answer.get("made")
    show(output, "capacity plan" if unplanned else "services in the plan", answer, PLAN)
    if output.for_people and unplanned:
        problem = answer.get("problem")
        output.note(f"plan.json: {problem}" if problem else "plan.file of the configuration names none")
    short = any(row.get("days_until_short") is not None for row in found)
    return Exit.FAILED if check and (short or not found) else Exit.OK


@click.command()
@remote
@click.pass_context
def whoami(context: click.Context) -> None:
    """Show the user that the broker takes this command for, with its rights."""
    session = session_of(context)
    session.output.values(mapping(session.run(lambda client: client.get("/v1/whoami"))))


@click.command()
@remote
@click.pass_context
def journal(context: click.Context) -> None:
    """Show the state of the metrics journal."""
    session = session_of(context)
    session.output.values(mapping(session.run(lambda client: client.get("/v1/journal"))), STATUS)


@click.command()
@click.argument("pattern", required=False)
@remote
@click.pass_context
def config(context: click.Context, pattern: str | None) -> int:
    """Show each key of the broker's configuration, and whether a reload may change it.

    The exit code is 1 if the configuration file has problems.
    """
    session = session_of(context)
    answer = mapping(session.run(lambda client: client.get("/v1/config")))
    output = session.output
    key = next((each for each in ("keys", "rows") if isinstance(answer.get(each), list)), "keys")
    found: Sequence[Mapping[str, Any]] = rows(answer, key)
    if pattern is not None:
        found = [row for row in found if fnmatchcase(str(row.get("key", row.get("name", ""))), pattern)]
    output.rows(found, [Column("key"), Column("reloadable"), Column("value")], {**answer, key: found})
    problems = answer.get("problems") or []
    for problem in problems if output.for_people and isinstance(problems, list) else ():
        output.note(f"problem: {text(problem)}", "bold red")
    return Exit.FAILED if problems else Exit.OK


@click.command()
@click.argument("table", required=False)
@selecting
@remote
@click.pass_context
def director(context: click.Context, /, table: str | None, **options: Any) -> None:
    """Show a table of the Elko Director: contexts, providers, users. Without TABLE, list the tables."""
    session = session_of(context)
    selection = selection_of(**options)
    if table is None:
        answer, columns = session.run(lambda client: described(client, None, None, Selection(limit=PAGE)))
        answer["rows"] = [row for row in answer["rows"] if str(row.get("name")).startswith("director ")]
        show(session.output, "tables of the director", answer, columns)
        return
    found, columns = session.run(lambda client: described(client, "director", table, selection))
    show(session.output, table, found, columns)
