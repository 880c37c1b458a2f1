"""Queues of the wire, with their store, the thread that writes it, and their ownership."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from broker.core.database import StateError, StateFull
from broker.core.errors import Reason, Refusal
from broker.core.queues.ownership import NAMES, QueueOwnership
from broker.core.queues.queue_interfaces import Batch, IQueueStore, ISharedQueueStore, MessageOutcome, RestoredMessage
from broker.core.queues.queue_messages import MAX_BYTES, Death, QueueRule, QueueSettings, living_name
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.core.worker import Worker
from broker.wall_clock import wall
from broker.wires.interface import WireContext
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.queue_profile import identity_of, is_readable

# Durable messages that are left in the state directory since the queues have another store, and their move into it.
#
# Rules:
# - They are found at the start, and are in the log, a reason against readiness and in the table of queues until moved.
# - A move takes each queue as a client's request does. A queue of another broker, or one that is not durable any more,
#   is left as it is, with the reason.
# - A damaged message is left as it is: its content is not what its author sent.
# - A message leaves the disk once the new store has it: a crash in between repeats some. Order is kept within a queue;
#   delivery counts begin again, and a message with an id that the new store has got already is not repeated.

NAMED = 5
"""Queues that a log line names: the first ones of an operator's work."""

BATCH = 200
"""Messages that are on the way to the new store at a time: some 2 MB."""

Key = tuple[str, str]


class LeftQueues:
    """The messages in the store of ``directory``, which is no longer used. ``trouble`` is a sentence about them, empty
    without any; ``counts`` has their number for each space and name."""

    log = Logger()

    def __init__(self, directory: str, clock: IReactorTime) -> None:
        self._directory = directory
        self._clock = clock
        self._moving = False
        self.counts: Mapping[Key, int] = {}
        self.trouble = ""
        store = QueueStore(directory, is_readable)
        try:
            self._found(store.look(wall(clock)))
        except StateError as error:
            self.trouble = f"the former store of queues cannot be read: {error}"
        finally:
            store.close()
        if self.trouble:
            self.log.warn("durable queues: {left}", left=self.trouble)

    def move(
        self, queues: Queues, ownership: QueueOwnership, in_thread: Callable[..., Deferred[Any]]
    ) -> Deferred[tuple[int, Mapping[str, str]]]:
        """Move them into the present store. Fires with their number, and the reason for each queue that is left, by
        its name; with its virtual host where several have that name.

        Fails with `Refusal` FAILED if a move is under way, or if the former store cannot be used.
        """
        return Deferred.fromCoroutine(self._move(queues, ownership, in_thread))

    async def _move(
        self, queues: Queues, ownership: QueueOwnership, in_thread: Callable[..., Deferred[Any]]
    ) -> tuple[int, Mapping[str, str]]:
        if self._moving:
            raise Refusal(Reason.FAILED, "the messages are being moved already")
        self._moving = True
        store = QueueStore(self._directory, is_readable)
        reasons: dict[Key, str] = {}
        titles: Mapping[Key, str] = {}
        moved = 0
        try:
            rows: list[RestoredMessage] = await in_thread(store.open, wall(self._clock))
            of_queue: dict[Key, list[RestoredMessage]] = {}
            for row in rows:
                of_queue.setdefault((row.space, living_name(row.name)), []).append(row)
            titles = _titles(of_queue)
            for key, found in of_queue.items():
                messages = [each for each in found if not each.damaged]
                if len(messages) < len(found):
                    reasons[key] = f"{len(found) - len(messages)} of its messages are damaged"
                while messages:
                    try:
                        ready = ownership.require(*key)
                        if ready is not None:
                            await ready
                        gone = await self._put(queues, messages[:BATCH])
                    except Refusal as refusal:
                        reasons[key] = refusal.text
                        break
                    if not gone:
                        reasons[key] = "its messages could not be written"
                        break
                    await in_thread(store.write, Batch([], [], [], [(each.number, each.order) for each in gone], []))
                    moved += len(gone)
                    done = {each.order for each in gone}
                    messages = [*(each for each in messages[:BATCH] if each.order not in done), *messages[BATCH:]]
            self._found(await in_thread(store.look, wall(self._clock)))
        except StateError as error:
            raise Refusal(Reason.FAILED, f"the former store of queues cannot be used: {error}") from None
        finally:
            self._moving = False
            await in_thread(store.close)
        self.log.info("durable queues: {moved} messages were moved into the present store", moved=moved)
        return moved, {titles[key]: reason for key, reason in reasons.items()}

    async def _put(self, queues: Queues, rows: Sequence[RestoredMessage]) -> list[RestoredMessage]:
        """Put messages into their queues. Returns those that the present store has."""
        safe: list[RestoredMessage] = []
        written: list[tuple[RestoredMessage, Deferred[bool]]] = []
        try:
            for row in rows:
                queue = queues.open(row.space, row.name)
                if not queue.settings.durable:
                    raise Refusal(Reason.PARAMETER, "it is not durable by the present configuration")
                user, id, due = identity_of(row.head)
                outcome = MessageOutcome()
                delay = max(0.0, due - queues.wall()) if row.death is None else 0.0
                # The time to live of a delayed message begins at its time.
                ttl = None if row.seconds == math.inf else row.seconds - delay
                if queue.put(row.head, row.body, ttl, user, id, outcome, row, "", delay, row.death, row.count):
                    safe.append(row)
                else:
                    written.append((row, outcome.known))
        except Refusal:
            if not safe and not written:
                raise
        return safe + [row for row, known in written if await known]

    def _found(self, rows: Sequence[RestoredMessage]) -> None:
        self.counts = counts = Counter((row.space, row.name) for row in rows)
        self.trouble = ""
        if not rows:
            return
        titles = _titles(counts)
        named = ", ".join(f"{titles[key]} ({count})" for key, count in counts.most_common(NAMED))
        more = "" if len(counts) <= NAMED else f" and {len(counts) - NAMED} more queues"
        self.trouble = (
            f"messages are left in {self._directory}, and are not delivered, since mtl.queue_store is another store "
            f"now: {named}{more}. brokerctl queues move carries them over"
        )


