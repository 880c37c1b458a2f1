"""Topics across brokers, over a simulated network: interest, messages, order, bounds and faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
from zope.interface import implementer
from zope.interface.verify import verifyObject

from broker.core.cluster.cluster_interfaces import ILinks, LinkReceiver
from broker.core.cluster.remote_topics import (
    AT_ONCE,
    INTEREST,
    MESSAGES,
    SHARED,
    InterestBounds,
    RemoteTopics,
)
from broker.core.interfaces import ITopics
from broker.core.model import MAX_TOPIC, PublishedHeaders, TopicInfo
from broker.core.topics import Topics
from broker.core.turns import SHARE, Turns
from tests.core.test_topics import Recorder
from tests.examples import sampled
from tests.ticking_clock import TickingClock


@implementer(ILinks)
class Port:
    """The links of one broker in a simulated network. Messages wait in queues until `Network.run`."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network
        self.receivers: dict[str, tuple[LinkReceiver, bool]] = {}
        self.open: set[str] = set()
        self.full = False
        self.sent: list[tuple[str, list[bytes]]] = []

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        self.receivers[channel] = receiver, lossy

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        if broker not in self.open or self.full:
            return False
        self.sent.append((channel, list(frames)))
        self.network.queues[self.name, broker].append((channel, list(frames)))
        return True

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        for broker in sorted(self.open):
            self.send(broker, channel, frames)

    def brokers(self) -> Sequence[str]:
        return sorted(self.open)


class Broker:
    """Topics of a broker in the network."""

    def __init__(self, name: str, network: Network, bounds: InterestBounds | None = None) -> None:
        self.port = Port(name, network)
        self.topics = Topics()
        self.remote = RemoteTopics(self.port, network.clock, Turns(network.clock), bounds)
        self.remote.join(SHARED, self.topics)
        self.outlet = Recorder()

    @property
    def messages(self) -> list[tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]]]:
        """The messages that its subscribers got: topic, headers, body."""
        return [(topic, tuple(headers), tuple(body)) for _, topic, headers, body in self.outlet.given]


class Network:
    """Brokers with links that deliver when told to."""

    def __init__(self) -> None:
        self.clock = TickingClock()
        self.brokers: dict[str, Broker] = {}
        self.queues: dict[tuple[str, str], deque[tuple[str, list[bytes]]]] = {}

    def add(self, name: str, bounds: InterestBounds | None = None) -> Broker:
        broker = Broker(name, self, bounds)
        for other in self.brokers:
            self.queues[name, other] = deque()
            self.queues[other, name] = deque()
        self.brokers[name] = broker
        return broker

    def link(self, one: str, other: str) -> None:
        """Open a link; both sides get `up`."""
        for here, there in ((one, other), (other, one)):
            port = self.brokers[here].port
            port.open.add(there)
            for receiver, _ in port.receivers.values():
                receiver.up(there)

    def cut(self, one: str, other: str) -> None:
        """End a link, and lose what is on the way."""
        for here, there in ((one, other), (other, one)):
            port = self.brokers[here].port
            port.open.discard(there)
            self.queues[here, there].clear()
            for receiver, _ in port.receivers.values():
                receiver.down(there)

    def step(self, pair: tuple[str, str]) -> None:
        """Deliver the next message on one side of a link."""
        here, there = pair
        channel, frames = self.queues[pair].popleft()
        self.brokers[there].port.receivers[channel][0].receive(here, frames)

    def run(self) -> None:
        """Deliver all messages, until nothing is to be done."""
        while any(self.queues.values()) or self.clock.getDelayedCalls():
            self.clock.turn()
            for pair in self.queues:
                while self.queues[pair]:
                    self.step(pair)


@pytest.fixture
def network() -> Network:
    network = Network()
    for name in "abc":
        network.add(name)
    for one, other in ("ab", "ac", "bc"):
        network.link(one, other)
    return network


