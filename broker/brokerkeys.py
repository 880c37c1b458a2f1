"""The command ``brokerkeys``: CURVE keys for the broker and its clients, in files.

A pair is two files, NAME.private and NAME.public, each with one line: the key in 40 Z85 characters.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import zmq

from broker import curve_keys, small_file, standard_streams
from broker.config import files
from broker.config.files import PUBLIC

PRIVATE = ".private"

DESCRIPTION = """Makes CURVE keys. The broker needs a pair; each client needs a pair of its own, and the broker's public
key. The public keys of clients are in the users file of the broker (access.file in its configuration)."""


class Failed(Exception):
    """The command failed. Its arguments are sentences with the reasons."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], str] = options.run
    try:
        text = run(options)
    except Failed as error:
        for sentence in error.args:
            print(f"brokerkeys: {sentence}", file=sys.stderr)
        return 1
    return standard_streams.show("brokerkeys", text)


def new(name: str, directory: str, force: bool) -> tuple[Path, Path]:
    """Make a pair. Returns the files of the secret and of the public key. Raises `Failed`."""
    _check_name(name)
    private, public = Path(directory, name + PRIVATE), Path(directory, name + PUBLIC)
    for path in (private, public):
        if not force and os.path.lexists(path):
            raise Failed(f"{path} is there already; --force replaces it")
    public_key, secret_key = zmq.curve_keypair()
    _make(directory, 0o700)
    write(private, secret_key, 0o600, force)
    try:
        write(public, public_key, 0o644, force)
    except Failed:
        if not force:
            private.unlink()
        raise
    return private, public


def public_of(path: str) -> str:
    """Return the public key of the secret key in a file. Raises `Failed`."""
    try:
        secret_key = files.curve_secret(Path(path))
    except files.BadFile as error:
        raise Failed(f"{path} {error}") from None
    return str(zmq.curve_public(secret_key.encode()).decode())


def _make(directory: str, mode: int) -> None:
    """Make a directory, if it is not there."""
    try:
        os.makedirs(directory, mode, exist_ok=True)
    except OSError as error:
        raise Failed(f"{directory} cannot be made: {error.strerror}") from None


def _check_name(name: str) -> None:
    if not curve_keys.is_name(name):
        raise Failed(
            f"{name!r} is no name for a key: it has letters, digits and _ . @ + = : , - only, begins with a letter, "
            f"a digit or _, and has {curve_keys.MAX_NAME} characters at most"
        )


def write(path: Path, key: bytes, mode: int, force: bool) -> None:
    """Write a key file: it appears whole, with its mode, and replaces another one only with ``force``."""
    try:
        with small_file.written(path, create=not force) as file:
            file.write(key + b"\n")
            os.fchmod(file.fileno(), mode)
    except FileExistsError:
        raise Failed(f"{path} is there already; --force replaces it") from None
    except OSError as error:
        raise Failed(f"{path} cannot be written: {error.strerror}") from None


# the command line


class _Parser(argparse.ArgumentParser):
    """A parser whose help is output as any other: argparse ignores that a stream cannot be written."""

    def print_help(self, file: object = None) -> NoReturn:
        self.exit(standard_streams.show(self.prog, self.format_help().rstrip("\n")))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="brokerkeys", description=DESCRIPTION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser("new", help="make a pair of keys", description="Makes NAME.private and NAME.public.")
    command.add_argument("name", metavar="NAME", help="name of the key: that of a node, or of the broker")
    command.add_argument("--dir", default=".", help="directory of the files [default: here]")
    command.add_argument("--force", action="store_true", help="replace files that are there")
    command.set_defaults(run=_run_new)

    command = commands.add_parser(
        "public", help="print the public key of a secret one", description="Prints the public key."
    )
    command.add_argument("file", metavar=f"FILE{PRIVATE}", help="the file of the secret key")
    command.set_defaults(run=lambda options: public_of(options.file))

    return parser


def _run_new(options: argparse.Namespace) -> str:
    private, public = new(options.name, options.dir, options.force)
    adding = f'brokerctl user add {shlex.quote(options.name)} --key "$(cat {shlex.quote(str(public))})"'
    return f"""{private}: the secret key. It stays with its owner, who alone may read it.
{public}: the public key.
For a client: {adding}
adds it to the users file; it needs both files, and the broker's public key.
For the broker: name {private} in secret_key_file of mc0 or mtl, and give {public} to every client."""


if __name__ == "__main__":
    sys.exit(main())