def _titles(keys: Collection[Key]) -> Mapping[Key, str]:
    """Return the names of queues for an operator, with the virtual host where several of them have the same name."""
    same = Counter(name for _, name in keys)
    return {key: key[1] if same[key[1]] == 1 else f"{key[1]} of {key[0]}" for key in keys}


def queue_rules(config: Mtl) -> list[QueueRule]:
    return [
        QueueRule(
            each.queues,
            QueueSettings(
                durable=each.durable,
                max_messages=each.messages,
                max_bytes=MAX_BYTES if each.size is None else each.size,
                by_address=each.size is None,
                max_deliveries=each.deliveries,
                dead_letters=frozenset(map(Death, each.dead_letters)),
                ttl=each.ttl or None,
                expires=each.expires or math.inf,
                single=each.single,
                duplicates=each.duplicates,
            ),
        )
        for each in config.queues
    ]


@attrs.frozen(eq=False)
class DurableQueues:
    """The queues, and the recorder that writes those that are durable. One thread keeps the order of writes.

    ``ownership`` is None for a broker that owns all queues, because it has no cluster and its own store. ``left`` are
    the messages in the store of the state directory when another one is configured.
    """

    queues: Queues
    recorder: QueueRecorder
    threads: Worker
    ownership: QueueOwnership | None
    left: LeftQueues | None = None

    @classmethod
    def open(cls, config: Mtl, context: WireContext) -> DurableQueues:
        """Restore the queues. Raises `StateError` or OSError, with nothing left open.

        Those in PostgreSQL are restored later, in the thread: its server may be away.
        """
        clock, leases = context.network.clock, context.core.leases
        full: StateFull | None = None
        rows: list[RestoredMessage] = []
        shared = _shared(config)
        store: IQueueStore
        left: LeftQueues | None = None
        if shared is not None:
            store = shared
            left = LeftQueues(context.state, clock)
        else:
            store = QueueStore(context.state, is_readable)
            try:
                rows = store.open(wall(clock))
            except StateFull as error:
                # A full disk can be read: messages are given out, and none is accepted until there is room.
                full = error
                rows = store.look(wall(clock))
            context.core.damages.add(store.found())
        threads = Worker(clock, "mtl queues")
        threads.start()
        in_thread = threads.run
        context.core.damages.include("queues", store.verify, in_thread)
        recorder = QueueRecorder(store, leases, clock, in_thread, rows, full)
        queues = Queues(
            leases,
            queue_rules(config),
            recorder,
            identity_of,
            context.core.damages.add,
            context.network.scheduler.memory,
            partial(wall, clock),
        )
        ownership: QueueOwnership | None = None
        members = context.cluster.members
        if members.clustered or shared is not None:
            ownership = QueueOwnership(
                queues, recorder, context.cluster.owners, members.name, clock, in_thread, shared, rows
            )
            # Not yet: the reactor does not run, and a cluster has not been joined.
            clock.callWhenRunning(ownership.start, not members.clustered)
        else:
            queues.restore(rows)
        return cls(queues, recorder, threads, ownership, left)

    @property
    def trouble(self) -> str:
        """Reason for which durable queues, or messages of them, are not served; empty while they are."""
        return self.recorder.trouble or (self.ownership.trouble if self.ownership is not None else "")

    def move(self) -> Deferred[tuple[int, Mapping[str, str]]]:
        """Move the messages that were left in the previous store; see `LeftQueues.move`."""
        if self.left is None or self.ownership is None:
            raise Refusal(Reason.FAILED, "there is no former store: mtl.queue_store is not configured")
        return self.left.move(self.queues, self.ownership, self.threads.run)

    def owned(self) -> Mapping[str, int]:
        """Return the counters of ownership by name."""
        return dict.fromkeys(NAMES, 0) if self.ownership is None else self.ownership.counts()

    def stop(self) -> Deferred[None]:
        """Write all messages that were accepted, and close the store. Fires when that is done, whatever the outcome."""
        if self.ownership is not None:
            self.ownership.stop()
        return maybeDeferred(self.recorder.stop)


def _shared(config: Mtl) -> ISharedQueueStore | None:
    """Return the store that several brokers share, if one is configured."""
    if config.queue_store is None:
        return None
    # Imported here: it needs psycopg, which a broker without PostgreSQL does not have.
    from broker.core.queues.postgres_store import PostgresStore

    return PostgresStore(config.queue_store, config.queue_store_password, readable=is_readable)
