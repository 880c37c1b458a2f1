"""Group commit of the durable messages of queues, without disk I/O in the reactor thread.

Rules:
- A transaction begins in the next turn of the reactor after a message, in a thread. Where more than `FEW_MESSAGES` have
  come by then, it waits as long as others follow, for `COMMIT_SECONDS` at most or until there are `COMMIT_MESSAGES`.
  There is one transaction at a time, each of a bounded size; later messages go into the next ones.
- Removals and counts alone wait for `COMMIT_SECONDS`, since no author waits for them, or go with the next message.
- An author is notified of a message when its transaction is on the disk, once for all of its messages in that
  transaction. Notifications are in the order of the messages, except the following.
- A message that is removed before it is written is not written. If it died, or was moved, another queue has its
  successor, which is in the same transaction or in a later one: its author is notified with the successor.
- A message is removed from the store by the transaction that writes the last of its successors, or by a later one.
- If a transaction fails, the authors of its messages, and of those collected for the next one, get negative confirms.
  No further messages are accepted until a transaction succeeds, which is retried with back-off. Messages without an
  author, dead letters above all, and removals are written then. So no confirmed message is lost.
- A message that a reader has confirmed counts as safe, whatever happens to the disk.
- A queue that another broker has taken (`Fenced`) is reported to ``fenced``, and the rest of the transaction is written
  next. Nothing more is written of a queue that was given up; its authors get negative confirms, and messages that were
  moved into it return to the queues from which they came.
- Rows whose transaction has an unknown outcome are deleted again by a later one if their authors got negative
  confirms, or if their messages are removed before they are written again.

The file is longer than others: the rules above concern one transaction at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.database import StateError, StateFull
from broker.core.disk import DiskErrors
from broker.core.interfaces import ILeases
from broker.core.queues.queue_interfaces import (
    Author,
    Batch,
    Fenced,
    IQueueStore,
    OutcomeUnknown,
    RestoredMessage,
    Row,
)
from broker.core.queues.queue_messages import GONE, KEPT, NOT_KEPT, WAITING, WRITING, Message
from broker.core.queues.sqlite_store import COMMIT_BYTES, COMMIT_GONE
from broker.core.queues.work_queue import Queue
from broker.wall_clock import wall

COMMIT_SECONDS = 0.005
"""Longest time for which messages are collected, in seconds: about as long as a disk takes to write them."""

FOLLOW_SECONDS = 0.001
"""Seconds in which a further message has to come, so that a transaction waits for more: longer than a turn of the
reactor under load, and as long as a fast disk takes for one transaction."""

FEW_MESSAGES = 4
"""Number of messages that are written without waiting for others: waiting would save little for each of them, and takes
longer than the transaction does."""

COMMIT_MESSAGES = 100
"""Number of messages at which a transaction begins at once."""

MOST_GATHERED = 10_000
"""Limit of the messages that are collected during a slow transaction. Beyond it authors are refused (backpressure)."""

MOST_GATHERED_BYTES = 64 * 1024 * 1024
"""Limit of the collected messages in bytes: what a disk writes in a second or so."""

_Gathered = tuple[Message, Author | None, Any]

_Gone = tuple[int, int, Message]
"""Number of the queue and order of a removed message, and the message, whose last successor the removal waits for."""

_Former = tuple[Message, bytes, Any, Callable[[bool], object]]
"""A message before its move, its head and its body, and the function that is called with the outcome of the move."""


def _waits(message: Message) -> bool:
    """Return True for a message that is still to be written."""
    return message.kept == WAITING and message.state != GONE


class QueueRecorder:
    """`broker.core.queues.queue_interfaces.MessageKeeper` over a store.

    ``in_thread`` runs a function with arguments in a worker thread, and returns a Deferred of its result. ``rows`` is
    the content of the store when it was opened or looked at; ``full`` is the reason why it could not be opened, if any.
    """

    log = Logger()

    def __init__(
        self,
        store: IQueueStore,
        leases: ILeases,
        clock: IReactorTime,
        in_thread: Callable[..., Deferred[Any]],
        rows: Iterable[RestoredMessage] = (),
        full: StateFull | None = None,
    ) -> None:
        self._store = store
        self._leases = leases
        self._clock = clock
        self._in_thread = in_thread
        self.takes = True
        self.batches = 0
        self.kept = 0
        self.not_kept = 0
        self._number = max((row.number for row in rows), default=0)
        """The highest number of a queue."""
        self._gathered: list[_Gathered] = []
        self._bytes = 0
        self.fenced: Callable[[Queue], None] = lambda queue: None
        """Called with each queue of this broker that another one has taken."""
        self._counts: dict[tuple[int, int], int] = {}
        """By number of the queue and order."""
        self._gone: list[_Gone] = []
        self._queues: dict[int, tuple[int, str, str]] = {}
        """Queues that are not in the store yet."""
        self._doubtful: set[tuple[int, int]] = set()
        """Messages that wait to be written again, and are perhaps in the store, by number of the queue and order."""
        self._moved: dict[Message, _Former] = {}
        """The former message of each moved one that is not written yet."""
        self._queues_gone: list[int] = []
        self._numbered: dict[int, Queue] = {}
        """Queues that were numbered in this run, by number."""
        self._given_up: set[int] = set()
        """Numbers of queues of which nothing more is written, until the next transaction; then the store forgets them.
        Numbers are not used again."""
        self._unfiltered = False
        """True while pending writes may include some of queues that were given up. These are discarded at once for all
        such queues: many are given up in one turn when a lease has ended."""
        self._by_queue: dict[Queue, list[_Gathered]] | None = None
        """The collected messages of each queue, from the first queue that is given up until `_gather`."""
        self._flushed: list[tuple[Deferred[None], set[tuple[int, int]] | None]] = []
        """Waiting flushes, each with the messages whose removals it waits for, by number of the queue and order; None
        until the transaction in progress has ended."""
        self._timer: IDelayedCall | None = None
        self._looked = 0
        """Number of messages at the last look, while the next transaction waits for more; otherwise 0."""
        self._latest = 0.0
        """Time of the clock at which it begins in any case."""
        self._writing = False
        self._errors = DiskErrors(
            self.log,
            clock,
            StateError,
            "messages of durable queues could not be kept: {why}. It is tried again, every {most:g} seconds at the "
            "latest; until it succeeds, these queues accept no messages",
            "messages of queues are kept again, after {failures} failures",
        )
        self._stopped: Deferred[None] | None = None
        self._gave_up = False
        """True if the last transaction of the stop failed."""
        if full is not None:
            self.takes = False
            self._errors.add(Failure(full))
            self._schedule()

    # from queues

    def add(self, message: Message, author: Author | None, token: Any) -> None:
        """See `MessageKeeper`."""
        message.kept = WAITING
        each = (message, author, token)
        self._gathered.append(each)
        self._bytes += message.size
        if self._by_queue is not None:
            self._by_queue.setdefault(message.queue, []).append(each)
        gathered = len(self._gathered)
        if not self._has_room:
            self.takes = False
        if self._timer is None:
            self._schedule()
        elif (gathered == 1 or gathered == COMMIT_MESSAGES) and not self._errors.failures:
            self._timer.reset(0)  # not here and now: an author is never notified while it publishes

    def _gather(self, gathered: list[_Gathered]) -> None:
        """Replace the collected messages."""
        self._gathered = gathered
        self._bytes = sum(message.size for message, _, _ in gathered)
        self._by_queue = None

    def replaces(self, moved: Message, former: Message, decided: Callable[[bool], object]) -> None:
        """See `MessageKeeper`."""
        self._moved[moved] = former, former.head, former.body, decided
        former.queue.leaving += 1

    def remove(self, message: Message) -> None:
        """See `MessageKeeper`."""
        key = (message.queue.number, message.order)
        if (message.kept == KEPT and message.queue.number) or key in self._doubtful:
            self._doubtful.discard(key)
            self._take_away(message)
            self._schedule()
        # Of the others, a waiting one will not be written, and one that is being written is examined afterwards.

    def _take_away(self, message: Message) -> None:
        self._counts.pop((message.queue.number, message.order), None)
        self._gone.append((message.queue.number, message.order, message))

    def amend(self, message: Message) -> None:
        """See `MessageKeeper`."""
        # A waiting message is written with its count.
        if message.queue.number and message.kept != WAITING:
            self._counts[message.queue.number, message.order] = message.count
            self._schedule()

    def forget(self, queue: Queue) -> None:
        """See `MessageKeeper`."""
        self._queues.pop(queue.number, None)
        self._numbered.pop(queue.number, None)
        self._queues_gone.append(queue.number)
        self._schedule()

    # for the owner of queues

    def number(self, queue: Queue) -> None:
        """Assign a number to a queue that has none."""
        assert not queue.given_up
        if not queue.number:
            self._number += 1
            queue.number = self._number
            self._numbered[queue.number] = queue
            self._queues[queue.number] = (queue.number, queue.space, queue.name)

    def give_up(self, queue: Queue) -> None:
        """Write nothing more of a queue, which another broker has. Authors of messages that are not written yet get
        negative confirms; a transaction in progress decides about the others."""
        self._end_moves()  # before the flag: a message that a reader has confirmed must not return
        if self._by_queue is None:
            self._keep_to_own()
            self._by_queue = {}
            for each in self._gathered:
                self._by_queue.setdefault(each[0].queue, []).append(each)
        number, queue.number, queue.given_up = queue.number, 0, True
        waiting = self._by_queue.pop(queue, [])
        self._bytes -= sum(message.size for message, _, _ in waiting)
        self._unfiltered = True
        if number:
            if self._writing or self._pending or number not in self._queues:
                self._given_up.add(number)  # otherwise neither what waits nor the store knows it
            self._numbered.pop(number, None)
            self._queues.pop(number, None)
        for message, _, _ in waiting:
            message.kept = NOT_KEPT
        self._refuse(each for each in waiting if each[1] is not None)
        self._end_moves()

    def _end_moves(self) -> None:
        """Forget the moves that are safe, and undo those into queues that were given up before the write."""
        undone: list[_Former] = []
        ended: list[tuple[_Former, bool]] = []
        for moved, former in list(self._moved.items()):
            last = moved.last
            lost = last.queue.given_up and last.kept != KEPT
            if lost and (last.kept == WRITING or self._is_moved_on(moved)):
                continue  # the transaction in progress, or the later move, decides
            if lost or last.state == GONE or last.kept not in (WAITING, WRITING):
                del self._moved[moved]
                ended.append((former, not lost))
            if lost:
                undone.append(former)
        self._return_moved(undone)
        for (message, _, _, decided), safe in ended:
            message.queue.end_move()
            decided(safe)
        if undone:
            self._end_moves()  # earlier moves of the same messages

    def _is_moved_on(self, moved: Message) -> bool:
        """Return True if a moved message, or its dead letter, was moved again, and that is not safe yet."""
        successor = moved.successor
        while successor is not None and successor not in self._moved:
            successor = successor.successor
        return successor is not None

    def _return_moved(self, undone: Sequence[_Former]) -> None:
        """Return moved messages, with their heads and bodies, to the queues from which they came."""
        if not undone:
            return
        waiting = {id(message) for message, _, _ in self._gathered}
        back: dict[tuple[int, int], Message] = {}
        for message, head, body, _ in undone:
            if not message.queue.take_back(message, head, body):
                continue  # that queue was given up too, and the message is still in the store
            back[message.queue.number, message.order] = message
            # The removal may have been written, if the outcome of a transaction was unknown. One without a state was
            # refused to its author while its successor was to be written.
            if (message.kept or message.queue.settings.durable) and id(message) not in waiting:
                self.add(message, None, None)
                if message.queue.number:  # otherwise the store has nothing of the queue
                    self._doubtful.add((message.queue.number, message.order))
        self._gone = [each for each in self._gone if each[:2] not in back]
        for queue in {message.queue: None for message in back.values()}:
            queue.serve()

    def _keep_to_own(self) -> None:
        """Discard what waits to be written of queues that were given up. Their authors were notified."""
        if not self._unfiltered:
            return
        self._unfiltered = self._writing  # a transaction that fails returns some of it
        over = self._given_up
        self._gather([each for each in self._gathered if not each[0].queue.given_up])
        self._counts = {key: count for key, count in self._counts.items() if key[0] not in over}
        self._gone = [each for each in self._gone if each[0] not in over]
        self._doubtful = {each for each in self._doubtful if each[0] not in over}
        self._queues_gone = [number for number in self._queues_gone if number not in over]
        if not self._writing:
            self._queues_gone += over
            self._given_up = set()

    def flush(self) -> Deferred[None]:
        """Fires when all removals up to now are written, or when the recorder stops.

        That is all that is left of a deleted queue. Messages of other queues do not delay it.
        """
        flushed: Deferred[None] = Deferred()
        self._flushed.append((flushed, None))
        if not self._writing:
            self._fire_flushed()
        return flushed

    def _fire_flushed(self) -> None:
        """Fire the flushes whose removals are written. To be called while no transaction is in progress."""
        if not self._flushed:
            return
        self._keep_to_own()
        left = {(number, order) for number, order, _ in self._gone} if self._stopped is None else set()
        flushed, self._flushed = self._flushed, []
        over: list[Deferred[None]] = []
        for each, awaited in flushed:
            still = left if awaited is None else awaited & left
            if still:
                self._flushed.append((each, still))
            else:
                over.append(each)
        for each in over:
            each.callback(None)

    @property
    def _pending(self) -> bool:
        return bool(self._gathered or self._gone or self._counts or self._queues_gone)

    # for the wiring

    def stop(self) -> Deferred[None]:
        """Write the collected messages, then close the store. No message is accepted from now on.

        The Deferred fires when the store is closed, even if a write failed, which is logged; it never fails. To be
        called once.
        """
        self._stopped = Deferred()
        self.takes = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._writing:
            self._finish()
        return self._stopped

    def counts(self) -> Mapping[str, int]:
        """Return the counters by name."""
        return {
            "batches": self.batches,
            "kept": self.kept,
            "not_kept": self.not_kept,
            "failures": self._errors.failures,
        }

    @property
    def trouble(self) -> str:
        """Reason of the last failed write; empty while the disk works."""
        return self._errors.why

    # writing

    @property
    def _has_room(self) -> bool:
        return len(self._gathered) < MOST_GATHERED and self._bytes < MOST_GATHERED_BYTES

    def _schedule(self) -> None:
        if self._timer is None and not self._writing and self._stopped is None:
            wait = self._errors.wait if self._errors.failures else 0.0 if self._gathered else COMMIT_SECONDS
            self._timer = self._clock.callLater(wait, self._timed)

    def _timed(self) -> None:
        self._timer = None
        gathered, now = len(self._gathered), self._clock.seconds()
        if FEW_MESSAGES < gathered < COMMIT_MESSAGES and not self._errors.failures:
            if not self._looked:
                self._latest = now + COMMIT_SECONDS
            if gathered > self._looked and now < self._latest:
                self._looked = gathered
                self._timer = self._clock.callLater(min(FOLLOW_SECONDS, self._latest - now), self._timed)
                return
        self._commit()

    def _commit(self) -> None:
        """Write the collected messages; without any, test the store if it is due after a failure."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._looked = 0
        self._keep_to_own()
        gathered = self._next_part()
        batch, gone = self._batch([(message, author) for message, author, _ in gathered if message.state != GONE])
        gathered = self._without_early(gathered)
        self.takes = not self._errors.failures and self._stopped is None and self._has_room
        if batch.queues or batch.rows or batch.counts or batch.gone or batch.queues_gone:
            writing = self._in_thread(self._store.write, batch)
        elif self._errors.failures:
            writing = self._in_thread(self._store.probe)
        else:
            for message, _, _ in gathered:
                message.kept = NOT_KEPT  # all were removed before they were written
            self._notify(gathered)
            self._end_moves()
            self._fire_flushed()
            if self._gathered:
                self._schedule()
            return
        self._writing = True
        writing.addCallbacks(self._written, self._failed, (gathered, batch), {}, (gathered, batch, gone), {})
        writing.addErrback(lambda failure: self.log.failure("a defect in keeping messages of queues", failure))
        writing.addBoth(self._next)

    def _next_gone(self) -> list[_Gone]:
        """Remove and return the removals for one transaction, whose messages have been selected."""
        gone: list[_Gone] = []
        held: list[_Gone] = []
        for index, each in enumerate(self._gone):
            if len(gone) == COMMIT_GONE:
                held += self._gone[index:]
                break
            (held if _waits(each[2].last) else gone).append(each)
        self._gone = held
        return gone

    def _batch(self, messages: list[tuple[Message, Author | None]]) -> tuple[Batch, list[_Gone]]:
        # Deadlines are in lifetime, which begins at 0 with each start: on the disk they are in seconds since the epoch.
        epoch = wall(self._clock) - self._leases.moment()
        rows: list[Row] = []
        for message, _ in messages:
            message.kept = WRITING
            queue = message.queue
            self.number(queue)
            expires = None if message.deadline == inf else message.deadline + epoch
            body = message.body if type(message.body) is bytes else bytes(message.body)
            rows.append((message.order, queue.number, message.count, expires, message.death, message.head, body))
        gone = self._next_gone()
        queues_gone, self._queues_gone = ([], self._queues_gone) if self._gone else (self._queues_gone, [])
        urgent = all(author is None for _, author in messages)
        counts = [(*key, count) for key, count in self._counts.items()]
        batch = Batch(list(self._queues.values()), rows, counts, [each[:2] for each in gone], queues_gone, urgent)
        self._counts = {}
        return batch, gone

    def _next_part(self) -> list[_Gathered]:
        """Remove and return the collected messages for one transaction."""
        count = size = 0
        for message, _, _ in self._gathered:
            if size >= COMMIT_BYTES:
                break
            if message.state != GONE:
                size += message.size
            count += 1
        part = self._gathered[:count]
        self._gather(self._gathered[count:])
        return part

    def _without_early(self, part: list[_Gathered]) -> list[_Gathered]:
        """Return the part without the removed messages whose successors are in a later one, where these go too."""
        early: list[_Gathered] = []
        rest: list[_Gathered] = []
        for each in part:
            (early if each[0].successor is not None and _waits(each[0].last) else rest).append(each)
        if early:
            self._gather(early + self._gathered)
        return rest

    def _written(self, _: object, gathered: list[_Gathered], batch: Batch) -> None:
        self._leases.look()  # the result of a thread comes outside of a quantum
        self.batches += 1
        for number, _, _ in batch.queues:
            self._queues.pop(number, None)
        if self._doubtful:
            self._doubtful.difference_update((number, order) for order, number, *_ in batch.rows)
        for message, _, _ in gathered:
            if message.kept == WRITING:
                message.kept = KEPT
                if message.state == GONE and message.queue.number:
                    self._take_away(message)
            else:
                message.kept = NOT_KEPT  # it was removed before it was written
        if self._errors.failures:
            self._errors.over()
            self.takes = self._stopped is None
        self._notify(gathered)

    def _failed(self, failure: Failure, gathered: list[_Gathered], batch: Batch, gone: list[_Gone]) -> None:
        self._leases.look()  # the result of a thread comes outside of a quantum
        self._keep_to_own()
        # Without those of messages that were removed meanwhile, whose queue may be forgotten, or are written again.
        removed = {each[:2] for each in self._gone}
        removed |= {(message.queue.number, message.order) for message, _, _ in gathered}
        counts = {(number, order): count for number, order, count in batch.counts} | self._counts
        self._counts = {key: count for key, count in counts.items() if key not in removed}
        self._gone = [*gone, *self._gone]
        self._queues_gone = [*batch.queues_gone, *self._queues_gone]
        for message, _, _ in gathered:
            message.kept = NOT_KEPT if message.queue.given_up else WAITING
        if isinstance(failure.value, Fenced):
            self._fence(failure.value.queues, gathered)
            return
        self._errors.add(failure)
        self._gave_up = self._stopped is not None
        self.takes = False
        if failure.check(OutcomeUnknown):
            rows = {(number, order): None for order, number, *_ in batch.rows}
            over = {
                (message.queue.number, message.order): message
                for message, author, _ in gathered
                if author is not None or message.state == GONE
            }
            self._gone += [(*key, over[key]) for key in rows if key in over]
            self._doubtful |= rows.keys() - over.keys()
        self._unfiltered = True
        self._keep_to_own()
        gathered = gathered + self._gathered
        self._gather(
            [each for each in gathered if each[1] is None and each[0].state != GONE and not each[0].queue.given_up]
        )
        self._refuse(each for each in gathered if each[1] is not None)

    def _fence(self, numbers: frozenset[int], gathered: list[_Gathered]) -> None:
        """Give up the queues that another broker has taken; the rest of the transaction is written next."""
        lost = [queue for queue in map(self._numbered.get, sorted(numbers)) if queue is not None]
        self._refuse(each for each in gathered if each[0].queue.given_up and each[1] is not None)
        self._gather([each for each in gathered if not each[0].queue.given_up] + self._gathered)
        self._given_up |= numbers
        self._unfiltered = True
        for queue in lost:
            self.give_up(queue)
            self.fenced(queue)

    def _next(self, _: object) -> None:
        self._writing = False
        if self._moved:
            self._end_moves()
        self._fire_flushed()
        if self._stopped is not None:
            self._finish()
        elif self._errors.failures:
            self._schedule()
        elif len(self._gathered) >= COMMIT_MESSAGES:
            self._commit()
        elif self._pending:
            self._schedule()

    def _finish(self) -> None:
        """Continue the stop while no write runs: write the rest, or close."""
        while self._pending and not self._gave_up:
            self._commit()
            if self._writing:
                return

        def failed(failure: Failure) -> None:
            self.log.error("the store of queues was not closed in good order: {why}", why=failure.value)

        def ended(_: object) -> None:
            assert self._stopped is not None
            self._stopped.callback(None)

        self._in_thread(self._store.close).addErrback(failed).addBoth(ended)

    # authors

    def _notify(self, gathered: list[_Gathered]) -> None:
        """Send confirms: these messages are on the disk, or confirmed by a reader."""
        by_author: dict[Author, list[Any]] = {}
        for _, author, token in gathered:
            if author is not None:
                by_author.setdefault(author, []).append(token)
        for author, tokens in by_author.items():
            self.kept += len(tokens)
            try:
                author.kept(tokens)
            except Exception:
                self.log.failure("an author failed to process the confirms of its messages")

    def _refuse(self, gathered: Iterable[_Gathered]) -> None:
        """Process a failed write: negative confirms for all but the messages that a reader has confirmed."""
        by_author: dict[Author, tuple[list[Any], list[Any]]] = {}
        for message, author, token in gathered:
            assert author is not None
            message.kept = NOT_KEPT
            kept, not_kept = by_author.setdefault(author, ([], []))
            if message.is_confirmed and not message.queue.given_up:
                kept.append(token)
            else:
                not_kept.append(token)
                if message.state != GONE:
                    message.queue.withdraw(message)
        for author, (kept, not_kept) in by_author.items():
            self.kept += len(kept)
            self.not_kept += len(not_kept)
            try:
                if kept:
                    author.kept(kept)
                if not_kept:
                    author.not_kept(not_kept)
            except Exception:
                self.log.failure("an author failed to process the confirms of its messages")
