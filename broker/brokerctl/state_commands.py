"""The commands that read one thing: status, why, plan, whoami, journal, config, director, cluster, check, doctor."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from broker.brokerctl.answers import Exit, Failure, mapping, rows
from broker.brokerctl.backup_commands import default_state
from broker.brokerctl.command_session import color, remote, session_of
from broker.brokerctl.contexts import path_of
from broker.brokerctl.doctor import (
    Finding,
    Level,
    error,
    examine_broker,
    examine_configuration,
    examine_context,
    examine_machine,
    ok,
)
from broker.brokerctl.http_client import Client, segment
from broker.brokerctl.list_commands import PAGE, Selection, described, fetch, selecting, selection_of, show
from broker.brokerctl.output import Column, clean, text

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

    async def ask(client: Client) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        about = mapping(await client.get("/v1/status"))
        # 503 is the answer of a broker that is not ready.
        answer = await client.request("GET", "/readyz")
        ready = answer.json() if answer.status in (200, 503) else answer.value()
        return about, mapping(ready)

    about, ready = session.run(ask)
    reasons = [row for row in ready.get("reasons") or () if isinstance(row, dict)]
    is_ready = ready.get("ready", not reasons) is True
    degraded = [row for row in ready.get("degraded") or () if isinstance(row, dict)]
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


# The command ``check``: the configuration file, by the daemon's own check.

PATIENCE = 60.0
"""Seconds for the check: it takes one, and more only on a machine that has much else to do."""

MAX_OUTPUT = 1_000_000
"""Characters of the report that are shown."""


def twistd(*options: str) -> subprocess.CompletedProcess[str]:
    """Run ``twistd elkobroker`` of this Python with options that end it. Raises `Failure`.

    The working directory is not searched for modules.
    """
    code = "import sys; sys.argv[0] = 'twistd'; from twisted.scripts.twistd import run; run()"
    command = [sys.executable, "-P", "-c", code, "elkobroker", *options]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"the check has not ended within {PATIENCE:g} s") from None
    except OSError as error:
        raise Failure(f"{sys.executable} cannot be run: {error.strerror}") from None


def output_lines(finished: subprocess.CompletedProcess[str]) -> Sequence[str]:
    """Return the output, clean."""
    return [clean(line) for line in (finished.stdout + finished.stderr)[:MAX_OUTPUT].splitlines()]


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--ports", is_flag=True, help="Try also whether each listener can be opened; stop the broker before.")
@color
@click.pass_context
def check(context: click.Context, file: str, ports: bool) -> int:
    """Check a configuration file on this machine, as twistd elkobroker --check does.

    The exit code is 1 if the file has errors. The running broker is not asked.
    """
    finished = twistd("--config", file, "--check-ports" if ports else "--check")
    output = session_of(context).output
    found = output_lines(finished)
    if any("Unknown command: elkobroker" in line for line in found):
        raise Failure("the daemon is not installed beside this brokerctl: pip install 'elkobroker[daemon]'")
    for line in found:
        output.say(line)
    return Exit.OK if finished.returncode == 0 else Exit.FAILED


# The command ``doctor``: present and coming problems of this machine and the broker.

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Configuration file of the broker.")
@click.option("--state", type=click.Path(file_okay=False, path_type=Path), help="State directory of the broker.")
@click.option("--offline", is_flag=True, help="Do not ask a running broker.")
@click.option("--verify", is_flag=True, help="Let the broker compare all stored rows with their checksums.")
@remote
@click.pass_context
def doctor(context: click.Context, config: Path | None, state: Path | None, offline: bool, verify: bool) -> int:
    """Examine this machine and the broker: limits, disk, clocks, ports, certificates, secrets, versions.

    The broker may be on another machine; then limits and disk are those of this one. The exit code is 1 if there is an
    error, and 0 if there are only warnings.

    With --verify the running broker reads all of its state. A broker that does not run does so at its next start.
    """
    if verify and offline:
        raise click.UsageError("--verify asks a running broker, and cannot be combined with --offline")
    session = session_of(context)
    output = session.output
    found: list[Finding] = []

    def add(finding: Finding) -> None:
        found.append(finding)
        if output.for_people:
            line = Text.assemble((f"{finding.level.value:<8}", STYLES[finding.level]))
            line.append(f"{clean(finding.what)}: ", "bold").append(clean(finding.text))
            output.console.print(line, soft_wrap=True)
            output.console.file.flush()

    for finding in examine_machine(state or _state(config)):
        add(finding)
    try:
        _, chosen = session.chosen()
        for finding in examine_context(chosen, path_of(os.environ)):
            add(finding)
    except Failure as failure:
        add(error("context", str(failure)))
        offline = True
    answers = False
    if not offline:
        try:
            asked = session.run(partial(examine_broker, verify=verify))
        except Failure as failure:
            asked = [error("broker", str(failure))]
        for finding in asked:
            add(finding)
        answers = asked[0].level is Level.OK
    if config is not None:
        # A running broker has the ports itself.
        for finding in _configuration(config, ports=not answers):
            add(finding)
    if not output.for_people:
        output.rows([{"level": each.level.value, "what": each.what, "text": each.text} for each in found])
    return Exit.FAILED if any(each.level is Level.ERROR for each in found) else Exit.OK


def _configuration(config: Path, ports: bool) -> Iterator[Finding]:
    try:
        finished = twistd("--config", str(config), "--check-ports" if ports else "--check")
    except Failure as failure:
        yield error(str(config), str(failure))
    else:
        told = output_lines(finished)
        if finished.returncode == 0:
            yield ok(str(config), "is valid" + (", and its ports are free" if ports else ""))
        for line in told if finished.returncode != 0 else ():
            if line.startswith(("error:", str(config))):
                yield error(str(config), line.removeprefix("error: ").removeprefix(f"{config}:"))
        if finished.returncode != 0 and not any(line.startswith(("error:", str(config))) for line in told):
            yield error(str(config), told[-1] if told else "the check failed")
    yield from examine_configuration(config)


def _state(config: Path | None) -> Path | None:
    """Return the state directory: that of the configuration, else the default one if it is there."""
    if config is not None:
        try:
            named = tomllib.loads(config.read_text()).get("broker", {}).get("state")
        except (OSError, ValueError, AttributeError, RecursionError):
            named = None
        if isinstance(named, str):
            return config.parent / named
    default = default_state()
    return default if default.exists() else None
