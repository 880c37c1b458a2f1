"""Queues of the wire, with their store and the thread that writes it."""

from __future__ import annotations

from functools import partial

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from broker.core.database import StateFull
from broker.core.queues.queues import Queues
from broker.core.queues.recorder import QueueRecorder
from broker.core.queues.store import QueueStore
from broker.wires.interface import Context
from broker.wires.mtl.config import Mtl
from broker.wires.mtl.derived_settings import queue_rules


@attrs.frozen(eq=False)
class DurableQueues:
    """The queues, and the recorder that writes those that are durable. One thread keeps the order of writes."""

    queues: Queues
    recorder: QueueRecorder
    threads: ThreadPool

    @classmethod
    def open(cls, config: Mtl, context: Context) -> DurableQueues:
        """Restore the queues. Raises `StateError` or OSError, with nothing left open."""
        clock, leases = context.clock, context.leases
        store = QueueStore(context.state)
        full: StateFull | None = None
        try:
            rows = store.open(clock.seconds())
        except StateFull as error:
            # A full disk can be read: messages are given out, and none is accepted until there is room.
            full = error
            rows = store.look(clock.seconds())
        threads = ThreadPool(0, 1, "mtl queues")
        threads.start()
        recorder = QueueRecorder(store, leases, clock, partial(deferToThreadPool, clock, threads), rows, full)
        queues = Queues(leases, queue_rules(config), recorder)
        queues.restore(rows)
        return cls(queues, recorder, threads)

    def stop(self) -> Deferred[None]:
        """Write all messages that were accepted, and close the store. Fires when that is done, whatever the outcome."""
        return maybeDeferred(self.recorder.stop)

    def end_threads(self) -> None:
        """Stop the thread."""
        self.threads.stop()
