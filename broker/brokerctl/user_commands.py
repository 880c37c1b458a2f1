"""The commands for users and contexts: ``passwd``, ``token``, ``user`` and ``context``.

The first three change the users file of a broker on this machine. They change the file itself, which the broker
watches: they need the right to write it, and no running broker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import click
import msgspec.structs

from broker.brokerctl.answers import Exit, Failure
from broker.brokerctl.command_session import PATH, Number, color, formats, session_of
from broker.brokerctl.contexts import (
    BUILT_IN,
    DEFAULT_URL,
    NAME,
    Context,
    Contexts,
    check_context,
    path_of,
    read_contexts,
    write_contexts,
)
from broker.brokerctl.output import Column

USERS_FILE = "/etc/elkobroker/users.toml"
"""The users file, unless an option or the environment names another."""

MAX_LINE = 515
"""Bytes of a line of standard input with a password: the longest one, its end, and one byte more."""

file_option = click.option(
    "--file",
    "path",
    envvar="ELKOBROKER_USERS",
    default=USERS_FILE,
    show_default=True,
    type=click.Path(dir_okay=False),
    help="The users file (access.file of the configuration); also in $ELKOBROKER_USERS.",
)


def editing() -> ModuleType:
    """Return the module that changes the file. The command alone, without the daemon, does not have it."""
    try:
        from broker.access import editing
    except ImportError as error:
        raise Failure(
            f"this needs the broker's package: pip install 'elkobroker[daemon]' ({error.name} is missing)"
        ) from None
    return editing


def _failing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the sentences of a refused change as a failure of the command."""

    @wraps(function)
    def command(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Failure:
            raise
        except Exception as error:
            from broker.access.users_file import BadUsers, EditFailed

            if isinstance(error, EditFailed | BadUsers):
                raise Failure("; ".join(map(str, error.args))) from None
            raise

    return command


@click.command()
@click.argument("name")
@file_option
@click.option("--add", is_flag=True, help="Add the user, and the file if it is missing.")
@click.option("--keep", is_flag=True, help="Keep the former password valid, until the next change without this.")
@_failing
def passwd(name: str, path: str, add: bool, keep: bool) -> None:
    """Set the password of a user in the users file.

    The command asks for the password twice on a terminal. Otherwise it is the first line of standard input. The
    change takes effect at once: connections with the former password end.
    """
    edit = editing()
    known = {user.name for user in edit.users(path)} if not add or _exists(path) else set()
    if name not in known and not add:
        raise Failure(f"there is no user {name!r} in {path}; --add adds one", Exit.NOT_FOUND)
    password = _asked(name)
    if name not in known:
        edit.add_user(path, name)
    edit.set_password(path, name, password, keep)
    click.echo(f"{name} has {'one more' if keep else 'a new'} password" if name in known else f"{name} is a user")


@click.group()
def token() -> None:
    """Add, list and revoke bearer tokens in the users file."""


@token.command("add")
@click.argument("name")
@click.argument("label")
@file_option
@click.option("--days", type=Number(min=0, min_open=True), default=365.0, show_default=True, help="Its life.")
@click.option("--forever", is_flag=True, help="Let it never expire.")
@_failing
def add_token(name: str, label: str, path: str, days: float, forever: bool) -> None:
    """Add a token of a user, and print it. It is stored nowhere: the file has its hash."""
    click.echo(editing().add_token(path, name, label, None if forever else days))


@token.command("list")
@file_option
@_failing
def list_tokens(path: str) -> None:
    """List the tokens: user, label and expiry."""
    found = editing().token_list(path)
    if not found:
        click.echo("no tokens", err=True)
    for name, each in found:
        click.echo(f"{name}\t{each.label}\t{each.expires or 'never expires'}")


@token.command("revoke")
@click.argument("name")
@click.argument("label")
@file_option
@_failing
def revoke_token(name: str, label: str, path: str) -> None:
    """Remove a token of a user. Its connections end at once."""
    editing().revoke_token(path, name, label)
    click.echo(f"the token {label!r} of {name} is revoked")


@click.group()
def user() -> None:
    """Add, list and remove users, their client certificates and CURVE keys in the users file."""


@user.command("add")
@click.argument("name")
@file_option
@click.option("--certificate", help="Name of a client certificate: common name or DNS name.")
@click.option("--key", help="CURVE public key in Z85.")
@_failing
def add_user(name: str, path: str, certificate: str | None, key: str | None) -> None:
    """Add a user, or credentials to a present one."""
    edit = editing()
    known = _exists(path) and name in {each.name for each in edit.users(path)}
    if known and certificate is None and key is None:
        raise Failure(f"{name} is a user already")
    if not known:
        edit.add_user(path, name)
    if certificate is not None:
        edit.add_certificate(path, name, certificate)
    if key is not None:
        edit.add_key(path, name, key)
    click.echo(f"{name} has more credentials" if known else f"{name} is a user")


@user.command("remove")
@click.argument("name")
@file_option
@click.option("--certificate", help="Remove this certificate name only.")
@click.option("--key", help="Remove this CURVE key only.")
@_failing
def remove_user(name: str, path: str, certificate: str | None, key: str | None) -> None:
    """Remove a user, or one of the credentials. Connections end at once."""
    edit = editing()
    if certificate is not None:
        edit.remove_certificate(path, name, certificate)
    if key is not None:
        edit.remove_key(path, name, key)
    if certificate is None and key is None:
        edit.remove_user(path, name)
    click.echo(f"{name} {'is removed' if certificate is None and key is None else 'has fewer credentials'}")


@user.command("list")
@file_option
@_failing
def list_users(path: str) -> None:
    """List the users with their kinds of credentials."""
    for each in editing().users(path):
        kinds = {
            "passwords": each.passwords,
            "tokens": each.tokens,
            "certificates": each.certificates,
            "keys": each.keys,
        }
        shown = ", ".join(f"{len(values)} {kind}" for kind, values in kinds.items() if values)
        click.echo(f"{each.name}\t{shown or 'no credentials'}")


@user.command("import")
@click.argument("configuration", type=click.Path(dir_okay=False))
@click.option("--to", help="The users file to write, which must not exist. [default: users.toml beside CONFIGURATION]")
@_failing
def import_users(configuration: str, to: str | None) -> None:
    """Write a users file from the passwords, keys and rules of a former configuration.

    The configuration without the keys that are gone is written beside the old one, as CONFIGURATION.new. The old one
    and the files that it names stay as they are, so that the former version can be started again.

    Exit status 1: the file is written, but some rights are in it as comments only, since rights add up.
    """
    editing()
    from broker.access import importing

    to = os.path.join(os.path.dirname(configuration), "users.toml") if to is None else to
    found = importing.write(configuration, to)
    if found.users is None:
        click.echo("all listeners are open on this machine alone: no users file is needed")
    else:
        click.echo(f"{to} has the users and their rights")
    click.echo(f"{configuration}.new is the configuration without the keys that are gone")
    for key in found.left:
        click.echo(f"remove {key} from it with an editor")
    for sentence in found.conflicts:
        click.echo(f"not carried over: {sentence}", err=True)
    if found.conflicts:
        raise SystemExit(1)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _asked(name: str) -> str:
    """Return the password of a user: typed twice on a terminal, else a line of standard input."""
    if sys.stdin.isatty():
        password: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="Once more")
        return password
    line = sys.stdin.buffer.readline(MAX_LINE)
    if not line:
        raise Failure("no password was given: standard input is at its end")
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Failure("the password is not UTF-8, or too long") from None


