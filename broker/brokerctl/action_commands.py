"""The commands that change something: each needs a right, and is recorded in the broker's audit log."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn

from broker.brokerctl.answers import Exit, Failure, mapping, rows, usage
from broker.brokerctl.command_session import remote, session_of, sleep
from broker.brokerctl.http_client import Client, segment
from broker.brokerctl.output import Column, Output, duration, text

ACTIONS = "/v1/actions/"


def _act(context: click.Context, action: str, body: Mapping[str, object], done: str) -> None:
    """Perform an action, and print its answer, or a sentence if it has none."""
    session = session_of(context)
    answer = session.run(lambda client: client.post(ACTIONS + action, body))
    output = session.output
    if not output.for_people:
        output.json(answer)
    elif isinstance(answer, dict) and isinstance(answer.get("text"), str):
        output.say(answer["text"] or done)
    elif isinstance(answer, dict) and answer:
        output.values(answer)
    else:
        output.say(done)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere ``--yes`` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage("there is no terminal to ask for a confirmation: say --yes")
    click.confirm(question, abort=True, err=True)


YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.command()
@remote
@click.pass_context
def reload(context: click.Context) -> int:
    """Make the broker read its configuration again.

    The output has the changed keys, the refused ones, and those that need a restart. The exit code is 1 if the file
    has problems or a change was refused; then nothing of the file is applied.
    """
    session = session_of(context)
    answer = mapping(session.run(lambda client: client.post(ACTIONS + "reload", {})))
    output = session.output
    if not output.for_people:
        output.json(answer)
    else:
        _show_reload(output, answer)
    return Exit.FAILED if answer.get("problems") or answer.get("refused") else Exit.OK


STYLES = {
    "error": "bold red",
    "refused": "bold red",
    "warning": "yellow",
    "restart needed": "yellow",
    "changed": "green",
}
"""Styles of the lines of a reload, by the word before the colon."""


def _show_reload(output: Output, answer: Mapping[str, Any]) -> None:
    """Print the diagnostics: the lines that the log and the console have too."""
    for line in str(answer.get("text", "")).splitlines():
        output.say(line, STYLES.get(line.partition(":")[0], ""))


@click.command()
@click.option("--kill", is_flag=True, help="End the process at once, without closing connections in order.")
@YES
@remote
@click.pass_context
def shutdown(context: click.Context, kill: bool, yes: bool) -> None:
    """End the broker."""
    _, chosen = session_of(context).chosen()
    confirm(f"End the broker at {chosen.url}?", yes)
    _act(context, "shutdown", {"kill": kill}, "the broker ends")


@click.command()
@click.argument("server", default="all")
@remote
@click.pass_context
def reinit(context: click.Context, server: str) -> None:
    """Send the order to reinitialize to Elko servers: those with a label, hostport or id, or all."""
    _act(context, "reinit", {"server": server}, "sent")


@click.command()
@click.argument("target")
@click.argument("words", nargs=-1, required=True, metavar="TEXT...")
@click.option("--in", "place", metavar="CONTEXT", help="The context of a user: only there.")
@remote
@click.pass_context
def say(context: click.Context, target: str, words: tuple[str, ...], place: str | None) -> None:
    """Send a text to a user or a context of the director: say context-inn 'We restart at noon'.

    A target that begins with user- is a user.
    """
    body = {"user" if target.startswith("user-") else "context": target, "text": " ".join(words)}
    if place is not None:
        if "user" not in body:
            raise click.UsageError("--in needs a user")
        body["context"] = place
    _act(context, "say", body, "sent")


@click.command()
@click.argument("name")
@remote
@click.pass_context
def launch(context: click.Context, name: str) -> None:
    """Start a program of the configuration's launchers."""
    _act(context, "launch", {"name": name}, f"{name} is started")


MOST_ACTS = 5
"""Programs that one `scale` starts, or providers that it withdraws, by default: a limit to the harm of a wrong plan."""


