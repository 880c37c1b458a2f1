"""The manual page, made from the help of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from broker.brokerctl.failures import MEANINGS
from broker.brokerctl.group import Commands

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


def page(commands: Commands) -> str:
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
    for section, names in commands.sections.items():
        yield f".SH {_escaped(section.upper())}"
        for name in names:
            yield from _command(commands.commands[name], f"brokerctl {name}", context, shared)
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
            yield from (".nf", *map(_escaped, paragraph.lstrip().removeprefix("\b").strip().splitlines()), ".fi")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _terms(terms: dict[str, str]) -> Iterator[str]:
    for term, meaning in terms.items():
        yield from (".TP", f".B {_escaped(term)}", _escaped(meaning))


def _escaped(text: str) -> str:
    """Return a text without the characters that roff interprets."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped
