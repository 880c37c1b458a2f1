"""Who queues have to do with: those who take messages, those who send them, and where durable ones are kept.

And what goes between them: messages from before a restart, and what is known of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from broker.core.queues.messages import Message
from broker.core.queues.settings import Death


class Taker(Protocol):
    """Who messages are given to. It is hashable, and may consume several queues."""

    room: bool
    """Whether it can be given a message now. When that has become true, call `Queues.serve`."""

    parked: dict[Any, None]
    """For the queues: its consumers that wait for room."""

    def take(self, message: Any) -> bool:
        """Be given a message. False: it is not taken, and not counted as given out; ``room`` must be False then."""


class Author(Protocol):
    """Who durable messages are from, and who waits to hear what became of them."""

    def kept(self, tokens: Sequence[Any]) -> None:
        """The messages with these tokens are safe."""

    def not_kept(self, tokens: Sequence[Any]) -> None:
        """These could not be made safe, and are not in the queue any more."""


class Keeper(Protocol):
    """Where durable messages are made safe. It sets ``Message.kept``, and ``Queue.number``."""

    takes: bool
    """Whether messages can be added now."""

    def add(self, message: Message, author: Author | None, token: Any) -> None:
        """A message is to be kept. Its author is told. One without an author is tried until it succeeds."""

    def remove(self, message: Message) -> None:
        """A message is gone."""

    def amend(self, message: Message) -> None:
        """The count of a message changed."""

    def forget(self, queue: Any) -> None:
        """A queue is gone. All its messages were removed before."""


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
class Restored:
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
