"""Recorders: they keep the store in step with the registry, with subscribers' sessions and with the last values of
topics, without disk I/O in the reactor thread.

Rules:
- A change hands the present value of its entry to the disk's thread, in the turn of the change. The values are written
  together after a short delay, in one transaction of a bounded size. A recorder has one write at a time; a failed write
  is retried together with later changes.
- The delay counts from the first value, also during a write: if it ends then, the next write follows at once. It is
  timed by the disk's thread, however late the reactor is. So after a kill the store lags by at most that delay or one
  write, and the write after it, and live peers register again whatever it lacks.
- Last values pause after each write as well, so that busy topics do not occupy the disk, and do not use its reserve:
  they may be lost sooner than the record of providers.
- Both threads use the values and marks under one lock, which is never held during a write.
- An entry that came and went before its first write is not written at all.
- The first id of a start is derived from the clock, far above those of all earlier starts: so ids of a state that was
  restored from a copy, or lost, are not issued again. So is the next id if the store cannot be written.
- An id is issued only below a mark that is in the store: after a kill, ids go on from the mark, even if the clock was
  set back.
- Providers from before the restart stay in the store until `Recorder.forget`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.database import StateError, StateFull
from broker.core.disk import DiskErrors
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import InThread, IRegistry
from broker.core.last_values import Key, LastValues
from broker.core.model import BROKER, Change, Kind, KnownSession, LastValue, Provider
from broker.core.store import Store
from broker.wall_clock import wall

FLUSH_SECONDS = 0.25
"""Seconds for which changes are collected before a write: many of them cost one transaction, and a kill loses
little."""

FLUSH_ROWS = 1_000
"""Limit of providers, of sessions and of last values in one write. Their rows are built by Python, beside the reactor's
thread."""

FLUSH_BYTES = 4 * 1024 * 1024
"""Limit of the bytes of last values in one write; a larger value is written alone."""

RESERVE = 1_024
"""Ids reserved in advance: more than join during one write. A kill wastes at most this many."""

IDS_A_SECOND = 1_000_000
"""Ids per second of the clock, more than are ever issued, so that a later time gives higher ids. They are exact in
JSON's numbers until the year 2255."""

MAX_ID = 2**53 - 2**40
"""Limit of ids that are derived from the clock. If that is wrong by centuries, numbers that JSON represents exactly
remain for counting."""

_STORED = (Kind.JOINED, Kind.LEFT, Kind.RELABELLED, Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED)
"""Kinds of changes that are written. Loads are frequent, and outdated by the time of a restart."""


class DiskThread(Protocol):
    """The thread that writes; see `broker.core.worker.TimedThread`."""

    def now(self) -> float:
        """Return the time of the thread's clock."""

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in the thread, after a time."""

    def report(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the reactor's thread."""


K = TypeVar("K")
V = TypeVar("V")


class Marks(Generic[K, V]):
    """Entries of one table that are to be written. Used under the lock of the `LateWriter`.

    ``stored`` are the keys that the store has, or may have; ``size`` is that of a value, in bytes.
    """

    def __init__(self, stored: Iterable[K] = (), size: Callable[[V], int] = lambda _: 0) -> None:
        self.stored = set(stored)
        self._size = size
        self._marked: dict[K, V | None] = {}
        """Values by key, the longest marked first; None for one that is to be deleted."""

    def __len__(self) -> int:
        return len(self._marked)

    def put(self, key: K, value: V | None) -> bool:
        """Mark an entry. Returns False if it has gone, and the store does not have it."""
        if value is None and key not in self.stored:
            self._marked.pop(key, None)
            return False
        self._marked[key] = value
        return True

    def take(self) -> dict[K, V | None]:
        """Remove and return the entries of one write, which were marked first."""
        batch: dict[K, V | None] = {}
        size = 0
        for key, value in self._marked.items():
            size += 0 if value is None else self._size(value)
            if batch and (len(batch) >= FLUSH_ROWS or size > FLUSH_BYTES):
                break
            batch[key] = value
        for key in batch:
            del self._marked[key]
        self.stored.update(batch)
        return batch

    def failed(self, batch: dict[K, V | None]) -> None:
        """Put entries back to the front, since their write failed; a later mark of the same entry wins."""
        self._marked = batch | self._marked

    def written(self, batch: dict[K, V | None]) -> None:
        """Record a write."""
        self.stored.difference_update(key for key, value in batch.items() if value is None)


