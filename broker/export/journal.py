"""The metrics journal as the reactor sees it: `Journal.put`, and nothing to wait for.

Rules:
- A record that is put waits in a queue of bounded length. Every `FLUSH_SECONDS` the whole queue goes to the thread,
  which makes lines of the records and appends them; every `SYNC_SECONDS` it has them on the disk. One job at a time.
- Records are numbered when they go to the thread, in the order in which they were put. A number is never used again.
- What finds the queue full is lost, and takes its numbers just after those of the queue that was full. What the disk
  refused is lost too: the records from the first that is not a good line to the last that was handed over.
- So the lost ones are always the last numbers that were given, and each hand-over that finds some begins with a
  ``drop`` record that says how many. If a ``drop`` is lost itself, the next one counts it, and what it told of.
- A disk that fails is tried again after a wait that doubles; meanwhile the queue fills. It is logged when that begins
  and when it ends. Sealing and retention have waits and log lines of their own: that they fail costs no record.
- The thread appends what is due before it goes on with a sealing, or a look for what is to be deleted.
- The thread rests after every fraction of a millisecond of work: the reactor does not wait for more than that.
- A clock that was set back is noticed by the next call for the time of a record, or one that finds the queue full: then
  the timers are set again (`broker.export.timers`).

The states, and the events that lead from one to another, are in `broker.export.journal_states`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.disk_errors import DiskErrors, LogLimit
from broker.core.disk_reserve import is_full
from broker.export.journal_states import STOPPING, TRANSITIONS, JournalEvent, JournalState, JournalWork, JournalWorker
from broker.export.records import BROKER_WIRE, Record, common, encode_all, microseconds
from broker.export.rest import rest
from broker.export.segments import Segments
from broker.export.timers import Timers

FLUSH_SECONDS = 1.0
"""Seconds for which records gather before they are appended: a kill of the broker loses no more than these."""

SYNC_SECONDS = 5.0
"""The time between two times that all is put on the disk: a power cut loses no more than these."""

ALIVE_SECONDS = 60.0
"""The time between two ``alive`` records; readers take 90 s without one for a broker that was not there."""

RETAIN_SECONDS = 3600.0
"""The time between two looks for segments to delete: they are named by the hour."""

STOP_TRIES = 2
"""Attempts of the stop to write: the first time may be the one that finds the file removed."""

STOP_SECONDS = 10.0
"""Seconds for which the stop waits for the disk. What is not sealed by then is sealed at the next start."""

SET_BACK_SECONDS = 1.0
"""By how much a clock is set back at least if that is logged. Less happens where it is kept right."""

SLICE = 256
"""Records made into lines at once: some 0.3 ms in which the thread has the interpreter."""


_log = Logger()


class Journal:
    """Writes what is put to ``segments``, over ``clock``.

    ``in_thread`` runs a function with arguments in a worker thread and returns a Deferred of its result. Sealing keeps
    the thread busy for some 50 ms at a time, so it should be the journal's own.
    """

    def __init__(self, clock: IReactorTime, in_thread: Callable[..., Deferred[Any]], segments: Segments) -> None:
        self._clock = clock
        self._in_thread = in_thread
        self._segments = segments
        self._common = common(segments.broker, segments.boot)

        self.before_flush: Callable[[], None] = lambda: None
        """Called each time before what waits is handed over: the last moment to put something."""
        self._queue: list[Record] = []
        self._room = segments.limits.queue
        self._turned_away = 0
        """Records that found the queue full, and have no number yet."""
        self._next_seq = 1
        self._lost = 0
        """Numbers given to records that are in no file and never will be."""
        self._lost_to = "queue"
        """The cause of the losses that no ``drop`` record reports yet."""
        self._late = 0
        """Records that came after the stop."""

        self._state = JournalState.NEW
        self._worker = JournalWorker.IDLE
        self._due = {JournalWork.SEAL, JournalWork.DELETE}
        """Sealing is always due but for the time after a failure."""
        self._timers = Timers(clock)
        self._patience: IDelayedCall | None = None
        self._synced_at = 0.0
        self._heard_at = 0.0
        """The latest time that a record has."""
        self._set_back = 0
        """The number of times that the clock was set back."""
        self._mended = 0
        """Records of which a text was changed. The thread counts them."""
        self._mended_told = 0
        """Those of them that the log tells of."""
        self._writing = _disk_errors(clock, "the metrics journal cannot be written: records are lost")
        self._sealing = _disk_errors(clock, "a segment of the metrics journal cannot be sealed")
        self._retaining = _disk_errors(clock, "old segments of the metrics journal cannot be deleted")
        self._full = LogLimit()
        self._mending = LogLimit()

        self._stopped: Deferred[None] = Deferred()
        self._tries = STOP_TRIES
        """Attempts to write that the stop still has."""

    # for all

    def put(self, record: Record) -> None:
        """Keep a record, or count it as lost. For the reactor thread, also before `start`; it never fails.

        What is put after `stop` is lost.
        """
        if len(self._queue) < self._room:
            self._queue.append(record)
        elif self._state not in STOPPING:
            self._turned_away += 1
            self._timers.wake()
        else:
            self._late += 1

    def now(self) -> int:
        """The ``ts`` of a record that is made now."""
        now = self._clock.seconds()
        if now < self._heard_at:
            self._notice(self._heard_at - now)
        self._heard_at = now
        return int(now * 1_000_000)  # as `microseconds` does it, without the call

    def counts(self) -> Mapping[str, int]:
        """Return the counters, for `Counters.include`. A record is written when it is on the disk."""
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
        """Writes that failed in a row, up to now; 0 while the disk takes them."""
        return self._writing.failures

    # for the wiring

    def start(self) -> None:
        """Take the directory, and begin. To be called once.

        On a full disk the directory is taken by the first write that succeeds. Raises OSError where it cannot be taken
        for any other reason; then nothing is held.
        """
        try:
            self._segments.open()
        except OSError as error:
            if not is_full(error, self._segments.directory):
                raise
        self._change(JournalEvent.START)
        self._queue.insert(0, self._alive("start"))
        self._synced_at = self._clock.seconds()
        self._timers.after(FLUSH_SECONDS, self._flush)
        self._timers.after(ALIVE_SECONDS, self._tell_alive)
        self._timers.after(RETAIN_SECONDS, self._retain)
        self._go_on()

    def stop(self) -> Deferred[None]:
        """Write, put on the disk and seal all that is there, and let go of the directory.

        The Deferred fires when that is done, or cannot be done, or has taken `STOP_SECONDS`; it never fails. To be
        called once, after all that puts records has stopped.
        """
        self._room = 0
        self._timers.stop()
        self._due.add(JournalWork.SEAL)  # one more try
        self._change(JournalEvent.STOP)
        if self._state is not JournalState.CLOSED:
            self._patience = self._clock.callLater(STOP_SECONDS, self._stop_waiting)
            self._go_on()
        return self._stopped

    # states

    def _change(self, event: JournalEvent) -> None:
        """Go to the state to which the event leads. Raises KeyError for an event that cannot come in this state."""
        before, self._state = self._state, TRANSITIONS[self._state, event]
        if self._state is JournalState.CLOSED and before is not JournalState.CLOSED:
            if self._patience is not None and self._patience.active():
                self._patience.cancel()
            self._stopped.callback(None)

    # what is due

    def _notice(self, seconds: float) -> None:
        """The clock was set back by so much."""
        self._timers.wake()
        if seconds >= SET_BACK_SECONDS:
            self._set_back += 1
            _log.warn(
                "the clock was set back by {seconds:.3g} s: records of the metrics journal from now on have times that "
                "others had before them",
                seconds=seconds,
            )

    def _alive(self, why: str | None = None) -> Record:
        return Record(self.now(), "alive", BROKER_WIRE, why=why)

    def _tell_alive(self) -> None:
        self._timers.after(ALIVE_SECONDS, self._tell_alive)
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

    # one job after the other

    def _go_on(self) -> None:
        """Have the thread do what is due, unless it does something."""
        # A loop, and no recursion: where jobs end at once, a long sealing would nest as deep as it has pieces.
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
            if self._queue or self._untold or self._segments.unsynced or self._segments.due(self._clock.seconds()):
                return self._write
            self._timers.after(FLUSH_SECONDS, self._flush)
        if self._is_seal_due():
            return self._seal
        return self._delete_old if JournalWork.DELETE in self._due else None

    def _is_seal_due(self) -> bool:
        return JournalWork.SEAL in self._due and bool(self._segments.waiting)

    @property
    def _untold(self) -> int:
        """The number of losses that no ``drop`` record in a file reports. The thread does nothing."""
        return self._next_seq - 1 - self._segments.last_seq + self._turned_away

    def _run(self, done: Callable[[], None], failed: Callable[[Failure], None], *job: Any) -> None:
        """Have the thread do the job, a function and its arguments; then call one of the two, and go on."""

        def ended(_: object) -> None:
            starting = self._worker is JournalWorker.STARTING
            self._worker = JournalWorker.IDLE
            if not starting:  # else the loop in `_go_on` goes on
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
        """Hand over what waits."""
        now = self._clock.seconds()
        stopping = self._state is JournalState.LAST_WRITE
        # What was turned away has numbers behind those of the queue: then the record of the stop is in the next write.
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
            self._count_turned_away(now)
        sync = stopping or not 0 <= now - self._synced_at < SYNC_SECONDS
        if sync:
            self._synced_at = now

        def done() -> None:
            self._writing.over()
            self._tell_mended(now)
            self._timers.after(FLUSH_SECONDS, self._flush)
            if last:
                self._change(JournalEvent.WRITTEN)

        def failed(failure: Failure) -> None:
            self._lost = self._next_seq - 1 - self._segments.lines
            self._lost_to = "disk"
            if stopping:
                self._tries -= 1
                if not self._tries:
                    _log.error("{count} records of the metrics journal are lost by the stop", count=self._untold)
                    self._change(JournalEvent.WRITTEN)
            self._timers.after(self._writing.add(failure), self._flush)

        self._run(done, failed, self._append, records, first, now, sync, last)

    def _count_turned_away(self, now: float) -> None:
        failing = self._writing.failures > 0
        if not failing and self._full.allows(now):
            _log.warn(
                "the queue of the metrics journal was full: {count} records are lost, and counted in it",
                count=self._turned_away,
            )
        self._next_seq += self._turned_away
        self._lost += self._turned_away
        self._turned_away = 0
        self._lost_to = "disk" if failing else "queue"

    def _tell_mended(self, now: float) -> None:
        new = self._mended - self._mended_told
        if new and self._mending.allows(now):
            self._mended_told = self._mended
            _log.warn(
                "{count} records of the metrics journal had texts that are no Unicode: they are changed", count=new
            )

    def _append(self, records: list[Record], first: int, now: float, sync: bool, last: bool) -> None:
        """In the thread: make lines, append them, and look after the file. Empties the list as it goes."""
        segments = self._segments
        for begin in range(0, len(records), SLICE):
            end = min(begin + SLICE, len(records))
            lines, mended = encode_all(records[begin:end], self._common, first + begin)
            self._mended += mended
            segments.append(lines, first + end - 1, now)
            rest()
            records[begin:end] = repeat(None, end - begin)  # type: ignore[arg-type]  # or all are freed at once
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

        self._run(done, failed, self._segments.retain_piece, self._clock.seconds())

    # the end

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
    """Failures of the disk at one kind of work; ``text`` says what fails."""
    return DiskErrors(
        _log,
        clock,
        OSError,
        f"{text}: {{why}}. It is tried again, and the log says when that succeeds",
        f"no longer, after {{failures}} failures: {text}",
    )


def _log_failure(failure: Failure, text: str) -> None:
    """Log a failure: the disk's in a sentence, in which ``{why}`` is the system's reason, any other as a defect."""
    if failure.check(OSError):
        _log.error(text, why=failure.value)
    else:
        _log.failure("a defect in the metrics journal", failure)
