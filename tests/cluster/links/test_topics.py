"""Topics across two brokers: real peers of mc0, the wire of each broker, and real links between them."""

from __future__ import annotations

from typing import Any

import attrs
import zmq
from twisted.internet.task import Clock

from broker.core.cluster.remote_topics import SHARED, RemoteTopics
from broker.core.liveness import Leases
from broker.core.topics import Topics
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mc0.mc0_wire import OpenMc0, open_mc0
from tests.cluster.links.rig import LinksRig, Node
from tests.net.pyzmq_peers import Peer
from tests.net.waiting import reactor, until
from tests.wires.contexts import context
from tests.wires.mc0.recording import SessionRecord

MANY = 500


@attrs.define(eq=False)
class Broker:
    """A broker with mc0 and links. ``wire`` listens."""

    node: Node
    topics: Topics
    remote: RemoteTopics
    wire: OpenMc0


class TopicsAcrossBrokers(LinksRig):
    def setUp(self) -> None:
        super().setUp()
        self.sockets: zmq.Context[Any] = zmq.Context()
        self.addCleanup(self.sockets.destroy, 0)

    def broker(self, name: str) -> Broker:
        node = self.node(name, join=False)
        topics = Topics()
        remote = RemoteTopics(node.links, reactor)
        remote.join(SHARED, topics)
        self.addCleanup(remote.stop)
        wire = open_mc0(
            Mc0(enabled=True, endpoint="tcp://127.0.0.1:*"),
            context(reactor, topics=topics, recorder=SessionRecord(), leases=Leases(Clock())),
        )
        wire.bind("mc0")
        for router in wire.connection_factories():
            for deadlines in (router.logins, router.stalls, router.closes, router.lingering):
                self.addCleanup(deadlines.stop)
        self.addCleanup(wire.close)
        return Broker(node, topics, remote, wire)

    def peer(self, broker: Broker, name: bytes) -> Peer:
        return Peer(self.sockets, broker.wire.address, name)

    async def subscribed(self, broker: Broker, name: bytes, topic: bytes) -> Peer:
        peer = self.peer(broker, name)
        peer.send(b"", b"SUB", b"ID", b"s", b"", topic)
        assert await peer.receive() == [[b"", b"OK", b"ID", b"s"]]
        peer.inbox.clear()
        return peer

    async def test_messages_of_publishers_reach_subscribers_elsewhere_in_order(self) -> None:
        brokers = [self.broker(name) for name in "abc"]
        a, b, c = brokers
        self.join(*(each.node for each in brokers))
        await self.linked(*(each.node for each in brokers))
        subscribers = [await self.subscribed(each, b"sub", b"news") for each in (b, c)]
        here = await self.subscribed(a, b"sub", b"news")
        # A subscription takes effect elsewhere once it is announced.
        await until(lambda: all((info := each.topics.info(b"news")) and info.brokers == 2 for each in brokers))
        publishers = [self.peer(a, b"one"), self.peer(a, b"two"), self.peer(c, b"three")]
        for number in range(MANY):
            for publisher in publishers:
                publisher.send(b"", b"PUT", b"TOPIC", b"news", b"X-N", b"%d" % number, b"", bytes(number * 10), b"end")
            if not number % 50:
                await until(lambda: True)
        for subscriber in (*subscribers, here):
            messages = await subscriber.receive(MANY * len(publishers))
            for frames in messages:
                assert frames[:2] == [b"", b"MESSAGE"]
                number = int(frames[frames.index(b"X-N") + 1])
                assert frames[-2:] == [bytes(number * 10), b"end"]
            numbers = [int(frames[frames.index(b"X-N") + 1]) for frames in messages]
            assert sorted(numbers) == sorted([*range(MANY)] * len(publishers))
        assert [each.remote.counts()["remote_topics.sent"] for each in brokers] == [4 * MANY, 0, 2 * MANY]
        for subscriber in (*subscribers, here):
            self.assertEqual(len(subscriber.look()), MANY * len(publishers))
            subscriber.close()
        for publisher in publishers:
            publisher.close()

    async def test_one_publisher_s_messages_come_in_its_order(self) -> None:
        a, b = self.broker("a"), self.broker("b")
        self.join(a.node, b.node)
        await self.linked(a.node, b.node)
        subscriber = await self.subscribed(b, b"sub", b"news")
        await until(lambda: a.topics.info(b"news"))
        publisher = self.peer(a, b"one")
        for number in range(MANY):
            publisher.send(b"", b"PUT", b"TOPIC", b"news", b"", b"%d" % number)
        messages = await subscriber.receive(MANY)
        self.assertEqual([int(frames[-1]) for frames in messages], list(range(MANY)))
        # After the end of the link, the subscriber is found again.
        self.table.set("b", attrs.evolve(b.node.member, instance="2"))
        await until(lambda: b.node.tight.ups("a") == 2 and a.topics.info(b"news"))
        await until(lambda: a.remote.counts()["remote_topics.wanted"] == 1)
        publisher.send(b"", b"PUT", b"TOPIC", b"news", b"", b"again")
        await subscriber.receive(MANY + 1)
        self.assertEqual(subscriber.inbox[-1][-1], b"again")
        subscriber.close()
        publisher.close()
