"""Allow-list of client keys: the key files of a directory, watched for changes.

Rules:
- The initial read covers the whole directory, and its failure is fatal. A later failure is logged, and the last known
  keys stay allowed.
- The directory's modification time is compared every `CHECK` seconds, and the stamp of each file every `FULL` seconds,
  since overwriting a file does not change its directory. `broker.net.key_directory` implements the comparison.
- File access runs in a thread, one pass at a time (`broker.core.file_watch`). The reactor thread receives a finished
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
from broker.net.key_directory import DirectoryScan, look

CHECK = 1.0
"""Seconds between checks of the directory: the upper bound until a new node can complete a handshake."""

FULL = 10.0
"""Seconds between checks of all files: some 3 ms of thread time for a thousand files."""

SHARE = 10
"""Pause after a pass, as a multiple of its duration: a directory of any size costs at most a tenth of a thread."""

REST_MOST = 60.0
"""Upper bound of the pause in seconds: the clock of another reactor may jump forward during a pass."""


class AllowedKeys:
    """The allowed keys of ``directory``.

    ``in_thread`` runs a function with arguments in a thread and returns a Deferred of its result. Raises OSError with a
    sentence if the directory cannot be read.
    """

    log = Logger()

    def __init__(self, directory: str, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]]) -> None:
        self.directory = directory
        self.changed: list[Callable[[frozenset[str]], object]] = []
        """Callbacks for changes. Each receives the keys that are no longer allowed or have another name."""
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
        """Return the name of a key (Z85), or None if it is not allowed."""
        return self._seen.names.get(key)

    def __len__(self) -> int:
        return len(self._seen.names)

    def refresh(self) -> Deferred[None]:
        """Check all files now. Fires when the pass ends, also if the directory cannot be read."""
        return self._watch.refresh()

    def stop(self) -> None:
        """Stop watching."""
        self._watch.stop()

    # looking

    def _resting(self) -> bool:
        return 0 <= self._clock.seconds() - self._ended_at < self._rest

    def _check(self, now: bool) -> Deferred[Any]:
        began = self._clock.seconds()
        # A negative age means that the wall clock was set back: then a full pass is due.
        full = now or not 0 <= began - self._full_at < FULL

        def looked(seen: DirectoryScan) -> None:
            if self._failing:
                self._failing = False
                self.log.info("the client keys in {directory} can be read again", directory=self.directory)
            if full or seen is not self._seen:
                self._full_at = began
            if seen is not self._seen and not self._watch.stopped:
                self._take(seen)

        def failed(failure: Failure) -> None:
            if not isinstance(failure.value, OSError):
                self.log.failure("reading the client keys raised an unexpected exception", failure)
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

    def _take(self, seen: DirectoryScan) -> None:
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
                self.log.failure("a callback for changed client keys raised an exception")

    def _warn(self, seen: DirectoryScan) -> None:
        for text in seen.warnings:
            self.log.warn("client keys in {directory}: {text}", directory=self.directory, text=text)
