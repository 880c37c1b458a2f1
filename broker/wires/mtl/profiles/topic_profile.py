"""The profiles "topic", publish and subscribe with topics that mc0 shares, and "test", a fan-out that keeps nothing.

Rules of "topic":
- A resource is a topic: in the virtual host that is shared with mc0, that of mc0 with the same bytes. Every other host
  has its own topics.
- A Content is fanned out to all readers that have summoned its topic at that time, once to each, including readers of
  the writer's client. Readers do not confirm it; a slow reader misses it, which its sequences show.
- A writer may choose confirmation: then a Confirm means that the Content was fanned out, perhaps to no reader.
- Towards mc0 the properties ``X-...`` are headers of the same name, where they are text, bytes or whole numbers, and
  not empty; everything else is lost. From mc0 the headers ``X-...`` are properties, as text where they are UTF-8, else
  as bytes; several frames of a body become one.
- ``user-id`` is the user of the writer, where known. The broker removes ``user-id`` and ``retained`` from Contents of
  writers.
- A Content with ``retain`` (a true Boolean) becomes the retained value of its topic: later readers are sent it first,
  with ``retained``. One with an empty body removes the retained value. Without room for it, the Content is refused for
  now, and not fanned out.
- A retained value that finds no room at its reader is owed to it: no other Content of that topic precedes it.
- Topics of the broker itself may be read, but not written to. A reader is sent the changes of services that its user
  may find.
- The number and the size of retained values are bounded. A value that finds no room is refused. None is evicted for
  another, since no client would notice the loss.

Rules of "test", the profile of RFC 11:
- There is one resource, ``resource``, in each virtual host. Contents are never confirmed.
- A Content is fanned out to all readers that have summoned the resource, with unchanged properties. It always names
  the resource.
- Nothing is stored: later readers do not get it, and slow ones miss it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence

import attrs

from broker.access.rights import RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics, StoredMemory
from broker.core.model import PublishedHeaders, is_own
from broker.net.peer_interfaces import Part, RefusalLog, Sent
from broker.wires.common.registry_topics import readers
from broker.wires.mtl.codec import data_messages, field_table
from broker.wires.mtl.codec.data_messages import Content, make_tail
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from broker.wires.mtl.sessions.profile_interface import DataFlows, Grant, ProfileReader, ProfileWriter, payer_of


@attrs.frozen
class RetainedValue:
    """A Content as it is sent: tail and body. ``payer`` is that of its writer: see `StoredMemory`."""

    tail: bytes
    body: bytes
    payer: str

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.tail) + len(self.body)


@attrs.frozen
class RetainedBounds:
    """Bounds of the last values of all virtual hosts together."""

    values: int = 10_000
    """Topics of which the last value is kept: a few for each of a thousand servers."""

    bytes: int = 64 * 1024 * 1024
    """Bytes of all those values: 6 KiB each, where last values are a line of JSON."""


class RetainedValues:
    """Retained values, by topic."""

    def __init__(self, bounds: RetainedBounds, memory: StoredMemory) -> None:
        self._bounds = bounds
        self._memory = memory
        self._values: dict[Hashable, RetainedValue] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, topic: Hashable) -> RetainedValue | None:
        """Return the retained value of a topic, or None."""
        return self._values.get(topic)

    def fits(self, topic: Hashable, size: int, payer: str) -> bool:
        """Return True if a value of that size can replace the former one of the topic."""
        bounds = self._bounds
        old = self._values.get(topic)
        grown = size - old.size if old is not None and old.payer == payer else size
        if grown > 0 and not self._memory.may_store(payer, grown):
            return False
        if old is None:
            return len(self._values) < bounds.values and self.bytes + size <= bounds.bytes
        return self.bytes - old.size + size <= bounds.bytes

    def put(self, topic: Hashable, value: RetainedValue) -> None:
        """Store a value in place of the former one. It must fit (`fits`)."""
        self.drop(topic)
        self._values[topic] = value
        self.bytes += value.size
        self._memory.store(value.payer, value.size)

    def drop(self, topic: Hashable) -> None:
        """Remove the value of a topic. No-op if it has none."""
        old = self._values.pop(topic, None)
        if old is not None:
            self.bytes -= old.size
            self._memory.store(old.payer, -old.size)


NAME = "topic"

MAX_KNOWN_SIZE = 512
"""Bytes of a cached tail: tails that repeat are short. So the cache takes 10 MB at most."""

MAX_HEADERS = 1_000
"""Header pairs that mc0 takes of one message: further properties are lost on the way to it."""


class TopicProperties(PublishedHeaders):
    """Encoded properties of a Content: the headers for mc0, and the tail for readers of MTL, here and at other brokers.

    ``kept`` is the tail of the retained value, None if the Content is not to be retained.
    """

    kept: bytes | None


@attrs.frozen
class TopicBounds:
    """Bounds of all virtual hosts together."""

    retained: RetainedBounds = attrs.field(factory=RetainedBounds)
    known: int = 1_000
    """Encoded properties in the cache: writers use the same again and again."""


_BOUNDS = TopicBounds()


class TopicProfile:
    """The profile. ``space`` returns the topics of a virtual host, to which this is an `Outlet`."""

    name = NAME
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }
    sole: str | None = None

    def __init__(
        self,
        flows: DataFlows,
        space: Callable[[str], ITopics],
        refusal_log: RefusalLog,
        memory: StoredMemory,
        bounds: TopicBounds = _BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._flows = flows
        self._space = space
        self._refusal_log = refusal_log
        self._published = 0
        self._known: dict[tuple[str, str, bytes], TopicProperties] = {}
        self._retained = RetainedValues(bounds.retained, memory)
        self._owed: dict[ProfileReader | ProfileWriter, dict[str, None]] = {}
        """Readers with the topics whose retained values they are still to be sent."""

    # leases

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if side is Side.WRITER and is_own(resource.encode()):
            raise Refusal(Reason.FORBIDDEN, "the topic is the broker's own")
        if not principal.allowed.may(side, NAME, resource):
            raise Refusal(Reason.FORBIDDEN, f"this user may not be a {side.value} of that topic")

    def prepare(self, principal: Principal, side: Side, resources: Collection[str]) -> None:
        """No-op: resources need no preparation."""

    def granted(self, grant: Grant) -> Mapping[str, str]:
        return {}

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        # Subscriptions of a reader; topics of the host of a writer.
        flow.place = {} if flow.grant.side is Side.READER else self._space(flow.grant.principal.host)

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        if flow.grant.side is Side.READER:
            self._owed.pop(flow, None)
            topics = self._space(flow.grant.principal.host)
            for topic in flow.place:
                topics.unsubscribe(topic, self, flow)

    # readers

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        host = reader.grant.principal.host
        if self._retained.get((host, resource)) is not None:
            self._owed.setdefault(reader, {})[resource] = None
            self._pay(reader, resource)
        try:
            reader.place[self._space(host).subscribe(resource.encode(), self, reader, payer_of(reader))] = None
        except Refusal:
            # The Summon has been answered by 200 already: ending the flow is the only way to report it.
            self._refusal_log.count("mtl_topics", "full")
            self._flows.end(reader, "full")

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        self._settle(reader, resource)
        topic = resource.encode()
        reader.place.pop(topic, None)
        self._space(reader.grant.principal.host).unsubscribe(topic, self, reader)

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """No-op: flows of this profile are no providers."""

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        return None

    def room(self, reader: ProfileReader) -> None:
        for resource in list(self._owed.get(reader, ())):
            if not self._pay(reader, resource):
                return

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """No-op: readers do not confirm."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """No-op: readers do not reject."""

    def _pay(self, reader: ProfileReader, resource: str) -> bool:
        """Send the retained value that is owed. Returns False if it found no room."""
        value = self._retained.get((reader.grant.principal.host, resource))
        # None: the value was removed meanwhile, so nothing is owed.
        if value is not None and reader.send(value.tail, value.body) is not Sent.SENT:
            return False
        self._settle(reader, resource)
        return True

    def _settle(self, reader: ProfileReader, resource: str) -> None:
        """Note that the retained value of that topic is not owed any more."""
        owed = self._owed.get(reader)
        if owed is not None:
            owed.pop(resource, None)
            if not owed:
                del self._owed[reader]

    # writers

    def content(self, writer: ProfileWriter, resource: str, content: data_messages.Content) -> None:
        principal = writer.grant.principal
        key = (principal.user, resource, content.table)
        properties = self._known.get(key)
        if properties is None:
            properties = self._learn(*key)
        topic = (principal.host, resource)
        kept, body, payer = properties.kept, content.body, payer_of(writer)
        if kept is not None and len(body) and not self._retained.fits(topic, len(kept) + len(body), payer):
            self._refusal_log.count("mtl_topics", "not-retained")
            writer.reject(content.sequence, recycle=True)
            return
        self._published += 1
        topics: ITopics = writer.place
        topics.publish(resource.encode(), properties, (body,))
        if kept is not None:
            # After the fan-out, which first sends the former value to readers that it is owed to.
            if len(body):
                self._retained.put(topic, RetainedValue(kept, body, payer))
            else:
                self._retained.drop(topic)
        writer.confirm(content.sequence)

    def _learn(self, user: str, resource: str, properties: bytes) -> TopicProperties:
        """Encode the properties of a writer for readers, and cache them."""
        shown = field_table.without_members(properties, "user-id", "retained")
        if user:
            shown = field_table.with_members(shown, {"user-id": user})
        learned = TopicProperties(_headers(field_table.decode(properties)))
        learned.tail = data_messages.make_tail(resource, shown)
        learned.kept = None
        if field_table.members(properties, "retain").get("retain") is True:
            learned.kept = data_messages.make_tail(resource, field_table.with_members(shown, {"retained": True}))
        if len(learned.tail) <= MAX_KNOWN_SIZE:
            if len(self._known) >= self._bounds.known:
                self._known.clear()
            self._known[user, resource, properties] = learned
        return learned

    # from the topics

    def deliver(
        self, subscribers: Collection[ProfileReader], topic: bytes, headers: Sequence[Part], body: Sequence[Part]
    ) -> None:
        """Fan out a Content."""
        subscribers = readers(subscribers, headers, _reading)
        if not subscribers:
            return
        if self._owed:
            subscribers = self._paid(subscribers, topic.decode())
            if not subscribers:
                return
        shown = headers.tail if isinstance(headers, PublishedHeaders) else b""
        tail = shown or _tail(topic, headers)
        self._flows.fan_out(subscribers, tail, body[0] if len(body) == 1 else b"".join(body))

    def _paid(self, subscribers: Collection[ProfileReader], topic: str) -> Collection[ProfileReader]:
        """Return the subscribers that were sent the retained value. The others miss the Content: order comes first."""
        paid = [each for each in subscribers if topic not in self._owed.get(each, ()) or self._pay(each, topic)]
        if len(paid) < len(subscribers):
            self._refusal_log.count("mtl_dropped", Sent.FULL.value, len(subscribers) - len(paid))
        return paid

    # for the broker

    def counts(self) -> Mapping[str, int]:
        return {
            "mtl_topics.published": self._published,
            "mtl_topics.retained": len(self._retained),
            "mtl_topics.retained-bytes": self._retained.bytes,
        }

    @property
    def known(self) -> int:
        """The number of encoded properties in the cache."""
        return len(self._known)

    @property
    def owed(self) -> int:
        """The number of readers to which a last value is still to be sent."""
        return len(self._owed)

    def close(self) -> None:
        """No-op: nothing is in progress."""


def _headers(properties: Mapping[str, field_table.Value]) -> Iterator[bytes]:
    """Yield the headers for mc0, names and values alternating, as many as mc0 accepts."""
    room = MAX_HEADERS
    for name, value in properties.items():
        if name[:2].upper() != "X-":
            continue
        if isinstance(value, str) or type(value) is int:
            value = str(value).encode()
        # An empty frame would be the end of the headers.
        if isinstance(value, bytes) and value and room:
            room -= 1
            yield from (name.encode(), value)


def _tail(topic: bytes, headers: Sequence[Part]) -> bytes:
    """Return the tail of a message of mc0 for readers of MTL, without headers if a table cannot hold them."""
    name = topic.decode()
    properties: dict[str, field_table.Value] = {}
    size = 0
    for header, value in zip(headers[::2], headers[1::2], strict=True):
        key = _text(header) if len(header) <= field_table.MAX_KEY else b""
        if isinstance(key, str) and key[:2].upper() == "X-":
            size += len(value)
            if size > field_table.MAX_TABLE:
                return data_messages.make_tail(name)
            properties[key] = _text(value)
    try:
        return data_messages.make_tail(name, field_table.encode(properties))
    except ValueError:
        return data_messages.make_tail(name)


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _reading(reader: ProfileReader) -> RegistryReading:
    return reader.grant.principal.allowed.reading


RESOURCE = "resource"

_NAMED = make_tail(RESOURCE, b"")
"""Prefix of a tail with the name. A tail without it has an empty name there, one zero byte."""


class FanOutProfile:
    """See `broker.wires.mtl.sessions.profile_interface.Profile`. ``place`` has the readers of the virtual host."""

    name = "test"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE,),
    }
    sole: str | None = RESOURCE

    def __init__(self, flows: DataFlows) -> None:
        self._flows = flows
        self._readers: dict[str, dict[ProfileReader, None]] = {}
        """Readers that have summoned the resource, by virtual host."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if resource != RESOURCE:
            raise Refusal(Reason.PARAMETER, f"the profile {self.name} has one resource, {RESOURCE}")

    def prepare(self, principal: Principal, side: Side, resources: Collection[str]) -> None:
        """No-op: resources need no preparation."""

    def granted(self, grant: Grant) -> Mapping[str, str]:
        return {}

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place = self._readers.setdefault(flow.grant.principal.host, {})

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place.pop(flow, None)

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        reader.place[reader] = None

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        del reader.place[reader]

    def heartbeat(self, flow: ProfileReader | ProfileWriter) -> None:
        """No-op: flows of this profile are no providers."""

    def provider(self, flow: ProfileReader | ProfileWriter) -> int | None:
        return None

    def room(self, reader: ProfileReader) -> None:
        """No-op: no Content waits."""

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        readers = writer.place
        if readers:
            tail = content.tail if content.resource else _NAMED + content.tail[1:]
            self._flows.fan_out(readers, tail, content.body)

    def confirmed(self, reader: ProfileReader, sequence: int, multiple: bool) -> None:
        """No-op: Contents are not confirmed."""

    def rejected(self, reader: ProfileReader, sequence: int, multiple: bool, recycle: bool) -> None:
        """No-op: Contents are not confirmed."""

    def counts(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        """No-op: nothing is stored."""
