"""Links between brokers in one process: real sockets, a table of members, and receivers that record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs
from nacl.bindings import crypto_box_keypair
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker import curve_keys
from broker.backoff import Backoff
from broker.cluster.links.link_messages import (
    HELLO,
    LIMITS,
    WELCOME,
    Introduction,
    LinkSettings,
    Neighbour,
    introduction,
)
from broker.cluster.links.links import LinkContext, Links
from broker.config import endpoint as zmq_endpoint
from broker.core.cluster.cluster_interfaces import Member, Single
from broker.core.interfaces import IWait
from broker.core.liveness import Leases
from broker.core.place_table import Pool
from broker.net.connection_limits import RouterLimits
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.scheduler import Scheduler
from broker.net.zmtp.curve import CurveClient, Security
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.machine import Machine, Mechanism, Null
from broker.net.zmtp.sealing import SODIUM
from tests.net.router.rig import Pair, Speaker
from tests.net.waiting import reactor, until
from tests.net.zmtp.curve_sides import sealing_of
from tests.net.zmtp_peers import RawPeer

QUICK = Backoff(first=0.01, most=0.1, jitter=0.5)
"""Pauses between attempts that a test can wait for."""


class Table:
    """The members of a cluster, the same at all of them."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.watchers: list[Callable[[str, Member | None], None]] = []

    def set(self, name: str, member: Member | None) -> None:
        """Add, replace or remove a member."""
        if member is None:
            del self.members[name]
        else:
            self.members[name] = member
        for watcher in tuple(self.watchers):
            watcher(name, member)


@implementer(IWait)
class _Watch:
    def __init__(self, end: Callable[[], None]) -> None:
        self.cancel = end


class Members(Single):
    """The members as one of them sees them."""

    clustered = True

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table

    def members(self) -> Sequence[Member]:
        return [self.table.members[name] for name in sorted(self.table.members)]

    def member(self, name: str) -> Member | None:
        return self.table.members.get(name)

    def watch_members(self, changed: Callable[[str, Member | None], None]) -> IWait:
        self.table.watchers.append(changed)
        return _Watch(lambda: self.table.watchers.remove(changed))


class Log:
    """A receiver that records its calls: ``("up", broker)``, ``("down", broker)``, ``(broker, frames)``."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.on_up: Callable[[str], object] = lambda broker: None

    def up(self, broker: str) -> None:
        self.told.append(("up", broker))
        self.on_up(broker)

    def down(self, broker: str) -> None:
        self.told.append(("down", broker))

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        self.told.append((broker, list(frames)))

    def of(self, broker: str) -> list[list[bytes]]:
        """Return the messages of a broker."""
        return [each[1] for each in self.told if each[0] == broker]

    def ups(self, broker: str) -> int:
        return self.told.count(("up", broker))

    def downs(self, broker: str) -> int:
        return self.told.count(("down", broker))


@attrs.define(eq=False)
class Node:
    """The links of one broker: a lossy channel ``loose`` and one that is not, ``tight``."""

    name: str
    links: Links
    member: Member
    counters: Counters
    leases: Leases
    loose: Log = attrs.field(factory=Log)
    tight: Log = attrs.field(factory=Log)

    def neighbour(self, name: str) -> Neighbour:
        return next(each for each in self.links.neighbours() if each.name == name)


class FalseMember(Speaker):
    """A peer of links by hand, which reads only when it is looked at. ``hello`` is what it says."""

    def __init__(self, raw: RawPeer, machine: Machine, hello: Introduction) -> None:
        super().__init__(raw, machine)
        self.hello = hello

    async def introduce(self) -> FalseMember:
        """Complete the handshake, say HELLO, and wait for WELCOME."""
        await self.shake()
        self.send(*introduction(HELLO, self.hello))
        await self.receive()
        assert self.inbox[0][1] == WELCOME, self.inbox
        return self


class LinksRig(TestCase):
    """Tests of links. ``curve_keys`` is True if the nodes have keys."""

    curve = True

    def setUp(self) -> None:
        self.table = Table()
        self.nodes: dict[str, Node] = {}

    def node(
        self,
        name: str,
        *,
        secret: str | None = None,
        limits: RouterLimits = LIMITS,
        join: bool = True,
        table: Table | None = None,
        instance: str = "1",
        lifetime: Any = reactor,
        endpoint: str = "tcp://127.0.0.1:0",
    ) -> Node:
        """A broker with links, which are bound; with ``join`` they are started, and the member is in the table.

        ``lifetime`` is the clock of its leases.
        """
        if secret is None and self.curve:
            secret = curve_keys.encode(crypto_box_keypair()[1])
        counters = Counters()
        leases = Leases(lifetime)
        context = LinkContext(
            Pool(200), Scheduler(reactor, leases.look), RefusalLog(counters, reactor), reactor, leases, Random(name)
        )
        links = Links(LinkSettings(zmq_endpoint.parse_zmq(endpoint), secret, limits, QUICK), context)
        where = links.bind()
        node = Node(name, links, Member(name, instance, where, links.public_key), counters, leases)
        links.serve("loose", node.loose, lossy=True)
        links.serve("tight", node.tight)
        self.addCleanup(links.stop)
        self.nodes[name] = node
        if join:
            table = self.table if table is None else table
            table.set(name, node.member)
            links.start(Members(name, table))
        return node

    async def linked(self, *nodes: Node) -> None:
        """Wait until each of the nodes has a link to each other one."""
        names = {node.name for node in nodes}
        await until(lambda: all(names <= {*node.links.brokers(), node.name} for node in nodes))

    def false_member(self, node: Node, name: str = "a", pair: Pair | None = None, instance: str = "1") -> FalseMember:
        """A peer with the key of a member, which is added to the table. It connects to a node, by hand."""
        pair = pair or Pair.new()
        self.table.set(name, Member(name, instance, "127.0.0.1:1", pair.shown if self.curve else ""))
        return self.stranger(node, pair, name, instance)

    def stranger(self, node: Node, pair: Pair | None = None, name: str = "a", instance: str = "1") -> FalseMember:
        """A peer that connects to a node, with that key or one that nobody knows."""
        pair = pair or Pair.new()
        raw = self.raw(node)
        mechanism: Mechanism = Null(False)
        if self.curve:
            security = Security(SODIUM, sealing_of("python"), pair.public, pair.secret)
            mechanism = CurveClient(security, curve_keys.decode(node.member.key))
        machine = Machine(mechanism, "DEALER", FrameLimits())
        return FalseMember(raw, machine, Introduction(name, instance, node.name, node.member.instance))

    def raw(self, node: Node) -> RawPeer:
        """A TCP connection to a node."""
        raw = RawPeer(int(node.member.link.rpartition(":")[2]))
        self.addCleanup(raw.close)
        return raw

    def join(self, *nodes: Node) -> None:
        """Add nodes that were made without ``join`` to the table, and start them."""
        for node in nodes:
            self.table.set(node.name, node.member)
        for node in nodes:
            node.links.start(Members(node.name, self.table))
