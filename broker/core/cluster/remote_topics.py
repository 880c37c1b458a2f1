"""Topics of other brokers: published messages travel to the brokers that have subscribers of the topic.

Rules:
- Each broker announces to the others the topics of which it has subscribers: all of them when a link opens, then the
  changes, gathered for a turn of the reactor. An announced topic is a subscription of the remote outlet at the other
  broker, so that a message without subscribers elsewhere costs nothing.
- A subscription takes effect at another broker when it has been announced there: messages that are published there
  before are missed, as with any subscription that begins later. After the end of a link both sides announce again.
- A message travels one hop, from the broker where it was published to those with subscribers: messages from other
  brokers go to own subscribers only. Messages of one publisher arrive in order, as those of one broker do.
- A message that finds the queue of a link full is dropped for that broker, and counted. Announcements are never lost: a
  full queue ends the link.
- Topics of the broker itself do not travel: each broker publishes them itself.
- A *space* is a namespace of topics: the shared one has the name ``SHARED``, others those of virtual hosts of MTL.

Formats, in frames::

    interest   space, then names of topics, each with ``+`` or ``-`` before it
    topics     space, topic, number of headers in decimal digits, tail, headers, body

Malformed messages, and interest beyond the bounds, are ignored and counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.core.cluster.cluster_interfaces import ILinks
from broker.core.errors import Refusal
from broker.core.interfaces import ITopics
from broker.core.model import MAX_TOPIC, PublishedHeaders, is_own
from broker.core.turns import Turns

INTEREST, MESSAGES = "interest", "topics"
"""Names of the channels."""

SHARED = b""
"""Name of the space of the topics that all wires share."""

AT_ONCE = 1_000
"""Names announced to a broker in one turn of the reactor: one or two milliseconds."""

STEP = 100
"""Subscriptions of a lost broker that are removed in one step."""

BATCH_BYTES = 256 * 1024
"""Bytes of names in one announcement, which are copied and encrypted in one piece."""

_ON, _OFF = b"+", b"-"
_FIXED = 4
"""Frames of a message before its headers."""

Topic = tuple[bytes, bytes]
"""Names of a space and of a topic."""


@attrs.frozen
class InterestBounds:
    """Bounds on the topics that one broker announces, and on those that are accepted of one other broker."""

    topics: int = 100_000
    """Ten topics of its own for each of 10,000 peers; most topics are common to many. They take 30 MB when full."""

    name_bytes: int = 16 * 1024 * 1024
    """Bytes of their names: 160 for each."""


@attrs.define
class Counts:
    """Counters; see `RemoteTopics.counts`."""

    sent: int = 0
    dropped: int = 0
    received: int = 0
    malformed: int = 0
    beyond: int = 0


class _Interests:
    """Topics, within the bounds."""

    def __init__(self, bounds: InterestBounds) -> None:
        self._bounds = bounds
        self.topics: dict[Topic, None] = {}
        self._bytes = 0

    def add(self, topic: Topic) -> bool:
        """Add a topic that is not there. Returns False if there is no room."""
        size = len(topic[0]) + len(topic[1])
        if len(self.topics) >= self._bounds.topics or self._bytes + size > self._bounds.name_bytes:
            return False
        self.topics[topic] = None
        self._bytes += size
        return True

    def remove(self, topic: Topic) -> bool:
        """Remove a topic. Returns False if it is not there."""
        if topic not in self.topics:
            return False
        del self.topics[topic]
        self._bytes -= len(topic[0]) + len(topic[1])
        return True


class RemoteSubscriber:
    """Another broker, from one `up` to the next `down`: the subscriber of the remote outlets.

    ``interests`` are its topics, ``pending`` the changes that are still to be announced to it.
    """

    def __init__(self, broker: str, pending: dict[Topic, bool], bounds: InterestBounds) -> None:
        self.broker = broker
        self.alive = True
        self.pending = pending
        self.interests = _Interests(bounds)


class _Space:
    """The remote outlet of a space; see `broker.core.interfaces.Outlet`."""

    def __init__(self, name: bytes, topics: ITopics, links: ILinks, counts: Counts) -> None:
        self.name = name
        self.topics = topics
        self._links = links
        self._counts = counts

    def deliver(
        self, subscribers: Collection[RemoteSubscriber], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Send a message to other brokers."""
        tail = headers.tail if isinstance(headers, PublishedHeaders) else b""
        frames = [self.name, topic, b"%d" % len(headers), tail, *headers, *body]
        counts = self._counts
        for session in subscribers:
            if session.alive:
                if self._links.send(session.broker, MESSAGES, frames):
                    counts.sent += 1
                else:
                    counts.dropped += 1


