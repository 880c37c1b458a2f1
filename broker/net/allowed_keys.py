"""The client keys that are allowed: those in a directory of key files, now and while it changes.

Rules:
- The directory is read whole at the start, which fails if it cannot be read. Nothing is fatal afterwards: while it
  cannot be read, what was known stays allowed, and the log says so.
- Every `CHECK` seconds the directory's own modification time is compared, and every `FULL` seconds the stamp of each
  file, since a file that is written over does not change its directory. `broker.net.key_directory` has the details.
- All of this happens in a thread, one pass at a time (`broker.core.file_watch`); the reactor thread gets a finished
  table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.file_watch import FileWatch
from broker.net.key_directory import Seen, look

CHECK = 1.0
"""Seconds between looks at the directory: a new node gets in at its next handshake after that."""

FULL = 10.0
"""Seconds between looks at every file: some 3 ms of a thread for a thousand of them."""

SHARE = 10
"""A pass is followed by a rest of so many times its own length: a directory of any size costs a tenth of a thread."""

REST_MOST = 60.0
"""Seconds of the longest rest: the reactor's clock is the time of day, and may have been set forward in a pass."""


class AllowedKeys:
    """The keys in ``directory``, now and while it changes.

    ``in_thread`` runs a function with arguments in a thread and returns a Deferred of its result. Raises OSError with
    a sentence if the directory cannot be read.
    """

    log = Logger()

    def __init__(self, directory: str, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]) -> None:
        self.directory = directory
        self.changed: list[Callable[[frozenset[str]], object]] = []
        """Called after a change, with the keys that are not allowed any more, or have another name now."""
        self._clock = clock
        self._in_thread = in_thread
        self._failing = False
        try:
            self._seen = look(directory, None, full=True)
        except OSError as error:
            raise OSError(f"the client keys in {directory} cannot be read: {error.strerror or error}") from None
        self._full_at = self._ended_at = clock.seconds()
        self._rest = 0.0
        self._warn(self._seen)
        self.log.info(
            "{count} client keys are allowed by {directory}", count=len(self._seen.names), directory=directory
        )
        self._watch = FileWatch(clock, CHECK, self._check, self._resting)

    def name_of(self, key: str) -> str | None:
        """The name of a key (Z85), or None if it is not allowed."""
        return self._seen.names.get(key)

    def __len__(self) -> int:
        return len(self._seen.names)

    def refresh(self) -> Deferred[None]:
        """Look at every file now. Fires when that is done, also if the directory could not be read."""
        return self._watch.refresh()

    def stop(self) -> None:
        """Look no more."""
        self._watch.stop()

    # looking

    def _resting(self) -> bool:
        return 0 <= self._clock.seconds() - self._ended_at < self._rest

    def _check(self, now: bool) -> Deferred[Any]:
        began = self._clock.seconds()
        # The clock may have been set back.
        full = now or not 0 <= began - self._full_at < FULL

        def looked(seen: Seen) -> None:
            if self._failing:
                self._failing = False
                self.log.info("the client keys in {directory} can be read again", directory=self.directory)
            if full or seen is not self._seen:
                self._full_at = began
            if seen is not self._seen and not self._watch.stopped:
                self._take(seen)

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, OSError):
                self.log.failure("a defect in reading the client keys", failure)
            elif not self._failing:
                self._failing = True
                self.log.error(
                    "the client keys in {directory} cannot be read: {why}. Those known so far stay allowed",
                    directory=self.directory,
                    why=failure.value.strerror or failure.value,
                )

        def ended(_: object) -> None:
            self._ended_at = self._clock.seconds()
            self._rest = min(SHARE * (self._ended_at - began), REST_MOST)

        looking = self._in_thread(look, self.directory, self._seen, full)
        return looking.addCallback(looked).addErrback(failed).addBoth(ended)

    def _take(self, seen: Seen) -> None:
        before, self._seen = self._seen, seen
        self._warn(seen)
        if seen.names is before.names:
            return
        self.log.info(
            "the client keys in {directory} changed: {before} were allowed, {now} are; {gone} are gone or renamed",
            directory=self.directory,
            before=len(before.names),
            now=len(seen.names),
            gone=len(seen.gone),
        )
        for call in tuple(self.changed):
            try:
                call(seen.gone)
            except Exception:
                self.log.failure("what was to be done after the client keys changed failed")

    def _warn(self, seen: Seen) -> None:
        for text in seen.warnings:
            self.log.warn("client keys in {directory}: {text}", directory=self.directory, text=text)
