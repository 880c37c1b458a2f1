"""Whose turn it is at a queue, among its consumers.

Rules:
- Consumers with room have turns. One that turns out to have none is *parked* with its taker, and is not looked at again
  until that has some.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from broker.core.queues.interfaces import Taker


class Consumer:
    """A taker, as one queue knows it."""

    __slots__ = ("queue", "taker")

    def __init__(self, queue: Any, taker: Taker) -> None:
        self.queue = queue
        self.taker = taker


class ConsumerRing:
    """Consumers that may have room, in the order of their turns."""

    def __init__(self) -> None:
        self._consumers: OrderedDict[Consumer, None] = OrderedDict()

    def add(self, consumer: Consumer) -> None:
        """It has a turn after all others."""
        self._consumers[consumer] = None

    def discard(self, consumer: Consumer) -> None:
        """It is given nothing more, parked or not."""
        self._consumers.pop(consumer, None)
        consumer.taker.parked.pop(consumer, None)

    def serves(self, consumer: Consumer) -> bool:
        """True if it is given messages when it has room."""
        return consumer in self._consumers or consumer in consumer.taker.parked

    def next(self, but: Taker | None = None) -> Consumer | None:
        """Whose turn it is, of those that have room, leaving one taker out."""
        consumers = self._consumers
        for _ in range(len(consumers)):
            consumer = next(iter(consumers))
            taker = consumer.taker
            if taker.room:
                consumers.move_to_end(consumer)
                if taker is not but:
                    return consumer
            else:
                del consumers[consumer]
                taker.parked[consumer] = None
        return None
