"""Profile "queue" of the fake broker: at-least-once delivery to one reader, with windows, redelivery and dead letters.

Rules:
- Messages go to readers with room by turns, in order. A returned message goes back to its place.
- A message that is rejected with recycle goes to another reader with room at once, else back after a
  delay that doubles.
- After `MAX_DELIVERIES` a message goes to the queue of the same name with `DEAD`.
- Expired messages are dropped when their turn comes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from broker.client.testing.profile import Profile, Refusal, by_user
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.data import Content

if TYPE_CHECKING:
    from broker.client.testing.connection import ReaderFlow, Timer, WriterFlow

DEAD = ".dead"
"""Suffix of dead-letter queues."""

MAX_NAME = 250
"""Bytes of a queue's name, without the suffix of dead letters."""

MAX_DELIVERIES = 20
"""Deliveries after which a message is a dead letter: the broker's default."""

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0
"""Bounds of the delay before a rejected message is delivered again, in seconds: the broker's."""


class Message:
    """A message of a queue."""

    def __init__(self, order: int, properties: bytes, body: bytes, expires: float | None) -> None:
        self.order = order
        self.properties = properties
        self.body = body
        self.expires = expires
        self.count = 0
        """Number of deliveries."""


class Queue:
    """A queue and its readers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: list[Message] = []
        """Messages to be delivered, by `Message.order`."""
        self.readers: list[ReaderFlow] = []
        """Readers, the next one first."""
        self.delayed: dict[Message, Timer] = {}
        """Rejected messages that wait for their next delivery."""
        self.unsettled: dict[Message, None] = {}
        """Messages that readers have."""


class Queues(Profile):
    """The profile. ``now`` returns the time in seconds. ``durable`` queues survive a restart of the broker."""

    modes: ClassVar[dict[str, tuple[str, ...]]] = {"reader": ("full", "none"), "writer": ("full", "none")}

    def __init__(self, now: Callable[[], float], durable: Collection[str]) -> None:
        self._now = now
        self._durable = frozenset(durable)
        self._queues: dict[str, Queue] = {}
        self._order = 0

    def waiting(self, name: str) -> list[bytes]:
        """Return the bodies of the messages that no reader has, in order."""
        queue = self._queue(name)
        messages = sorted([*queue.ready, *queue.delayed], key=_order)
        return [message.body for message in messages if not self._expired(message)]

    def unsettled(self, name: str) -> list[bytes]:
        """Return the bodies of the messages that readers have not answered, in order."""
        return [message.body for message in sorted(self._queue(name).unsettled, key=_order)]

    # the profile

    def check(self, side: str, resource: str) -> None:
        """Check the length of a queue's name."""
        if len(resource.removesuffix(DEAD).encode()) > MAX_NAME:
            raise Refusal(400, f"the name of a queue has more than {MAX_NAME} bytes")

    def summon(self, reader: ReaderFlow, resource: str) -> None:
        """Add a reader."""
        queue = self._queue(resource)
        queue.readers.append(reader)
        self._pump(queue)

    def dismiss(self, reader: ReaderFlow, resource: str) -> None:
        """Remove a reader, which keeps the messages that it has."""
        self._queue(resource).readers.remove(reader)

    def left(self, flow: Any) -> None:
        """Return the messages of a reader, and those that wait for the reader's reactor."""
        if flow.grant.side == "writer":
            return
        for queue in self._queues.values():
            if flow in queue.readers:
                queue.readers.remove(flow)
        flow.give_back()
        for queue in list(self._queues.values()):
            for message, timer in list(queue.delayed.items()):
                if timer in flow.connection.timers:
                    del queue.delayed[message]
                    insort(queue.ready, message, key=_order)
            self._pump(queue)

    def write(self, writer: WriterFlow, resource: str, content: Content) -> None:
        """Queue a message."""
        ttl = table.members(content.table, "ttl").get("ttl")
        # A Boolean is a number in Python.
        valid = isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl >= 0
        expires = self._now() + ttl / 1000 if valid else None  # type: ignore[operator]
        properties = by_user(writer.grant.user, content.table, "death-reason")
        self._put(self._queue(resource), properties, content.body, expires)
        writer.confirm(content.sequence)

    def remove(self, name: str) -> list[Message]:
        """Remove a queue. Returns its messages, those that readers have too."""
        queue = self._queues.pop(name, None)
        if queue is None:
            return []
        for timer in queue.delayed.values():
            timer.cancel()
        return sorted([*queue.ready, *queue.delayed, *queue.unsettled], key=_order)

    def adopt(self, name: str, messages: Sequence[Message]) -> None:
        """Add messages of another broker, behind those that are there."""
        queue = self._queue(name)
        for message in messages:
            self._order += 1
            copy = Message(self._order, message.properties, message.body, message.expires)
            copy.count = message.count
            queue.ready.append(copy)
        self._pump(queue)

    def reset(self) -> None:
        """Drop all readers, and the messages of queues that are not durable."""
        for name, queue in list(self._queues.items()):
            queue.readers.clear()
            if name not in self._durable:
                del self._queues[name]
                continue
            for timer in queue.delayed.values():
                timer.cancel()
            queue.ready = sorted([*queue.ready, *queue.delayed, *queue.unsettled], key=_order)
            queue.delayed.clear()
            queue.unsettled.clear()

    # delivery

    def _queue(self, name: str) -> Queue:
        return self._queues.setdefault(name, Queue(name))

    def _put(self, queue: Queue, properties: bytes, body: bytes, expires: float | None = None) -> None:
        self._order += 1
        queue.ready.append(Message(self._order, properties, body, expires))
        self._pump(queue)

    def _pump(self, queue: Queue) -> None:
        while queue.ready:
            if self._expired(queue.ready[0]):
                del queue.ready[0]
                continue
            reader = next((reader for reader in queue.readers if reader.room), None)
            if reader is None:
                return
            self._give(queue, queue.ready.pop(0), reader)

    def _give(self, queue: Queue, message: Message, reader: ReaderFlow) -> None:
        queue.readers.remove(reader)
        queue.readers.append(reader)
        message.count += 1
        queue.unsettled[message] = None
        properties = table.with_members(
            message.properties, {"redelivered": message.count > 1, "delivery-count": message.count}
        )
        settled = partial(self._settled, queue, message, reader)
        reader.give(queue.name, properties, message.body, settled)

    def _settled(self, queue: Queue, message: Message, reader: ReaderFlow, recycle: bool | None, gone: bool) -> None:
        """Handle the answer to a message, or the end of its reader (``gone``)."""
        queue.unsettled.pop(message, None)
        if recycle:
            if message.count >= MAX_DELIVERIES and not queue.name.endswith(DEAD):
                properties = table.with_members(message.properties, {"death-reason": "deliveries"})
                self._put(self._queue(queue.name + DEAD), properties, message.body)
            elif gone:
                insort(queue.ready, message, key=_order)
            else:
                self._deliver_again(queue, message, reader)
        for name in reader.summoned:
            self._pump(self._queue(name))

    def _deliver_again(self, queue: Queue, message: Message, avoid: ReaderFlow) -> None:
        other = next((reader for reader in queue.readers if reader.room and reader is not avoid), None)
        if other is not None:
            self._give(queue, message, other)
            return

        def again() -> None:
            # A stop of the broker in another thread may have come first.
            if queue.delayed.pop(message, None) is None:
                return
            insort(queue.ready, message, key=_order)
            self._pump(queue)

        delay = min(FIRST_DELAY * 2.0 ** (message.count - 1), LONGEST_DELAY)
        queue.delayed[message] = avoid.connection.later(delay, again)

    def _expired(self, message: Message) -> bool:
        return message.expires is not None and message.expires < self._now()


def _order(message: Message) -> int:
    return message.order
