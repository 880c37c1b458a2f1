"""Round-robin among the consumers of a queue.

Rules:
- Consumers with room take turns. A consumer without room is *parked* at its taker, and is skipped until the taker has
  room again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from broker.core.queues.interfaces import Taker


class Consumer:
    """Subscription of a taker to one queue."""

    __slots__ = ("queue", "taker")

    def __init__(self, queue: Any, taker: Taker) -> None:
        self.queue = queue
        self.taker = taker


class ConsumerRing:
    """Round-robin ring of the consumers that may have room."""

    def __init__(self) -> None:
        self._consumers: OrderedDict[Consumer, None] = OrderedDict()

    def add(self, consumer: Consumer) -> None:
        """Add a consumer at the end of the ring."""
        self._consumers[consumer] = None

    def discard(self, consumer: Consumer) -> None:
        """Remove a consumer from the ring or from the parked ones."""
        self._consumers.pop(consumer, None)
        consumer.taker.parked.pop(consumer, None)

    def serves(self, consumer: Consumer) -> bool:
        """Return whether the consumer gets messages when it has room."""
        return consumer in self._consumers or consumer in consumer.taker.parked

    def next(self, but: Taker | None = None) -> Consumer | None:
        """Return the next consumer with room, leaving one taker out; None if there is none."""
        consumers = self._consumers
        # At most one round: each step moves a consumer to the end or out of the ring.
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
