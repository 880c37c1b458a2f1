"""Topics: who is subscribed to what, and the handing over of what is published.

Rules:
- A topic is there as long as it has subscribers. Publishing to one without any leaves nothing behind.
- A message goes to those who are subscribed when its delivery begins, without those who left before it reached their
  outlet. Each outlet is called once, with all its subscribers in the order in which they came.
- One message after the other: what an outlet publishes while it delivers is delivered when the present message has
  reached all outlets, in the order of the calls.
- An entry that is being delivered is never changed in place. The first change puts a copy into the table and goes there
  with all further ones, so that publishing copies nothing and a delivery costs at most one copy.
- An outlet that fails is our defect: it is logged, and the others still get the message.
- All tables are bounded. Queues of slow subscribers are not kept here: see `Outlet`.
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
    """Bounds of one space of topics."""

    subscriptions: int = 1_000_000
    """Subscriptions in all: 100 for each of 10,000 sessions (a real node has 10 to 20). About 30 MB when full, 620 MB
    if each is to a topic of its own."""

    name_bytes: int = 64 * 1024 * 1024
    """Bytes of the names of all topics: 67 for each subscription, if all were to different topics. Real names have
    under 100, and most are shared by all nodes."""


_BOUNDS = TopicsBounds()


class _Entry:
    """A topic that has subscribers."""

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
    """See `ITopics` for what each method promises."""

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
        """The entry to change instead of this one, which is in the table: itself, if it is not being delivered."""
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
        queue = self._queue
        while queue:
            topic, headers, body = queue.popleft()
            entry = self._entries.get(topic)
            if entry is not None:
                self._deliver(entry, headers, body)
        return count

    def _deliver(self, entry: _Entry, headers: Sequence[bytes], body: Sequence[bytes]) -> int:
        """Hand a message to all outlets. Returns the number of subscribers that they were given it for."""
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
                # Not the message itself, which may hold a secret.
                self.log.failure("a {outlet} failed to deliver a message", outlet=type(outlet).__name__)
        self._delivering = None
        return count

    def _remaining(self, topic: bytes, outlet: Outlet, subscribers: Collection[Hashable]) -> Collection[Hashable]:
        """Those of the subscribers that have not left meanwhile."""
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
        """Tell whose topic it is, if it is one of the broker's own, whether it is wanted."""
        wanted = self._own.get(topic)
        if wanted is None:
            return
        try:
            wanted(on)
        except Exception:
            self.log.failure("the owner of the topic {topic} failed to take note of subscribers", topic=topic)

    # for people

    def describe(self) -> Sequence[TopicInfo]:
        return [TopicInfo(name, len(entry), entry.published) for name, entry in sorted(self._entries.items())]
