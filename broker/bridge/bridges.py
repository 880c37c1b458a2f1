"""The bridges of this broker: what each sends and receives over its link, and its state for operators.

The links are those of `broker.cluster.links`, between this broker and one of each other site. Channels::

    bridge     WANTED, and the services that the sender receives and the topics, as JSON; AGAIN, to which all services
               are the answer; the messages of `exports`
    messages   topic, path, tail, number of headers in decimal digits, headers, body

Rules:
- Both sides say first what they receive; only that is sent, and only what the patterns of the sender permit. Rights
  hold besides: those of the user of the other broker's key, `find` and `subscribe` for what is sent, `offer` and
  `publish` for what is received. A change of them ends the link, which opens again.
- A message travels whether it has subscribers or not. The path of each is in a header, and a message that arrives on
  two ways is published once: by the first way that permits it, and has room for it.
- Malformed messages end the link.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import attrs
import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from zope.interface import implementer

from broker.access.principal import Access, Principal
from broker.access.rights import TOPIC, Grants, NameSet
from broker.bridge import exports, paths
from broker.bridge.exports import Exports
from broker.bridge.imports import Imports, Source
from broker.bridge.paths import Path
from broker.cluster import layout
from broker.cluster.links.link_messages import LinkState, Neighbour
from broker.cluster.links.links import Links
from broker.config.bridge_settings import Bridges as Config
from broker.config.bridge_settings import BridgeTo
from broker.core.cluster.cluster_interfaces import INeighbours, Member
from broker.core.errors import Malformed, Reason
from broker.core.interfaces import IRegistry, ITopics, IWait
from broker.core.model import MAX_TOPIC, Change, LoadDetails, NotReady, PublishedHeaders, Service, is_own
from broker.core.rates import Bucket
from broker.core.turns import Turns
from broker.wires.tables import Counter, Row

LISTENER = "bridges"
"""Title of the listener, in rights."""

STATE, MESSAGES = "bridge", "messages"
"""Names of the channels."""

WANTED, AGAIN = b"WANTED", b"AGAIN"

MAX_WANTED = 100
"""Patterns of services, and of topics, that the other side may state."""

RECENT = 10_000
"""Messages whose origins are remembered, to publish each once: ten seconds of a bridge at the default rate."""

KNOWN = 10_000
"""Topics for which a bridge remembers whether they travel."""

_FIXED = 4
"""Frames of a message before its headers."""


class Wanted(msgspec.Struct):
    """Patterns of the names of services, and of topics, that a side receives."""

    services: list[str] = []
    topics: list[str] = []


@attrs.frozen
class Selection:
    """Names of services and topics that one side sends or receives."""

    services: NameSet
    topics: NameSet

    @classmethod
    def of(cls, services: Iterable[str], topics: Iterable[str]) -> Self:
        """Return the selection by shell patterns."""
        return cls(NameSet(frozenset(services)), NameSet(frozenset(topics)))


class Bridge:
    """The bridge to one other site. ``grants`` returns the present rights of its user."""

    def __init__(self, bridges: Bridges, config: BridgeTo, grants: Callable[[], Grants]) -> None:
        self.config = config
        self.grants_now = grants
        self.grants = grants()
        self._bridges = bridges
        self._wanted: Selection | None = None
        self._sends = Selection.of(config.send_services, config.send_topics)
        self._receives = Selection.of(config.receive_services, config.receive_topics)
        self._topics: dict[bytes, bool] = {}
        now = bridges.clock.seconds()
        self._sent_rate, self._received_rate = Bucket(config.rate, now), Bucket(config.rate, now)
        self.source = Source(config, self._may_offer, lambda: self._send_state([AGAIN]))
        self.exports = Exports(
            bridges.site, config.name, bridges.registry, bridges.clock, self._travels, self._send_state
        )
        self.sent = self.received = self.dropped = 0
        self.looped = 0

    # the link

    def up(self, address: str) -> None:
        """Say what this side receives."""
        self.grants = self.grants_now()
        self.source.address = address
        self.source.error = ""
        wanted = Wanted(list(self.config.receive_services), list(self.config.receive_topics))
        self._send_state([WANTED, msgspec.json.encode(wanted)])
        self._bridges.imports.expire_later(self.source)

    def down(self) -> None:
        """Handle the end of the link."""
        self._wanted = None
        # The rights may be others when the link opens again.
        self._topics.clear()
        self.exports.end()
        self._bridges.imports.lose(self.source)

    def take(self, frames: Sequence[bytes]) -> None:
        """Handle a message about services. Raises `Malformed`; unknown ones are ignored: a newer broker may send
        some."""
        word, imports = bytes(frames[0]) if frames else b"", self._bridges.imports
        if word == WANTED and len(frames) > 1:
            self._take_wanted(bytes(frames[1]))
        elif word == AGAIN:
            self.exports.repeat()
        elif word == exports.SERVICES:
            imports.take(self.source, frames[1:])
        elif word == exports.GONE:
            imports.withdraw(self.source, frames[1:])
        elif word == exports.LOADS and len(frames) > 1:
            try:
                imports.loaded(self.source, layout.loads(bytes(frames[1])))
            except layout.Foreign as error:
                raise Malformed(Reason.SYNTAX, f"loads are malformed: {error}") from None

    def _take_wanted(self, text: bytes) -> None:
        try:
            wanted = msgspec.json.decode(text, type=Wanted)
        except (ValueError, RecursionError) as error:
            raise Malformed(Reason.SYNTAX, f"WANTED is malformed: {error}") from None
        if max(len(wanted.services), len(wanted.topics)) > MAX_WANTED:
            raise Malformed(Reason.LIMIT, f"WANTED has more than {MAX_WANTED} patterns")
        self._wanted = Selection.of(wanted.services, wanted.topics)
        self._topics.clear()
        self.exports.begin()

    def _send_state(self, frames: Sequence[bytes]) -> bool:
        return self._bridges.links.send(self.config.name, STATE, frames)

    # services

    def _travels(self, name: str) -> bool:
        wanted = self._wanted
        return (
            wanted is not None
            and name in self._sends.services
            and name in wanted.services
            and self.grants.may("find", name)
        )

    def _may_offer(self, name: str) -> bool:
        return name in self._receives.services and self.grants.may("offer", self.config.prefix + name)

    # topics

    def carries(self, topic: bytes) -> bool:
        """Return True if messages of a topic are sent."""
        known = self._topics.get(topic)
        if known is None:
            if len(self._topics) >= KNOWN:
                self._topics.clear()
            name, wanted = topic.decode("utf-8", "replace"), self._wanted
            known = self._topics[topic] = (
                wanted is not None
                and name in self._sends.topics
                and name in wanted.topics
                and self.grants.may("subscribe", name, TOPIC)
            )
        return known

    def send(self, topic: bytes, path: Path, headers: PublishedHeaders, body: Sequence[bytes]) -> None:
        """Send a message of a topic."""
        onward = path.onward(self._bridges.site, self.config.name)
        if onward is None:
            return
        frames = [topic, str(onward).encode(), headers.tail, b"%d" % len(headers), *headers, *body]
        rate = self.config.rate
        if self._sent_rate.take(rate, rate, self._bridges.clock.seconds()) and self._bridges.links.send(
            self.config.name, MESSAGES, frames
        ):
            self.sent += 1
        else:
            self.dropped += 1

    def take_message(self, frames: Sequence[bytes]) -> None:
        """Publish a message of the other site. Raises `Malformed`."""
        if len(frames) < _FIXED or not bytes(frames[3]).isdigit() or len(frames[3]) > 5:
            raise Malformed(Reason.SYNTAX, "a message has topic, path, tail and number of headers")
        path, end = Path.parse(bytes(frames[1])), _FIXED + int(bytes(frames[3]))
        sent = bytes(frames[0])
        if path is None or len(frames) < end or (end - _FIXED) % 2 or len(sent) > MAX_TOPIC or is_own(sent):
            raise Malformed(Reason.SYNTAX, "a message is malformed")
        if path.objection(self._bridges.site, self.config.name, self.config.hops) or self._bridges.is_known(path):
            self.looped += 1
            return
        topic = self.config.prefix.encode() + sent
        name = topic.decode("utf-8", "replace")
        rate = self.config.rate
        if (
            # With the prefix, which the other side does not add.
            len(topic) > MAX_TOPIC
            or is_own(topic)
            or name.removeprefix(self.config.prefix) not in self._receives.topics
            or not self.grants.may("publish", name, TOPIC)
            or not self._received_rate.take(rate, rate, self._bridges.clock.seconds())
        ):
            self.dropped += 1
            return
        self.received += 1
        self._bridges.remember(path)
        headers = PublishedHeaders((*map(bytes, frames[_FIXED:end]), paths.HEADER, str(path).encode()))
        if not self.config.prefix:
            # It names the topic, and so is of no use under another name.
            headers.tail = bytes(frames[2])
        self._bridges.publish(topic, headers, frames[end:])


@implementer(INeighbours, IWait)
class _Sites:
    """The other sites, of which none changes."""

    def __init__(self, config: Config, public_key: str) -> None:
        assert config.site is not None
        self.name = config.site
        own = Member(config.site, LISTENER, "", public_key)
        others = [Member(each.name, LISTENER, each.connect or "", each.key) for each in config.to]
        self._members = {each.name: each for each in (own, *others)}

    def members(self) -> Sequence[Member]:
        return list(self._members.values())

    def member(self, name: str) -> Member | None:
        return self._members.get(name)

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        return self

    def cancel(self) -> None:
        """Do nothing."""


class Bridges:
    """All bridges. ``clustered``: this broker is a member of a cluster, whose messages come for subscriptions only."""

    log = Logger()

    def __init__(
        self,
        config: Config,
        links: Links,
        registry: IRegistry,
        topics: ITopics,
        access: Access,
        clock: IReactorTime,
        turns: Turns,
        clustered: bool = False,
    ) -> None:
        assert config.site is not None
        self.site = config.site
        self.links, self.registry, self.clock = links, registry, clock
        self._topics = topics
        self._clustered = clustered
        self._sites = _Sites(config, links.public_key)
        self._access = access
        self.imports = Imports(config.site, registry, clock, turns)
        self._all = {each.name: Bridge(self, each, self._grants_of(each.key)) for each in config.to}
        self._up: dict[str, Bridge] = {}
        self._recent: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._boot, self._number = secrets.token_hex(4), 0
        self._watches: list[IWait] = []
        links.serve(STATE, _Channel(self.up, self.down, Bridge.take, self._up))
        links.serve(MESSAGES, _Channel(_nothing, _nothing, Bridge.take_message, self._up), lossy=True)

    def _grants_of(self, key: str) -> Callable[[], Grants]:
        return lambda: self._access.grants(Principal(self._access.keys.get(key, "")), LISTENER)

    def start(self) -> None:
        """Open the links."""
        self._watches = [
            self.registry.watch(self._changed, exports.KINDS),
            self.registry.watch_loads(self._loaded),
            self.registry.watch_reasons(self._restated),
        ]
        self._access.changed.append(self._rights_changed)
        self._topics.every = self._published
        if self._clustered:
            for each in self._all.values():
                for pattern in each.config.send_topics:
                    if not set(pattern) & set("*?["):
                        self._topics.subscribe(pattern.encode(), self, self)
        self.links.start(self._sites)

    def stop(self) -> Any:
        """Close the links. What they brought stays registered, as the peers that are connected at the stop do."""
        for watch in self._watches:
            watch.cancel()
        self._topics.every = None
        self._up.clear()
        for each in self._all.values():
            each.exports.end()
            each.source.lost.clear()
            self.imports.expire_later(each.source)
        self.imports.stop()
        return self.links.stop()

    def abandon(self) -> None:
        """Release the listener without the reactor: the start failed."""
        self.links.unbind()

    # the links

    def up(self, name: str) -> None:
        """See `broker.core.cluster.cluster_interfaces.LinkReceiver`."""
        bridge = self._up[name] = self._all[name]
        peer = self._neighbour(name).peer
        bridge.up("" if peer is None else peer.address)

    def down(self, name: str) -> None:
        """See `broker.core.cluster.cluster_interfaces.LinkReceiver`."""
        bridge = self._up.pop(name, None)
        if bridge is not None:
            bridge.down()

    def _neighbour(self, name: str) -> Neighbour:
        return next(each for each in self.links.neighbours() if each.name == name)

    def _rights_changed(self) -> None:
        for name, bridge in list(self._up.items()):
            if bridge.grants_now() != bridge.grants:
                self.links.end(name, "the rights of its user have changed")

    # services

    def _changed(self, change: Change) -> None:
        for bridge in self._up.values():
            bridge.exports.changed(change)

    def _loaded(self, provider: int, load: float, details: LoadDetails | None) -> None:
        for bridge in self._up.values():
            bridge.exports.loaded(provider, load, details)

    def _restated(self, provider: int, service: Service) -> None:
        for bridge in self._up.values():
            bridge.exports.restated(service)

    # topics: this is the outlet of what bridges publish, and of the subscriptions of a member of a cluster

    def deliver(
        self, subscribers: Collection[object], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        """Do nothing: `_published` sees every message."""

    def publish(self, topic: bytes, headers: PublishedHeaders, body: Sequence[bytes]) -> None:
        """Publish a message of another site."""
        self._topics.publish(topic, headers, body, self, exports.WIRE)

    def is_known(self, path: Path) -> bool:
        """Return True if a message of that origin was published here lately."""
        return path.origin in self._recent

    def remember(self, path: Path) -> None:
        """Remember the origin of a message that is published."""
        self._recent[path.origin] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def _published(self, topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> None:
        carriers = [each for each in self._up.values() if each.carries(topic)]
        if not carriers or is_own(topic):
            return
        path, rest = paths.split(headers)
        if path is None:
            self._number += 1
            path = Path(f"{self._boot}-{self._number}")
        plain = PublishedHeaders(rest)
        plain.tail = headers.tail if isinstance(headers, PublishedHeaders) else b""
        for each in carriers:
            each.send(topic, path, plain, body)

    # for operators

    def rows(self) -> Iterator[Row]:
        """Yield the row of each bridge: see `broker.operate.broker_tables.bridges_view`."""
        for name, bridge in self._all.items():
            link, source = self._neighbour(name), bridge.source
            error = source.error if link.state is LinkState.UP else link.reason
            yield {
                "name": name,
                "state": link.state.value,
                "since": round(max(0.0, self.clock.seconds() - link.since), 1),
                "address": link.member.link or source.address,
                "services_out": len(bridge.exports.sent),
                "services_in": len(source.routes),
                "lost": len(source.lost),
                "refused": source.refused,
                "messages_out": bridge.sent,
                "messages_in": bridge.received,
                "dropped": bridge.dropped,
                **({"error": error} if error else {}),
            }

    def degradations(self) -> Iterator[NotReady]:
        """Yield the bridges whose link is not open."""
        for name, bridge in self._all.items():
            link = self._neighbour(name)
            if link.state is not LinkState.UP:
                lost = f", {len(bridge.source.lost)} services of it are doubtful" if bridge.source.lost else ""
                why = link.reason or f"no connection yet, the link is {link.state.value}"
                yield NotReady(f"bridge {name}", f"{why}{lost}")

    def counts(self) -> Mapping[str, int]:
        """Return counters and gauges by name."""
        every = self._all.values()
        return {
            "bridges.up": len(self._up),
            "bridges.services_out": sum(len(each.exports.sent) for each in every),
            "bridges.services_in": sum(len(each.source.routes) for each in every),
            "bridges.services_lost": sum(len(each.source.lost) for each in every),
            "bridges.services_refused": sum(each.source.refused for each in every),
            "bridges.messages_out": sum(each.sent for each in every),
            "bridges.messages_in": sum(each.received for each in every),
            "bridges.messages_dropped": sum(each.dropped for each in every),
            "bridges.messages_looped": sum(each.looped for each in every),
        }


class _Channel:
    """A receiver of a channel; see `broker.core.cluster.cluster_interfaces.LinkReceiver`."""

    def __init__(
        self,
        up: Callable[[str], None],
        down: Callable[[str], None],
        take: Callable[[Bridge, Sequence[bytes]], None],
        bridges: Mapping[str, Bridge],
    ) -> None:
        self.up, self.down = up, down
        self._take, self._bridges = take, bridges

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        """Handle a message, unless this broker stops."""
        bridge = self._bridges.get(broker)
        if bridge is not None:
            self._take(bridge, frames)


def _nothing(broker: str) -> None:
    """Do nothing: the other channel follows the links."""


COUNTERS = (
    Counter("bridges.up", "Bridges whose link is open", "bridges", gauge=True),
    Counter("bridges.services_out", "Services that other sites have from here", "services", gauge=True),
    Counter("bridges.services_in", "Services received from other sites", "services", gauge=True),
    Counter("bridges.services_lost", "Received services whose link has ended", "services", gauge=True),
    Counter("bridges.services_refused", "Services of other sites that were not taken", "services"),
    Counter("bridges.messages_out", "Messages of topics sent to other sites", "messages"),
    Counter("bridges.messages_in", "Messages of topics received from other sites", "messages"),
    Counter("bridges.messages_dropped", "Messages dropped for the rate, rights or a full link", "messages"),
    Counter("bridges.messages_looped", "Messages left out as duplicates or by hops", "messages"),
)
"""Documentation of the counters."""
