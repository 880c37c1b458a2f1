"""MTL's own users and their password verifiers, read from a file at the start and whenever it changes.

Each line has a user: the name, blanks, and the verifier (`broker.access.password_verifiers`). Empty lines, and those
that begin with ``#``, are comments. A file without users has the line `NOBODY`, if it is so on purpose.
`broker.access.guarded_file` watches the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.access import guarded_file, password_verifiers
from broker.access.guarded_file import CHECK as CHECK
from broker.access.guarded_file import FileCheck, GuardedFile
from broker.access.guarded_reading import FORBIDDEN as FORBIDDEN
from broker.access.guarded_reading import MAX_FILE as MAX_FILE
from broker.access.guarded_reading import BadUsers as BadUsers
from broker.access.guarded_reading import read as read
from broker.access.password_verifiers import NO_NAME as NO_NAME
from broker.access.password_verifiers import PasswordVerifier, is_user

MAX_PROBLEMS = 20
"""Mistakes in a file that are reported: a wrong file must not fill the log."""


NOBODY = "nobody"
"""The line that says that the file has no users on purpose; no user has a line of one word."""


def parse(text: str) -> dict[str, PasswordVerifier]:
    """Return the users in the text of a file. Raises `BadUsers`, whose sentences begin with the numbers of lines."""
    users: dict[str, PasswordVerifier] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if is_comment(line) or line.strip() == NOBODY:
            continue
        try:
            name, kept = _user(line)
            if name in lines:
                raise ValueError(f"the user {name} is in line {lines[name]} already")
        except ValueError as error:
            problems.append(f"line {number}: {error}")
            continue
        users[name] = kept
        lines[name] = number
    if problems:
        if len(problems) > MAX_PROBLEMS:
            problems[MAX_PROBLEMS:] = [f"there is more of this kind: {len(problems) - MAX_PROBLEMS} lines"]
        raise BadUsers(*problems)
    return users


def parsed(path: str, text: str) -> dict[str, PasswordVerifier]:
    """Return the users in the text of that file. Raises `BadUsers`, whose sentences begin with the path."""
    try:
        return parse(text)
    except BadUsers as error:
        raise BadUsers(*(f"{path}, {sentence}" for sentence in error.args)) from None


def is_comment(line: str) -> bool:
    """Return True for a line without a user."""
    return not line.strip() or line.lstrip().startswith("#")


def _user(line: str) -> tuple[str, PasswordVerifier]:
    """Return the user in a line. Raises ValueError."""
    words = line.split()
    if len(words) != 2:
        raise ValueError("a line has a user's name and what is kept of the password, and no more")
    name, text = words
    if not is_user(name):
        # It is not shown: it may be something else in the wrong place.
        raise ValueError(NO_NAME)
    try:
        return name, password_verifiers.parse(text)
    except ValueError as error:
        raise ValueError(f"what is kept of the password of {name} {error}") from None


# one check


@attrs.frozen
class UserTable:
    """The users in a file. Equal if the users are: ``shapes`` follow from them."""

    users: Mapping[str, PasswordVerifier]
    nobody: bool = False
    """True if the file says that it has no users."""
    shapes: tuple[tuple[int, int], ...] = attrs.field(init=False, eq=False)
    """See `broker.wires.mtl.sessions.sasl.Users`."""
    work: int = attrs.field(init=False, eq=False)
    """See `broker.wires.mtl.sessions.sasl.Users`."""

    @shapes.default
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((kept.iterations, len(kept.salt)) for kept in self.users.values()))

    @work.default
    def _work(self) -> int:
        return password_verifiers.work_of((kept,) for kept in self.users.values())


def _table(path: str, text: str) -> UserTable:
    return UserTable(parsed(path, text), any(line.strip() == NOBODY for line in text.split("\n")))


def _is_emptied(before: UserTable, after: UserTable) -> bool:
    return bool(before.users) and not after.users and not after.nobody


def first(path: str) -> FileCheck[UserTable]:
    """Read the file at the start. Raises `BadUsers`."""
    return guarded_file.first(path, _table)


def look(path: str, before: FileCheck[UserTable], now: bool) -> FileCheck[UserTable]:
    """Check the file again. With ``now`` it is read whatever its stamp is."""
    return guarded_file.look(path, _table, _is_emptied, before, now)


class UsersFile:
    """The users in the file ``path``, which may change at any time.

    ``in_thread`` runs a function with arguments in a thread and returns a Deferred of its result. Raises `BadUsers` if
    the file cannot be used.
    """

    log = Logger()

    def __init__(self, path: str, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]) -> None:
        self.path = path
        self.changed: list[Callable[[frozenset[str]], object]] = []
        """Called after a change, with the names of users who were removed or have another password."""
        self._file = GuardedFile(path, _table, _is_emptied, clock, in_thread, self._take)
        self.log.info("{count} users are in {path}", count=len(self), path=path)

    def find(self, name: str) -> PasswordVerifier | None:
        """Return the verifier of that user, None if unknown."""
        return self._file.value.users.get(name)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """See `broker.wires.mtl.sessions.sasl.Users`."""
        return self._file.value.shapes

    @property
    def work(self) -> int:
        """See `broker.wires.mtl.sessions.sasl.Users`."""
        return self._file.value.work

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.value.users)

    def __len__(self) -> int:
        return len(self._file.value.users)

    def refresh(self) -> Deferred[None]:
        """Read the file now. Fires when it was read, also if it cannot be used."""
        return self._file.refresh()

    def stop(self) -> None:
        """Stop checking the file. Fires all Deferreds of `refresh`."""
        self._file.stop()

    def _take(self, before: UserTable, after: UserTable) -> None:
        gone = frozenset(name for name, kept in before.users.items() if after.users.get(name) != kept)
        self.log.info(
            "the users in {path} changed: {before} were known, {now} are; {gone} are gone or have another password",
            path=self.path,
            before=len(before.users),
            now=len(after.users),
            gone=len(gone),
        )
        for call in tuple(self.changed):
            try:
                call(gone)
            except Exception:
                self.log.failure("what was to be done after the users changed failed")
