"""Recorder: keeps the store in step with the registry and with subscribers' sessions, without disk I/O in the reactor
thread.

Rules:
- A change hands the present value of its provider to the disk's thread, in the turn of the change. The values are
  written together after a short delay, in one transaction. There is one write at a time; a failed write is retried
  together with later changes.
- The delay counts from the first value, also during a write: if it ends then, the next write follows at once. It is
  timed by the disk's thread, however late the reactor is. So after a kill the store lags by at most that delay or one
  write, and the write after it, and live peers register again whatever it lacks.
- Both threads use the values and marks under one lock, which is never held during a write.
- A provider or session that came and went before its first write is not written at all.
- The first id of a start is derived from the clock, far above those of all earlier starts: so ids of a state that was
  restored from a copy, or lost, are not issued again. So is the next id if the store cannot be written.
- An id is issued only below a mark that is in the store: after a kill, ids go on from the mark, even if the clock was
  set back.
- Providers from before the restart stay in the store until `Recorder.forget`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.database import StateError, StateFull
from broker.core.disk import DiskErrors
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import InThread, IRegistry
from broker.core.model import BROKER, Change, Kind, KnownSession, Provider
from broker.core.store import Store
from broker.wall_clock import wall

FLUSH_SECONDS = 0.25
"""Seconds for which changes are collected before a write: many of them cost one transaction, and a kill loses
little."""

FLUSH_ROWS = 1_000
"""Limit of providers, and of sessions, in one write. Their rows are built by Python, beside the reactor's thread."""

RESERVE = 1_024
"""Ids reserved in advance: more than join during one write. A kill wastes at most this many."""

IDS_A_SECOND = 1_000_000
"""Ids per second of the clock, more than are ever issued, so that a later time gives higher ids. They are exact in
JSON's numbers until the year 2255."""

MAX_ID = 2**53 - 2**40
"""Limit of ids that are derived from the clock. If that is wrong by centuries, numbers that JSON represents exactly
remain for counting."""

_STORED = (Kind.JOINED, Kind.LEFT, Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED)
"""Kinds of changes that are written. Loads are frequent, and outdated by the time of a restart."""


