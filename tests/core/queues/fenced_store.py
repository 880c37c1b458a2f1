"""A store that brokers share, in memory: the rules of `ISharedQueueStore` without a server, for many histories."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import attrs
from zope.interface import implementer

from broker.core.damage import Damage
from broker.core.model import Verified
from broker.core.queues.queue_interfaces import (
    Batch,
    Fenced,
    ISharedQueueStore,
    MessagePage,
    OutcomeUnknown,
    RestoredMessage,
)
from broker.core.queues.queue_messages import Death, living_name

PAGE = 3
"""Messages of a page: those of a history are few, and other things are to happen between two pages."""

Family = tuple[str, str]
"""Space and name of a queue, without the suffix of dead letters."""

Key = tuple[str, str, str, int]
"""Space, name and suffix of a queue, and the order of a message."""


class FencedDatabase:
    """The messages, and the epochs of their owners."""

    def __init__(self) -> None:
        self.epochs: dict[Family, int] = {}
        self.messages: dict[Key, RestoredMessage] = {}

    def bodies(self) -> set[bytes]:
        return {message.body for message in self.messages.values()}

    def orders(self, space: str, name: str) -> dict[int, int]:
        """Return the delivery counts of the messages of one queue by order."""
        family = living_name(name)
        where = (space, family, name.removeprefix(family))
        return {key[3]: message.count for key, message in self.messages.items() if key[:3] == where}


@implementer(ISharedQueueStore)
class FencedStore:
    """The store of one broker over a database."""

    def __init__(self, database: FencedDatabase) -> None:
        self._database = database
        self._epochs: dict[Family, int] = {}
        """The epochs with which this broker took its queues."""
        self._queues: dict[int, tuple[Family, str]] = {}
        """Family and suffix of each queue by number."""
        self.loses_answer = False
        """True if the connection is lost after the next transaction."""
        self.fenced = 0
        """Transactions that were refused because of a queue of another broker."""

    def __len__(self) -> int:
        """Return the number of queues that this broker's transactions have named, and not forgotten."""
        return len(self._queues)

    def owns(self, family: Family) -> bool:
        """Return True if the broker took the queue, and no other one did since."""
        return family in self._epochs and self._epochs[family] == self._database.epochs[family]

    def open(self, now: float) -> list[RestoredMessage]:
        return []

    def look(self, now: float) -> list[RestoredMessage]:
        return []

    def found(self) -> list[Damage]:
        return []

    def close(self) -> None:
        pass

    def probe(self) -> None:
        pass

    def verify(self) -> Iterator[Verified]:
        return iter(())

    def names(self) -> list[Family]:
        return sorted({key[:2] for key in self._database.messages})

    def take(self, space: str, name: str, owner: str, known: bool = False) -> int | None:
        family = (space, name)
        if known and family not in self._database.epochs:
            return None
        epoch = self._database.epochs.get(family, 0) + 1
        self._database.epochs[family] = self._epochs[family] = epoch
        return max((key[3] for key in self._database.messages if key[:2] == family), default=0)

    def read(self, space: str, name: str, after: tuple[str, int] | None) -> MessagePage:
        after = after or ("", -1)
        keys = sorted(key for key in self._database.messages if key[:2] == (space, name) and key[2:] > after)[:PAGE]
        return MessagePage([self._database.messages[key] for key in keys], keys[-1][2:] if keys else None)

    def release(self, space: str, name: str) -> None:
        self._epochs.pop((space, name), None)

    def forget(self, space: str, name: str) -> None:
        self._epochs.pop((space, name), None)

    def write(self, batch: Batch) -> None:
        loses_answer, self.loses_answer = self.loses_answer, False
        for number, space, name in batch.queues:
            family = living_name(name)
            self._queues[number] = (space, family), name.removeprefix(family)
        numbers = {row[1] for row in batch.rows} | {number for number, *_ in (*batch.counts, *batch.gone)}
        # As in PostgreSQL: a queue that was forgotten before any write of it, too.
        lost = frozenset(each for each in numbers if each not in self._queues or not self.owns(self._queues[each][0]))
        if lost:
            self.fenced += 1
            raise Fenced(lost)
        messages = self._database.messages
        for order, number, count, _, death, head, body in batch.rows:
            (space, family), suffix = self._queues[number]
            messages[space, family, suffix, order] = RestoredMessage(
                space, family + suffix, 0, order, count, inf, None if death is None else Death(death), head, bytes(body)
            )
        for number, order, count in batch.counts:
            key = self._key(number, order)
            if key in messages:
                messages[key] = attrs.evolve(messages[key], count=count)
        for number, order in batch.gone:
            messages.pop(self._key(number, order), None)
        if loses_answer:
            raise OutcomeUnknown("the connection is lost")
        for number in batch.queues_gone:
            self._queues.pop(number, None)

    def _key(self, number: int, order: int) -> Key:
        (space, family), suffix = self._queues[number]
        return space, family, suffix, order