@click.command()
@click.argument("service")
@click.option("--launcher", help="The program to start, by its name in the table of launchers; that of the service.")
@click.option("--act/--dry-run", default=False, help="Do it, or print what would be done (the default).")
@click.option("--scale-in", is_flag=True, help="Withdraw providers that the plan does without, the least loaded first.")
@click.option("--most", type=click.IntRange(1), default=MOST_ACTS, show_default=True, help="Most acts of this run.")
@remote
@click.pass_context
def scale(context: click.Context, service: str, launcher: str | None, act: bool, scale_in: bool, most: int) -> None:
    """Bring a service to the number of providers in the capacity plan: start programs of the launchers.

    The number is within the limits of the policy. Without --act nothing is done. Providers go only with --scale-in: the
    service is withdrawn, so that nobody finds it there any more, and the program ends when its operator ends it. Each
    act is in the audit log of the broker. A started program counts as soon as it offers the service: do not repeat the
    command before.
    """
    session = session_of(context)
    answer = session.run(lambda client: _scale(client, service, launcher or service, act, scale_in, most))
    output = session.output
    if not output.for_people:
        output.json(answer)
        return
    acts = [f"launch {launcher or service}"] * answer["launch"]
    acts += [f"withdraw {service} of provider {provider}" for provider in answer["withdraw"]]
    there = f"{answer['has']} provider" + ("" if answer["has"] == 1 else "s")
    output.say(f"{service}: {there}, {answer['replicas']} by the plan of {answer['made']}")
    for line in acts or ["nothing to do"]:
        output.say(line if act or not acts else f"would {line}")


async def _scale(client: Client, service: str, launcher: str, act: bool, scale_in: bool, most: int) -> dict[str, Any]:
    """Compare a service with the plan, and ``act``; return the plan's answer with the acts."""
    path = f"/v1/plan/{segment(service)}/replicas"
    told = mapping(await client.get(path, {"scale_in": "true"} if scale_in else None))
    try:
        has, wanted = int(told["has"]), int(told["replicas"])
    except (KeyError, TypeError, ValueError):
        raise Failure(f"the broker does not tell the providers of {service}", Exit.UNINTELLIGIBLE) from None
    launches, withdrawn = min(max(0, wanted - has), most), list[int]()
    if has > wanted:
        listed = rows(await client.get("/v1/services", {"where": f"service={service}", "sort": "load", "limit": 1_000}))
        withdrawn = list(dict.fromkeys(int(row["provider"]) for row in listed))[: min(has - wanted, most)]
    if act:
        for _ in range(launches):
            await client.post(f"{ACTIONS}launch", {"name": launcher})
        for provider in withdrawn:
            await client.post(f"{ACTIONS}withdraw", {"provider": provider, "name": service})
    return {**told, "launch": launches, "withdraw": withdrawn, "dry_run": not act}


@click.command()
@click.argument("wire")
@click.argument("session_key", metavar="SESSION")
@remote
@click.pass_context
def disconnect(context: click.Context, wire: str, session_key: str) -> None:
    """Disconnect a session of a wire: disconnect elko 10.0.0.7:51234.

    SESSION is its key in the wire's view of sessions: the identity (mc0), the number of the connection (mtl), the name
    of the service (dbp), or the address of the connection.
    """
    _act(context, "disconnect", {"wire": wire, "session": session_key}, "disconnected")


@click.command()
@click.argument("provider", type=click.IntRange(1))
@click.argument("name", required=False)
@YES
@remote
@click.pass_context
def withdraw(context: click.Context, provider: int, name: str | None, yes: bool) -> None:
    """Withdraw a service of a provider, or without NAME the provider with all its services."""
    confirm(f"Withdraw {name or 'all services'} of provider {provider}?", yes)
    body: dict[str, object] = {"provider": provider}
    if name is not None:
        body["name"] = name
    _act(context, "withdraw", body, "withdrawn")


LEVELS = ("debug", "info", "warn", "error")


@click.command("log")
@click.argument("levels", nargs=-1, metavar="[LEVEL] [MODULE=LEVEL]...")
@remote
@click.pass_context
def log(context: click.Context, levels: tuple[str, ...]) -> None:
    """Show or change the log levels: log info broker.wires.mc0=debug.

    The levels are debug, info, warn and error. MODULE=default removes the level of a module.
    """
    session = session_of(context)
    general: str | None = None
    modules: dict[str, str | None] = {}
    for each in levels:
        module, equals, level = each.rpartition("=")
        if level not in LEVELS and not (equals and level == "default"):
            raise click.UsageError(f"{level!r} is no level; the levels are {', '.join(LEVELS)}")
        if equals:
            modules[module] = None if level == "default" else level
        elif general is not None:
            raise click.UsageError("only one level can be that of all modules")
        else:
            general = level
    if not levels:
        answer = session.run(lambda client: client.get("/v1/log"))
    else:
        body: dict[str, object] = {} if general is None else {"level": general}
        if modules:
            body["modules"] = modules
        answer = session.run(lambda client: client.post("/v1/log", body, "PUT"))
    session.output.values(mapping(answer or {}))


TRACES = [Column("address"), Column("seconds", "seconds"), Column("lines"), Column("dropped")]