class LateWriter:
    """Writes the marked entries of ``tables`` in the thread ``disk``, together and late.

    ``write`` writes one batch of each table, or raises. ``pause`` is the least time between two writes, in seconds.
    """

    def __init__(
        self, disk: DiskThread, errors: DiskErrors, write: Callable[..., None], *tables: Marks[Any, Any], pause: float
    ) -> None:
        self._disk = disk
        self.errors = errors
        self._write_batches = write
        self._tables = tables
        self._pause = pause
        self.lock = threading.Lock()
        self._since: float | None = None
        """Time of the oldest mark that no write has taken, on the clock of the disk's thread."""
        self._scheduled = False
        """True from the first mark until the disk's thread finds no more, or its failure has been processed."""
        self.stopped: Deferred[None] | None = None

    # in the reactor's thread

    def mark(self, table: Marks[K, V], key: K, value: V | None) -> None:
        """Mark an entry; None for one that has gone. No-op after `stop`."""
        if self.stopped is None:
            with self.lock:
                if table.put(key, value):
                    self._schedule()

    def failed(self, failure: Failure) -> None:
        """Try again later, unless a write is scheduled."""
        self.errors.add(failure)
        if self.stopped is None:
            with self.lock:
                if not self._scheduled:
                    self._scheduled = True
                    self._disk.after(self.errors.wait, self._write)

    def stop(self, then: Callable[[], None] = lambda: None) -> Deferred[None]:
        """Write all marks, unless that fails, and call ``then`` in the disk's thread; then the Deferred fires."""
        self.stopped = Deferred()
        self._disk.after(0.0, partial(self._finish, then, self.stopped))
        return self.stopped

    def _write_failed(self, failure: Failure) -> None:
        with self.lock:
            self._scheduled = False
        self.failed(failure)

    # in both threads

    def _schedule(self) -> None:
        """Schedule the write of the latest marks. The lock is held."""
        if self._since is None:
            self._since = self._disk.now()
        if not self._scheduled:
            self._scheduled = True
            self._disk.after(FLUSH_SECONDS, self._write)

    # in the disk's thread

    def _write(self) -> None:
        """Write the entries that were marked first, and schedule the next write."""
        if self.stopped is not None:
            return
        failure = self._record() if self._due() or self.errors.failures else None
        if failure is not None:
            self._disk.report(self._write_failed, failure)
            return
        if self.errors.failures:
            self._disk.report(self.errors.over)
        with self.lock:
            self._scheduled = again = self._due()
            if not again:
                self._since = None
            since = self._since
        if again:
            # Outside of the lock: a thread may call the function at once.
            waited = 0.0 if since is None else self._disk.now() - since
            self._disk.after(max(self._pause, FLUSH_SECONDS - waited), self._write)

    def _due(self) -> bool:
        """True if anything is to be written."""
        return any(map(len, self._tables))

    def _record(self) -> Failure | None:
        """Write the entries that have been marked longest. Returns a failure, after which they are marked again."""
        with self.lock:
            batches = [table.take() for table in self._tables]
            if not self._due():
                self._since = None
        try:
            self._write_batches(*batches)
        except Exception:
            with self.lock:
                for table, batch in zip(self._tables, batches, strict=True):
                    table.failed(batch)
            return Failure()
        with self.lock:
            for table, batch in zip(self._tables, batches, strict=True):
                table.written(batch)
        return None

    def _finish(self, then: Callable[[], None], stopped: Deferred[None]) -> None:
        while self._due():
            failure = self._record()
            if failure is not None:
                self._disk.report(self.errors.add, failure)
                break
        then()
        self._disk.report(stopped.callback, None)


