"""A broker of a cluster with queues, whose thread and claims a test drives."""

from __future__ import annotations

from typing import Any

from broker.core.queues.ownership import QueueOwnership
from broker.core.queues.queue_interfaces import IQueueStore, RestoredMessage
from broker.core.queues.queue_messages import Death, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import QueueRecorder
from broker.core.queues.queues import Queues
from tests.core.queues.farm import Author, QueuesFarm
from tests.core.queues.owners import Claims, Owners
from tests.threads import Thread

DURABLE = QueueSettings(durable=True, dead_letters=frozenset(Death), expires=60.0)


class Broker(QueuesFarm):
    """A broker of a cluster: queues with ownership, whose thread the test drives."""

    def __init__(self, claims: Claims, name: str, store: Any, shared: bool, settings: QueueSettings = DURABLE) -> None:
        super().__init__(settings)
        self.thread = Thread()
        self.store: IQueueStore = store
        self.clock.advance(1_000_000.0)
        rows: list[RestoredMessage] = [] if shared else store.open(self.clock.seconds())
        self.recorder = QueueRecorder(store, self.leases, self.clock, self.thread, rows)
        self.queues = Queues(self.leases, [QueueRule(("*",), settings)], self.recorder)
        self.owners = Owners(claims, name)
        self.ownership = QueueOwnership(
            self.queues, self.recorder, self.owners, name, self.clock, self.thread, store if shared else None, rows
        )
        self.lost: list[tuple[str, str]] = []
        self.ownership.lost = lambda space, name: self.lost.append((space, name))
        self.author = Author()

    def run(self) -> None:
        """Let writes become due, and the thread do everything."""
        for _ in range(20):
            self.clock.advance(0.005)
            while self.thread.jobs:
                self.thread.work()

    def ask(self, name: str = "q") -> Any:
        """Require a queue. Returns None once it is here, or the refusal."""
        ready = self.ownership.require("/", name)
        if ready is None:
            return None
        found: list[Any] = []
        ready.addCallbacks(lambda _: found.append(None), lambda failure: found.append(failure.value))
        self.run()
        assert found, "there is no answer"
        return found[0]

    def send(self, *bodies: bytes, name: str = "q", **more: Any) -> None:
        for body in bodies:
            self.queue(name).put(b"head", body, author=self.author, token=body, **more)

    def read(self, name: str = "q") -> list[bytes]:
        """Take and confirm all ready messages of a queue, and write that."""
        bodies = self.waiting(name)
        self.run()
        return bodies
