"""The command ``brokerusers``: the users who may log in over MTL by password, in the file that the broker reads.

The file has a line for each user. It stores no passwords, but verifiers of them (RFC 5803).
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Sequence

from broker.access import password_verifiers
from broker.access.password_verifiers import BadPassword, PasswordVerifier
from broker.access.replacing import EditFailed as Failed
from broker.access.replacing import alone, replace
from broker.wires.mtl.sessions import users_file
from broker.wires.mtl.sessions.users_file import BadUsers

DESCRIPTION = """Changes and checks the file of the users who may log in over MTL by a name and a password (mtl.users in
the configuration). The broker notices changes by itself: a user who is removed, or gets another password, is logged
out."""

INTERRUPTED = 130
"""The exit code of a command interrupted from the keyboard, as in shells."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
        sys.stdout.flush()
    except (Failed, BadUsers) as error:
        for sentence in error.args:
            print(f"brokerusers: {sentence}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output (a pipe) is gone. Nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def add(path: str, name: str, password: Callable[[], str], force: bool) -> str:
    """Add a user to the file, which is created if missing. ``password`` is called when everything else is valid.

    Returns a sentence. Raises `Failed` or `BadUsers`.
    """
    if not password_verifiers.is_user(name):
        raise Failed(f"{name!r} is no name for a user: {users_file.NO_NAME}")
    _check_new(path, name, force)
    try:
        kept = password_verifiers.of(password())
    except BadPassword as error:
        raise Failed(f"the password {error}") from None
    with alone(path) as path:
        known = _check_new(path, name, force)
        line = f"{name} {kept.text()}"
        lines = _lines(path)
        if known:
            lines = [line if _is_of(old, name) else old for old in lines]
        else:
            lines = [*(old for old in lines if old.strip() != users_file.NOBODY), line]
        replace(path, _joined(lines))
    return f"{name} has another password" if known else f"{name} is a user"


def remove(path: str, name: str) -> str:
    """Remove a user from the file. Returns a sentence. Raises `Failed` or `BadUsers`."""
    with alone(path) as path:
        known = users(path)
        if name not in known:
            raise Failed(f"there is no user {name!r} in {path}")
        lines = [line for line in _lines(path) if not _is_of(line, name)]
        # A file that does not say so would be taken for a write that failed.
        replace(path, _joined([*lines, *([users_file.NOBODY] if len(known) == 1 else [])]))
    return f"{name} is removed"


def users(path: str) -> dict[str, PasswordVerifier]:
    """Return the users in the file. Raises `BadUsers`."""
    return users_file.parsed(path, users_file.read(path))


def _check_new(path: str, name: str, force: bool) -> bool:
    """Return True if the user is in the file. Raises `Failed` if that is not allowed, or `BadUsers`."""
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise Failed(f"{path} would be in no directory")
    known = os.path.lexists(path) and name in users(path)
    if known and not force:
        raise Failed(f"{name} is in {path} already; --force gives another password")
    return known


def _lines(path: str) -> list[str]:
    """Return the lines of the file, none if it is missing."""
    if not os.path.lexists(path):
        return []
    lines = users_file.read(path).split("\n")
    return lines if lines[-1] else lines[:-1]


def _joined(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _is_of(line: str, name: str) -> bool:
    return not users_file.is_comment(line) and line.split()[0] == name


# passwords


def asked(name: str) -> str:
    """Read the password of a user: twice from a terminal, else a line of standard input. Raises `Failed`."""
    if not sys.stdin.isatty():
        # The longest line, its end, and one byte more, which shows that the line is too long.
        return _decoded(sys.stdin.buffer.readline(password_verifiers.MAX_PASSWORD + 3))
    try:
        first = getpass.getpass(f"Password of {name}: ")
        if first != getpass.getpass("Once more: "):
            raise Failed("these were two different passwords")
    except EOFError:
        raise Failed("no password was given") from None
    return first


def _decoded(line: bytes) -> str:
    if not line:
        raise Failed("no password was given: standard input is at its end")
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise Failed("the password is not UTF-8, or too long") from None


# the command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="brokerusers", description=DESCRIPTION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser(
        "add",
        help="let a user in, or change a password",
        description="Asks for the password twice on a terminal. Otherwise it is the first line of standard input.",
    )
    command.add_argument("file", metavar="FILE", help="the file of users; it is made if it is not there")
    command.add_argument("name", metavar="NAME", help="name of the user")
    command.add_argument("--force", action="store_true", help="give a user who is there another password")
    command.set_defaults(run=_run_add)

    command = commands.add_parser("remove", help="keep a user out", description="Takes a user out of the file.")
    command.add_argument("file", metavar="FILE", help="the file of users")
    command.add_argument("name", metavar="NAME", help="name of the user")
    command.set_defaults(run=lambda options: print(remove(options.file, options.name)))

    command = commands.add_parser("list", help="list the users", description="Prints the names, one in a line.")
    command.add_argument("file", metavar="FILE", help="the file of users")
    command.set_defaults(run=_run_list)

    command = commands.add_parser("check", help="check a file", description="Checks that the broker can use the file.")
    command.add_argument("file", metavar="FILE", help="the file of users")
    command.set_defaults(run=_run_check)
    return parser


def _run_add(options: argparse.Namespace) -> None:
    print(add(options.file, options.name, lambda: asked(options.name), options.force))


def _run_list(options: argparse.Namespace) -> None:
    for name in sorted(users(options.file)):
        print(name)


def _run_check(options: argparse.Namespace) -> None:
    count = len(users(options.file))
    print(f"{options.file} is in order: {count} {'user' if count == 1 else 'users'}")


if __name__ == "__main__":
    sys.exit(main())
