"""The command ``context``: list, use, add and remove the contexts of the file."""

from __future__ import annotations

import os
import sys
from typing import Any

import attrs
import click

from broker.brokerctl.contexts.context import DEFAULT_URL, NAME, Context, check
from broker.brokerctl.contexts.file import BUILT_IN, Contexts, path_of, read, write
from broker.brokerctl.failures import Exit, Failure
from broker.brokerctl.options import PATH, color, formats, session_of
from broker.brokerctl.output.tables import Column


@click.group()
def context() -> None:
    """Choose among several brokers by name.

    A context has the address of a broker and the user's credentials. The contexts are in
    ~/.config/elkobroker/contexts.toml.
    """


@context.command("list")
@formats
@color
@click.pass_context
def list_contexts(invocation: click.Context) -> None:
    """List the contexts; a star marks the current one."""
    contexts = read(path_of(os.environ))
    current = contexts.current or BUILT_IN
    known = {BUILT_IN: Context(), **contexts.known}
    session = session_of(invocation)
    people = session.output.for_people
    session.output.rows(
        [
            {
                "current": ("*" if people else True) if name == current else ("" if people else False),
                "name": name,
                "url": each.url,
                "credentials": _credentials(each),
            }
            for name, each in sorted(known.items())
        ],
        [Column("current"), Column("name"), Column("url"), Column("credentials")],
    )


@context.command("use")
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one, which commands without --context use."""
    path = path_of(os.environ)
    contexts = read(path)
    check(contexts.named(name))
    write(path, attrs.evolve(contexts, current=name))
    click.echo(f"the current context is {name}")


@context.command("add")
@click.argument("name")
@click.argument("url", default=DEFAULT_URL)
@click.option("--ca", type=PATH, help="PEM file with the authorities to trust.")
@click.option("--cert", type=PATH, help="PEM file with the client's certificate.")
@click.option("--key", type=PATH, help="PEM file with the key of that certificate.")
@click.option("--token-file", type=PATH, help="File with a bearer token.")
@click.option("--token-stdin", is_flag=True, help="Read a token from standard input, and keep it in the file.")
@click.option("--user", metavar="NAME", help="User; the password is asked for by each command.")
@click.option("--password-file", type=PATH, help="File with the user's password.")
@click.option("--unencrypted", is_flag=True, help="Send credentials to another machine without TLS.")
@click.option("--use", "current", is_flag=True, help="Make it the current context too.")
@click.option("--force", is_flag=True, help="Replace a context of that name.")
def add(name: str, url: str, token_stdin: bool, current: bool, force: bool, **keys: Any) -> None:
    """Add a context. Comments in the file are lost."""
    if not NAME.fullmatch(name):
        raise Failure(f"{name!r} is no name of letters, digits, '_', '.' and '-'", Exit.USAGE)
    path = path_of(os.environ)
    contexts = read(path)
    if name in contexts.known and not force:
        raise Failure(f"there is a context {name!r} already; --force replaces it")
    for key in ("ca", "cert", "key", "token_file", "password_file"):
        if keys[key] is not None:
            # Relative files are beside the contexts file, and these are given relative to the working directory.
            keys[key] = os.path.abspath(keys[key])
    if token_stdin:
        keys["token"] = sys.stdin.readline().strip()
    new = Context(url, **keys)
    check(new)
    known = {**contexts.known, name: new}
    write(path, Contexts(known, name if current or contexts.current is None else contexts.current))
    click.echo(f"{name} is added to {path}")


@context.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context from the file."""
    path = path_of(os.environ)
    contexts = read(path)
    if name not in contexts.known:
        raise Failure(f"there is no context {name!r} in {path}", Exit.NOT_FOUND)
    known = {each: about for each, about in contexts.known.items() if each != name}
    write(path, Contexts(known, None if contexts.current == name else contexts.current))
    click.echo(f"{name} is removed")


def _credentials(context: Context) -> str:
    """Return the kind of a context's credentials, without the secrets."""
    kinds = [
        "token" if context.token or context.token_file else "",
        f"user {context.user}" if context.user else "",
        "certificate" if context.cert else "",
    ]
    return ", ".join(kind for kind in kinds if kind)
