"""Metrics journal, the reactor's side: `Journal.put` is non-blocking, and a thread writes.

Rules:
- Records wait in a bounded queue. Every `FLUSH_SECONDS` the whole queue goes to the thread, which encodes the records
  and appends the lines; every `SYNC_SECONDS` it syncs them to the disk. There is one job at a time.
- Records are numbered when they go to the thread, in the order of `Journal.put`. A number is never reused.
- Records that find the queue full are lost, and get the numbers just after those of the full queue. Records that the
  disk refused are lost too: from the first that is not a good line to the last that was handed over.
- So the lost records always have the last numbers that were assigned, and the next hand-over begins with a ``drop``
  record with their number. If a ``drop`` is lost itself, the next one counts it, and the losses that it reported.
- A failed write is retried with exponential back-off; meanwhile the queue fills. The log has the start and the end of
  such a period. Sealing and retention have back-offs and log lines of their own: their failures cost no record.
- The thread appends due records before it continues with sealing or retention.
- The thread pauses after every fraction of a millisecond of work: the reactor waits for no more than that
  (`broker.export.journal_disk.pause`).
- A clock that was set back is detected by the next call for the time of a record, or by one that finds the queue full:
  then the timers are set again (`Timers`).

The file is longer than others: the methods of `Journal` share the numbers of records, which the rules above concern.

The states, and the events that lead from one to another, are in `TRANSITIONS`. A pair that is not there is a defect,
and raises. ADR 0028 has the diagram.

    NEW         before `start`: records wait in the queue
    RECOVERING  the thread repairs and seals the files of earlier starts
    RUNNING     the thread writes, seals and deletes
    ENDING      `stop` was called while the thread recovers
    LAST_WRITE  the thread writes the rest, with the record of the stop
    CLOSING     the thread seals all files, and releases the directory
    CLOSED      terminal; the Deferred of the stop has fired

The thread has states of its own (`JournalWorker`), since it does one job at a time in each state of the journal.
`JournalWork` has the recurring kinds of work.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.disk import DiskErrors, is_full
from broker.core.rates import LogLimit
from broker.export.journal_disk import pause
from broker.export.journal_records import BROKER_WIRE, Record, common, encode_all, microseconds
from broker.export.segments import Segments
from broker.wall_clock import wall


class JournalState(enum.Enum):
    """State of a journal; see the head of this module."""

    NEW = enum.auto()
    RECOVERING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    LAST_WRITE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class JournalEvent(enum.Enum):
    """Event that may change the state."""

    START = enum.auto()
    STOP = enum.auto()
    RECOVERED = enum.auto()
    """The thread has completed the recovery, as far as possible."""
    WRITTEN = enum.auto()
    """The last write succeeded, or failed for the last time."""
    RELEASED = enum.auto()
    """The directory was released, or could not be closed in good order."""
    TIMEOUT = enum.auto()
    """The stop has taken `STOP_SECONDS`."""


TRANSITIONS: Mapping[tuple[JournalState, JournalEvent], JournalState] = {
    (JournalState.NEW, JournalEvent.START): JournalState.RECOVERING,
    (JournalState.NEW, JournalEvent.STOP): JournalState.CLOSED,
    (JournalState.RECOVERING, JournalEvent.RECOVERED): JournalState.RUNNING,
    (JournalState.RECOVERING, JournalEvent.STOP): JournalState.ENDING,
    (JournalState.RUNNING, JournalEvent.STOP): JournalState.LAST_WRITE,
    (JournalState.ENDING, JournalEvent.RECOVERED): JournalState.LAST_WRITE,
    (JournalState.ENDING, JournalEvent.TIMEOUT): JournalState.CLOSED,
    (JournalState.LAST_WRITE, JournalEvent.WRITTEN): JournalState.CLOSING,
    (JournalState.LAST_WRITE, JournalEvent.TIMEOUT): JournalState.CLOSED,
    (JournalState.CLOSING, JournalEvent.RELEASED): JournalState.CLOSED,
    (JournalState.CLOSING, JournalEvent.TIMEOUT): JournalState.CLOSED,
    # A job may end after the timeout of the stop.
    (JournalState.CLOSED, JournalEvent.RECOVERED): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.WRITTEN): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.RELEASED): JournalState.CLOSED,
}

STOPPING = frozenset((JournalState.ENDING, JournalState.LAST_WRITE, JournalState.CLOSING, JournalState.CLOSED))
"""States after the stop: no record is accepted."""


class JournalWorker(enum.Enum):
    """State of the thread: IDLE, then STARTING while a job is handed over, then WORKING until it ends.

    A job may end during its hand-over: then the thread is IDLE again without having been WORKING.
    """

    IDLE = enum.auto()
    STARTING = enum.auto()
    WORKING = enum.auto()


class JournalWork(enum.Enum):
    """Recurring kind of work."""

    WRITE = enum.auto()
    SEAL = enum.auto()
    DELETE = enum.auto()


FLUSH_SECONDS = 1.0
"""Seconds for which records are collected before they are appended: a kill of the broker loses no more than these."""

SYNC_SECONDS = 5.0
"""Seconds between two syncs: a power failure loses no more than these."""

ALIVE_SECONDS = 60.0
"""Seconds between two ``alive`` records; readers take 90 s without one for an absence of the broker."""

RETAIN_SECONDS = 3600.0
"""Seconds between two sweeps of retention: segments are named by the hour."""

STOP_TRIES = 2
"""Attempts of the stop to write: the first one may detect that the file was removed."""

STOP_SECONDS = 10.0
"""Deadline of the stop, in seconds. Files that are not sealed by then are sealed at the next start."""

SET_BACK_SECONDS = 1.0
"""Smallest step back of the clock that is logged, in seconds. Smaller ones are corrections by a time service."""

SLICE = 256
"""Records encoded at once: some 0.3 ms in which the thread has the interpreter."""


_log = Logger()


@attrs.frozen
class _Timer:
    call: IDelayedCall
    seconds: float


class Timers:
    """Delayed calls, at most one for each function, on time even after the clock was set back.

    Timers of Twisted do not run until a clock that was set back has caught up. `wake` sets them again.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._timers: dict[Callable[[], None], _Timer] | None = {}
        """None after `stop`."""

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after some seconds. No-op if that call is pending already, or after `stop`."""
        timers = self._timers
        if timers is None or function in timers:
            return

        def call() -> None:
            del timers[function]
            function()

        timers[function] = _Timer(self._clock.callLater(seconds, call), seconds)

    def wake(self) -> None:
        """Reset each timer whose remaining time exceeds its interval, since the clock was set back."""
        now = self._clock.seconds()
        for timer in (self._timers or {}).values():
            if timer.call.getTime() - now > timer.seconds:
                timer.call.reset(timer.seconds)

    def stop(self) -> None:
        """Cancel all calls, and refuse new ones."""
        for timer in (self._timers or {}).values():
            timer.call.cancel()
        self._timers = None


class Journal:
    """Metrics journal in ``segments``, on ``clock``.

    ``in_thread`` runs a function with arguments in a worker thread and returns a Deferred of its result. Sealing
    occupies the thread for some 50 ms at a time, so it should be the journal's own.
    """

    def __init__(self, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]], segments: Segments) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._segments = segments
        self._common = common(segments.broker, segments.boot)

        self.before_flush: Callable[[], None] = lambda: None
        """Called before each hand-over: the last opportunity to put records."""
        self._queue: list[Record] = []
        self._room = segments.limits.queue
        self._turned_away = 0
        """Records that found the queue full, and have no number yet."""
        self._next_seq = 1
        self._lost = 0
        """Numbers of records that are in no file and never will be."""
        self._lost_to = "queue"
        """Cause of the losses that no ``drop`` record reports yet."""
        self._late = 0
        """Records that came after the stop."""

        self._state = JournalState.NEW
        self._worker = JournalWorker.IDLE
        self._due = {JournalWork.SEAL, JournalWork.DELETE}
        """Sealing is always due, except during the back-off after a failure."""
        self._timers = Timers(clock)
        self._patience: IDelayedCall | None = None
        self._synced_at = 0.0
        self._heard_at = 0.0
        """The latest time of a record."""
        self._set_back = 0
        """Number of steps back of the clock."""
        self._mended = 0
        """Records of which a text was changed. Counted by the thread."""
        self._mended_logged = 0
        """Those of them that are in the log already."""
        self._writing = _disk_errors(clock, "the metrics journal cannot be written: records are lost")
        self._sealing = _disk_errors(clock, "a segment of the metrics journal cannot be sealed")
        self._retaining = _disk_errors(clock, "old segments of the metrics journal cannot be deleted")
        self._logged: LogLimit[str] = LogLimit(clock)

        self._stopped: Deferred[None] = Deferred()
        self._tries = STOP_TRIES
        """Remaining attempts of the stop to write."""

    # for all callers

    def put(self, record: Record) -> None:
        """Queue a record, or count it as lost. For the reactor thread, also before `start`; it never fails.

        Records after `stop` are lost.
        """
        if len(self._queue) < self._room:
            self._queue.append(record)
        elif self._state not in STOPPING:
            self._turned_away += 1
            self._timers.wake()
        else:
            self._late += 1

    @property
    def queued(self) -> tuple[int, int]:
        """The number of records that wait in memory, and its bound."""
        return len(self._queue), self._room

    def now(self) -> int:
        """Return the ``ts`` of a record that is created now."""
        now = wall(self._clock)
        if now < self._heard_at:
            self._notice(self._heard_at - now)
        self._heard_at = now
        return int(now * 1_000_000)  # as `microseconds` does it, without the call

    def counts(self) -> Mapping[str, int]:
        """Return the counters, for `Counters.include`. A record counts as written when it is on the disk."""
        return {
            "journal_records.written": self._segments.acknowledged,
            "journal_records.dropped": self._lost + self._turned_away + self._late,
            "journal_records.mended": self._mended,
            "journal_segments.recovered": self._segments.recovered,
            "journal_segments.torn": self._segments.torn,
            "journal_segments.sealed": self._segments.sealed,
            "journal_segments.deleted": self._segments.deleted,
            "journal_errors.write": self._writing.errors,
            "journal_errors.seal": self._sealing.errors,
            "journal_errors.retain": self._retaining.errors,
            "journal_clock.back": self._set_back,
        }

    @property
    def failures(self) -> int:
        """Consecutive failed writes; 0 while the disk works."""
        return self._writing.failures

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the disk works."""
        return self._writing.why

    # for the wiring

    def start(self) -> None:
        """Take the directory, and start the thread's work. To be called once.

        On a full disk the directory is taken by the first write that succeeds. Raises OSError if it cannot be taken for
        any other reason; then nothing is held.
        """
        try:
            self._segments.open()
        except OSError as error:
            if not is_full(error, self._segments.directory):
                raise
        self._change(JournalEvent.START)
        self._queue.insert(0, self._alive("start"))
        self._synced_at = wall(self._clock)
        self._timers.after(FLUSH_SECONDS, self._flush)
        self._timers.after(ALIVE_SECONDS, self._record_alive)
        self._timers.after(RETAIN_SECONDS, self._retain)
        self._go_on()

    def stop(self) -> Deferred[None]:
        """Write, sync and seal all records, and release the directory.

        The Deferred fires when that is done, has failed, or has taken `STOP_SECONDS`; it never fails. To be called
        once, after all sources of records have stopped.
        """
        self._room = 0
        self._timers.stop()
        self._due.add(JournalWork.SEAL)  # one more attempt, even during a back-off
        self._change(JournalEvent.STOP)
        if self._state is not JournalState.CLOSED:
            self._patience = self._clock.callLater(STOP_SECONDS, self._stop_waiting)
            self._go_on()
        return self._stopped

    # states

    def _change(self, event: JournalEvent) -> None:
        """Change the state by an event. Raises KeyError for an event that is illegal in this state."""
        before, self._state = self._state, TRANSITIONS[self._state, event]
        if self._state is JournalState.CLOSED and before is not JournalState.CLOSED:
            if self._patience is not None and self._patience.active():
                self._patience.cancel()
            self._stopped.callback(None)

    # scheduling

    def _notice(self, seconds: float) -> None:
        """Process a clock that was set back by so many seconds."""
        self._timers.wake()
        if seconds >= SET_BACK_SECONDS:
            self._set_back += 1
            _log.warn(
                "the clock was set back by {seconds:.3g} s: times of records in the metrics journal are not monotonic",
                seconds=seconds,
            )

    def _alive(self, why: str | None = None) -> Record:
        return Record(self.now(), "alive", BROKER_WIRE, why=why)

    def _record_alive(self) -> None:
        self._timers.after(ALIVE_SECONDS, self._record_alive)
        self.put(self._alive())

    def _flush(self) -> None:
        self.before_flush()
        self._due.add(JournalWork.WRITE)
        self._go_on()

    def _retain(self) -> None:
        self._timers.after(RETAIN_SECONDS, self._retain)
        self._due.add(JournalWork.DELETE)
        self._go_on()

    def _seal_again(self) -> None:
        self._due.add(JournalWork.SEAL)
        self._go_on()

    # jobs of the thread

    def _go_on(self) -> None:
        """Give the thread the next job, unless it is busy."""
        # A loop, and no recursion: if jobs end at once, a long sealing would nest as deep as it has pieces.
        while self._worker is JournalWorker.IDLE and (job := self._choose()) is not None:
            job()

    def _choose(self) -> Callable[[], None] | None:
        """Return the most urgent job of the state, None if there is none. The thread is idle."""
        match self._state:
            case JournalState.RECOVERING | JournalState.ENDING:
                return self._recover
            case JournalState.RUNNING:
                return self._choose_running()
            case JournalState.LAST_WRITE:
                return self._write
            case JournalState.CLOSING:
                return self._seal if self._is_seal_due() else self._close
            case _:
                return None

    def _choose_running(self) -> Callable[[], None] | None:
        # Writing comes first: records wait in a bounded queue, and sealed files can wait.
        if JournalWork.WRITE in self._due:
            self._due.discard(JournalWork.WRITE)
            if self._queue or self._unreported or self._segments.unsynced or self._segments.due(wall(self._clock)):
                return self._write
            self._timers.after(FLUSH_SECONDS, self._flush)
        if self._is_seal_due():
            return self._seal
        return self._delete_old if JournalWork.DELETE in self._due else None

    def _is_seal_due(self) -> bool:
        return JournalWork.SEAL in self._due and bool(self._segments.waiting)

    @property
    def _unreported(self) -> int:
        """The number of losses that no ``drop`` record in a file reports. Valid while the thread is idle."""
        return self._next_seq - 1 - self._segments.last_seq + self._turned_away

    def _run(self, done: Callable[[], None], failed: Callable[[Failure], None], *job: Any) -> None:
        """Run a job, a function and its arguments, in the thread; then call one of the two callbacks, and continue."""

        def ended(_: object) -> None:
            starting = self._worker is JournalWorker.STARTING
            self._worker = JournalWorker.IDLE
            if not starting:  # otherwise the loop in `_go_on` continues
                self._go_on()

        self._worker = JournalWorker.STARTING
        function, *arguments = job
        working = self._in_thread(function, *arguments)
        working.addCallbacks(lambda _: done(), failed)
        working.addErrback(lambda failure: _log.failure("a defect in the metrics journal", failure))
        working.addBoth(ended)
        if self._worker is JournalWorker.STARTING:
            self._worker = JournalWorker.WORKING

    def _recover(self) -> None:
        def ended() -> None:
            self._change(JournalEvent.RECOVERED)
            if self._segments.recovered:
                _log.info(
                    "an earlier start left {files} open segments of the metrics journal, which are sealed now; {torn} "
                    "ended in the middle of a line, which was cut off",
                    files=self._segments.recovered,
                    torn=self._segments.torn,
                )

        def failed(failure: Failure) -> None:
            ended()
            self._sealing.errors += 1
            _log_failure(failure, "what the last run left of the metrics journal could not all be recovered: {why}")

        self._run(ended, failed, self._segments.recover)

    def _write(self) -> None:
        """Hand over the queue."""
        now = wall(self._clock)
        stopping = self._state is JournalState.LAST_WRITE
        # Records that found the queue full have numbers behind it: then the record of the stop is in the next write.
        last = stopping and not self._turned_away
        if last:
            self._queue.append(self._alive("stop"))
        records, self._queue = self._queue, []
        first = self._next_seq
        lost = first - 1 - self._segments.last_seq
        if lost:
            records.insert(0, Record(microseconds(now), "drop", BROKER_WIRE, dropped=lost, why=self._lost_to))
        self._next_seq += len(records)
        if self._turned_away:
            self._count_turned_away()
        # The time since the last sync is negative after the clock was set back: then sync too.
        sync = stopping or not 0 <= now - self._synced_at < SYNC_SECONDS
        if sync:
            self._synced_at = now

        def done() -> None:
            self._writing.over()
            self._log_mended()
            self._timers.after(FLUSH_SECONDS, self._flush)
            if last:
                self._change(JournalEvent.WRITTEN)

        def failed(failure: Failure) -> None:
            self._lost = self._next_seq - 1 - self._segments.lines
            self._lost_to = "disk"
            if stopping:
                self._tries -= 1
                if not self._tries:
                    _log.error("{count} records of the metrics journal are lost by the stop", count=self._unreported)
                    self._change(JournalEvent.WRITTEN)
            self._timers.after(self._writing.add(failure), self._flush)

        self._run(done, failed, self._append, records, first, now, sync, last)

    def _count_turned_away(self) -> None:
        failing = self._writing.failures > 0
        if not failing and self._logged.due("full"):
            _log.warn(
                "the queue of the metrics journal was full: {count} records are lost, and counted in it",
                count=self._turned_away,
            )
        self._next_seq += self._turned_away
        self._lost += self._turned_away
        self._turned_away = 0
        self._lost_to = "disk" if failing else "queue"

    def _log_mended(self) -> None:
        new = self._mended - self._mended_logged
        if new and self._logged.due("mended"):
            self._mended_logged = self._mended
            _log.warn(
                "{count} records of the metrics journal had texts that are not valid Unicode: these were changed",
                count=new,
            )

    def _append(self, records: list[Record], first: int, now: float, sync: bool, last: bool) -> None:
        """Encode and append records, in the thread, and rotate or sync the file. Empties the list as it goes."""
        segments = self._segments
        for begin in range(0, len(records), SLICE):
            end = min(begin + SLICE, len(records))
            lines, mended = encode_all(records[begin:end], self._common, first + begin)
            self._mended += mended
            segments.append(lines, first + end - 1, now)
            pause()
            # Frees these records now: to free all of them at the end takes the interpreter for too long.
            records[begin:end] = repeat(None, end - begin)  # type: ignore[arg-type]
        if last or segments.due(now):
            segments.rotate()
        elif sync:
            segments.sync()

    def _seal(self) -> None:
        sealed = self._segments.sealed

        def done() -> None:
            if self._segments.sealed > sealed:
                self._sealing.over()

        def failed(failure: Failure) -> None:
            self._due.discard(JournalWork.SEAL)
            self._timers.after(self._sealing.add(failure), self._seal_again)

        self._run(done, failed, self._segments.seal_piece)

    def _delete_old(self) -> None:
        def done() -> None:
            if not self._segments.retaining:
                self._due.discard(JournalWork.DELETE)
                self._retaining.over()

        def failed(failure: Failure) -> None:
            self._due.discard(JournalWork.DELETE)
            self._retaining.add(failure)

        self._run(done, failed, self._segments.retain_piece, wall(self._clock))

    # stop

    def _close(self) -> None:
        def done() -> None:
            self._change(JournalEvent.RELEASED)

        def failed(failure: Failure) -> None:
            _log_failure(failure, "the metrics journal was not closed in good order: {why}")
            self._change(JournalEvent.RELEASED)

        self._run(done, failed, self._segments.close)

    def _stop_waiting(self) -> None:
        _log.error("the metrics journal was not closed in {most:g} seconds", most=STOP_SECONDS)
        self._change(JournalEvent.TIMEOUT)


def _disk_errors(clock: IReactorTime, text: str) -> DiskErrors:
    """Return a tracker of disk failures of one kind of work; ``text`` describes the failure."""
    return DiskErrors(
        _log,
        clock,
        OSError,
        f"{text}: {{why}}. It is tried again; the success will be logged",
        f"no longer, after {{failures}} failures: {text}",
    )


def _log_failure(failure: Failure, text: str) -> None:
    """Log a failure: of the disk as a sentence, with the system's reason as ``{why}``, any other as a defect."""
    if failure.check(OSError):
        _log.error(text, why=failure.value)
    else:
        _log.failure("a defect in the metrics journal", failure)