def test_the_interface() -> None:
    assert verifyObject(ITopics, Topics())
    assert verifyObject(ILinks, Port("a", Network()))


def test_a_message_reaches_subscribers_at_other_brokers_with_interest_only(network: Network) -> None:
    a, b, c = network.brokers.values()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    assert a.topics.publish(b"news", (b"X-a", b"1"), (b"body", b"", b"more")) == 1
    network.run()
    assert b.messages == [(b"news", (b"X-a", b"1"), (b"body", b"", b"more"))]
    assert [channel for channel, _ in a.port.sent] == [MESSAGES]
    assert c.port.sent == []
    assert c.remote.counts()["remote_topics.received"] == 0


def test_a_publisher_is_told_nothing_of_topics_without_interest(network: Network) -> None:
    a = network.brokers["a"]
    network.run()
    assert a.topics.publish(b"news", (), (b"x",)) == 0
    assert a.port.sent == []


def test_a_message_travels_one_hop(network: Network) -> None:
    """With subscribers everywhere, each gets it once: nobody passes it on."""
    for broker in network.brokers.values():
        broker.topics.subscribe(b"news", broker.outlet, 1)
    network.run()
    network.brokers["a"].topics.publish(b"news", (), (b"x",))
    network.run()
    assert [broker.messages for broker in network.brokers.values()] == [[(b"news", (), (b"x",))]] * 3


def test_a_message_that_a_subscriber_publishes_on_receipt_travels(network: Network) -> None:
    """Also though it is published during the delivery of a message of another broker."""
    a, b, _ = network.brokers.values()
    b.outlet.then = lambda: b.topics.publish(b"answers", (), (b"y",)) and None
    b.topics.subscribe(b"questions", b.outlet, 1)
    a.topics.subscribe(b"answers", a.outlet, 1)
    network.run()
    a.topics.publish(b"questions", (), (b"x",))
    network.run()
    assert a.messages == [(b"answers", (), (b"y",))]


def test_the_tail_of_the_headers_travels(network: Network) -> None:
    a, b, _ = network.brokers.values()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    headers = PublishedHeaders((b"X-a", b"1"))
    headers.tail = b"\x04newsrest"
    a.topics.publish(b"news", headers, (b"x",))
    network.run()
    (_, _, got, _), *rest = b.outlet.given
    assert isinstance(got, PublishedHeaders)
    assert (tuple(got), got.tail, rest) == ((b"X-a", b"1"), b"\x04newsrest", [])


def test_the_end_of_the_last_subscription_ends_the_interest(network: Network) -> None:
    a, b, _ = network.brokers.values()
    for subscriber in (1, 2):
        b.topics.subscribe(b"news", b.outlet, subscriber)
    network.run()
    b.topics.unsubscribe(b"news", b.outlet, 1)
    network.run()
    assert a.topics.publish(b"news", (), (b"x",)) == 1
    b.topics.unsubscribe(b"news", b.outlet, 2)
    network.run()
    assert a.topics.publish(b"news", (), (b"y",)) == 0
    assert a.topics.names() == b.topics.names() == []


def test_interest_is_announced_once_for_all_outlets_and_not_for_that_of_others(network: Network) -> None:
    a, b, c = network.brokers.values()
    other = Recorder()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    b.topics.subscribe(b"news", other, 1)
    a.topics.subscribe(b"news", a.outlet, 1)
    b.topics.unsubscribe(b"news", b.outlet, 1)
    network.run()
    assert b.port.sent == [(INTEREST, [SHARED, b"+news"])] * 2
    assert c.port.sent == []
    b.topics.unsubscribe(b"news", other, 1)
    network.run()
    assert b.port.sent[2:] == [(INTEREST, [SHARED, b"-news"])] * 2
    assert b.topics.info(b"news") == TopicInfo(b"news", 0, 0, 1)


