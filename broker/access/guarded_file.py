"""Watch of a file with users, which may change at any time.

Rules:
- A file with a mistake anywhere is not used at all. The start fails then. Later errors are not fatal: the last good
  value stays, and the error is logged once.
- A file without users does not replace one with users, unless it is marked as one without users (`IsEmptied`): it is
  rather the rest of a write that failed than the wish to lock out all users.
- Every `CHECK` seconds the stamp of the file is compared. The file is read when two checks in a row find the same new
  stamp, since it may be written during the first. `GuardedFile.refresh` reads it at once.
- Reading and parsing happen in a thread, one check at a time (`broker.core.file_watch`); the reactor thread is given a
  finished value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.access.guarded_reading import UNKNOWN, BadUsers, Stamp, read_stamped, stamp, unreadable
from broker.core.file_watch import FileWatch

CHECK = 1.0
"""Seconds between checks of the stamp: a new user can log in two seconds after the file was written."""

V = TypeVar("V")

Parse = Callable[[str, str], V]
"""Parses a file: its path, for sentences, and its text. Raises `BadUsers`. Runs in a thread."""

IsEmptied = Callable[[V, V], bool]
"""Returns True if the second value lacks the users of the first one, and the mark of a file without users."""

EMPTIED = "has no users any more, and lacks the line that permits that"


@attrs.frozen
class FileCheck(Generic[V]):
    """Outcome of a check. Immutable, since the next check reads it in a thread."""

    stamp: Stamp
    """Stamp at the last check, `UNKNOWN` if it could not be found."""
    value: V
    """The last good value."""
    sure: bool = False
    """True if the file was read after two checks in a row had found this stamp."""
    problems: tuple[str, ...] = ()
    """Reasons why the file cannot be used now, as sentences."""


def first(path: str, parse: Parse[V]) -> FileCheck[V]:
    """Read the file at the start. Raises `BadUsers`."""
    text, found = read_stamped(path)
    return FileCheck(found, parse(path, text))


def look(path: str, parse: Parse[V], is_emptied: IsEmptied[V], before: FileCheck[V], now: bool) -> FileCheck[V]:
    """Check the file again. With ``now`` it is read whatever its stamp is."""
    if not now:
        try:
            found = stamp(path)
        except OSError as error:
            return _bad(before, unreadable(path, error))
        if found != before.stamp:
            return attrs.evolve(before, stamp=found, sure=False)
        if before.sure:
            return before
    try:
        text, found = read_stamped(path)
    except BadUsers as error:
        return _bad(before, error)
    if found == UNKNOWN or (found != before.stamp and not now):
        return attrs.evolve(before, stamp=found, sure=False)
    try:
        value = parse(path, text)
        if is_emptied(before.value, value):
            raise BadUsers(f"{path} {EMPTIED}")
    except BadUsers as error:
        return _bad(before, error, found, sure=not now)
    if value == before.value:
        return attrs.evolve(before, stamp=found, sure=not now, problems=())
    return FileCheck(found, value, sure=not now)


def _bad(before: FileCheck[V], error: BadUsers, found: Stamp = UNKNOWN, sure: bool = False) -> FileCheck[V]:
    """Return the outcome of a check that failed. Without a stamp, the next check reads the file again."""
    return attrs.evolve(before, stamp=found, sure=sure, problems=error.args)


class GuardedFile(Generic[V]):
    """The value in the file ``path``, which may change at any time.

    ``in_thread`` runs a function with arguments in a thread and returns a Deferred of its result. ``changed`` is called
    with the former and the new value after a change. Raises `BadUsers` if the file cannot be used.
    """

    log = Logger()

    def __init__(
        self,
        path: str,
        parse: Parse[V],
        is_emptied: IsEmptied[V],
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        changed: Callable[[V, V], object],
    ) -> None:
        self.path = path
        self._parse = parse
        self._is_emptied = is_emptied
        self._in_thread = in_thread
        self._changed = changed
        self._seen = first(path, parse)
        self._watch = FileWatch(clock, CHECK, self._look)

    @property
    def value(self) -> V:
        """The last good value."""
        return self._seen.value

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the present file is not used, as sentences; empty if it is."""
        return self._seen.problems

    def refresh(self) -> Deferred[None]:
        """Read the file now. Fires when it was read, also if it cannot be used."""
        return self._watch.refresh()

    def use(self, path: str) -> Deferred[None]:
        """Watch the file at another path, and read it now. Until then, and if it is bad, the last value stays."""
        self.path = path
        return self.refresh()

    def stop(self) -> None:
        """Stop checking the file. Fires all Deferreds of `refresh`."""
        self._watch.stop()

    def _look(self, now: bool) -> Deferred[Any]:
        def looked(seen: FileCheck[V]) -> None:
            if not self._watch.stopped:
                self._take(seen)

        def failed(failure: Failure) -> None:
            self.log.failure("a defect in reading the users", failure)

        looking = self._in_thread(look, self.path, self._parse, self._is_emptied, self._seen, now)
        return looking.addCallback(looked).addErrback(failed)

    def _take(self, seen: FileCheck[V]) -> None:
        before, self._seen = self._seen, seen
        if seen.problems != before.problems:
            for text in seen.problems:
                self.log.error("the users known so far stay: {text}", text=text)
            if not seen.problems:
                self.log.info("the users in {path} can be read again", path=self.path)
        if seen.value is not before.value:
            self._changed(before.value, seen.value)
