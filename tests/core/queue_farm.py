"""Queues with a clock that tests turn, and workers that do with messages what tests say."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock

from broker.core.liveness import TICK, Leases
from broker.core.queue_parts import Message
from broker.core.queue_settings import DEFAULTS, Rule, Settings
from broker.core.queues import Consumer, Queue, QueueInfo, Queues


class Worker:
    """A taker with a window, which may be stuck. It keeps what it was given, in that order."""

    def __init__(self, window: int = 100) -> None:
        self.window = window
        self.parked: dict[Any, None] = {}
        self.room = True
        self.stuck = False
        self.tried = 0
        """How often it was offered something while it was stuck."""
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

    def __init__(self, settings: Settings = DEFAULTS, keeper: Any = None) -> None:
        self.clock = Clock()
        self.leases = Leases(self.clock)
        self.queues = Queues(self.leases, [Rule(("*",), settings)], keeper)

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
        """Let the time pass as a busy broker sees it."""
        for _ in range(round(seconds / TICK)):
            self.clock.advance(TICK)

    def info(self, name: str = "q") -> QueueInfo | None:
        return next((info for info in self.queues.describe() if info.name == name), None)

    def waiting(self, name: str = "q") -> list[bytes]:
        """What is ready in a queue, found out by taking it. It is confirmed by that."""
        worker = Worker(1_000_000)
        consumer = self.consume(worker, name)
        for message in worker.held:
            message.queue.settle(message)
        self.queue(name).leave(consumer)
        return worker.got