def test_changes_of_one_turn_are_one_announcement_and_those_that_cancel_are_none(network: Network) -> None:
    b = network.brokers["b"]
    for number in range(10):
        b.topics.subscribe(b"%d" % number, b.outlet, 1)
    b.topics.unsubscribe(b"3", b.outlet, 1)
    network.run()
    names = [b"+%d" % number for number in range(10) if number != 3]
    assert b.port.sent == [(INTEREST, [SHARED, *names])] * 2


def test_a_new_link_gets_all_interest_and_a_lost_one_takes_it_away(network: Network) -> None:
    a, b, _ = network.brokers.values()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    network.cut("a", "b")
    assert a.topics.publish(b"news", (), (b"lost",)) in (0, 1)
    network.run()
    assert a.topics.names() == []
    b.topics.subscribe(b"more", b.outlet, 1)
    network.run()
    network.link("a", "b")
    network.run()
    a.topics.publish(b"news", (), (b"x",))
    a.topics.publish(b"more", (), (b"y",))
    network.run()
    assert b.messages == [(b"news", (), (b"x",)), (b"more", (), (b"y",))]


def test_a_large_table_is_announced_and_forgotten_in_pieces(network: Network) -> None:
    a, b, _ = network.brokers.values()
    count = 3 * AT_ONCE
    for number in range(count):
        b.topics.subscribe(b"%d" % number, b.outlet, 1)
    network.run()
    assert max(len(frames) for _, frames in b.port.sent) <= AT_ONCE + 1
    assert len(a.topics.names()) == count
    network.cut("a", "b")
    network.clock.tick = SHARE / 4
    network.clock.turn()
    network.clock.tick = 0.0
    assert 0 < len(a.topics.names()) < count
    network.run()
    assert a.topics.names() == []


def test_the_broker_s_own_topics_do_not_travel(network: Network) -> None:
    a, b, _ = network.brokers.values()
    b.topics.subscribe(b"elkobroker.services", b.outlet, 1)
    network.run()
    assert b.port.sent == []
    a.topics.publish(b"elkobroker.services", (), (b"x",))
    a.port.send("b", MESSAGES, [SHARED, b"elkobroker.services", b"0", b"", b"forged"])
    a.port.send("b", INTEREST, [SHARED, b"+elkobroker.load"])
    network.run()
    assert b.messages == []
    assert b.topics.names() == [b"elkobroker.services"]
    assert b.remote.counts()["remote_topics.malformed"] == 2


def test_a_message_without_room_is_counted(network: Network) -> None:
    a, b, _ = network.brokers.values()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    a.port.full = True
    a.topics.publish(b"news", (), (b"x",))
    assert a.remote.counts()["remote_topics.dropped"] == 1


def test_interest_beyond_the_bounds_is_not_announced_and_not_accepted() -> None:
    network = Network()
    a, b = network.add("a", InterestBounds(topics=3)), network.add("b", InterestBounds(topics=5))
    network.link("a", "b")
    for number in range(6):
        b.topics.subscribe(b"%d" % number, b.outlet, 1)
    network.run()
    assert b.remote.counts()["remote_topics.announced"] == 5
    assert b.remote.counts()["remote_topics.beyond"] == 1
    assert a.topics.names() == [b"0", b"1", b"2"]
    assert a.remote.counts()["remote_topics.beyond"] == 2


def test_the_bytes_of_names_are_bounded() -> None:
    network = Network()
    a, b = network.add("a", InterestBounds(name_bytes=10)), network.add("b")
    network.link("a", "b")
    b.topics.subscribe(b"12345678", b.outlet, 1)
    b.topics.subscribe(b"123", b.outlet, 1)
    b.topics.subscribe(b"12", b.outlet, 1)
    b.topics.subscribe(bytes(MAX_TOPIC + 1), b.outlet, 1)
    network.run()
    assert sorted(a.topics.names()) == [b"12", b"12345678"]
    assert b.remote.counts()["remote_topics.announced"] == 3