class Recorder:
    """Recorder of ``registry`` in ``store``, and issuer of provider ids that are never reused.

    ``in_thread`` runs a function with arguments in a worker thread, in the order of the calls, and returns a Deferred
    of its result; ``disk`` is the thread of all other writes. ``next_provider`` is the one of the store's snapshot, and
    ``sessions`` has the identities of its sessions. The constructor reserves the first ids on the disk, synchronously,
    unless the disk is full. Raises `StateError` if the reservation fails for any other reason.
    """

    log = Logger()

    def __init__(
        self,
        registry: IRegistry,
        store: Store,
        clock: IReactorTime,
        in_thread: InThread,
        disk: DiskThread,
        next_provider: int,
        sessions: Iterable[bytes] = (),
    ) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._in_thread = in_thread
        self._disk = disk

        self._next = next_provider
        self._next = self._by_clock()
        self._mark = self._next + RESERVE
        """Ids below this one may be issued: the mark is in the store."""
        self._reserving = False
        errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "the state could not be stored: {why}. Peers are served all the same. It is tried again, every {most:g} "
            "seconds at the latest; if the broker is killed before that succeeds, recent changes are lost",
            "the state is being stored again, after {failures} failures",
        )

        self._providers: Marks[int, Provider] = Marks()
        self._sessions: Marks[bytes, KnownSession] = Marks(sessions)
        self._writer = LateWriter(disk, errors, self._write, self._providers, self._sessions, pause=0.0)
        self._taken = (BROKER, 0)
        """The provider that was marked last, and the revision of the registry then."""
        self._watch = registry.watch(self._changed, _STORED, own=True)
        try:
            store.reserve(self._mark)
        except StateFull as error:
            self._mark = self._next
            self._writer.failed(Failure(error))

    # for operators

    @property
    def failures(self) -> int:
        """Consecutive failed writes; 0 while the store works."""
        return self._writer.errors.failures

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the store works."""
        return self._writer.errors.why

    @property
    def pending(self) -> int:
        """Number of providers that are still to be written."""
        return len(self._providers)

    # ids

    def next_id(self) -> int:
        """Return a provider id that was never used before, nor before a restart.

        Blocks on the disk only if ids are used faster than a thread can reserve them. If the store cannot be written
        and its reserve is used up, ids are derived from the clock. Raises `Refusal` once the recorder stops.
        """
        if self._writer.stopped is not None:
            raise Refusal(Reason.INTERNAL, "the broker is stopping")
        if self._next >= self._mark:
            self._reserve_now()
        elif self._mark - self._next <= RESERVE // 2 and not self._reserving and not self._writer.errors.failures:
            self._reserve_ahead()
        id = self._next
        self._next += 1
        return id

    def _reserve_ahead(self) -> None:
        def reserved(_: object) -> None:
            self._reserving = False
            with self._writer.lock:
                self._mark = max(self._mark, mark)

        def failed(failure: Failure) -> None:
            self._reserving = False
            self._writer.failed(failure)

        self._reserving = True
        mark = self._next + RESERVE
        self._in_thread(self._store.reserve, mark).addCallbacks(reserved, failed)

    def _reserve_now(self) -> None:
        mark = self._next + RESERVE
        if not self._writer.errors.failures:  # otherwise the retry, and not each joining peer, tests the disk
            self.log.warn("provider ids are used faster than they can be reserved: this one waits for the disk")
            try:
                self._store.reserve(mark)
            except StateError as error:
                self._writer.failed(Failure(error))
            else:
                self._mark = mark
                return
        self._next = self._by_clock()
        self._mark = self._next + RESERVE

    def _by_clock(self) -> int:
        """Return the next id by the clock; the next one in order if the clock is behind, or wrong by centuries."""
        by_clock = int(wall(self._clock) * IDS_A_SECOND)
        return by_clock if self._next < by_clock < MAX_ID else self._next

    # providers

    def forget(self, ids: Iterable[int]) -> None:
        """Remove providers from before the restart that were replaced, or whose grace period has ended."""
        for id in ids:
            with self._writer.lock:
                self._providers.stored.add(id)
            self._writer.mark(self._providers, id, None)

    # sessions

    def remember_session(self, session: KnownSession) -> None:
        """Record a new or changed session."""
        self._writer.mark(self._sessions, session.identity, session)

    def forget_session(self, identity: bytes) -> None:
        """Record the end of the session of that identity, or that it is not to be stored any more."""
        self._writer.mark(self._sessions, identity, None)

    # the end

    def stop(self) -> Deferred[None]:
        """Write all pending changes, then close the store with the exact next id.

        Later changes are not written, so that the peers that the stop disconnects stay in the store. The Deferred fires
        when the store is closed, even if a write failed, which is logged; it never fails. To be called once.
        """
        self._watch.cancel()
        return self._writer.stop(self._close)

    # in the reactor's thread

    def _changed(self, change: Change) -> None:
        id = change.provider
        # The changes of one act are heard after all of them: to copy the services of the provider for each one would
        # take quadratic time.
        taken = (id, self._registry.revision)
        if id == BROKER or taken == self._taken:
            return
        self._taken = taken
        value = self._registry.provider(id)
        if value is not None and value.broker:
            value = None  # it has ended here, and is found as if another broker held it
        self._writer.mark(self._providers, id, value)

    # in the disk's thread

    def _write(self, providers: dict[int, Provider | None], sessions: dict[bytes, KnownSession | None]) -> None:
        mark = self._next + RESERVE
        self._store.record(*_divided(providers), mark, *_divided(sessions))
        with self._writer.lock:
            self._mark = max(self._mark, mark)

    def _close(self) -> None:
        try:
            self._store.close(self._next)
        except Exception as error:
            self._disk.report(partial(self.log.error, "the state was not closed in good order: {why}", why=error))


def _divided(batch: dict[K, V | None]) -> tuple[list[V], list[K]]:
    """Return the values that are present, and the keys of those that have gone."""
    present = [value for value in batch.values() if value is not None]
    return present, [key for key, value in batch.items() if value is None]


class ValueRecorder:
    """Recorder of the last values of topics in ``store``, by writes in the thread ``disk``."""

    log = Logger()

    def __init__(self, store: Store, clock: IReactorTime, disk: DiskThread) -> None:
        errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "last values of topics could not be stored: {why}. They are served all the same. It is tried again, every "
            "{most:g} seconds at the latest; if the broker ends before that succeeds, they are lost",
            "last values of topics are being stored again, after {failures} failures",
        )
        self._values: Marks[Key, LastValue] = Marks(size=lambda value: value.size)
        self._writer = LateWriter(disk, errors, store.record_values, self._values, pause=FLUSH_SECONDS)

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the store works."""
        return self._writer.errors.why

    def restore(self, known: Mapping[Key, LastValue], values: LastValues | None) -> None:
        """Add the values that the store had at the start to ``values``, whose changes are recorded from now on. With
        None they are deleted: the next start would find them outdated."""
        self._values.stored.update(known)
        if values is not None:
            values.restore(known, self.changed)
        else:
            for key in known:
                self.changed(key, None)

    def changed(self, key: Key, value: LastValue | None) -> None:
        """Record a new value of a topic; None for one that was removed."""
        self._writer.mark(self._values, key, value)

    def stop(self) -> Deferred[None]:
        """Write what is not written yet. Fires when that is done, or has failed; later changes are not written."""
        return self._writer.stop()
