"""All work queues: they are made by their first use, forgotten when nobody needs them, and bounded together.

Rules (those of one queue are in `broker.core.queues.queue`):
- Queues of different spaces have nothing to do with each other, whatever they are called.
- A queue of dead messages is made by the first one, whatever the number of queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases
from broker.core.queues.interfaces import MessageKeeper, QueueInfo, RestoredMessage, Taker
from broker.core.queues.messages import Message
from broker.core.queues.queue import Queue
from broker.core.queues.settings import DEAD, Death, QueueRule, settings_of

MAX_QUEUES = 10_000
"""Queues of all spaces together, but for those of dead messages: each takes some 3 KB, and is there as long as it has
messages or consumers. A farm has some hundred."""

MAX_ALL_MESSAGES = 1_000_000
"""Messages of all queues together: half a gigabyte if they are small."""

MAX_ALL_BYTES = 512 * 1024 * 1024
"""Bytes of all queues together: they are in memory, the durable ones too."""

MAX_ALL_REMEMBERED = 500_000
"""Ids that all queues remember, some 150 MB: ten busy queues' worth. When there are so many, a queue forgets one of its
own for each new one."""


class Queues:
    """All queues. ``keeper`` is where durable ones are kept; without one, none is durable."""

    def __init__(self, leases: ILeases, rules: Iterable[QueueRule] = (), keeper: MessageKeeper | None = None) -> None:
        self.leases = leases
        self.keeper = keeper
        self.messages = 0
        self.bytes = 0
        self.remembered = 0
        """Ids that are remembered."""
        self.put = 0
        self.duplicates = 0
        self.delivered = 0
        self.settled = 0
        self.returned = 0
        self.refused: Counter[str] = Counter()
        self.deaths: Counter[Death] = Counter()
        self.lost: Counter[Death] = Counter()
        """Of the deaths, those that led to no queue of dead messages."""
        self._rules = tuple(rules)
        self._order = 0
        self._queues: dict[tuple[str, str], Queue] = {}
        self._graveyards = 0

    def __len__(self) -> int:
        return len(self._queues)

    def open(self, space: str, name: str) -> Queue:
        """The queue of that name, a new one if need be. Raises `Refusal` LIMIT if there are too many."""
        queue = self._queues.get((space, name))
        if queue is None:
            if len(self._queues) - self._graveyards >= MAX_QUEUES:
                self.refused["queues"] += 1
                raise Refusal(Reason.LIMIT, f"there are {MAX_QUEUES} queues, and no more can be made")
            queue = self._make(space, name)
        return queue

    def graveyard(self, queue: Queue) -> Queue:
        """The queue of the dead messages of another one."""
        name = queue.name + DEAD
        return self._queues.get((queue.space, name)) or self._make(queue.space, name)

    def serve(self, taker: Taker) -> None:
        """A taker has room again: give it what waits for it, from each of its queues in turns."""
        parked = taker.parked
        while parked and taker.room:
            consumer = next(iter(parked))
            del parked[consumer]
            consumer.queue.resume(consumer)

    def give_back(self, messages: Iterable[Message]) -> None:
        """Take back messages whose taker is gone."""
        queues: dict[Queue, None] = {}
        for message in messages:
            queue = message.queue
            queue.give_back(message)
            queues[queue] = None
        for queue in queues:
            queue.serve()

    def restore(self, rows: Iterable[RestoredMessage]) -> None:
        """Take the messages from before a restart, by their order. To be called before anything else."""
        for row in rows:
            queue = self._queues.get((row.space, row.name)) or self._make(row.space, row.name)
            queue.restore(row)
            self._order = row.order
        for queue in self._queues.values():
            queue.serve()

    def use(self, rules: Iterable[QueueRule]) -> None:
        """Take new rules, for the queues that are there too."""
        self.leases.look()  # a reload is no quantum
        self._rules = tuple(rules)
        for queue in list(self._queues.values()):
            queue.use(settings_of(queue.name, self._rules))

    def describe(self) -> list[QueueInfo]:
        """All queues, in the order of their spaces and names."""
        return [
            QueueInfo(
                space, name, queue.messages - queue.out, queue.out, queue.bytes, len(queue.consumers),
                queue.settings.durable and self.keeper is not None,
            )
            for (space, name), queue in sorted(self._queues.items())
        ]  # fmt: skip

    def counts(self) -> Mapping[str, int]:
        """Return the counters by their names."""
        return {
            "put": self.put,
            "duplicates": self.duplicates,
            "delivered": self.delivered,
            "confirmed": self.settled,
            "returned": self.returned,
            **{f"refused.{why}": count for why, count in self.refused.items()},
            **{f"dead.{death.name.lower()}": count for death, count in self.deaths.items()},
            **{f"lost.{death.name.lower()}": count for death, count in self.lost.items()},
        }

    # from queues

    def has_room(self, size: int) -> bool:
        """Return whether there is room for one more message of that size."""
        return self.messages < MAX_ALL_MESSAGES and self.bytes + size <= MAX_ALL_BYTES

    def room_for_ids(self) -> int:
        """Return the number of ids that may still be remembered."""
        return MAX_ALL_REMEMBERED - self.remembered

    def next_order(self) -> int:
        """A place behind all that were given before."""
        self._order += 1
        return self._order

    def forget(self, queue: Queue) -> None:
        """A queue is not needed any more."""
        del self._queues[queue.space, queue.name]
        if queue.name.endswith(DEAD):
            self._graveyards -= 1
        self.remembered -= queue.close()
        if queue.number and self.keeper is not None:
            self.keeper.forget(queue)

    def _make(self, space: str, name: str) -> Queue:
        queue = self._queues[space, name] = Queue(self, space, name, settings_of(name, self._rules))
        if name.endswith(DEAD):
            self._graveyards += 1
        return queue
