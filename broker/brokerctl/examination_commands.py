"""The commands that examine: check, a configuration file, and doctor, this machine and the broker."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from broker.brokerctl.answers import Exit, Failure
from broker.brokerctl.backup_commands import default_state
from broker.brokerctl.command_session import color, remote, session_of
from broker.brokerctl.contexts import path_of
from broker.brokerctl.doctor import (
    DESCRIPTOR,
    Finding,
    Level,
    error,
    examine_broker,
    examine_configuration,
    examine_context,
    examine_limits,
    examine_machine,
    ok,
)
from broker.brokerctl.output import clean

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

    The exit code is 1 if the file has errors. The running broker is not contacted.
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

    Limits and disk are those of the broker, which may be on another machine; if it does not answer, those of this one.
    The exit code is 1 if there is an error, and 0 if there are only warnings.

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

    for finding in examine_machine():
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
    if all(each.what != DESCRIPTOR for each in found):
        for finding in examine_limits(state or _state(config)):
            add(finding)
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
