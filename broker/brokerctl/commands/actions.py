"""The commands that change something: each needs a right, and is recorded in the broker's audit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from broker.brokerctl.failures import Exit
from broker.brokerctl.http.answers import mapping, rows
from broker.brokerctl.http.client import segment
from broker.brokerctl.options import remote, session_of, usage
from broker.brokerctl.output.output import Output
from broker.brokerctl.output.tables import Column

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
    import sys

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
