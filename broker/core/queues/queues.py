"""Table of all work queues: created by first use, deleted when unused, and bounded together.

Rules (those of one queue are in `broker.core.queues.work_queue`):
- Spaces are separate namespaces of queues.
- A dead-letter queue is created by its first message, whatever the number of queues.
- In a cluster, or with a shared store, a queue is in the table only while this broker owns it (`QueueGate`), and is
  used only when all of its messages are in it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import attrs

from broker.core.damage import Damage
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases, StoredMemory
from broker.core.memory_budget import MemoryBudget
from broker.core.queues.queue_interfaces import MessageKeeper, MessageReceiver, QueueGate, QueueInfo, RestoredMessage
from broker.core.queues.queue_messages import DEAD, Death, Message, QueueRule, QueueSettings, settings_of
from broker.core.queues.work_queue import Queue

MAX_QUEUES = 10_000
"""Limit of queues of all spaces together, without dead-letter queues: each takes some 4 KB, and exists as long as it
has messages or consumers. A farm has some hundred."""

QUEUE_BYTES = 4_500
"""Bytes that a queue takes beside its messages, with a name of the greatest length."""

MAX_NAME_LENGTH = 255
"""Limit of the characters of a name, with the suffixes of dead-letter queues: that of names on the wires."""

MAX_ALL_MESSAGES = 1_000_000
"""Limit of messages in all queues together: half a gigabyte if they are small."""

MAX_ALL_BYTES = 512 * 1024 * 1024
"""Limit of bytes in all queues together: all messages are in memory, the durable ones too."""

MAX_ALL_REMEMBERED = 500_000
"""Limit of the ids that all queues remember, some 150 MB: ten busy queues' worth. At the limit a queue discards one of
its own ids for each new one."""


class Queues:
    """All queues. ``keeper`` keeps durable messages; without one, no queue is durable.

    ``identify`` returns the user in the head of a restored message, empty for a stranger, the message id, None without
    one, and the time before which it is not delivered, in seconds since the epoch; ``wall`` is the present one.
    ``report`` is called with findings of damage. ``memory`` counts what strangers store.
    """

    def __init__(
        self,
        leases: ILeases,
        rules: Iterable[QueueRule] = (),
        keeper: MessageKeeper | None = None,
        identify: Callable[[bytes], tuple[str, str | None, float]] = lambda head: ("", None, 0.0),
        report: Callable[[Iterable[Damage]], object] = lambda found: None,
        memory: StoredMemory | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.leases = leases
        self.keeper = keeper
        self.identify = identify
        self.wall = wall
        self.report = report
        self.memory = memory or MemoryBudget()
        self.gate: QueueGate | None = None
        """Ownership of queues; None where this broker owns all of them."""
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
        """Deaths that led to no dead-letter queue."""
        self._rules = tuple(rules)
        self._order = 0
        self._queues: dict[tuple[str, str], Queue] = {}
        self._dead_letter_queues = 0

    def __len__(self) -> int:
        return len(self._queues)

    def open(self, space: str, name: str, payer: str = "") -> Queue:
        """Return the queue of that name, creating it on first use; then it counts as memory of ``payer``.

        Raises `Refusal`: LIMIT if there are too many, or those of `QueueGate.admit`.
        """
        if self.gate is not None:
            self.gate.admit(space, name, payer)
        queue = self._queues.get((space, name))
        if queue is None:
            if len(self._queues) - self._dead_letter_queues >= MAX_QUEUES:
                self.refused["queues"] += 1
                raise Refusal(Reason.LIMIT, f"there are {MAX_QUEUES} queues, and no more can be made")
            self.admit(payer, QUEUE_BYTES)
            queue = self._make(space, name)
            queue.payer = payer
            self.memory.store(payer, QUEUE_BYTES)
        return queue

    def dead_letter_queue(self, queue: Queue) -> Queue:
        """Return the dead-letter queue of a queue, creating it on first use."""
        return self.restored(queue.space, queue.name + DEAD)

    def restored(self, space: str, name: str) -> Queue:
        """Return the queue of that name, creating it on first use. No limit applies: its messages are in the store, or
        were accepted, or its claim was."""
        return self._queues.get((space, name)) or self._make(space, name)

    def serve(self, receiver: MessageReceiver) -> None:
        """Deliver to a receiver that has room again, from each of its queues in turn."""
        parked = receiver.parked
        while parked and receiver.room:
            consumer = next(iter(parked))
            del parked[consumer]
            consumer.queue.resume(consumer)

    def give_back(self, messages: Iterable[Message]) -> None:
        """Take back messages whose receiver is gone."""
        queues: dict[Queue, None] = {}
        for message in messages:
            queue = message.queue
            queue.give_back(message)
            queues[queue] = None
        # Only now: a queue served in between would deliver a later message before an earlier one.
        for queue in queues:
            queue.serve()

    def restore(self, rows: Iterable[RestoredMessage]) -> None:
        """Add the messages of queues from before a restart, or of another broker, by their order in each queue.

        To be called before any other method that concerns these queues. Damaged messages become dead letters, after the
        others: their letters need orders above all that are in the store.
        """
        queues: dict[Queue, None] = {}
        damaged: Counter[tuple[str, str]] = Counter()
        for row in sorted(rows, key=lambda row: row.damaged):
            queue = self.restored(row.space, row.name)
            self._order = max(self._order, row.order)
            queue.restore(row)
            queues[queue] = None
            if row.damaged:
                damaged[row.space, row.name] += 1
        for queue in queues:
            queue.serve()
        self.report(
            Damage(
                f"queue {name!r} of {space!r}",
                f"{count} messages do not match their checksums, and are dead letters with the reason {Death.DAMAGED}",
                rows=count,
            )
            for (space, name), count in damaged.items()
        )

    def use(self, rules: Iterable[QueueRule]) -> None:
        """Apply new rules, also to existing queues."""
        self.leases.look()  # a reload runs outside of a quantum
        self._rules = tuple(rules)
        for queue in list(self._queues.values()):
            queue.use(self._settings(queue.space, queue.name))

    def is_durable(self, name: str) -> bool:
        """Return True if the rules make a queue of that name durable."""
        return self.keeper is not None and settings_of(name, self._rules).durable

    def present(self, space: str, name: str) -> Queue | None:
        """Return the queue of that name if there is one."""
        return self._queues.get((space, name))

    def family(self, space: str, name: str) -> list[Queue]:
        """Return a queue and its dead-letter queues, as far as they exist."""
        found = []
        # Names of dead-letter queues of dead-letter queues exist only if a client chose them.
        while len(name) <= MAX_NAME_LENGTH:
            queue = self._queues.get((space, name))
            if queue is not None:
                found.append(queue)
            name += DEAD
        return found

    def give_up(self, queue: Queue) -> int:
        """Remove a queue that another broker has from the table. Returns the number of messages that leave memory."""
        count = queue.give_up()
        self._remove(queue)
        return count

    def describe(self) -> list[QueueInfo]:
        """Return all queues, in the order of their spaces and names."""
        return [
            QueueInfo(
                space, name, queue.messages - queue.out, queue.out, queue.bytes, len(queue.consumers),
                queue.settings.durable and self.keeper is not None,
            )
            for (space, name), queue in sorted(self._queues.items())
        ]  # fmt: skip

    def counts(self) -> Mapping[str, int]:
        """Return the counters by name."""
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

    def admit(self, payer: str, size: int) -> None:
        """Raise `Refusal` LIMIT, and count it, unless ``size`` more bytes may be stored for an address."""
        try:
            self.memory.admit_stored(payer, size)
        except Refusal:
            self.refused["address"] += 1
            raise

    def has_room(self, size: int) -> bool:
        """Return True if there is room for one more message of that size."""
        return self.messages < MAX_ALL_MESSAGES and self.bytes + size <= MAX_ALL_BYTES

    def room_for_ids(self) -> int:
        """Return the number of ids that may still be remembered."""
        return MAX_ALL_REMEMBERED - self.remembered

    def next_order(self) -> int:
        """Return an order number higher than all before."""
        self._order += 1
        return self._order

    def pass_order(self, order: int) -> None:
        """Let all later orders be above this one, which a message that is not restored yet has."""
        self._order = max(self._order, order)

    def forget(self, queue: Queue) -> None:
        """Delete a queue that is no longer needed."""
        if queue.given_up:
            return
        self._remove(queue)
        if queue.number and self.keeper is not None:
            self.keeper.forget(queue)
        if self.gate is not None:
            self.gate.forgotten(queue)

    def _make(self, space: str, name: str) -> Queue:
        queue = self._queues[space, name] = Queue(self, space, name, self._settings(space, name))
        if name.endswith(DEAD):
            self._dead_letter_queues += 1
        if self.gate is not None:
            self.gate.made(queue)
        return queue

    def _remove(self, queue: Queue) -> None:
        """Remove a queue from the table, and its numbers from the sums."""
        del self._queues[queue.space, queue.name]
        if queue.name.endswith(DEAD):
            self._dead_letter_queues -= 1
        self.memory.store(queue.payer, -QUEUE_BYTES)
        self.remembered -= queue.close()

    def _settings(self, space: str, name: str) -> QueueSettings:
        """Return the settings of a queue. One that is claimed without the store becomes durable by its next claim."""
        settings = settings_of(name, self._rules)
        if self.gate is not None and settings.durable and not self.gate.stores(space, name):
            return attrs.evolve(settings, durable=False)
        return settings
