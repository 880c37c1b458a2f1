"""Links between brokers that agree: the mesh, its messages, and its ends."""

from __future__ import annotations

import attrs

from broker.cluster.links.link_messages import LinkState
from tests.cluster.links.rig import LinksRig
from tests.net.waiting import until


class WithKeys(LinksRig):
    async def test_each_pair_of_three_members_has_one_link(self) -> None:
        nodes = [self.node(name) for name in ("a", "b", "c")]
        await self.linked(*nodes)
        for node in nodes:
            others = [each.name for each in nodes if each is not node]
            self.assertEqual(node.links.brokers(), others)
            self.assertEqual([node.tight.ups(name) for name in others], [1, 1])
            self.assertEqual(sum(len(each.connections) for each in node.links.connection_factories()), 2)

    async def test_messages_of_all_channels_arrive_in_order(self) -> None:
        a, b = self.node("a"), self.node("b")
        seen: list[list[bytes]] = []
        b.loose.receive = b.tight.receive = lambda broker, frames: seen.append(list(frames))  # type: ignore[method-assign]
        await self.linked(a, b)
        for number in range(1_000):
            self.assertTrue(
                a.links.send("b", ("loose", "tight")[number % 2], [b"%d" % number, b"x" * (number % 7 * 1_000)])
            )
        await until(lambda: len(seen) == 1_000)
        self.assertEqual([int(frames[0]) for frames in seen], list(range(1_000)))
        self.assertEqual(b.neighbour("a").received, 1_000)
        self.assertEqual(a.neighbour("b").sent, 1_000)

    async def test_both_sides_may_send_state_in_up(self) -> None:
        a, b = self.node("a", join=False), self.node("b", join=False)
        for node in (a, b):
            node.tight.on_up = lambda broker, node=node: node.links.send(broker, "tight", [node.name.encode()])  # type: ignore[misc]
        self.join(a, b)
        await until(lambda: a.tight.of("b") and b.tight.of("a"))
        self.assertEqual(a.tight.told, [("up", "b"), ("b", [b"b"])])
        self.assertEqual(b.tight.told, [("up", "a"), ("a", [b"a"])])

    async def test_a_broadcast_reaches_all_others(self) -> None:
        a, b, c = (self.node(name) for name in "abc")
        await self.linked(a, b, c)
        b.links.broadcast("loose", [b"1", b"", b"3"])
        await until(lambda: a.loose.of("b") and c.loose.of("b"))
        self.assertEqual(a.loose.of("b") + c.loose.of("b"), [[b"1", b"", b"3"]] * 2)
        self.assertEqual(b.loose.of("b"), [])

    async def test_a_send_without_a_link_is_false(self) -> None:
        a = self.node("a")
        self.assertFalse(a.links.send("b", "tight", [b"x"]))

    async def test_a_link_outlives_a_membership_and_ends_with_its_connection(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        self.table.set("b", None)
        self.assertEqual(a.links.brokers(), ["b"])
        self.assertTrue(a.links.send("b", "tight", [b"still"]))
        self.assertTrue(b.links.send("a", "tight", [b"so"]))
        await until(lambda: a.tight.of("b") and b.tight.of("a"))
        await b.links.stop()
        await until(lambda: not a.links.brokers())
        self.assertEqual((a.tight.downs("b"), list(a.links.neighbours())), (1, []))

    async def test_both_sides_notice_that_a_member_came_back(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        self.table.set("b", None)
        self.table.set("b", attrs.evolve(b.member, instance="2"))
        await self.linked(a, b)
        self.assertEqual((a.tight.ups("b"), b.tight.ups("a")), (2, 2))
        self.assertEqual((a.tight.downs("b"), b.tight.downs("a")), (1, 1))

    async def test_a_member_with_another_instance_is_linked_again(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        for count, name in enumerate("ab", 2):
            self.table.set(name, attrs.evolve(self.table.members[name], instance="2"))
            await self.linked(a, b)
            self.assertEqual((a.tight.ups("b"), a.tight.downs("b")), (count, count - 1))
            self.assertEqual((b.tight.ups("a"), b.tight.downs("a")), (count, count - 1))

    async def test_changes_of_listeners_and_of_the_drain_leave_the_link_alone(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        self.table.set("b", attrs.evolve(b.member, draining=True, listeners={"mtl": "tcp://10.0.0.1:5975"}))
        self.assertEqual(a.links.brokers(), ["b"])
        self.assertEqual(a.neighbour("b").member.draining, True)

    async def test_the_end_of_a_broker_is_noticed_and_its_return(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        await b.links.stop()
        await until(lambda: not a.links.brokers())
        self.assertEqual(a.tight.downs("b"), 1)
        await until(lambda: a.neighbour("b").failures > 1)
        self.assertIn(a.neighbour("b").state, (LinkState.WAITING, LinkState.CONNECTING))
        again = self.node("b")
        await self.linked(a, again)
        self.assertEqual(a.tight.ups("b"), 2)

    async def test_a_ping_measures_the_round_trip(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        await until(lambda: a.neighbour("b").rtt is not None and b.neighbour("a").rtt is not None)
        self.assertLess(a.neighbour("b").rtt or 0, 1)


class WithoutKeys(WithKeys):
    curve = False
