"""Queues of the wire, with their store, the thread that writes it, and their ownership."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
from twisted.internet.defer import Deferred, maybeDeferred

from broker.core.database import StateFull
from broker.core.errors import Reason, Refusal
from broker.core.queues.ownership import NAMES, QueueOwnership
from broker.core.queues.queue_interfaces import IQueueStore, ISharedQueueStore, RestoredMessage
from broker.core.queues.queue_messages import MAX_BYTES, Death, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.core.worker import Worker
from broker.wall_clock import wall
from broker.wires.interface import WireContext
from broker.wires.mtl.left_queues import LeftQueues
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.queue_profile import identity_of, is_readable


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
        """Move the messages that were left in the former store; see `LeftQueues.move`."""
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
