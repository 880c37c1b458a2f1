"""Users and their password verifiers, read from a file at the start and whenever it changes.

Rules:
- Each line has a user: the name, blanks, and the verifier (`broker.wires.mtl.sessions.password_verifiers`). Empty
  lines, and those that begin with ``#``, are comments.
- A file with a mistake anywhere is not used at all. Nor is a file that may be read by others than its owner and group,
  or written by others than its owner.
- The start fails if the file cannot be used. Later errors are not fatal: the last good users stay, and the error is
  logged once.
- Every `CHECK` seconds the stamp of the file is compared. The file is read when two checks in a row find the same new
  stamp, since it may be written during the first. `UsersFile.refresh` reads it at once.
- Reading happens in a thread, one check at a time (`broker.core.file_watch`); the reactor thread is given a finished
  table.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.file_watch import FileWatch
from broker.wires.mtl.sessions import password_verifiers
from broker.wires.mtl.sessions.password_verifiers import MAX_USER, PasswordVerifier, is_user

CHECK = 1.0
"""Seconds between checks of the stamp: a new user can log in two seconds after the file was written."""

MAX_FILE = 4 * 1024 * 1024
"""Bytes of the file: some 25,000 users. It is read as a whole, so a device or a wrong file must not fill the memory."""

MAX_PROBLEMS = 20
"""Mistakes in a file that are reported: a wrong file must not fill the log."""

FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO
"""Mode bits that must not be set: readers of the file could guess passwords, and impersonate the broker."""

Stamp = tuple[int, int, int, int]
"""Times of modification and change, size, and inode."""

_UNKNOWN: Stamp = (0, 0, 0, 0)


class BadUsers(ValueError):
    """A users file that cannot be used. The arguments are sentences with the reasons, and show no secret."""

    def __str__(self) -> str:
        return "; ".join(str(sentence) for sentence in self.args)


def parse(text: str) -> dict[str, PasswordVerifier]:
    """Return the users in the text of a file. Raises `BadUsers`, whose sentences begin with the numbers of lines."""
    users: dict[str, PasswordVerifier] = {}
    lines: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if is_comment(line):
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


NO_NAME = (
    "a user's name has letters, digits and _ . @ + = : , - only, begins with a letter, a digit or _, and has "
    f"{MAX_USER} characters at most"
)


def read(path: str) -> str:
    """Return the text of a users file. Raises `BadUsers`."""
    return _read(path)[0]


def _read(path: str) -> tuple[str, Stamp]:
    """Return the text of a file, and its stamp: `_UNKNOWN` if it changed meanwhile. Raises `BadUsers`."""
    try:
        # O_NONBLOCK: opening a pipe without a writer would block.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(file)
            _check(path, before)
            data = _all_of(file)
            after = _stamp(os.fstat(file))
        finally:
            os.close(file)
    except OSError as error:
        raise BadUsers(_unreadable(path, error)) from None
    if len(data) > MAX_FILE:
        raise BadUsers(f"{path} is larger than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig"), after if after == _stamp(before) else _UNKNOWN
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadUsers(f"{path} is not UTF-8: line {line} has the byte 0x{data[error.start]:02x}") from None


def _unreadable(path: str, error: OSError) -> str:
    return f"{path} cannot be read: {error.strerror or error}"


def _check(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadUsers(f"{path} is no regular file")
    if status.st_mode & FORBIDDEN:
        mode = stat.S_IMODE(status.st_mode)
        raise BadUsers(f"{path} has the mode {mode:04o}: only its owner may write it, and only its group may read it")


def _all_of(file: int) -> bytes:
    """Read a file up to one byte more than it may have."""
    parts: list[bytes] = []
    left = MAX_FILE + 1
    while left > 0 and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


# one check


@attrs.frozen
class UsersSeen:
    """Outcome of a check. Immutable, since the next check reads it in a thread."""

    stamp: Stamp
    """Stamp at the last check, `_UNKNOWN` if it could not be found."""
    users: Mapping[str, PasswordVerifier]
    """The last good users."""
    shapes: tuple[tuple[int, int], ...]
    """See `broker.wires.mtl.sessions.sasl.Users`."""
    sure: bool = False
    """True if the file was read after two checks in a row had found this stamp."""
    problems: tuple[str, ...] = ()
    """Reasons why the file cannot be used now, as sentences."""


def first(path: str) -> UsersSeen:
    """Read the file at the start. Raises `BadUsers`."""
    text, stamp = _read(path)
    return _seen(stamp, parsed(path, text))


def look(path: str, before: UsersSeen, now: bool) -> UsersSeen:
    """Check the file again. With ``now`` it is read whatever its stamp is."""
    if not now:
        try:
            stamp = _stamp(os.stat(path))
        except OSError as error:
            return _bad(before, BadUsers(_unreadable(path, error)))
        if stamp != before.stamp:
            return attrs.evolve(before, stamp=stamp, sure=False)
        if before.sure:
            return before
    try:
        text, stamp = _read(path)
    except BadUsers as error:
        return _bad(before, error)
    if stamp == _UNKNOWN or (stamp != before.stamp and not now):
        return attrs.evolve(before, stamp=stamp, sure=False)
    try:
        users = parsed(path, text)
    except BadUsers as error:
        return _bad(before, error, stamp, sure=not now)
    if users == before.users:
        return attrs.evolve(before, stamp=stamp, sure=not now, problems=())
    return _seen(stamp, users, sure=not now)


def _seen(stamp: Stamp, users: Mapping[str, PasswordVerifier], sure: bool = False) -> UsersSeen:
    return UsersSeen(stamp, users, tuple(sorted((kept.iterations, len(kept.salt)) for kept in users.values())), sure)


def _bad(before: UsersSeen, error: BadUsers, stamp: Stamp = _UNKNOWN, sure: bool = False) -> UsersSeen:
    """Return the outcome of a check that failed. Without a stamp, the next check reads the file again."""
    return attrs.evolve(before, stamp=stamp, sure=sure, problems=error.args)


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
        self._in_thread = in_thread
        self._seen = first(path)
        self.log.info("{count} users are in {path}", count=len(self._seen.users), path=path)
        self._watch = FileWatch(clock, CHECK, self._look)

    def find(self, name: str) -> PasswordVerifier | None:
        """Return the verifier of that user, None if unknown."""
        return self._seen.users.get(name)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """See `broker.wires.mtl.sessions.sasl.Users`."""
        return self._seen.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen.users)

    def __len__(self) -> int:
        return len(self._seen.users)

    def refresh(self) -> Deferred[None]:
        """Read the file now. Fires when it was read, also if it cannot be used."""
        return self._watch.refresh()

    def stop(self) -> None:
        """Stop checking the file. Fires all Deferreds of `refresh`."""
        self._watch.stop()

    def _look(self, now: bool) -> Deferred[Any]:
        def looked(seen: UsersSeen) -> None:
            if not self._watch.stopped:
                self._take(seen)

        def failed(failure: Failure) -> None:
            self.log.failure("a defect in reading the users", failure)

        looking = self._in_thread(look, self.path, self._seen, now)
        return looking.addCallback(looked).addErrback(failed)

    def _take(self, seen: UsersSeen) -> None:
        before, self._seen = self._seen, seen
        if seen.problems != before.problems:
            for text in seen.problems:
                self.log.error("the users known so far stay: {text}", text=text)
            if not seen.problems:
                self.log.info("the users in {path} can be read again", path=self.path)
        if seen.users is before.users:
            return
        gone = frozenset(name for name, kept in before.users.items() if seen.users.get(name) != kept)
        self.log.info(
            "the users in {path} changed: {before} were known, {now} are; {gone} are gone or have another password",
            path=self.path,
            before=len(before.users),
            now=len(seen.users),
            gone=len(gone),
        )
        for call in tuple(self.changed):
            try:
                call(gone)
            except Exception:
                self.log.failure("what was to be done after the users changed failed")
