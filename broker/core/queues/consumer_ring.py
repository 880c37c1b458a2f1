"""Round-robin among the consumers of a queue.

Rules:
- Consumers with room take turns. A consumer without room is *parked* at its receiver, and is skipped until the receiver
  has room again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from broker.core.queues.queue_interfaces import MessageReceiver


class Consumer:
    """Subscription of a receiver to one queue."""

    __slots__ = ("queue", "receiver")

    def __init__(self, queue: Any, receiver: MessageReceiver) -> None:
        self.queue = queue
        self.receiver = receiver


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
        consumer.receiver.parked.pop(consumer, None)

    def serves(self, consumer: Consumer) -> bool:
        """Return True if the consumer gets messages when it has room."""
        return consumer in self._consumers or consumer in consumer.receiver.parked

    def next(self, but: MessageReceiver | None = None) -> Consumer | None:
        """Return the next consumer with room, leaving one receiver out; None if there is none."""
        consumers = self._consumers
        # At most one round: each step moves a consumer to the end or out of the ring.
        for _ in range(len(consumers)):
            consumer = next(iter(consumers))
            receiver = consumer.receiver
            if receiver.room:
                consumers.move_to_end(consumer)
                if receiver is not but:
                    return consumer
            else:
                del consumers[consumer]
                receiver.parked[consumer] = None
        return None
