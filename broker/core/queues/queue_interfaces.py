"""Interfaces of queues: receivers and authors of messages, the keeper of durable messages, and its store.

The values that they exchange are here too: restored messages, batches of the store, and descriptions of queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred
from zope.interface import Interface

from broker.core.damage import Damage
from broker.core.database import StateError, StateUnusable
from broker.core.interfaces import ILeases, StoredMemory
from broker.core.model import Verified
from broker.core.queues.queue_messages import Death, Message


class MessageReceiver(Protocol):
    """Receiver of messages. It is hashable, and may consume several queues."""

    room: bool
    """True if it can be given a message now. After a change to True, call `Queues.serve`."""

    parked: dict[Any, None]
    """For the queues' use: its consumers that wait for room."""

    def take(self, message: Any) -> bool:
        """Receive a message. False: the message is not taken, and does not count as delivered; then ``room`` must be
        False."""


class Author(Protocol):
    """Publisher of durable messages, which is notified of their outcome (publisher confirms)."""

    def kept(self, tokens: Sequence[Any]) -> None:
        """Confirm: the messages with these tokens are safe."""

    def not_kept(self, tokens: Sequence[Any]) -> None:
        """Negative confirm: these messages could not be made safe, and have been removed from the queue."""


class MessageOutcome:
    """The author of one durable message. ``known`` fires with True when the message is safe, with False if it could not
    be written."""

    def __init__(self) -> None:
        self.known: Deferred[bool] = Deferred()

    def kept(self, tokens: Sequence[Any]) -> None:
        """See `Author`."""
        self.known.callback(True)

    def not_kept(self, tokens: Sequence[Any]) -> None:
        """See `Author`."""
        self.known.callback(False)


class MessageKeeper(Protocol):
    """Keeper of durable messages. It sets ``Message.kept``, and ``Queue.number``."""

    takes: bool
    """True if messages can be added now."""

    def add(self, message: Message, author: Author | None, token: Any) -> None:
        """Keep a message, and notify its author of the outcome. A message without an author is retried until it
        succeeds."""

    def replaces(self, moved: Message, former: Message, decided: Callable[[bool], object]) -> None:
        """Let ``former`` return to its queue if that of ``moved``, which was added, is given up before the write. To be
        called before ``former`` is removed.

        ``decided`` is called with True when ``moved`` is safe, and with False if its queue was given up."""

    def remove(self, message: Message) -> None:
        """Remove a message that left its queue."""

    def amend(self, message: Message) -> None:
        """Store the changed delivery count of a message."""

    def forget(self, queue: Any) -> None:
        """Remove a deleted queue. All its messages were removed before."""


class QueueGate(Protocol):
    """Ownership of queues, as the table of queues uses it: `broker.core.queues.ownership.QueueOwnership`."""

    def admit(self, space: str, name: str, payer: str) -> None:
        """Raise `Refusal` if this broker may not use the queue now: it is not its own, or is still being loaded.

        A queue that is claimed for it counts as memory of ``payer``."""

    def stores(self, space: str, name: str) -> bool:
        """Return True if messages of the queue may be written to the store."""

    def made(self, queue: Any) -> None:
        """Record a new queue in the table."""

    def forgotten(self, queue: Any) -> None:
        """Record that a queue was deleted because it is unused."""


class QueueTable(Protocol):
    """Table of queues, with the totals and bounds of all: `broker.core.queues.queues.Queues`."""

    leases: ILeases
    keeper: MessageKeeper | None
    memory: StoredMemory
    identify: Callable[[bytes], tuple[str, str | None, float]]
    wall: Callable[[], float]
    messages: int
    bytes: int
    remembered: int
    put: int
    duplicates: int
    delivered: int
    settled: int
    returned: int
    refused: Counter[str]
    deaths: Counter[Death]
    lost: Counter[Death]

    def dead_letter_queue(self, queue: Any) -> Any:
        """Return the dead-letter queue of a queue."""

    def admit(self, payer: str, size: int) -> None:
        """Raise `Refusal` LIMIT, and count it, unless ``size`` more bytes may be stored for an address."""

    def has_room(self, size: int) -> bool:
        """Return True if there is room for one more message of that size, in bytes."""

    def room_for_ids(self) -> int:
        """Return the number of ids that may still be remembered."""

    def next_order(self) -> int:
        """Return an order number higher than all before."""

    def forget(self, queue: Any) -> None:
        """Delete a queue that is no longer needed."""


