"""The command ``brokerctl``: all commands by section."""

from __future__ import annotations

import os
import platform
import threading
from importlib import metadata

import click

from broker.brokerctl import man
from broker.brokerctl.commands import (
    actions,
    benchmark,
    changes,
    checking,
    cluster,
    completion,
    contexts,
    draining,
    examination,
    lists,
    live,
    state,
    users,
)
from broker.brokerctl.group import Commands
from broker.brokerctl.options import remote
from broker.brokerctl.output import streams


def _version() -> str:
    """Return the versions of this command, the interpreter and the libraries: one line."""
    on = {"Python": platform.python_version(), **{n: metadata.version(n) for n in ("Twisted", "treq", "click", "rich")}}
    try:
        ours = metadata.version("elkobroker")
    except metadata.PackageNotFoundError:  # A checkout without installation.
        ours = "of a checkout"
    return f"brokerctl {ours} ({', '.join(map(' '.join, on.items()))})"


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(_version())
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of brokerctl and its libraries.",
)
@remote
def cli() -> None:
    """Show and steer a running elkobroker, on this machine or another.

    Without options, brokerctl asks the broker at http://127.0.0.1:9080. The options of the connection may stand before
    or after the command.
    """


@click.command("man", hidden=True)
def manual() -> None:
    """Print the manual page of brokerctl."""
    click.echo(man.page(cli), nl=False)


FARM, ACTIONS, TESTS = "The farm", "Actions", "Tests"
USERS, HERE = "The users file of this machine", "This command"

for command in (state.status, state.why):
    cli.add(FARM, command)
for name, listing in lists.LISTINGS.items():
    cli.add(FARM, lists.loads_command() if name == "loads" else lists.list_command(name, listing))
for command in (
    live.top,
    changes.watch,
    changes.events,
    lists.views,
    state.director,
    state.plan,
    cluster.cluster,
    state.journal,
    state.config,
):
    cli.add(FARM, command)
for command in (
    actions.reload,
    draining.drain,
    actions.say,
    actions.launch,
    actions.reinit,
    actions.disconnect,
    actions.withdraw,
    actions.log,
    actions.trace,
    actions.shutdown,
):
    cli.add(ACTIONS, command)
for command in (benchmark.bench, examination.doctor, checking.check):
    cli.add(TESTS, command)
for command in (users.passwd, users.token, users.user):
    cli.add(USERS, command)
for command in (contexts.context, state.whoami, completion.completion):
    cli.add(HERE, command)
cli.add_command(manual)


def main() -> None:
    """Run the command, and end the process."""
    try:
        cli.main(prog_name="brokerctl")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        if threading.active_count() > 1:
            # A name server that does not answer holds a thread.
            streams.failing("stdout")
            streams.failing("stderr")
            os._exit(code)
        raise
