"""Neighbours of queues: takers and authors of messages, the keeper of durable ones, and its store.

And what goes between them: messages from before a restart, and what is known of a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
from zope.interface import Interface

from broker.core.interfaces import ILeases
from broker.core.queues.messages import Message
from broker.core.queues.settings import Death


class Taker(Protocol):
    """Receiver of messages. It is hashable, and may consume several queues."""

    room: bool
    """True if it can be given a message now. When that has become true, call `Queues.serve`."""

    parked: dict[Any, None]
    """For the queues: its consumers that wait for room."""

    def take(self, message: Any) -> bool:
        """Be given a message. False: it is not taken, and not counted as given out; ``room`` must be False then."""


class Author(Protocol):
    """Sender of durable messages, which is told their outcome."""

    def kept(self, tokens: Sequence[Any]) -> None:
        """The messages with these tokens are safe."""

    def not_kept(self, tokens: Sequence[Any]) -> None:
        """These could not be made safe, and are not in the queue any more."""


class MessageKeeper(Protocol):
    """Keeper of durable messages. It sets ``Message.kept``, and ``Queue.number``."""

    takes: bool
    """True if messages can be added now."""

    def add(self, message: Message, author: Author | None, token: Any) -> None:
        """A message is to be kept. Its author is told. One without an author is tried until it succeeds."""

    def remove(self, message: Message) -> None:
        """A message is gone."""

    def amend(self, message: Message) -> None:
        """The count of a message changed."""

    def forget(self, queue: Any) -> None:
        """A queue is gone. All its messages were removed before."""


class QueueTable(Protocol):
    """The table that a queue is in, with the totals and bounds of all queues: `broker.core.queues.queues.Queues`."""

    leases: ILeases
    keeper: MessageKeeper | None
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

    def graveyard(self, queue: Any) -> Any:
        """Return the queue of the dead messages of a queue."""

    def has_room(self, size: int) -> bool:
        """Return whether there is room for one more message of that size."""

    def room_for_ids(self) -> int:
        """Return the number of ids that may still be remembered."""

    def next_order(self) -> int:
        """Return a place behind all that were given before."""

    def forget(self, queue: Any) -> None:
        """Remove a queue that is not needed any more."""


@attrs.frozen
class QueueInfo:
    """One queue, as it is at one moment. ``ready`` messages wait; ``out`` are given out and not confirmed."""

    space: str
    name: str
    ready: int
    out: int
    bytes: int
    consumers: int
    durable: bool


@attrs.frozen
class RestoredMessage:
    """A durable message from before a restart. ``number`` is the keeper's for its queue.

    ``seconds`` is how long its time still is; infinite for most.
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


Row = tuple[int, int, int, float | None, str | None, bytes, bytes]
"""A message: its order, the number of its queue, its count, when its time is over in seconds of the epoch (None for
never), why it died, head and body."""


@attrs.frozen
class Batch:
    """Transaction of the store. ``queues`` are numbers, spaces and names; ``counts`` orders and counts.

    ``gone`` are orders of messages that are gone, ``queues_gone`` numbers of queues. ``urgent`` says that no author
    waits for these rows: they move from one queue to another.
    """

    queues: Sequence[tuple[int, str, str]]
    rows: Sequence[Row]
    counts: Sequence[tuple[int, int]]
    gone: Sequence[int]
    queues_gone: Sequence[int]
    urgent: bool = False


class IQueueStore(Interface):
    """The durable messages of all queues, in a store of their own.

    Methods block on the disk or the network, and any thread may call them. They raise
    `broker.core.database.StateError`; then nothing has changed.
    """

    def open(now: float) -> list[RestoredMessage]:
        """Open the store, and return all messages by their order. ``now`` is in seconds of the epoch."""

    def look(now: float) -> list[RestoredMessage]:
        """Return all messages without writing, after `open` has raised `StateFull`.

        From then on, every method that writes tries to open the store first.
        """

    def write(batch: Batch) -> None:
        """Write a batch in one transaction, which is safe when this returns."""

    def probe() -> None:
        """Write something that changes nothing. Raises where a batch with new messages would."""

    def close() -> None:
        """Let go of the store. No-op when it is not open."""