@attrs.frozen
class QueueInfo:
    """Snapshot of a queue. ``ready`` messages wait; ``out`` are delivered and not confirmed."""

    space: str
    name: str
    ready: int
    out: int
    bytes: int
    consumers: int
    durable: bool


@attrs.frozen
class RestoredMessage:
    """Durable message from before a restart. ``number`` is the keeper's number of its queue, 0 if the keeper numbers it
    later.

    ``seconds`` is its remaining TTL; infinite for most. ``damaged``: it does not match its checksum. Such a message
    becomes a dead letter, and only its head is known to be readable.
    """

    space: str
    name: str
    number: int
    order: int
    count: int
    seconds: float
    death: Death | None
    head: bytes
    body: bytes
    damaged: bool = False


Row = tuple[int, int, int, float | None, str | None, bytes, bytes]
"""Row of a message: order, number of the queue, delivery count, deadline in seconds since the epoch (None: never),
death, head and body."""


@attrs.frozen
class Batch:
    """Transaction of the store. ``queues`` are numbers, spaces and names; ``counts`` numbers of queues, orders and
    counts.

    ``gone`` are messages to delete: numbers of queues and orders. ``queues_gone`` are numbers of queues. ``urgent``: no
    author waits for these rows, which are dead letters that move from one queue to another.
    """

    queues: Sequence[tuple[int, str, str]]
    rows: Sequence[Row]
    counts: Sequence[tuple[int, int, int]]
    gone: Sequence[tuple[int, int]]
    queues_gone: Sequence[int]
    urgent: bool = False


class Fenced(StateError):
    """Another broker has taken queues: nothing of the batch was written. ``queues`` are their numbers."""

    def __init__(self, queues: frozenset[int]) -> None:
        super().__init__("another broker has taken the queue")
        self.queues = queues


class OutcomeUnknown(StateUnusable):
    """The connection to the store was lost during a write: all of the batch is written, or nothing."""


@attrs.frozen
class MessagePage:
    """Messages of a shared store, and the position of the last one; None after the end."""

    messages: Sequence[RestoredMessage]
    last: tuple[str, int] | None


MAX_ORDER = 2**53
"""Orders are below this number, which no broker reaches by counting. A damaged one must not raise the counter."""


class IQueueStore(Interface):
    """Store of the durable messages of all queues, separate from `broker.core.store.Store`.

    Methods block on the disk or the network, and any thread may call them. They raise
    `broker.core.database.StateError`; then nothing has changed. Each row carries a checksum
    (`broker.core.damage`). One that does not match is returned as `RestoredMessage.damaged`; without a readable head
    or a known queue it is set aside in the store instead.
    """

    def open(now: float) -> list[RestoredMessage]:
        """Open the store, and return all messages by their order. ``now`` is in seconds since the epoch."""

    def look(now: float) -> list[RestoredMessage]:
        """Return all messages without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the store first.
        """

    def write(batch: Batch) -> None:
        """Write a batch in one transaction, which is durable when this returns."""

    def found() -> list[Damage]:
        """Return the findings about rows that were set aside since the last call."""

    def verify() -> Iterator[Verified]:
        """Compare all rows with their checksums, and yield the result of each piece. Each piece is one bounded
        operation; nothing is changed."""

    def probe() -> None:
        """Execute a write that changes nothing. Raises if a batch with new messages would fail."""

    def close() -> None:
        """Close the store. Idempotent."""


class ISharedQueueStore(IQueueStore):
    """Store that several brokers share. Each queue, with its dead-letter queues, belongs to the broker that took it.

    `open` returns no messages. Every other method connects first if there is no connection. `write` raises `Fenced` for
    queues that another broker has taken, and `OutcomeUnknown`. Names are those without the suffix of dead letters.
    """

    def names() -> list[tuple[str, str]]:
        """Return space and name of each queue that has messages."""

    def take(space: str, name: str, owner: str, known: bool = False) -> int | None:
        """Take over a queue: writes by its former owner fail from now on. ``owner`` is for operators.

        Returns the highest order of its messages, those of dead-letter queues included; 0 without any. With ``known``,
        a queue of which the store has no record is not taken, and None is returned."""

    def read(space: str, name: str, after: tuple[str, int] | None) -> MessagePage:
        """Return the next messages of a queue that was taken, by dead-letter queue and order, after that position.

        Their ``number`` is 0."""

    def release(space: str, name: str) -> None:
        """Forget a queue that was taken, and delete its record if it is empty."""

    def forget(space: str, name: str) -> None:
        """Forget a queue that was taken, and that another broker has now."""
