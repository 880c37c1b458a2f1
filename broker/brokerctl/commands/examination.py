"""The command ``doctor``: present and coming problems of this machine and the broker."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from broker.brokerctl.commands.checking import lines, twistd
from broker.brokerctl.contexts.file import path_of
from broker.brokerctl.doctor import files, machine, remote
from broker.brokerctl.doctor.finding import Finding, Level, error, ok
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.options import remote as shared_options
from broker.brokerctl.options import session_of
from broker.brokerctl.output.clean import clean

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Configuration file of the broker.")
@click.option("--state", type=click.Path(file_okay=False, path_type=Path), help="State directory of the broker.")
@click.option("--offline", is_flag=True, help="Do not ask a running broker.")
@click.option("--verify", is_flag=True, help="Let the broker compare all stored rows with their checksums.")
@shared_options
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

    for finding in machine.examine(state or _state(config)):
        add(finding)
    try:
        _, chosen = session.chosen()
        for finding in files.of_context(chosen, path_of(os.environ)):
            add(finding)
    except Failure as failure:
        add(error("context", str(failure)))
        offline = True
    answers = False
    if not offline:
        try:
            asked = session.run(partial(remote.examine, verify=verify))
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
        told = lines(finished)
        if finished.returncode == 0:
            yield ok(str(config), "is valid" + (", and its ports are free" if ports else ""))
        for line in told if finished.returncode != 0 else ():
            if line.startswith(("error:", str(config))):
                yield error(str(config), line.removeprefix("error: ").removeprefix(f"{config}:"))
        if finished.returncode != 0 and not any(line.startswith(("error:", str(config))) for line in told):
            yield error(str(config), told[-1] if told else "the check failed")
    yield from files.of_configuration(config)


def _state(config: Path | None) -> Path | None:
    """Return the state directory: that of the configuration, else the default one if it is there."""
    if config is not None:
        try:
            named = tomllib.loads(config.read_text()).get("broker", {}).get("state")
        except (OSError, ValueError, AttributeError, RecursionError):
            named = None
        if isinstance(named, str):
            return config.parent / named
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    default = Path(os.environ.get("STATE_DIRECTORY", "").split(":")[0] or os.path.join(home, "elkobroker"))
    return default if default.exists() else None
