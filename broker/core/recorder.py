"""Recorder: keeps the store in step with the registry and with subscribers' sessions, without disk I/O in the reactor
thread.

Rules:
- A change marks its provider; marked providers are written together after a short delay, in one transaction, in a
  thread. There is one write at a time; a failed write is retried together with later changes.
- The delay counts from the first mark, also during a write: if it ends then, the next write follows at once. So after a
  kill the store lags by at most that delay or one write, and the write after it, and live peers register again whatever
  it lacks.
- A provider or session that came and went before its first write is not written at all.
- The first id of a start is derived from the clock, far above those of all earlier starts: so ids of a state that was
  restored from a copy, or lost, are not issued again. So is the next id if the store cannot be written.
- An id is issued only below a mark that is in the store: after a kill, ids go on from the mark, also if the clock was
  set back.
- Providers from before the restart stay in the store until `Recorder.forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.database import StateError, StateFull
from broker.core.disk_errors import DiskErrors
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry, IStore
from broker.core.model import BROKER, Change, Kind, KnownSession
from broker.wall_clock import wall

FLUSH_SECONDS = 0.25
"""Seconds for which changes are collected before a write: many of them cost one transaction, and a kill loses
little."""

FLUSH_ROWS = 1_000
"""Limit of providers, and of sessions, in one write. Their values are built in the reactor thread, which takes about a
millisecond for each of the two."""

RESERVE = 1_024
"""Ids reserved in advance: more than join during one write. A kill wastes at most this many."""

IDS_A_SECOND = 1_000_000
"""Ids per second of the clock, more than are ever issued, so that a later time gives higher ids. They are exact in
JSON's numbers until the year 2255."""

MAX_ID = 2**53 - 2**40
"""Limit of ids that are derived from the clock. If that is wrong by centuries, numbers that JSON represents exactly
remain for counting."""

Describe = Callable[[], KnownSession | None]
"""Returns a session in its present state; None if it is not to be stored after all."""

_STORED = (Kind.JOINED, Kind.LEFT, Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED)
"""Kinds of changes that are written. Loads are frequent, and outdated by the time of a restart."""


class Recorder:
    """Recorder of ``registry`` in ``store``, and issuer of provider ids that are never reused.

    ``in_thread`` runs a function with arguments in a worker thread, in the order of the calls, and returns a Deferred
    of its result. ``next_provider`` is the one of the store's snapshot, and ``sessions`` has the identities of its
    sessions. The constructor reserves the first ids on the disk, synchronously, unless the disk is full. Raises
    `StateError` if the reservation fails for any other reason.
    """

    log = Logger()

    def __init__(
        self,
        registry: IRegistry,
        store: IStore,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        next_provider: int,
        sessions: Iterable[bytes] = (),
    ) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._in_thread = in_thread

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

        self._marked: dict[int, None] = {}
        """Ids of providers to be written, the longest marked first."""
        self._stored: set[int] = set()
        """Ids that this run has written, or may have."""
        self._sessions: dict[bytes, Describe | None] = {}
        """Sessions to be written by their identities, the longest marked first; None for an ended session."""
        self._sessions_stored = set(sessions)
        """Identities of sessions that are in the store, or may be."""
        self._since: float | None = None
        """Time of the oldest mark that no write has taken."""
        self._timer: IDelayedCall | None = None
        self._writing: Deferred[Any] | None = None
        self._gave_up = False
        """True if the last write of the stop failed."""
        self._stopped: Deferred[None] | None = None
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
        return len(self._marked)

    # ids

    def next_id(self) -> int:
        """Return a provider id that was never used before, not before a restart either.

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
            self._marked.update(dict.fromkeys(ids))
            self._schedule()

    # sessions

    def remember_session(self, identity: bytes, describe: Describe) -> None:
        """Mark the session of that identity as new or changed. ``describe`` is called at the time of the write."""
        if self._stopped is None:
            self._sessions[identity] = describe
            self._schedule()

    def forget_session(self, identity: bytes) -> None:
        """Mark the session of that identity as ended, or as one that is not to be stored any more."""
        if self._stopped is not None:
            return
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None:
            self._finish()
        return self._stopped

    def _changed(self, change: Change) -> None:
        id = change.provider
        if id == BROKER:
            return
        if change.kind is Kind.LEFT and id not in self._stored:
            self._marked.pop(id, None)
        else:
            self._marked[id] = None
            self._schedule()

    def _schedule(self) -> None:
        if not (self._due() or self._errors.failures):
            return
        now = self._clock.seconds()
        if self._since is None:
            self._since = now
        if self._timer is None and self._writing is None:
            wait = self._errors.wait if self._errors.failures else max(0.0, self._since + FLUSH_SECONDS - now)
            self._timer = self._clock.callLater(wait, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._due() or self._errors.failures:
            self._write()

    def _due(self) -> bool:
        """True if anything is to be written."""
        return bool(self._marked or self._sessions)

    def _write(self) -> None:
        """Start one write of the entries that were marked first."""
        ids = [id for id, _ in zip(self._marked, range(FLUSH_ROWS), strict=False)]
        rows, gone = [], []
        for id in ids:
            del self._marked[id]
            provider = self._registry.provider(id)
            if provider is None:
                gone.append(id)
            else:
                rows.append(provider)
                self._stored.add(id)
        sessions = dict(islice(self._sessions.items(), FLUSH_ROWS))
        known, over = [], []
        for identity, describe in sessions.items():
            del self._sessions[identity]
            session = None if describe is None else describe()
            if session is None:
                over.append(identity)
            else:
                known.append(session)
                self._sessions_stored.add(identity)
        mark = self._next + RESERVE
        if not self._due():
            self._since = None

        def written(_: object) -> None:
            self._stored.difference_update(gone)
            self._sessions_stored.difference_update(over)
            self._mark = max(self._mark, mark)
            self._errors.over()

        def failed(failure: Failure) -> None:
            # Failed entries go back to the front; a later mark of the same session wins.
            self._marked = dict.fromkeys(ids) | self._marked
            self._sessions = sessions | self._sessions
            self._gave_up = self._stopped is not None
            self._failed(failure)

        def ended(_: object) -> None:
            self._writing = None
            if self._stopped is None:
                self._schedule()
            else:
                self._finish()

        writing = self._writing = self._in_thread(self._store.record, rows, gone, mark, known, over)
        writing.addCallbacks(written, failed).addBoth(ended)

    def _failed(self, failure: Failure) -> None:
        self._errors.add(failure)
        if self._stopped is None:
            self._schedule()

    def _finish(self) -> None:
        """Continue the stop while no write runs: write the rest, or close."""
        if self._due() and not self._gave_up:
            self._write()
            return

        def failed(failure: Failure) -> None:
            self.log.error("the state was not closed in good order: {why}", why=failure.value)

        def ended(_: object) -> None:
            assert self._stopped is not None
            self._stopped.callback(None)

        self._in_thread(self._store.close, self._next).addErrback(failed).addBoth(ended)