class DiskThread(Protocol):
    """The thread that writes; see `broker.core.worker.TimedThread`."""

    def now(self) -> float:
        """Return the time of the thread's clock."""

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in the thread, after a time."""

    def report(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the reactor's thread."""


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
        self._lock = threading.Lock()

        self._next = next_provider
        self._next = self._by_clock()
        self._mark = self._next + RESERVE
        """Ids below this one may be issued: the mark is in the store."""
        self._reserving = False
        self._errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "the state could not be stored: {why}. Peers are served all the same. It is tried again, every {most:g} "
            "seconds at the latest; if the broker is killed before that succeeds, recent changes are lost",
            "the state is being stored again, after {failures} failures",
        )

        self._rows: dict[int, Provider | None] = {}
        """Providers to be written by their ids, the longest marked first; None for one that has left."""
        self._stored: set[int] = set()
        """Ids that this run has written, or may have."""
        self._sessions: dict[bytes, KnownSession | None] = {}
        """Sessions to be written by their identities, the longest marked first; None for an ended session."""
        self._sessions_stored = set(sessions)
        """Identities of sessions that are in the store, or may be."""
        self._since: float | None = None
        """Time of the oldest mark that no write has taken, on the clock of the disk's thread."""
        self._scheduled = False
        """True from the first mark until the disk's thread finds no more, or its failure has been processed."""
        self._stopped: Deferred[None] | None = None
        self._taken = (BROKER, 0)
        """The provider that was marked last, and the revision of the registry then."""
        self._watch = registry.watch(self._changed, _STORED, own=True)
        try:
            store.reserve(self._mark)
        except StateFull as error:
            self._mark = self._next
            self._failed(Failure(error))

    # for operators

    @property
    def failures(self) -> int:
        """Consecutive failed writes; 0 while the store works."""
        return self._errors.failures

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the store works."""
        return self._errors.why

    @property
    def pending(self) -> int:
        """Number of providers that are still to be written."""
        return len(self._rows)

    # ids

    def next_id(self) -> int:
        """Return a provider id that was never used before, nor before a restart.

        Blocks on the disk only if ids are used faster than a thread can reserve them. If the store cannot be written
        and its reserve is used up, ids are derived from the clock. Raises `Refusal` once the recorder stops.
        """
        if self._stopped is not None:
            raise Refusal(Reason.INTERNAL, "the broker is stopping")
        if self._next >= self._mark:
            self._reserve_now()
        elif self._mark - self._next <= RESERVE // 2 and not self._reserving and not self._errors.failures:
            self._reserve_ahead()
        id = self._next
        self._next += 1
        return id

    def _reserve_ahead(self) -> None:
        def reserved(_: object) -> None:
            self._reserving = False
            with self._lock:
                self._mark = max(self._mark, mark)

        def failed(failure: Failure) -> None:
            self._reserving = False
            self._failed(failure)

        self._reserving = True
        mark = self._next + RESERVE
        self._in_thread(self._store.reserve, mark).addCallbacks(reserved, failed)

    def _reserve_now(self) -> None:
        mark = self._next + RESERVE
        if not self._errors.failures:  # otherwise the retry, and not each joining peer, tests the disk
            self.log.warn("provider ids are used faster than they can be reserved: this one waits for the disk")
            try:
                self._store.reserve(mark)
            except StateError as error:
                self._failed(Failure(error))
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
        if self._stopped is None:
            with self._lock:
                self._rows.update(dict.fromkeys(ids))
                self._schedule()

    # sessions

    def remember_session(self, session: KnownSession) -> None:
        """Record a new or changed session."""
        if self._stopped is None:
            with self._lock:
                self._sessions[session.identity] = session
                self._schedule()

    def forget_session(self, identity: bytes) -> None:
        """Record the end of the session of that identity, or that it is not to be stored any more."""
        if self._stopped is None:
            with self._lock:
                if identity in self._sessions_stored:
                    self._sessions[identity] = None
                    self._schedule()
                else:
                    self._sessions.pop(identity, None)

    # the end

    def stop(self) -> Deferred[None]:
        """Write all pending changes, then close the store with the exact next id.

        Later changes are not written, so that the peers that the stop disconnects stay in the store. The Deferred fires
        when the store is closed, even if a write failed, which is logged; it never fails. To be called once.
        """
        self._stopped = Deferred()
        self._watch.cancel()
        self._disk.after(0.0, self._finish)
        return self._stopped

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
        with self._lock:
            if value is None and id not in self._stored:
                self._rows.pop(id, None)
            else:
                self._rows[id] = value
                self._schedule()

    def _failed(self, failure: Failure) -> None:
        """Try again later, unless a write is scheduled."""
        self._errors.add(failure)
        if self._stopped is None:
            with self._lock:
                if not self._scheduled:
                    self._scheduled = True
                    self._disk.after(self._errors.wait, self._write)

    def _write_failed(self, failure: Failure) -> None:
        with self._lock:
            self._scheduled = False
        self._failed(failure)

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
        if self._stopped is not None:
            return
        failure = self._record() if self._due() or self._errors.failures else None
        if failure is not None:
            self._disk.report(self._write_failed, failure)
            return
        if self._errors.failures:
            self._disk.report(self._errors.over)
        with self._lock:
            self._scheduled = again = self._due()
            if not again:
                self._since = None
            since = self._since
        if again:
            # Outside of the lock: a thread may call the function at once.
            waited = 0.0 if since is None else self._disk.now() - since
            self._disk.after(max(0.0, FLUSH_SECONDS - waited), self._write)

    def _due(self) -> bool:
        """True if anything is to be written."""
        return bool(self._rows or self._sessions)

    def _record(self) -> Failure | None:
        """Write the entries that have been marked longest. Returns a failure, after which they are marked again."""
        with self._lock:
            rows = dict(islice(self._rows.items(), FLUSH_ROWS))
            for id in rows:
                del self._rows[id]
            present = [value for value in rows.values() if value is not None]
            self._stored.update(value.id for value in present)
            gone = [id for id, value in rows.items() if value is None]
            sessions = dict(islice(self._sessions.items(), FLUSH_ROWS))
            for identity in sessions:
                del self._sessions[identity]
            known = [session for session in sessions.values() if session is not None]
            self._sessions_stored.update(session.identity for session in known)
            over = [identity for identity, session in sessions.items() if session is None]
            mark = self._next + RESERVE
            if not self._due():
                self._since = None
        try:
            self._store.record(present, gone, mark, known, over)
        except Exception:
            with self._lock:
                # Failed entries go back to the front; a later mark of the same entry wins.
                self._rows = rows | self._rows
                self._sessions = sessions | self._sessions
            return Failure()
        with self._lock:
            self._stored.difference_update(gone)
            self._sessions_stored.difference_update(over)
            self._mark = max(self._mark, mark)
        return None

    def _finish(self) -> None:
        """End: write the rest, and close the store, even if that fails."""
        while self._due():
            failure = self._record()
            if failure is not None:
                self._disk.report(self._errors.add, failure)
                break
        try:
            self._store.close(self._next)
        except Exception as error:
            self._disk.report(partial(self.log.error, "the state was not closed in good order: {why}", why=error))
        assert self._stopped is not None
        self._disk.report(self._stopped.callback, None)