@click.command("trace")
@click.argument("address", required=False)
@click.option("--seconds", type=click.FloatRange(1, 3_600), default=60.0, show_default=True, help="Duration.")
@click.option("--off", is_flag=True, help="End the trace of ADDRESS.")
@remote
@click.pass_context
def trace(context: click.Context, address: str | None, seconds: float, off: bool) -> None:
    """Log all messages of a peer for a while: trace 10.1.2.3. Without ADDRESS, list the traced peers."""
    session = session_of(context)
    if address is None:
        if off:
            raise click.UsageError("--off needs an ADDRESS")
        answer = mapping(session.run(lambda client: client.get("/v1/trace")))
        session.output.rows(rows(answer, "traces"), TRACES, answer)
        if session.output.for_people and not answer["traces"]:
            session.output.note("no peer is traced")
        return
    path = f"/v1/trace/{segment(address)}"
    if off:
        session.run(lambda client: client.post(path, None, "DELETE"))
        session.output.note(f"{address} is not traced any more")
        return
    answer = session.run(lambda client: client.post(path, {"seconds": seconds}, "PUT"))
    if isinstance(answer, dict) and not session.output.for_people:
        session.output.json(answer)
    else:
        session.output.note(f"{address} is traced for {seconds:g} s; the broker's log has its messages")


# The command ``drain``: the broker accepts no new peers and sends the present ones away.

POLL = 0.5
"""Seconds between questions about the state of the drain."""


@click.command()
@click.option("--deadline", type=click.FloatRange(0, 86_400), default=60.0, show_default=True, help="Seconds.")
@click.option("--undo", is_flag=True, help="End the drain: accept peers again.")
@click.option("--state", is_flag=True, help="Show the state of the drain only.")
@click.option("--no-wait", is_flag=True, help="Return at once.")
@YES
@remote
@click.pass_context
def drain(context: click.Context, deadline: float, undo: bool, state: bool, no_wait: bool, yes: bool) -> int:
    """Accept no new peers, and send the present ones away, each by the means of its wire.

    The command waits until all have gone, or until the deadline, and shows the progress. The exit code is 1 if peers
    are left then. Ctrl-C ends the waiting, and not the drain; drain --undo does that.
    """
    session = session_of(context)
    output = session.output
    if state:
        output.values(mapping(session.run(lambda client: client.get("/v1/drain"))), [Column("seconds", "seconds")])
        return Exit.OK
    if undo:
        answer = session.run(lambda client: client.post(ACTIONS + "drain", {"undo": True}))
        if output.for_people:
            output.say("the broker accepts peers again")
        else:
            output.json(answer)
        return Exit.OK
    confirm(f"Drain the broker at {session.chosen()[1].url}?", yes)

    async def work(client: Client) -> Mapping[str, Any]:
        found = mapping(await client.post(ACTIONS + "drain", {"deadline": deadline}))
        if no_wait:
            return found
        return await _followed(client, output, found)

    found = session.run(work)
    left = remaining(found)
    if output.for_people:
        if no_wait:
            output.say("the broker drains; drain --state shows the progress")
        elif left:
            output.say(f"{found.get('state')}: {left} peers are left: {text(found.get('remaining'))}", "bold red")
        else:
            output.say("drained: all peers have left", "green")
    else:
        output.json(found)
    return Exit.FAILED if left and not no_wait else Exit.OK


async def _followed(client: Client, output: Output, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Show the progress until the drain is over. Returns its last state."""
    first = remaining(found)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
        console=output.errors,
        transient=True,
        auto_refresh=False,
        disable=not (output.for_people and output.errors.is_terminal),
    ) as progress:
        task = progress.add_task("draining", total=max(first, 1), left="")
        while True:
            left = remaining(found)
            first = max(first, left)
            time = found.get("seconds")
            until = f", {duration(time)} to the deadline" if isinstance(time, int | float) else ""
            shown = f"{left} peers left{until}"
            progress.update(task, total=max(first, 1), completed=first - left, left=shown)
            progress.refresh()
            if found.get("state") != "draining":
                return found
            await sleep(client.reactor, POLL)
            try:
                found = mapping(await client.get("/v1/drain"))
            except Failure as failure:
                # The broker may end once it is empty.
                if failure.code is Exit.UNREACHABLE:
                    raise Failure(f"the state of the drain is unknown: {failure}", Exit.UNREACHABLE) from None
                raise


def remaining(state: Mapping[str, Any]) -> int:
    """Return the number of peers that are still connected."""
    found = state.get("remaining")
    return sum(count for count in found.values() if isinstance(count, int)) if isinstance(found, dict) else 0
