"""Topics: subscriptions, and fan-out of published messages.

Rules:
- A topic exists as long as it has subscribers. Publishing to one without any leaves nothing behind.
- A message is delivered to the subscribers at the beginning of its delivery, except those that leave before their
  outlet is called. Each outlet is called once, with all its subscribers in the order of their subscriptions.
- Messages are delivered one after the other: a message that an outlet publishes during a delivery is queued until the
  present one has reached all outlets.
- Copy-on-write: an entry is never modified during its delivery. The first change puts a copy into the table, which
  takes all further changes, so that publishing copies nothing and a delivery costs at most one copy.
- An exception in an outlet is a defect of the broker: it is logged, and the other outlets still get the message.
- All tables are bounded. Queues of slow subscribers belong to the outlets: see `Outlet`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics, Outlet
from broker.core.model import TopicInfo, is_own


@attrs.frozen
class TopicsBounds:
    """Bounds of a namespace of topics."""

    subscriptions: int = 1_000_000
    """Limit of subscriptions in all: 100 for each of 10,000 sessions (a real node has 10 to 20). About 30 MB when full,
    620 MB if each is to a topic of its own."""

    name_bytes: int = 64 * 1024 * 1024
    """Limit of the names of all topics together, in bytes: 67 for each subscription, if all topics are different. Real
    names have fewer than 100, and most are shared by all nodes."""


_BOUNDS = TopicsBounds()


class _Entry:
    """Topic with subscribers."""

    __slots__ = ("name", "outlets", "published")

    def __init__(self, name: bytes, outlets: dict[Outlet, dict[Hashable, None]], published: int) -> None:
        self.name = name
        self.outlets = outlets
        self.published = published

    def __len__(self) -> int:
        return sum(map(len, self.outlets.values()))

    def copy(self) -> _Entry:
        outlets = {outlet: subscribers.copy() for outlet, subscribers in self.outlets.items()}
        return _Entry(self.name, outlets, self.published)


@implementer(ITopics)
class Topics:
    """Implementation of `ITopics` in memory."""

    log = Logger()

    def __init__(self, bounds: TopicsBounds = _BOUNDS) -> None:
        self._bounds = bounds
        self.subscriptions = 0
        self._entries: dict[bytes, _Entry] = {}
        self._name_bytes = 0
        self._own: dict[bytes, Callable[[bool], None]] = {}
        self._delivering: _Entry | None = None
        self._changed = False
        self._queue: deque[tuple[bytes, Sequence[bytes], Sequence[bytes]]] = deque()

    # subscribing

    def subscribe(self, topic: bytes, outlet: Outlet, subscriber: Hashable) -> bytes:
        entry = self._entries.get(topic)
        if entry is not None and subscriber in entry.outlets.get(outlet, ()):
            return entry.name
        if self.subscriptions >= self._bounds.subscriptions:
            most = self._bounds.subscriptions
            raise Refusal(Reason.LIMIT, f"the broker holds {most} subscriptions, and takes no more")
        if entry is None:
            if self._name_bytes + len(topic) > self._bounds.name_bytes:
                most = self._bounds.name_bytes
                raise Refusal(Reason.LIMIT, f"the names of all topics may have {most} bytes, and no more")
            self._name_bytes += len(topic)
            self._entries[topic] = _Entry(topic, {outlet: {subscriber: None}}, 0)
            self.subscriptions += 1
            self._tell_owner(topic, True)
            return topic
        self._changeable(entry).outlets.setdefault(outlet, {})[subscriber] = None
        self.subscriptions += 1
        return entry.name

    def unsubscribe(self, topic: bytes, outlet: Outlet, subscriber: Hashable) -> None:
        entry = self._entries.get(topic)
        if entry is None or subscriber not in entry.outlets.get(outlet, ()):
            return
        outlets = self._changeable(entry).outlets
        subscribers = outlets[outlet]
        del subscribers[subscriber]
        self.subscriptions -= 1
        if subscribers:
            return
        del outlets[outlet]
        if not outlets:
            del self._entries[topic]
            self._name_bytes -= len(topic)
            self._tell_owner(topic, False)

    def _changeable(self, entry: _Entry) -> _Entry:
        """Return the entry that may be changed: this one, or a copy in its place while it is being delivered."""
        if entry is not self._delivering:
            return entry
        self._changed = True
        entry = self._entries[entry.name] = entry.copy()
        return entry

    # publishing

    def publish(self, topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> int:
        entry = self._entries.get(topic)
        if self._delivering is not None:
            self._queue.append((topic, headers, body))
            return 0 if entry is None else len(entry)
        if entry is None:
            return 0
        count = self._deliver(entry, headers, body)
        # A loop over a queue, and no recursion: outlets that answer each other's messages would nest without bound.
        queue = self._queue
        while queue:
            topic, headers, body = queue.popleft()
            entry = self._entries.get(topic)
            if entry is not None:
                self._deliver(entry, headers, body)
        return count

    def _deliver(self, entry: _Entry, headers: Sequence[bytes], body: Sequence[bytes]) -> int:
        """Deliver a message to all outlets. Returns the number of subscribers it was handed over for."""
        entry.published += 1
        self._delivering = entry
        self._changed = False
        count = 0
        subscribers: Collection[Hashable]
        for outlet, subscribers in entry.outlets.items():
            if self._changed:
                subscribers = self._remaining(entry.name, outlet, subscribers)
                if not subscribers:
                    continue
            count += len(subscribers)
            try:
                outlet.deliver(subscribers, entry.name, headers, body)
            except Exception:
                # Log the type only: the message itself may contain a secret.
                self.log.failure("a {outlet} failed to deliver a message", outlet=type(outlet).__name__)
        self._delivering = None
        return count

    def _remaining(self, topic: bytes, outlet: Outlet, subscribers: Collection[Hashable]) -> Collection[Hashable]:
        """Return the subscribers that have not left since the delivery began."""
        entry = self._entries.get(topic)
        now = entry.outlets.get(outlet, {}) if entry is not None else {}
        return [subscriber for subscriber in subscribers if subscriber in now]

    # the broker's own topics

    def own(self, topic: bytes, wanted: Callable[[bool], None]) -> None:
        assert is_own(topic)
        assert topic not in self._own
        self._own[topic] = wanted
        if topic in self._entries:
            self._tell_owner(topic, True)

    def _tell_owner(self, topic: bytes, on: bool) -> None:
        """Notify the owner of one of the broker's own topics of the first subscriber or of the loss of the last one."""
        wanted = self._own.get(topic)
        if wanted is None:
            return
        try:
            wanted(on)
        except Exception:
            self.log.failure("the owner of the topic {topic} failed to take note of subscribers", topic=topic)

    # for operators

    def names(self) -> Sequence[bytes]:
        return list(self._entries)

    def info(self, topic: bytes) -> TopicInfo | None:
        entry = self._entries.get(topic)
        return None if entry is None else TopicInfo(topic, len(entry), entry.published)

    def describe(self) -> Sequence[TopicInfo]:
        return [TopicInfo(name, len(entry), entry.published) for name, entry in sorted(self._entries.items())]
