"""Fixtures for queues: a manual clock, and workers under a test's control."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from twisted.internet.task import Clock

from broker.core.liveness import TICK, Leases
from broker.core.memory_budget import MemoryBudget
from broker.core.queues.consumer_ring import Consumer
from broker.core.queues.queue_interfaces import QueueInfo, RestoredMessage
from broker.core.queues.queue_messages import DEFAULTS, Death, Message, QueueRule, QueueSettings
from broker.core.queues.queue_recorder import COMMIT_SECONDS, QueueRecorder
from broker.core.queues.queues import Queues
from broker.core.queues.sqlite_store import QueueStore
from broker.core.queues.work_queue import Queue
from tests.recording.farm import CoreFarm
from tests.threads import Thread

DURABLE = QueueSettings(durable=True, dead_letters=frozenset(Death))


class Worker:
    """Receiver with a window, which may be stuck. It keeps its messages in order."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.parked: dict[Any, None] = {}
        self.room = True
        self.stuck = False
        self.tried = 0
        """Number of offers while it was stuck."""
        self.held: list[Message] = []
        self.got: list[bytes] = []

    def take(self, message: Message) -> bool:
        assert self.room
        if self.stuck:
            self.tried += 1
            self.room = False
            return False
        self.held.append(message)
        self.got.append(bytes(message.body))
        self.room = len(self.held) < self.window
        return True

    def release(self, index: int = 0) -> Message:
        """Answer a message that it has."""
        message = self.held.pop(index)
        self.room = not self.stuck and len(self.held) < self.window
        return message

    @property
    def has(self) -> list[bytes]:
        return [bytes(message.body) for message in self.held]


class QueuesFarm(CoreFarm):
    """Queues, and short methods for their operations."""

    step = TICK

    def __init__(
        self,
        settings: QueueSettings = DEFAULTS,
        keeper: Any = None,
        clock: Clock | None = None,
        leases: Leases | None = None,
    ) -> None:
        super().__init__(clock or Clock(), leases)
        self.memory = MemoryBudget()
        self.queues = Queues(
            self.leases,
            [QueueRule(("*",), settings)],
            keeper,
            identify=self.identify,
            memory=self.memory,
            wall=self.clock.seconds,
        )

    @staticmethod
    def identify(head: bytes) -> tuple[str, str | None, float]:
        """The user of a message: what is behind a colon in its head, and the time of its delivery behind an at sign."""
        head, _, due = head.partition(b"@")
        return head.partition(b":")[2].decode(), None, float(due or 0)

    def queue(self, name: str = "q") -> Queue:
        return self.queues.open("/", name)

    def put(self, *bodies: bytes, name: str = "q", **more: Any) -> None:
        for body in bodies:
            assert self.queue(name).put(b"head", body, **more)

    def consume(self, worker: Worker, name: str = "q") -> Consumer:
        return self.queue(name).join(worker)

    def confirm(self, worker: Worker, index: int = 0) -> None:
        message = worker.release(index)
        message.queue.settle(message)
        self.queues.serve(worker)

    def reject(self, worker: Worker, index: int = 0, recycle: bool = False) -> None:
        message = worker.release(index)
        if recycle:
            message.queue.recycle(message, worker)
        else:
            message.queue.reject(message)
        self.queues.serve(worker)

    def gone(self, worker: Worker, *consumers: Consumer) -> None:
        """Disconnect: give back all messages."""
        worker.room = False
        worker.stuck = True
        for consumer in consumers:
            consumer.queue.leave(consumer)
        held, worker.held = worker.held, []
        self.queues.give_back(held)

    def wait(self, seconds: float, step: float | None = None) -> None:
        """Advance the clock; then look at the leases, as the scheduler does before it serves a connection."""
        super().wait(seconds, step)
        self.leases.look()

    def info(self, name: str = "q") -> QueueInfo | None:
        return next((info for info in self.queues.describe() if info.name == name), None)

    def load(self, name: str = "q") -> tuple[int, int]:
        """Return the numbers of ready and of delivered messages of a queue."""
        info = self.info(name)
        return (0, 0) if info is None else (info.ready, info.out)

    def waiting(self, name: str = "q") -> list[bytes]:
        """Take and confirm the ready messages of a queue."""
        worker = Worker(1_000_000)
        consumer = self.consume(worker, name)
        for message in worker.held:
            message.queue.settle(message)
        self.queue(name).leave(consumer)
        return worker.got


class Author:
    """Author that records its confirms."""

    def __init__(self) -> None:
        self.safe: list[Any] = []
        self.lost: list[Any] = []

    def kept(self, tokens: Sequence[Any]) -> None:
        self.safe += tokens

    def not_kept(self, tokens: Sequence[Any]) -> None:
        self.lost += tokens


def commit(clock: Clock, thread: Thread) -> None:
    """Advance the clock past the delay of a write, and run the thread, until the recorder has written everything."""
    wait(clock)
    while thread.jobs:
        thread.work()
        wait(clock)


def wait(clock: Clock) -> None:
    """Let the collection of messages end: a look at them, and the time after which nothing has followed."""
    clock.pump((COMMIT_SECONDS, COMMIT_SECONDS))


class DurableFarm(QueuesFarm):
    """Queues over a store in ``directory``, with its content at the start."""

    def __init__(self, directory: str, settings: QueueSettings = DURABLE) -> None:
        self.directory = directory
        self.thread = Thread()
        self.store = QueueStore(directory)
        clock = Clock()
        clock.advance(1_000_000.0)
        rows = self.store.open(clock.seconds())
        leases = Leases(clock)
        self.recorder = QueueRecorder(self.store, leases, clock, self.thread, rows)
        super().__init__(settings, self.recorder, clock, leases)
        self.queues.restore(rows)
        self.author = Author()

    def send(self, *bodies: bytes, name: str = "q", **more: Any) -> None:
        """Put messages by the author; the tokens are the bodies."""
        for body in bodies:
            assert not self.queue(name).put(b"head", body, author=self.author, token=body, **more)

    def timers(self) -> list[float]:
        """Return the seconds until the recorder's next action."""
        every: Any = self.clock.getDelayedCalls()
        calls = [call for call in every if getattr(call.func, "__self__", None) is self.recorder]
        return [call.getTime() - self.clock.seconds() for call in calls]

    def commit(self) -> None:
        """Advance the clock past the delay of a write, and run the thread."""
        commit(self.clock, self.thread)

    def stored(self) -> list[RestoredMessage]:
        """Return the state that the next run would read after a kill."""
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(self.directory, copy, dirs_exist_ok=True)
            store = QueueStore(copy)
            rows = store.open(self.clock.seconds())
            store.close()
            return rows

    def bodies(self, name: str = "q") -> list[bytes]:
        """Return the messages of a queue that the next run would read."""
        return [row.body for row in self.stored() if row.name == name]
