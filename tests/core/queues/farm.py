"""Queues with a clock that tests turn, and workers that do with messages what tests say."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from twisted.internet.task import Clock

from broker.core.liveness import TICK, Leases
from broker.core.queues.consumer_turns import Consumer
from broker.core.queues.interfaces import QueueInfo, RestoredMessage
from broker.core.queues.messages import Message
from broker.core.queues.queue import Queue
from broker.core.queues.queues import Queues
from broker.core.queues.recorder import COMMIT_SECONDS, QueueRecorder
from broker.core.queues.settings import DEFAULTS, Death, QueueRule, QueueSettings
from broker.core.queues.store import QueueStore
from tests.threads import Thread

DURABLE = QueueSettings(durable=True, dead_letters=frozenset(Death))


class Worker:
    """A taker with a window, which may be stuck. It keeps what it was given, in that order."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.parked: dict[Any, None] = {}
        self.room = True
        self.stuck = False
        self.tried = 0
        """The number of offers while it was stuck."""
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
        """Answer for something that it has."""
        message = self.held.pop(index)
        self.room = not self.stuck and len(self.held) < self.window
        return message

    @property
    def has(self) -> list[bytes]:
        return [bytes(message.body) for message in self.held]


class Farm:
    """Queues, a clock, and short words for what is done with them."""

    def __init__(
        self,
        settings: QueueSettings = DEFAULTS,
        keeper: Any = None,
        clock: Clock | None = None,
        leases: Leases | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.leases = Leases(self.clock) if leases is None else leases
        self.queues = Queues(self.leases, [QueueRule(("*",), settings)], keeper)

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
        """The worker dies."""
        worker.room = False
        worker.stuck = True
        for consumer in consumers:
            consumer.queue.leave(consumer)
        held, worker.held = worker.held, []
        self.queues.give_back(held)

    def wait(self, seconds: float) -> None:
        """Let the time pass in steps of the leases'."""
        for _ in range(round(seconds / TICK)):
            self.clock.advance(TICK)
        self.leases.look()  # as the scheduler does before it serves a connection

    def info(self, name: str = "q") -> QueueInfo | None:
        return next((info for info in self.queues.describe() if info.name == name), None)

    def load(self, name: str = "q") -> tuple[int, int]:
        """The number of ready messages of a queue, and of delivered ones."""
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
    """Records the notices of its messages."""

    def __init__(self) -> None:
        self.safe: list[Any] = []
        self.lost: list[Any] = []

    def kept(self, tokens: Sequence[Any]) -> None:
        self.safe += tokens

    def not_kept(self, tokens: Sequence[Any]) -> None:
        self.lost += tokens


class DurableFarm(Farm):
    """Queues that are kept in ``directory``. It begins with what is there."""

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
        """Put messages by the author, whose tokens are the bodies."""
        for body in bodies:
            assert not self.queue(name).put(b"head", body, author=self.author, token=body, **more)

    def timers(self) -> list[float]:
        """In how many seconds the recorder will do something."""
        every: Any = self.clock.getDelayedCalls()
        calls = [call for call in every if getattr(call.func, "__self__", None) is self.recorder]
        return [call.getTime() - self.clock.seconds() for call in calls]

    def commit(self) -> None:
        """Let the time until a write pass, and the thread do its work."""
        self.clock.advance(COMMIT_SECONDS)
        while self.thread.jobs:
            self.thread.work()
            self.clock.advance(COMMIT_SECONDS)

    def stored(self) -> list[RestoredMessage]:
        """What the next run would find if this one were killed now."""
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(self.directory, copy, dirs_exist_ok=True)
            store = QueueStore(copy)
            rows = store.open(self.clock.seconds())
            store.close()
            return rows

    def bodies(self, name: str = "q") -> list[bytes]:
        """The messages of a queue that the next run would find."""
        return [row.body for row in self.stored() if row.name == name]
