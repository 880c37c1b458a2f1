"""Recorder of the last values of topics in the store, without disk I/O in the reactor thread.

Rules:
- The newest value of each topic is written: those in between cost nothing. A value that came and went before its first
  write is not written at all.
- There is one write at a time, of a bounded size, and one in `FLUSH_SECONDS` at most, so that busy topics do not occupy
  the disk. After a kill the store lacks the values since the last write.
- A failed write is repeated together with later changes. It does not use the reserve of the disk: values may be lost
  sooner than the record of providers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.database import StateError
from broker.core.disk import DiskErrors
from broker.core.interfaces import InThread
from broker.core.last_values import Key, LastValues
from broker.core.model import LastValue
from broker.core.store import Store

FLUSH_SECONDS = 0.25
"""Seconds between two writes, and from a change to its write: see `broker.core.recorder.FLUSH_SECONDS`."""

FLUSH_ROWS = 1_000
"""Limit of the values in one write."""

FLUSH_BYTES = 4 * 1024 * 1024
"""Limit of the bytes in one write; a larger value is written alone."""


class ValueRecorder:
    """Recorder of last values in ``store``. ``in_thread`` runs a function with arguments in a worker thread, and
    returns a Deferred of its result."""

    log = Logger()

    def __init__(self, store: Store, clock: IReactorTime, in_thread: InThread) -> None:
        self._store = store
        self._clock = clock
        self._in_thread = in_thread
        self._stored: set[Key] = set()
        """Topics whose values are in the store, or may be."""
        self._marks: dict[Key, LastValue | None] = {}
        """Values to be written, the longest marked first; None for one that was removed."""
        self._timer: IDelayedCall | None = None
        self._writing = False
        self._stopped: Deferred[None] | None = None
        self._errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "last values of topics could not be stored: {why}. They are served all the same. It is tried again, every "
            "{most:g} seconds at the latest; if the broker ends before that succeeds, they are lost",
            "last values of topics are being stored again, after {failures} failures",
        )

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the store works."""
        return self._errors.why

    def restore(self, known: Mapping[Key, LastValue], values: LastValues | None) -> None:
        """Add the values that the store had at the start to ``values``, whose changes are recorded from now on. With
        None they are deleted: the next start would find them outdated."""
        self._stored.update(known)
        if values is not None:
            values.restore(known, self.changed)
        else:
            for key in known:
                self.changed(key, None)

    def changed(self, key: Key, value: LastValue | None) -> None:
        """Record a new value of a topic; None for one that was removed."""
        if value is None and key not in self._stored:
            self._marks.pop(key, None)
            return
        self._marks[key] = value
        self._schedule(FLUSH_SECONDS)

    def stop(self) -> Deferred[None]:
        """Write what is not written yet. Fires when that is done, or has failed; later changes are not written."""
        if not self._marks and not self._writing:
            return succeed(None)
        self._stopped = Deferred()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing:
            self._write()
        return self._stopped

    def _schedule(self, seconds: float) -> None:
        if self._marks and not self._writing and self._timer is None and self._stopped is None:
            self._timer = self._clock.callLater(seconds, self._write)

    def _write(self) -> None:
        self._timer = None
        batch: dict[Key, LastValue | None] = {}
        size = 0
        for key, value in self._marks.items():
            size += 0 if value is None else value.size
            if batch and (len(batch) >= FLUSH_ROWS or size > FLUSH_BYTES):
                break
            batch[key] = value
        for key in batch:
            del self._marks[key]
        self._stored.update(batch)
        self._writing = True

        def written(_: object) -> None:
            self._errors.over()
            self._stored.difference_update(key for key, value in batch.items() if value is None)

        def failed(failure: Failure) -> None:
            self._errors.add(failure)
            # Back to the front; a later change of the same topic wins.
            self._marks = batch | self._marks

        writing: Deferred[Any] = self._in_thread(self._store.record_values, batch)
        writing.addCallbacks(written, failed).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._writing = False
        if self._stopped is None:
            self._schedule(self._errors.wait if self._errors.failures else FLUSH_SECONDS)
        elif self._marks and not self._errors.failures:
            self._write()
        else:
            self._stopped.callback(None)
