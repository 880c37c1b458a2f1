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
- `broker.core.last_values` has the bounds of retained values. Where the broker keeps the last value of every topic,
  later readers are sent it in the same way.

Rules of "test", the profile of RFC 11:
- There is one resource, ``resource``, in each virtual host. Contents are never confirmed.
- A Content is fanned out to all readers that have summoned the resource, with unchanged properties. It always names
  the resource.
- Nothing is stored: later readers do not get it, and slow ones miss it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from broker.access.rights import RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics
from broker.core.model import PublishedHeaders, is_own
from broker.net.peer_interfaces import Part, RefusalLog, Sent
from broker.wires.common.registry_topics import readers
from broker.wires.mtl.codec import data_messages, field_table
from broker.wires.mtl.codec.data_messages import Content, make_tail
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side, no_lease
from broker.wires.mtl.sessions.profile_interface import (
    DataFlows,
    Profile,
    ProfileReader,
    ProfileWriter,
    payer_of,
)

NAME = "topic"

MAX_KNOWN_SIZE = 512
"""Bytes of a cached tail: tails that repeat are short. So the cache takes 10 MB at most."""

MAX_HEADERS = 1_000
"""Header pairs that mc0 takes of one message: further properties are lost on the way to it."""


class TopicProperties(PublishedHeaders):
    """Encoded properties of a Content: the headers for mc0, and the tail for readers of MTL, here and at other brokers.

    ``kept`` is the tail of the last value.
    """

    kept: bytes


MAX_KNOWN = 1_000
"""Encoded properties in the cache: writers use the same again and again."""


class TopicProfile(Profile):
    """The profile. ``space`` returns the topics of a virtual host, to which this is an `Outlet`.

    ``topics`` are those of one of the hosts.
    """

    name = NAME
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }

    def __init__(
        self,
        flows: DataFlows,
        space: Callable[[str], ITopics],
        refusal_log: RefusalLog,
        topics: ITopics,
    ) -> None:
        self._flows = flows
        self._space = space
        self._refusal_log = refusal_log
        self._published = 0
        self._known: dict[tuple[str, str, str, bytes], TopicProperties] = {}
        self._topics = topics
        self._owed: dict[ProfileReader | ProfileWriter, dict[str, None]] = {}
        """Readers with the topics whose retained values they are still to be sent."""

    # leases

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if side is Side.WRITER and is_own(resource.encode()):
            raise Refusal(Reason.FORBIDDEN, "the topic is the broker's own")
        if not principal.allowed.may(side, NAME, resource):
            raise no_lease(principal, side, NAME, resource)

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
        topics = self._space(reader.grant.principal.host)
        if topics.last(resource.encode()) is not None:
            self._owed.setdefault(reader, {})[resource] = None
            self._pay(reader, resource)
        try:
            reader.place[topics.subscribe(resource.encode(), self, reader, payer_of(reader))] = None
        except Refusal:
            # The Summon has been answered with 200 already: ending the flow is the only way to report it.
            self._refusal_log.count("mtl_topics", "full")
            self._flows.end(reader, "full")

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        self._settle(reader, resource)
        topic = resource.encode()
        reader.place.pop(topic, None)
        self._space(reader.grant.principal.host).unsubscribe(topic, self, reader)

    def room(self, reader: ProfileReader) -> None:
        for resource in list(self._owed.get(reader, ())):
            if not self._pay(reader, resource):
                return

    def _pay(self, reader: ProfileReader, resource: str) -> bool:
        """Send the retained value that is owed. Returns False if it found no room."""
        value = self._space(reader.grant.principal.host).last(resource.encode())
        # None: the value was removed meanwhile, so nothing is owed.
        if value is not None and reader.send(_kept(resource, value.headers), b"".join(value.body)) is not Sent.SENT:
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
        key = (principal.user, payer_of(writer), resource, content.table)
        properties = self._known.get(key)
        if properties is None:
            properties = self._learn(*key)
        topics: ITopics = writer.place
        body = content.body
        if properties.retain and len(body) and not topics.may_retain(resource.encode(), properties, len(body)):
            self._refusal_log.count("mtl_topics", "not-retained")
            writer.reject(content.sequence, recycle=True)
            return
        self._published += 1
        topics.publish(resource.encode(), properties, (body,), wire="mtl")
        writer.confirm(content.sequence)

    def _learn(self, user: str, payer: str, resource: str, properties: bytes) -> TopicProperties:
        """Encode the properties of a writer for readers, and cache them."""
        shown = field_table.without_members(properties, "user-id", "retained")
        if user:
            shown = field_table.with_members(shown, {"user-id": user})
        learned = TopicProperties(_headers(field_table.decode(properties)))
        learned.tail = data_messages.make_tail(resource, shown)
        learned.kept = data_messages.make_tail(resource, field_table.with_members(shown, {"retained": True}))
        learned.retain = field_table.members(properties, "retain").get("retain") is True
        learned.payer = payer
        if len(learned.tail) <= MAX_KNOWN_SIZE:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[user, payer, resource, properties] = learned
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
            **{f"mtl_topics.{name}": count for name, count in self._topics.counts().items()},
        }

    @property
    def known(self) -> int:
        """The number of encoded properties in the cache."""
        return len(self._known)

    @property
    def owed(self) -> int:
        """The number of readers to which a last value is still to be sent."""
        return len(self._owed)


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


def _kept(resource: str, headers: PublishedHeaders) -> bytes:
    """Return the tail of a last value."""
    if isinstance(headers, TopicProperties):
        return headers.kept
    tail = headers.tail or _tail(resource.encode(), headers)
    table = tail[len(data_messages.make_tail(resource, b"")) :]
    return data_messages.make_tail(resource, field_table.with_members(table, {"retained": True}))


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


class FanOutProfile(Profile):
    """See `broker.wires.mtl.sessions.profile_interface.Profile`. ``place`` has the readers of the virtual host."""

    name = "test"
    confirms: Mapping[Side, tuple[ConfirmMode, ...]] = {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE,),
    }
    sole = RESOURCE

    def __init__(self, flows: DataFlows) -> None:
        self._flows = flows
        self._readers: dict[str, dict[ProfileReader, None]] = {}
        """Readers that have summoned the resource, by virtual host."""

    def check(self, principal: Principal, side: Side, resource: str) -> None:
        if resource != RESOURCE:
            raise Refusal(Reason.PARAMETER, f"the profile {self.name} has one resource, {RESOURCE}")

    def joined(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place = self._readers.setdefault(flow.grant.principal.host, {})

    def left(self, flow: ProfileReader | ProfileWriter) -> None:
        flow.place.pop(flow, None)

    def summon(self, reader: ProfileReader, resource: str, body: bytes = b"") -> None:
        reader.place[reader] = None

    def dismiss(self, reader: ProfileReader, resource: str) -> None:
        del reader.place[reader]

    def content(self, writer: ProfileWriter, resource: str, content: Content) -> None:
        readers = writer.place
        if readers:
            tail = content.tail if content.resource else _NAMED + content.tail[1:]
            self._flows.fan_out(readers, tail, content.body)
