"""The command ``check``: the configuration file, by the daemon's own check."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import click

from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.options import color, session_of
from broker.brokerctl.output.clean import clean

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


def lines(finished: subprocess.CompletedProcess[str]) -> Sequence[str]:
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
    found = lines(finished)
    if any("Unknown command: elkobroker" in line for line in found):
        raise Failure("the daemon is not installed beside this brokerctl: pip install 'elkobroker[daemon]'")
    for line in found:
        output.say(line)
    return Exit.OK if finished.returncode == 0 else Exit.FAILED
