"""Directors of three brokers over real links: a user is sent to a server of another broker, and links are lost."""

from __future__ import annotations

from typing import Any

from broker.core.director.director_interfaces import DirectorSettings, DoReserve, Granted, Say
from broker.core.director.sharing.records import MESSAGE_WORK
from broker.core.director.sharing.shared_director import SharedDirector
from tests.cluster.links.rig import LinksRig, Node
from tests.core.director.rig import check
from tests.core.director.sharing.network import Side, view
from tests.net.waiting import reactor, until


class Directors(LinksRig):
    def director(self, name: str) -> tuple[Node, SharedDirector]:
        node = self.node(name, join=False)
        director = SharedDirector(reactor, DirectorSettings(reservation_seconds=0.5), node.links, name)
        self.addCleanup(director.stop, farewell=False)
        return node, director

    def server(self, director: SharedDirector, label: str) -> Side:
        side = Side()
        side.link = director.join(label, side)
        side.link.address("tcp", f"{label}:1")
        side.link.will_serve("context", -1, False)
        return side

    async def agree(self, *directors: SharedDirector) -> None:
        await until(lambda: all(view(each) == view(directors[0]) for each in directors))
        for each in directors:
            check(each)

    async def test_a_user_is_sent_to_a_server_of_another_broker(self) -> None:
        (a, first), (b, second), (c, third) = (self.director(name) for name in "abc")
        server = self.server(first, "cs1")
        # More than one message, in a snapshot and afterwards.
        server.open("context-hall", *(f"user-u{number}" for number in range(3 * MESSAGE_WORK)))
        self.join(a, b, c)
        await self.agree(first, second, third)
        self.assertEqual(second.find_context("context-hall").provider, "cs1")
        for number in range(3 * MESSAGE_WORK):
            server.link.exited("context-hall", f"user-u{number}")
        await self.agree(first, second, third)
        granted: Granted = second.reserve("someone", "tcp", "context-inn", "user-joe", False, 10)
        assert granted.delivered is not None
        self.assertTrue(await granted.delivered)
        self.assertEqual(server.take(), [DoReserve("context-inn", "user-joe", granted.reservation)])
        server.open("context-inn", "user-joe-1", yours=True)
        await until(lambda: third.find_user("user-joe").on and not second.counts()["reservations"])
        self.assertEqual(third.say("context-inn", None, "hello"), 1)
        await until(lambda: server.heard)
        self.assertEqual(server.take(), [Say("context-inn", None, "hello")])
        # The timers of the reservations, which were used.
        await until(lambda: not any(each._reservations._timer for each in (first, second, third)))

    async def test_a_link_that_ends_and_returns_loses_nothing(self) -> None:
        (a, first), (b, second) = (self.director(name) for name in "ab")
        server = self.server(first, "cs1")
        server.open("context-inn", "user-joe", "user-ann")
        self.join(a, b)
        await self.agree(first, second)
        member: Any = self.table.members["a"]
        self.table.set("a", None)
        await until(lambda: not b.links.brokers() and not a.links.brokers())
        self.assertTrue(second.find_user("user-joe").on)
        server.link.exited("context-inn", "user-ann")
        self.table.set("a", member)
        await self.agree(first, second)
        self.assertTrue(second.find_user("user-joe").on)
        self.assertFalse(second.find_user("user-ann").on)


class DirectorsWithoutKeys(Directors):
    curve = False
