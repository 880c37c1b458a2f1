"""Topics: subscriptions, and fan-out of published messages.

Rules:
- A topic exists as long as it has subscribers. Publishing to one without any leaves nothing behind.
- A message is delivered to the subscribers at the beginning of its delivery, except those that leave before their
  outlet is called. Each outlet is called once, with all its subscribers in the order of their subscriptions.
- Messages are delivered one after the other: a message that an outlet publishes during a delivery is queued until the
  present one has reached all outlets.
- Copy-on-write: an entry is never modified during its delivery. The first change puts a copy into the table, which
  takes all further changes, so that publishing copies nothing and a delivery costs at most one copy.
- The newest message of a topic may be kept for later subscribers, also without present ones: see
  `broker.core.last_values`.
- Other brokers are subscribers of one outlet, the *remote* one. It gets the messages that are published here, and none
  that came from another broker: so a message travels one hop. Its callback has the topics that have own
  subscribers.
- An exception in an outlet is a defect of the broker: it is logged, and the other outlets still get the message.
- All tables are bounded. Queues of slow subscribers belong to the outlets: see `Outlet`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import attrs
from twisted.logger import Logger
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics, Outlet, StoredMemory
from broker.core.last_values import LastValues, LastValuesBounds, size_of
from broker.core.memory_budget import MemoryBudget
from broker.core.model import LastValue, PublishedHeaders, TopicInfo, is_own


@attrs.frozen
class TopicsBounds:
    """Bounds of a namespace of topics."""

    subscriptions: int = 1_000_000
    """Limit of subscriptions in all: 100 for each of 10,000 sessions (a real node has 10 to 20). About 30 MB when full,
    620 MB if each is to a topic of its own."""

    name_bytes: int = 64 * 1024 * 1024
    """Limit of the names of all topics together, in bytes: 67 for each subscription, if all topics are different. Real
    names have fewer than 100, and most are shared by all nodes."""

    last: LastValuesBounds = attrs.field(factory=LastValuesBounds)
    """Bounds of the last values."""


_BOUNDS = TopicsBounds()

TOPIC_BYTES = 1_000
"""Bytes that a topic takes beside its name, with its first subscription, here and at its outlet."""


class _Entry:
    """Topic with subscribers."""

    __slots__ = ("name", "outlets", "payer", "published")

    def __init__(self, name: bytes, outlets: dict[Outlet, dict[Hashable, None]], published: int, payer: str) -> None:
        self.name = name
        self.outlets = outlets
        self.published = published
        self.payer = payer
        """The payer of the first subscription."""

    def __len__(self) -> int:
        return sum(map(len, self.outlets.values()))

    def copy(self) -> _Entry:
        outlets = {outlet: subscribers.copy() for outlet, subscribers in self.outlets.items()}
        return _Entry(self.name, outlets, self.published, self.payer)


@implementer(ITopics)
class Topics:
    """Implementation of `ITopics` in memory."""

    log = Logger()

    def __init__(
        self,
        bounds: TopicsBounds = _BOUNDS,
        memory: StoredMemory | None = None,
        last_values: LastValues | None = None,
        space: str = "",
    ) -> None:
        self._bounds = bounds
        self._memory = memory or MemoryBudget()
        self.last_values = LastValues(self._memory, bounds.last) if last_values is None else last_values
        self._space = space
        self.subscriptions = 0
        self._entries: dict[bytes, _Entry] = {}
        self._name_bytes = 0
        self._own: dict[bytes, Callable[[bool], None]] = {}
        self._delivering: _Entry | None = None
        self._changed = False
        self._queue: deque[tuple[bytes, Sequence[bytes], Sequence[bytes], Outlet | None, str, str]] = deque()
        self._remote: Outlet | None = None
        self.observer: Callable[[str, bytes, Sequence[bytes], Sequence[bytes]], None] | None = None
        """Called with the wire, topic, headers and body of each message that is published at this broker."""
        self.every: Callable[[bytes, Sequence[bytes], Sequence[bytes]], None] | None = None
        self._interest: Callable[[bytes, bool], None] = _nobody

    # subscribing

    def subscribe(self, topic: bytes, outlet: Outlet, subscriber: Hashable, payer: str = "") -> bytes:
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
            self._memory.admit_stored(payer, TOPIC_BYTES + len(topic))
            self._memory.store(payer, TOPIC_BYTES + len(topic))
            self._name_bytes += len(topic)
            self._entries[topic] = _Entry(topic, {outlet: {subscriber: None}}, 0, payer)
            self.subscriptions += 1
            self._notify_owner(topic, True)
            if outlet is not self._remote:
                self._interest(topic, True)
            return topic
        outlets = self._changeable(entry).outlets
        first = outlet not in outlets and outlet is not self._remote and self._is_remote(outlets)
        outlets.setdefault(outlet, {})[subscriber] = None
        self.subscriptions += 1
        if first:
            self._interest(topic, True)
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
        if outlet is not self._remote and (not outlets or self._is_remote(outlets)):
            self._interest(topic, False)
        if not outlets:
            del self._entries[topic]
            self._name_bytes -= len(topic)
            self._memory.store(entry.payer, -TOPIC_BYTES - len(topic))
            self._notify_owner(topic, False)

    def _changeable(self, entry: _Entry) -> _Entry:
        """Return the entry that may be changed: this one, or a copy in its place while it is being delivered."""
        if entry is not self._delivering:
            return entry
        self._changed = True
        entry = self._entries[entry.name] = entry.copy()
        return entry

    # other brokers

    def join(self, remote: Outlet, interest: Callable[[bytes, bool], None]) -> None:
        assert self._remote is None
        self._remote, self._interest = remote, interest
        for topic in self._entries:
            interest(topic, True)

    def _is_remote(self, outlets: dict[Outlet, dict[Hashable, None]]) -> bool:
        """Return True if the remote outlet is the only one."""
        return len(outlets) == 1 and self._remote in outlets

    # publishing

    def publish(
        self,
        topic: bytes,
        headers: Sequence[bytes],
        body: Sequence[bytes],
        source: Outlet | None = None,
        wire: str = "",
        payer: str = "",
    ) -> int:
        if self._delivering is not None:
            self._queue.append((topic, headers, body, source, wire, payer))
            entry = self._entries.get(topic)
            return 0 if entry is None else len(entry)
        count = self._deliver(topic, headers, body, source, wire, payer)
        # A loop over a queue, and no recursion: outlets that answer each other's messages would nest without bound.
        while self._queue:
            self._deliver(*self._queue.popleft())
        return count

    def last(self, topic: bytes) -> LastValue | None:
        return self.last_values.get((self._space, topic))

    def space(self, name: str) -> Topics:
        return Topics(self._bounds, self._memory, self.last_values, name)

    def counts(self) -> Mapping[str, int]:
        last = self.last_values
        return {"retained": len(last), "retained-bytes": last.bytes, "evicted": last.evicted}

    def may_retain(self, topic: bytes, headers: PublishedHeaders, body: int) -> bool:
        return self.last_values.fits((self._space, topic), size_of(topic, headers, body), headers.payer)

    def _deliver(
        self,
        topic: bytes,
        headers: Sequence[bytes],
        body: Sequence[bytes],
        source: Outlet | None,
        wire: str,
        payer: str,
    ) -> int:
        """Deliver a message to all outlets but its source. Returns the number of subscribers that it reaches."""
        count = 0
        retained = headers if isinstance(headers, PublishedHeaders) and headers.retain else None
        # Before the delivery, in which the queues of slow readers may take the memory that its publisher was promised.
        granted = retained is not None and self.may_retain(topic, retained, sum(map(len, body)))
        entry = self._entries.get(topic)
        if entry is not None:
            entry.published += 1
            self._delivering = entry
            self._changed = False
            subscribers: Collection[Hashable]
            for outlet, subscribers in entry.outlets.items():
                if outlet is source:
                    continue
                if self._changed:
                    subscribers = self._remaining(topic, outlet, subscribers)
                    if not subscribers:
                        continue
                count += len(subscribers)
                try:
                    outlet.deliver(subscribers, entry.name, headers, body)
                except Exception:
                    # Log the type only: the message itself may contain a secret.
                    self.log.failure("a {outlet} failed to deliver a message", outlet=type(outlet).__name__)
            self._delivering = None
        if self.observer is not None and source is None:
            self.observer(wire, topic, headers, body)
        if self.every is not None:
            self.every(topic, headers, body)
        # After the delivery, which first sends the former value to subscribers that it is owed to.
        if (retained is not None or self.last_values.every) and not is_own(topic):
            self.last_values.publish((self._space, topic), headers, body, payer, granted)
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
            self._notify_owner(topic, True)

    def _notify_owner(self, topic: bytes, on: bool) -> None:
        """Notify the owner of one of the broker's own topics of the first subscriber or of the loss of the last one."""
        wanted = self._own.get(topic)
        if wanted is None:
            return
        try:
            wanted(on)
        except Exception:
            self.log.failure("the owner of the topic {topic} failed on a change of its subscribers", topic=topic)

    # for operators

    def names(self) -> Sequence[bytes]:
        return list(self._entries)

    def info(self, topic: bytes) -> TopicInfo | None:
        entry = self._entries.get(topic)
        return None if entry is None else self._info(entry)

    def describe(self) -> Sequence[TopicInfo]:
        return [self._info(entry) for _, entry in sorted(self._entries.items())]

    def _info(self, entry: _Entry) -> TopicInfo:
        brokers = 0 if self._remote is None else len(entry.outlets.get(self._remote, ()))
        return TopicInfo(entry.name, len(entry) - brokers, entry.published, brokers)


def _nobody(topic: bytes, on: bool) -> None:
    """Take note of interest in a topic where there is no other broker."""
