"""The command ``brokerctl``: all commands by section."""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import click

from broker.brokerctl.answers import MEANINGS
from broker.brokerctl.command_session import Commands, remote
from broker.standard_streams import stream_failure

# The manual page, made from the help of the commands.

FILES = {
    "~/.config/elkobroker/contexts.toml": "The contexts: brokers by name, with their addresses and credentials. "
    "XDG_CONFIG_HOME replaces ~/.config.",
}
ENVIRONMENT = {
    "ELKOBROKER_URL": "Address of the broker, before the current context of the file.",
    "ELKOBROKER_TOKEN": "Bearer token, where neither options nor the context have credentials.",
    "ELKOBROKER_CONTEXTS": "Path of the contexts file.",
    "NO_COLOR": "Any value turns colours off.",
}


def manual_page(commands: Commands) -> str:
    """Return the manual page in the macros of man(7)."""
    return "".join(f"{line}\n" for line in _lines(commands))


def _lines(commands: Commands) -> Iterator[str]:
    context = click.Context(commands, info_name="brokerctl")
    yield '.\\" Made by: python -m broker.brokerctl man'
    yield '.TH BROKERCTL 1 "" "elkobroker" "User Commands"'
    yield from (".SH NAME", "brokerctl \\- show and steer a running elkobroker")
    yield from (".SH SYNOPSIS", ".B brokerctl", "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]...")
    yield from (".SH DESCRIPTION", *_paragraphs(commands.help or ""))
    yield from (".SH OPTIONS", *_options(commands, context, frozenset()))
    shared = frozenset(name for parameter in commands.params for name in parameter.opts)
    for section, names in commands.all().items():
        yield f".SH {_escaped(section.upper())}"
        for name in names:
            yield from _command(commands.of(name), f"brokerctl {name}", context, shared)
    yield ".SH EXIT STATUS"
    for code, meaning in MEANINGS.items():
        yield from (".TP", f".B {int(code)}", _escaped(meaning))
    yield from (".SH ENVIRONMENT", *_terms(ENVIRONMENT))
    yield from (".SH FILES", *_terms(FILES))
    yield from (".SH SEE ALSO", "docs/brokerctl.md has examples.")


def _command(command: click.Command, name: str, parent: click.Context, shared: frozenset[str]) -> Iterator[str]:
    context = click.Context(command, parent, info_name=name.rpartition(" ")[2])
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_escaped(name)} {_escaped(usage)}"
    yield from _paragraphs(command.help or "")
    yield from _options(command, context, shared)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from _command(found, f"{name} {sub}", context, shared)


def _options(command: click.Command, context: click.Context, shared: frozenset[str]) -> Iterator[str]:
    for parameter in command.get_params(context):
        # The shared options are described once, as those of the whole command.
        if not set(parameter.opts) & (shared | {"--help"}):
            record = parameter.get_help_record(context)
            if record is not None:
                yield from (".TP", f".B {_escaped(record[0])}", _escaped(record[1]))


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        if paragraph.lstrip().startswith("\b"):
            lines = inspect.cleandoc(paragraph.lstrip().removeprefix("\b").lstrip("\n")).splitlines()
            yield from (".nf", *map(_escaped, lines), ".fi")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _terms(terms: dict[str, str]) -> Iterator[str]:
    for term, meaning in terms.items():
        yield from (".TP", f".B {_escaped(term)}", _escaped(meaning))


def _escaped(text: str) -> str:
    """Return a text without the characters that roff interprets."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped


# The command ``completion``: scripts for shells.

INSTALL = {
    "bash": "~/.local/share/bash-completion/completions/brokerctl",
    "zsh": "a directory of $fpath, as _brokerctl",
    "fish": "~/.config/fish/completions/brokerctl.fish",
}
"""The places that shells read scripts from."""


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    bash: brokerctl completion bash > ~/.local/share/bash-completion/completions/brokerctl
    zsh:  brokerctl completion zsh > _brokerctl, in a directory of $fpath
    fish: brokerctl completion fish > ~/.config/fish/completions/brokerctl.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    # source() would start bash to learn its version; all versions in use have what the script needs.
    script = made(context.find_root().command, {}, "brokerctl", "_BROKERCTL_COMPLETE")
    click.echo(script.source_template % script.source_vars())


def _version() -> str:
    """Return the versions of this command, the interpreter and the libraries: one line."""
    import platform
    from importlib import metadata

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
    click.echo(manual_page(cli), nl=False)


FARM, SERVICES, TO_DO, TESTS = "The farm", "Services and topics", "Actions", "Tests"
USERS, STATE, HERE = "The users file of this machine", "The state of this machine", "This command"

LISTS = (
    "catalog",
    "services",
    "providers",
    "loads",
    "sessions",
    "topics",
    "queues",
    "listeners",
    "bridges",
    "counters",
)
"""Lists of the API that have a command of their own."""


def _from(module: str, name: str) -> Callable[[], click.Command]:
    """Return the function that imports a command from a module of this package."""

    def make() -> click.Command:
        found: click.Command = getattr(import_module(f"broker.brokerctl.{module}"), name)
        return found

    return make


def _list(name: str) -> click.Command:
    from broker.brokerctl.list_commands import LISTINGS, list_command, loads_command

    return loads_command() if name == "loads" else list_command(name, LISTINGS[name])


def _actions() -> Iterator[tuple[str, Callable[[], click.Command]]]:
    """Yield the commands of the table of actions, which is imported if no other command has the name."""
    from broker.brokerctl.action_commands import GROUP, SHORT, command, queue_group
    from broker.operate.actions import ACTIONS

    for action in ACTIONS:
        if not action.name.startswith(f"{GROUP}-"):
            yield SHORT.get(action.name, action.name), partial(command, action.name)
    yield GROUP, queue_group
    yield "scale", _from("action_commands", "scale")


def _add(section: str, module: str, *names: str) -> None:
    for name in names:
        cli.add(section, name, _from(module, name))


_add(FARM, "state_commands", "status", "why")
for each in LISTS:
    cli.add(FARM, each, partial(_list, each))
_add(FARM, "follow_commands", "top", "watch", "events", "logs")
_add(FARM, "list_commands", "views")
_add(FARM, "state_commands", "director", "plan")
_add(FARM, "cluster_commands", "cluster")
_add(FARM, "state_commands", "journal", "config")
_add(SERVICES, "service_commands", "offer", "find", "wait", "sub")
cli.complete(TO_DO, _actions)
_add(TESTS, "bench_command", "bench")
_add(TESTS, "examination_commands", "doctor", "check")
_add(USERS, "user_commands", "passwd", "token", "user")
_add(STATE, "backup_commands", "backup", "restore")
_add(HERE, "user_commands", "context")
_add(HERE, "state_commands", "whoami")
cli.add(HERE, "completion", lambda: completion)
cli.add_command(manual)


def main() -> None:
    """Run the command, and end the process."""
    try:
        cli.main(prog_name="brokerctl")
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        if threading.active_count() > 1:
            # A name server that does not answer holds a thread.
            stream_failure("stdout")
            stream_failure("stderr")
            os._exit(code)
        raise