# The command ``context``.


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
    contexts = read_contexts(path_of(os.environ))
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
    contexts = read_contexts(path)
    check_context(contexts.named(name))
    write_contexts(path, msgspec.structs.replace(contexts, current=name))
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
    contexts = read_contexts(path)
    if name in contexts.known and not force:
        raise Failure(f"there is a context {name!r} already; --force replaces it")
    for key in ("ca", "cert", "key", "token_file", "password_file"):
        if keys[key] is not None:
            # Relative files are beside the contexts file, and these are given relative to the working directory.
            keys[key] = os.path.abspath(keys[key])
    if token_stdin:
        keys["token"] = sys.stdin.readline().strip()
    new = Context(url, **keys)
    check_context(new)
    known = {**contexts.known, name: new}
    write_contexts(path, Contexts(known, name if current or contexts.current is None else contexts.current))
    click.echo(f"{name} is added to {path}")


@context.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context from the file."""
    path = path_of(os.environ)
    contexts = read_contexts(path)
    if name not in contexts.known:
        raise Failure(f"there is no context {name!r} in {path}", Exit.NOT_FOUND)
    known = {each: about for each, about in contexts.known.items() if each != name}
    write_contexts(path, Contexts(known, None if contexts.current == name else contexts.current))
    click.echo(f"{name} is removed")


def _credentials(context: Context) -> str:
    """Return the kind of a context's credentials, without the secrets."""
    kinds = [
        "token" if context.token or context.token_file else "",
        f"user {context.user}" if context.user else "",
        "certificate" if context.cert else "",
    ]
    return ", ".join(kind for kind in kinds if kind)