@pytest.mark.parametrize(
    ("channel", "frames"),
    [
        (INTEREST, []),
        (INTEREST, [SHARED, b""]),
        (INTEREST, [SHARED, b"*news"]),
        (INTEREST, [SHARED, b"+" + bytes(MAX_TOPIC + 1)]),
        (INTEREST, [bytes(MAX_TOPIC + 1), b"+news"]),
        (MESSAGES, []),
        (MESSAGES, [SHARED, b"news", b"0"]),
        (MESSAGES, [SHARED, b"news", b"", b""]),
        (MESSAGES, [SHARED, b"news", b"-1", b""]),
        (MESSAGES, [SHARED, b"news", "²".encode(), b""]),
        (MESSAGES, [SHARED, b"news", b"2", b"", b"X-a"]),
        (MESSAGES, [SHARED, b"news", b"9" * 5_000, b"", b"X-a"]),
    ],
)
def test_malformed_messages_of_a_neighbour_are_ignored_and_counted(
    network: Network, channel: str, frames: list[bytes]
) -> None:
    a, b, _ = network.brokers.values()
    b.topics.subscribe(b"news", b.outlet, 1)
    network.run()
    a.port.send("b", channel, frames)
    network.run()
    assert b.remote.counts()["remote_topics.malformed"] == 1
    assert b.messages == []


def test_a_space_of_its_own_is_separate_and_may_be_joined_later(network: Network) -> None:
    a, b, _ = network.brokers.values()
    there = Topics()
    b.remote.join(b"host", there)
    there.subscribe(b"news", b.outlet, 1)
    network.run()
    a.topics.publish(b"news", (), (b"shared",))
    here = Topics()
    a.remote.join(b"host", here)
    here.publish(b"news", (), (b"host",))
    network.run()
    assert b.messages == [(b"news", (), (b"host",))]


@pytest.mark.parametrize("seed", sampled(range(30)))
def test_histories(seed: int) -> None:
    """Subscriptions, messages and cuts in any order: no message comes twice or out of order, and after the network has
    come to rest each subscriber gets every message."""
    random = Random(seed)
    network = Network()
    brokers = [network.add(name) for name in "abc"]
    links = {("a", "b"), ("a", "c"), ("b", "c")}
    for pair in links:
        network.link(*pair)
    subscribed: set[tuple[int, bytes]] = set()
    count = 0
    for _ in range(300):
        what = random.random()
        at, topic = random.randrange(3), random.choice([b"x", b"y"])
        if what < 0.2:
            brokers[at].topics.subscribe(topic, brokers[at].outlet, 1)
            subscribed.add((at, topic))
        elif what < 0.3:
            brokers[at].topics.unsubscribe(topic, brokers[at].outlet, 1)
            subscribed.discard((at, topic))
        elif what < 0.6:
            count += 1
            brokers[at].topics.publish(topic, (), (b"%d" % at, b"%d" % count))
        elif what < 0.65:
            pair = random.choice(sorted(links))
            network.cut(*pair)
            network.link(*pair)
        elif what < 0.8:
            network.clock.turn()
        else:
            waiting = [pair for pair, queue in network.queues.items() if queue]
            if waiting:
                network.step(random.choice(waiting))
    network.run()
    for broker in brokers:
        for at in range(3):
            numbers = [int(body[1]) for _, _, body in broker.messages if int(body[0]) == at]
            assert numbers == sorted(set(numbers))
    for broker in brokers:
        broker.outlet.given.clear()
    for at, broker in enumerate(brokers):
        for topic in (b"x", b"y"):
            broker.topics.publish(topic, (), (b"%d" % at,))
    network.run()
    for at, broker in enumerate(brokers):
        wanted = sorted((topic, b"%d" % by) for by in range(3) for topic in (b"x", b"y") if (at, topic) in subscribed)
        assert sorted((topic, body[0]) for topic, _, body in broker.messages) == wanted
