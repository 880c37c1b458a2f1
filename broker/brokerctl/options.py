"""The options that many commands share. They may stand before the command or after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.http.client import TIMEOUT
from broker.brokerctl.output.output import Color, Format
from broker.brokerctl.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])
LONGEST = 600.0
"""Seconds to which ``--timeout`` may raise the time for an answer."""

PATH = click.Path(dir_okay=False)


def session_of(context: click.Context) -> Session:
    """Return the session of an invocation."""
    return context.ensure_object(Session)


def _remember(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            session = session_of(context)
            session.given = attrs.evolve(session.given, **{name: value})

    return callback


def _format(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        session_of(context).format = Format.JSON if value is True else Format(value)


def _color(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        session_of(context).color = Color(value)


def _timeout(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        session_of(context).timeout = value


def _contexts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a context."""
    import os

    from broker.brokerctl.contexts.file import BUILT_IN, path_of, read

    try:
        known = {*read(path_of(os.environ)).known, BUILT_IN}
    except Failure:
        return []
    return sorted(name for name in known if name.startswith(incomplete))


def _option(*names: str, **about: Any) -> Callable[[Command], Command]:
    return click.option(*names, expose_value=False, **about)


def _all(options: list[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


connection: Callable[[Command], Command] = _all(
    [
        _option(
            "-c",
            "--context",
            metavar="NAME",
            callback=_remember("context"),
            shell_complete=_contexts,
            help="Context of the contexts file: the broker and the credentials.",
        ),
        _option("--url", metavar="URL", callback=_remember("url"), help="Address of the broker's HTTP listener."),
        _option("--ca", type=PATH, callback=_remember("ca"), help="PEM file with the authorities to trust."),
        _option("--cert", type=PATH, callback=_remember("cert"), help="PEM file with the client's certificate."),
        _option("--key", type=PATH, callback=_remember("key"), help="PEM file with the key of that certificate."),
        _option("--token-file", type=PATH, callback=_remember("token_file"), help="File with a bearer token."),
        _option("--user", metavar="NAME", callback=_remember("user"), help="User; the password is asked for."),
        _option(
            "--password-file", type=PATH, callback=_remember("password_file"), help="File with the user's password."
        ),
        _option(
            "--timeout",
            type=click.FloatRange(0, LONGEST, min_open=True),
            metavar="SECONDS",
            callback=_timeout,
            help=f"Time for one answer. [default: {TIMEOUT:g}]",
        ),
    ]
)
"""The choice of the broker."""

color: Callable[[Command], Command] = _option(
    "--color",
    type=click.Choice([each.value for each in Color]),
    callback=_color,
    help="Colours: on terminals unless NO_COLOR is set, always, or never.",
)
"""The choice of colours."""

formats: Callable[[Command], Command] = _all(
    [
        _option(
            "-o",
            "--output",
            type=click.Choice([each.value for each in Format]),
            callback=_format,
            help="table for people, wide with all columns, json as the API answers, or csv.",
        ),
        _option("--json", is_flag=True, default=None, callback=_format, help="The same as -o json."),
    ]
)
"""The choice of the format."""


def remote(command: Command) -> Command:
    """Add all shared options to a command that asks the broker."""
    return formats(connection(color(command)))


def usage(sentence: str) -> Failure:
    """Return the failure of a wrong command line."""
    return Failure(sentence, Exit.USAGE)
