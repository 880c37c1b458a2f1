"""Parts of a queue: messages, those that are ready or set aside, and the ids that came lately."""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from broker.core.queues.settings import Death

OVERHEAD = 400
"""Bytes that a message takes beside its own: four objects, and its places in tables."""

DUPLICATES_FOR = 120.0
"""Seconds in which a message with the same id is a duplicate: longer than clients go on trying to send one."""

MAX_REMEMBERED = 50_000
"""Ids that one queue remembers, some 15 MB: two minutes of 400 messages a second. Beyond, the oldest are forgotten."""

READY, OUT, GONE = range(3)
"""Place of a message: in the queue, with a taker, or neither."""

NOT_KEPT, WAITING, WRITING, KEPT = range(4)
"""Progress of a message on its way to the disk: it is not meant for it, it is to be written, it is being written, or it
is there."""


class Message:
    """One message. ``head`` and ``body`` are for the wire, and are empty once it is gone.

    ``queue`` is where it is. ``order`` is its place; ``count`` how often it was given out; ``deadline`` when its time
    is over. ``death`` says why it is in a queue of dead messages; of one that is gone, why it was not confirmed.
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
        "queue",
        "refused",
        "size",
        "state",
    )

    def __init__(
        self, queue: Any, order: int, head: bytes, body: Any, deadline: float = inf, death: Death | None = None
    ) -> None:
        self.queue = queue
        self.order = order
        self.head = head
        self.body = body
        self.size = len(head) + len(body) + OVERHEAD
        self.deadline = deadline
        self.death = death
        self.count = 0
        self.state = READY
        self.kept = NOT_KEPT
        self.refused = False
        """Its author was told that it is not kept, and sends it again: it must not come back."""
        self.avoid: Any = None
        """The taker that rejected it, while it is set aside."""
        self.again = 0.0
        """Until when it is set aside."""


class ReadyMessages:
    """Messages that can be given out, the oldest first. Those that are gone stay until they come to the front."""

    def __init__(self) -> None:
        self._fresh: deque[Message] = deque()
        """Those that were never given out, in their order."""
        self._returned: list[tuple[int, Message]] = []
        """Those that came back: a heap by order."""

    def __bool__(self) -> bool:
        """Return whether there is any, be it gone or not."""
        return bool(self._fresh or self._returned)

    def add(self, message: Message) -> None:
        """Take one that came after all others."""
        self._fresh.append(message)

    def put_back(self, message: Message) -> None:
        """Take back one that was given out or taken, to its place."""
        if message.count:
            heappush(self._returned, (message.order, message))
        else:
            self._fresh.appendleft(message)

    def pop(self) -> Message | None:
        """Take out the oldest one."""
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
        """The oldest one."""
        fresh, returned = self._fresh, self._returned
        while fresh and fresh[0].state != READY:
            fresh.popleft()
        while returned and returned[0][1].state != READY:
            heappop(returned)
        if returned and (not fresh or returned[0][0] < fresh[0].order):
            return returned[0][1]
        return fresh[0] if fresh else None


class AsideMessages:
    """Messages that were rejected, and wait for a while. The heaps may have entries that are over."""

    def __init__(self) -> None:
        self._messages: dict[int, Message] = {}
        self._by_order: list[int] = []
        self._by_time: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message, avoid: object, again: float) -> None:
        """Set a message aside until ``again``."""
        message.avoid = avoid
        message.again = again
        messages = self._messages
        messages[message.order] = message
        if len(self._by_time) > 2 * len(messages) + 100 or len(self._by_order) > 2 * len(messages) + 100:
            self._by_order = sorted(messages)
            self._by_time = [(each.again, order) for order, each in messages.items()]
            heapify(self._by_time)
        else:
            heappush(self._by_order, message.order)
            heappush(self._by_time, (again, message.order))

    def discard(self, message: Message) -> None:
        """It is not set aside any longer; or never was."""
        self._messages.pop(message.order, None)
        message.avoid = None

    def oldest(self) -> Message | None:
        """The one that came first of all."""
        by_order = self._by_order
        while by_order:
            message = self._messages.get(by_order[0])
            if message is not None:
                return message
            heappop(by_order)
        return None

    def over(self, now: float) -> Message | None:
        """One that has waited for long enough."""
        return self._first() if self.due() <= now else None

    def due(self) -> float:
        """When the first one has waited for long enough."""
        message = self._first()
        return inf if message is None else message.again

    def _first(self) -> Message | None:
        """The one that has to wait least."""
        by_time = self._by_time
        while by_time:
            again, order = by_time[0]
            message = self._messages.get(order)
            if message is not None and message.again == again:
                return message
            heappop(by_time)
        return None


class Ids:
    """Which messages came lately, by what their users call them. Kept as hashes, so that long ones take no more."""

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, tuple[float, Message | None]] = OrderedDict()
        """When each came, and the message where it is not safe at once."""

    def __len__(self) -> int:
        return len(self._ids)

    @staticmethod
    def key(user: str, id: str) -> bytes:
        """Return the form in which an id is kept."""
        # Users and ids are UTF-8 where they come from, and so have no surrogates; and names of users have no NUL.
        return blake2b(f"{user}\0{id}".encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def find(self, key: bytes, now: float) -> tuple[float, Message | None] | None:
        """When it came, if that was lately, and with which message."""
        known = self._ids.get(key)
        return known if known is not None and known[0] + DUPLICATES_FOR > now else None

    def add(self, key: bytes, now: float, message: Message | None, room: int) -> None:
        """Remember one. ``room`` is how many more may be remembered in all."""
        ids = self._ids
        ids.pop(key, None)
        while ids and (len(ids) >= MAX_REMEMBERED or room < 1):
            ids.popitem(last=False)
            room += 1
        if room > 0:
            ids[key] = (now, message)
            # Two for one: so those whose time is over go sooner than they came.
            for _ in range(2):
                oldest = next(iter(ids))
                if ids[oldest][0] + DUPLICATES_FOR > now:
                    break
                del ids[oldest]

    def until(self) -> float:
        """When none of them counts any more."""
        return next(reversed(self._ids.values()))[0] + DUPLICATES_FOR if self._ids else -inf
