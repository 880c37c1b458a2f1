"""Parts of a queue: messages, collections of ready and of delayed ones, and recent ids for deduplication.

Settings of queues, and the rules that assign them by queue name.

Rules:
- The first rule with a pattern that matches the name applies, and no other. Without a match the defaults apply.
- ``NAME.dead`` is the dead-letter queue of ``NAME``. It has the settings of ``NAME``, except that its messages neither
  expire nor die of too many deliveries, and a new one displaces the oldest.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Any

import attrs

from broker.core.interfaces import StoredMemory

DEAD = ".dead"
"""Suffix of the names of dead-letter queues."""

MAX_MESSAGES = 100_000
"""Default limit of messages in a queue: some 40 MB if they are small, and a tenth of the limit of all queues."""

MAX_BYTES = 64 * 1024 * 1024
"""Default limit of bytes in a queue: an eighth of the limit of all queues, so that a queue without readers leaves room
for the others."""

MAX_DELIVERIES = 20
"""Default limit of deliveries of a message: enough for temporary failures, and few enough that a message that crashes
its workers crashes few."""

EXPIRES = 300.0
"""Default time in seconds after which an unused queue, empty and without readers, is deleted. Its next use creates it
again, so only its memory of duplicates is lost."""


class Death(enum.StrEnum):
    """Reason for which a message leaves a queue without confirmation."""

    REJECTED = "rejected"
    """A reader rejected it without requeueing."""
    DELIVERIES = "deliveries"
    """It was delivered as often as allowed, and always returned."""
    EXPIRED = "expired"
    """Its TTL ended before a delivery."""
    TOO_MANY = "too many"
    """It was displaced by a newer message."""
    DAMAGED = "damaged"
    """It was changed in the store, after it had been written. It always becomes a dead letter."""


@attrs.frozen
class QueueSettings:
    """Settings of a queue. Times are in seconds.

    - ``durable``: its messages survive a restart.
    - ``max_messages`` and ``max_bytes`` include messages that are delivered and not confirmed.
    - ``by_address``: messages count as memory of the address of their producer, for anonymous producers. False where
      ``max_bytes`` is the operator's own bound.
    - ``max_deliveries``: 0 is any number.
    - ``dead_letters``: deaths after which a message goes to ``NAME.dead``; after other deaths it is discarded.
    - ``ttl``: upper bound, and default, of the TTL of a message; None is none.
    - ``expires``: time for which a queue that is empty and without readers is kept, which may be infinite.
    - ``single``: single active consumer. Only the consumer that came first gets messages, and the next one when it
      leaves.
    - ``duplicates``: deduplication. A message with an id that its user has sent lately is not queued again.
    - ``drop_oldest``: a new message displaces the oldest one of a full queue; otherwise it is refused.
    """

    durable: bool = False
    max_messages: int = MAX_MESSAGES
    max_bytes: int = MAX_BYTES
    by_address: bool = True
    max_deliveries: int = MAX_DELIVERIES
    dead_letters: frozenset[Death] = frozenset({Death.DELIVERIES})
    ttl: float | None = None
    expires: float = EXPIRES
    single: bool = False
    duplicates: bool = False
    drop_oldest: bool = False


@attrs.frozen
class QueueRule:
    """Settings of all queues whose name matches one of the shell patterns (``*``, ``?``, ``[...]``, case-sensitive)."""

    names: tuple[str, ...]
    settings: QueueSettings


DEFAULTS = QueueSettings()


def living_name(name: str) -> str:
    """Return the name of a queue without the suffixes of dead-letter queues: all of them have one owner."""
    while name.endswith(DEAD):
        name = name.removesuffix(DEAD)
    return name


def settings_of(name: str, rules: Iterable[QueueRule]) -> QueueSettings:
    """Return the settings of the queue of that name."""
    living = name.removesuffix(DEAD)
    settings = next((rule.settings for rule in rules if any(fnmatchcase(living, p) for p in rule.names)), DEFAULTS)
    if living == name:
        return settings
    return attrs.evolve(
        settings,
        max_deliveries=0,
        dead_letters=frozenset(),
        ttl=None,
        single=False,
        duplicates=False,
        drop_oldest=True,
    )


RESTORED = "restored"
"""The payer of messages of strangers from before a restart, whose addresses are not in the store."""

OVERHEAD = 400
"""Memory that a message takes beside its content, in bytes: four objects, and its places in tables."""

DUPLICATES_FOR = 120.0
"""Window of deduplication in seconds: longer than clients retry."""

ID_BYTES = 300
"""Bytes that a remembered id takes."""

MAX_REMEMBERED = 50_000
"""Limit of the ids that one queue keeps, some 15 MB: two minutes of 400 messages a second. Beyond it the oldest are
discarded."""

READY, OUT, GONE = range(3)
"""State of a message: in the queue, delivered to a receiver, or removed."""

NOT_KEPT, WAITING, WRITING, KEPT = range(4)
"""State of a message on its way to the disk: not durable, to be written, being written, or written."""


class Message:
    """Message of a queue. ``head`` and ``body`` belong to the wire, and are empty once the message is gone.

    ``order`` is its position in ``queue``; ``count`` the number of its deliveries; ``deadline`` the end of its TTL, in
    lifetime. ``payer`` is that of its author: see `broker.core.interfaces.StoredMemory`. ``death`` is the reason why it
    is in a dead-letter queue, or why a removed message was not confirmed.
    """

    __slots__ = (
        "again",
        "avoid",
        "body",
        "count",
        "deadline",
        "death",
        "head",
        "kept",
        "order",
        "payer",
        "queue",
        "refused",
        "size",
        "state",
        "successor",
    )

    def __init__(
        self,
        queue: Any,
        order: int,
        head: bytes,
        body: Any,
        deadline: float = inf,
        death: Death | None = None,
        payer: str = "",
    ) -> None:
        self.queue = queue
        self.order = order
        self.head = head
        self.body = body
        self.size = len(head) + len(body) + OVERHEAD
        self.deadline = deadline
        self.death = death
        self.payer = payer
        self.count = 0
        self.state = READY
        self.kept = NOT_KEPT
        self.refused = False
        """Its author got a negative confirm and sends it again: it must not return to the queue."""
        self.avoid: Any = None
        """Taker that rejected it, while it is set aside."""
        self.again = 0.0
        """Lifetime until which it is set aside or delayed."""
        self.successor: Message | None = None
        """The message that replaced it in another queue: its dead letter, or the moved one."""

    @property
    def last(self) -> Message:
        """The last of its successors; itself without one."""
        message = self
        while message.successor is not None:
            message = message.successor
        return message

    @property
    def is_confirmed(self) -> bool:
        """True if a reader has confirmed the last of its successors, or an operator has discarded that."""
        last = self.last
        return last.state == GONE and last.death is None


class ReadyMessages:
    """Deliverable messages, the oldest first. Removed messages stay until they reach the front (lazy deletion)."""

    def __init__(self) -> None:
        self._fresh: deque[Message] = deque()
        """Messages without a delivery, in their order."""
        self._returned: list[tuple[int, Message]] = []
        """Returned messages: a heap by order."""

    def __bool__(self) -> bool:
        """Return True if there are entries, removed messages included."""
        return bool(self._fresh or self._returned)

    def __iter__(self) -> Iterator[Message]:
        for message in (*(each for _, each in self._returned), *self._fresh):
            if message.state == READY:
                yield message

    def first(self, most: int) -> list[Message]:
        """Return messages among which the oldest ``most`` are: the returned ones, and the first of the others."""
        returned = [each for _, each in self._returned if each.state == READY]
        return [*returned, *islice((each for each in self._fresh if each.state == READY), most)]

    def add(self, message: Message) -> None:
        """Append a new message, or insert a restored one that is older than a dead letter here."""
        if self._fresh and self._fresh[-1].order > message.order:
            self.insert(message)
        else:
            self._fresh.append(message)

    def insert(self, message: Message) -> None:
        """Add a message that is older than others here."""
        heappush(self._returned, (message.order, message))

    def put_back(self, message: Message) -> None:
        """Return a message to its place after a delivery, or after a pop."""
        # Without a delivery it came from the front of ``_fresh``, and is older than all others there.
        if message.count:
            heappush(self._returned, (message.order, message))
        else:
            self._fresh.appendleft(message)

    def pop(self) -> Message | None:
        """Remove and return the oldest one."""
        fresh, returned = self._fresh, self._returned
        while True:
            if returned and (not fresh or returned[0][0] < fresh[0].order):
                message = heappop(returned)[1]
            elif fresh:
                message = fresh.popleft()
            else:
                return None
            if message.state == READY:
                return message

    def front(self) -> Message | None:
        """Return the oldest one."""
        fresh, returned = self._fresh, self._returned
        while fresh and fresh[0].state != READY:
            fresh.popleft()
        while returned and returned[0][1].state != READY:
            heappop(returned)
        if returned and (not fresh or returned[0][0] < fresh[0].order):
            return returned[0][1]
        return fresh[0] if fresh else None


class AsideMessages:
    """Messages until a time: rejected ones during their back-off, or delayed ones.

    The heaps may have stale entries (lazy deletion).
    """

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._by_order: list[int] = []
        self._by_time: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages.values())

    def add(self, message: Message, avoid: object, again: float) -> None:
        """Delay a message until ``again``."""
        message.avoid = avoid
        message.again = again
        messages = self._messages
        messages[message.order] = message
        # Rebuilding when most entries are stale bounds the heaps, at a constant cost for each message.
        if len(self._by_time) > 2 * len(messages) + 100 or len(self._by_order) > 2 * len(messages) + 100:
            self._by_order = sorted(messages)
            self._by_time = [(each.again, order) for order, each in messages.items()]
            heapify(self._by_time)
        else:
            heappush(self._by_order, message.order)
            heappush(self._by_time, (again, message.order))

    def discard(self, message: Message) -> None:
        """Remove a message. No-op if it is not set aside."""
        self._messages.pop(message.order, None)
        message.avoid = None

    def oldest(self) -> Message | None:
        """Return the one with the lowest order."""
        by_order = self._by_order
        while by_order:
            message = self._messages.get(by_order[0])
            if message is not None:
                return message
            heappop(by_order)
        return None

    def over(self, now: float) -> Message | None:
        """Return a message whose back-off has ended; None without one."""
        return self._first() if self.due() <= now else None

    def due(self) -> float:
        """Return the earliest end of a back-off."""
        message = self._first()
        return inf if message is None else message.again

    def _first(self) -> Message | None:
        """Return the message with the earliest end of its back-off."""
        by_time = self._by_time
        while by_time:
            again, order = by_time[0]
            message = self._messages.get(order)
            if message is not None and message.again == again:
                return message
            heappop(by_time)
        return None


class RecentIds:
    """Recent message ids of all users, for deduplication. Only hashes are kept, so that long ids take no more room.

    Each counts in ``memory`` for the payer of its message.
    """

    def __init__(self, memory: StoredMemory) -> None:
        self._memory = memory
        self._ids: OrderedDict[bytes, tuple[float, Message | None, str]] = OrderedDict()
        """Time of each id, its message if it is not safe at once, and its payer."""

    def __len__(self) -> int:
        return len(self._ids)

    @staticmethod
    def key(user: str, id: str) -> bytes:
        """Return the hash under which an id is kept."""
        # Ids are valid UTF-8 on their wires and so have no surrogates; names of users have no NUL, so the hash is
        # unambiguous.
        return blake2b(f"{user}\0{id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def find(self, key: bytes, now: float) -> tuple[float, Message | None] | None:
        """Return the time and the message of an id within the window, None if there is none."""
        known = self._ids.get(key)
        return known[:2] if known is not None and known[0] + DUPLICATES_FOR > now else None

    def add(self, key: bytes, now: float, message: Message | None, room: int, payer: str = "") -> None:
        """Remember an id. ``room`` is the number of further ids that may be remembered in all."""
        ids = self._ids
        if key in ids:
            self._forget(key)
        while ids and (len(ids) >= MAX_REMEMBERED or room < 1):
            self._forget(next(iter(ids)))
            room += 1
        if room > 0:
            ids[key] = (now, message, payer)
            self._memory.store(payer, ID_BYTES)
            # Two removals for each addition, so that expired ids go faster than new ones come.
            for _ in range(2):
                oldest = next(iter(ids))
                if ids[oldest][0] + DUPLICATES_FOR > now:
                    break
                self._forget(oldest)

    def clear(self) -> int:
        """Forget all ids. Returns how many there were."""
        count = len(self._ids)
        for payer, ids in Counter(payer for _, _, payer in self._ids.values()).items():
            self._memory.store(payer, -ids * ID_BYTES)
        self._ids.clear()
        return count

    def _forget(self, key: bytes) -> None:
        self._memory.store(self._ids.pop(key)[2], -ID_BYTES)

    def until(self) -> float:
        """Return the end of the window of the newest id; minus infinity without ids."""
        return next(reversed(self._ids.values()))[0] + DUPLICATES_FOR if self._ids else -inf