class RemoteTopics:
    """Topics across brokers. To be made before the links are opened."""

    log = Logger()

    def __init__(self, links: ILinks, clock: IReactorTime, turns: Turns, bounds: InterestBounds | None = None) -> None:
        self._links = links
        self._clock = clock
        self._turns = turns
        self._bounds = bounds or InterestBounds()
        self._spaces: dict[bytes, _Space] = {}
        self._own = _Interests(self._bounds)
        self._sessions: dict[str, RemoteSubscriber] = {}
        self._ended: list[RemoteSubscriber] = []
        """Lost brokers whose subscriptions are still to be removed."""
        self._timer: IDelayedCall | None = None
        self._counts = Counts()
        self._warned = False
        links.serve(INTEREST, _InterestChannel(self))
        links.serve(MESSAGES, _MessageChannel(self), lossy=True)

    def join(self, space: bytes, topics: ITopics) -> None:
        """Connect the topics of a space with those of the other brokers."""
        assert space not in self._spaces
        outlet = self._spaces[space] = _Space(space, topics, self._links, self._counts)

        def interest(topic: bytes, on: bool) -> None:
            self._changed((space, topic), on)

        topics.join(outlet, interest)
        for session in self._sessions.values():
            for other, topic in list(session.interests.topics):
                if other == space:
                    self._subscribe(outlet, topic, session)

    def counts(self) -> Mapping[str, int]:
        """Return counters and gauges by name."""
        counts = self._counts
        return {
            "remote_topics.sent": counts.sent,
            "remote_topics.dropped": counts.dropped,
            "remote_topics.received": counts.received,
            "remote_topics.malformed": counts.malformed,
            "remote_topics.beyond": counts.beyond,
            "remote_topics.announced": len(self._own.topics),
            "remote_topics.wanted": sum(len(each.interests.topics) for each in self._sessions.values()),
        }

    def stop(self) -> None:
        """Stop announcing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # own interest

    def _changed(self, topic: Topic, on: bool) -> None:
        """Follow the own subscribers of a topic."""
        if is_own(topic[1]):
            return
        if not on:
            if not self._own.remove(topic):
                return
        elif len(topic[1]) > MAX_TOPIC or not self._own.add(topic):
            self._counts.beyond += 1
            if not self._warned:
                self._warned = True
                self.log.warn(
                    "topics beyond {count} of this broker, and those with more than {size} bytes, are not announced to "
                    "other brokers: their subscribers miss messages that are published there",
                    count=self._bounds.topics,
                    size=MAX_TOPIC,
                )
            return
        for session in self._sessions.values():
            if session.pending.get(topic, on) is on:
                session.pending[topic] = on
            else:
                del session.pending[topic]  # it was not announced yet
        self._soon()

    def _soon(self) -> None:
        if self._timer is None and (self._ended or any(each.pending for each in self._sessions.values())):
            self._timer = self._clock.callLater(0, self._work)

    def _work(self) -> None:
        """Announce some of the changes to each broker, and remove some subscriptions of lost ones."""
        self._timer = None
        for session in list(self._sessions.values()):
            if session.pending:
                self._announce(session)
        with self._turns:
            while self._ended:
                session = self._ended[-1]
                for topic in list(islice(session.interests.topics, STEP)):
                    self._forget(session, topic)
                if not session.interests.topics:
                    self._ended.pop()
                if self._turns.over():
                    break
        self._soon()

    def _announce(self, session: RemoteSubscriber) -> None:
        """Announce the oldest changes, within the size of one announcement for each space."""
        batches: dict[bytes, list[bytes]] = {}
        size = 0
        for topic, on in islice(session.pending.items(), AT_ONCE):
            space, name = topic
            batches.setdefault(space, [space]).append((_ON if on else _OFF) + name)
            size += len(name)
            if size > BATCH_BYTES:
                break
        for topic in list(islice(session.pending, sum(len(each) - 1 for each in batches.values()))):
            del session.pending[topic]
        for frames in batches.values():
            if not self._links.send(session.broker, INTEREST, frames):
                session.pending.clear()  # the link ends, and `up` begins again
                return

    # other brokers

    def up(self, broker: str) -> None:
        """See `broker.core.cluster.cluster_interfaces.LinkReceiver`."""
        self._sessions[broker] = RemoteSubscriber(broker, dict.fromkeys(self._own.topics, True), self._bounds)
        self._soon()

    def down(self, broker: str) -> None:
        """See `broker.core.cluster.cluster_interfaces.LinkReceiver`."""
        session = self._sessions.pop(broker, None)
        if session is not None:
            session.alive = False
            session.pending.clear()
            self._ended.append(session)
            self._soon()

    def take_interest(self, broker: str, frames: Sequence[bytes]) -> None:
        """Handle an announcement."""
        session = self._sessions.get(broker)
        if session is None or not frames:
            self._counts.malformed += 1
            return
        space = bytes(frames[0])
        for frame in frames[1:]:
            topic = space, bytes(frame[1:])
            if frame[:1] == _OFF:
                self._forget(session, topic)
            elif frame[:1] != _ON or is_own(topic[1]) or len(frame) > MAX_TOPIC + 1 or len(space) > MAX_TOPIC:
                self._counts.malformed += 1
            elif topic not in session.interests.topics:
                self._want(session, topic)

    def take_message(self, broker: str, frames: Sequence[bytes]) -> None:
        """Handle a message that was published at another broker."""
        if len(frames) < _FIXED or not frames[2].isdigit() or len(frames[2]) > 5 or is_own(frames[1]):
            self._counts.malformed += 1
            return
        end = _FIXED + int(frames[2])
        if len(frames) < end:
            self._counts.malformed += 1
            return
        space = self._spaces.get(frames[0])
        if space is not None:
            self._counts.received += 1
            headers = PublishedHeaders(frames[_FIXED:end])
            if frames[3]:
                headers.tail = frames[3]
            space.topics.publish(frames[1], headers, frames[end:], space)

    def _want(self, session: RemoteSubscriber, topic: Topic) -> None:
        if not session.interests.add(topic):
            self._counts.beyond += 1
            return
        space = self._spaces.get(topic[0])
        if space is not None and not self._subscribe(space, topic[1], session):
            session.interests.remove(topic)

    def _subscribe(self, space: _Space, topic: bytes, session: RemoteSubscriber) -> bool:
        try:
            space.topics.subscribe(topic, space, session)
        except Refusal:
            self._counts.beyond += 1
            return False
        return True

    def _forget(self, session: RemoteSubscriber, topic: Topic) -> None:
        space = self._spaces.get(topic[0])
        if session.interests.remove(topic) and space is not None:
            space.topics.unsubscribe(topic[1], space, session)


class _InterestChannel:
    """Receiver of announcements; see `broker.core.cluster.cluster_interfaces.LinkReceiver`."""

    def __init__(self, remote: RemoteTopics) -> None:
        self.up = remote.up
        self.down = remote.down
        self.receive = remote.take_interest


class _MessageChannel:
    """Receiver of published messages. The other channel follows the links."""

    def __init__(self, remote: RemoteTopics) -> None:
        self.receive = remote.take_message

    def up(self, broker: str) -> None:
        """Do nothing."""

    def down(self, broker: str) -> None:
        """Do nothing."""
