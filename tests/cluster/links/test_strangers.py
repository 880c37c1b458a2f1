"""Links beside peers that are none, and neighbours that break the rules."""

from __future__ import annotations

import os
import struct

import attrs
import pytest
from nacl.bindings import crypto_box_keypair
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker import curve_keys
from broker.cluster.links.link_messages import HELLO, LIMITS, REFUSED, SILENCE, WIRE, LinkState, introduction
from broker.core.cluster.cluster_interfaces import Member
from broker.core.errors import Reason
from broker.net.listeners import CannotListen
from broker.net.router.backlog import BACKLOG
from tests.cluster.links.rig import FalseMember, LinksRig, Node
from tests.net.router.rig import BULKY, KERNEL, Pair
from tests.net.waiting import until
from tests.net.zmtp_peers import greeting

FEW = attrs.evolve(LIMITS, high_water=10)
"""Limits of links with a short queue."""


class Strangers(LinksRig):
    """Peers that are no members."""

    async def good(self) -> tuple[Node, Node]:
        """Two members with a link."""
        b, c = self.node("b"), self.node("c")
        await self.linked(b, c)
        return b, c

    async def still_works(self, b: Node, c: Node) -> None:
        self.assertEqual((b.tight.downs("c"), c.tight.downs("b")), (0, 0))
        before = len(c.tight.of("b"))
        b.links.send("c", "tight", [b"still there"])
        await until(lambda: len(c.tight.of("b")) > before)

    async def refused(self, node: Node, reason: Reason, count: int = 1) -> None:
        await until(lambda: node.counters.get(f"{WIRE}_refused", reason.code) >= count)

    async def test_a_key_of_no_member_is_refused(self) -> None:
        b, c = await self.good()
        stranger = self.stranger(b, name="c")
        with self.assertRaises(AssertionError):
            await stranger.shake()
        await self.refused(b, Reason.KEY_NOT_ALLOWED)
        await self.still_works(b, c)

    async def test_a_peer_without_curve_is_refused(self) -> None:
        b, c = await self.good()
        raw = self.raw(b)
        raw.send(greeting())
        await raw.wait_closed()
        await self.refused(b, Reason.HANDSHAKE)
        await self.still_works(b, c)

    async def test_a_crowd_that_sends_garbage_leaves_a_good_link_alone(self) -> None:
        b, c = await self.good()
        raws = [self.raw(b) for _ in range(50)]
        for number, raw in enumerate(raws):
            raw.send((b"", greeting(b"CURVE"))[number % 2] + os.urandom(2_000))
        for number in range(500):
            b.links.send("c", "tight", [b"%d" % number])
        await until(lambda: len(c.tight.of("b")) == 500)
        self.assertEqual([int(frames[0]) for frames in c.tight.of("b")], list(range(500)))
        for raw in raws:
            await raw.wait_closed()
        await self.still_works(b, c)

    async def test_members_without_a_link_that_come_and_go_fill_no_log(self) -> None:
        b, c = await self.good()
        names = [f"evil{number}" for number in range(20)]
        with capturedLogs() as events:
            for number in range(200):
                name = names[number % 20]
                for key in ("", "none"):
                    self.table.set(name, Member(name, str(number), "10.0.0.9:1", key))
                self.table.set(name, None)
        for node in (b, c):
            self.assertEqual(node.counters.get(f"{WIRE}_refused", Reason.UNAVAILABLE.code), 400)
        self.assertEqual(len(events), 2 * len(names))
        await self.still_works(b, c)

    @pytest.mark.long
    async def test_a_key_is_refused_once_its_member_is_gone(self) -> None:
        b, c = await self.good()
        pair = Pair.new()
        a = await self.false_member(b, "a", pair).introduce()
        self.table.set("a", None)
        await a.wait_closed()
        self.assertEqual(b.tight.downs("a"), 1)
        with self.assertRaises(AssertionError):
            await self.stranger(b, pair).shake()
        await self.still_works(b, c)

    async def test_a_listener_with_another_key_gets_no_link(self) -> None:
        b = self.node("b")
        c = self.node("c", join=False)
        self.table.set("c", attrs.evolve(c.member, key=curve_keys.encode(crypto_box_keypair()[0])))
        await until(lambda: b.neighbour("c").failures > 2)
        self.assertEqual(b.tight.told, [])

    async def test_members_without_a_usable_key_or_endpoint_get_no_link(self) -> None:
        b = self.node("b")
        for member in (
            Member("c", "1", "127.0.0.1:1", ""),
            Member("d", "1", "127.0.0.1:1", "no key"),
            Member("e", "1", "", Pair.new().shown),
            Member("f", "1", "127.0.0.1:99999", Pair.new().shown),
            Member("g", "1", "127.0.0.1", Pair.new().shown),
            Member("h", "1", "a..b:1", Pair.new().shown),
            Member("i", "1", f"{'x' * 64}.test:1", Pair.new().shown),
            Member("j", "1", "\ud800:1", Pair.new().shown),
        ):
            self.table.set(member.name, member)
            self.assertIs(b.neighbour(member.name).state, LinkState.IMPOSSIBLE, member)
            self.assertTrue(b.neighbour(member.name).reason)
        self.flushLoggedErrors()

    async def test_an_address_with_a_zone_that_is_not_here_is_tried_again(self) -> None:
        b = self.node("b")
        self.table.set("c", Member("c", "1", "[fe80::1%nowhere]:1", Pair.new().shown))
        await until(lambda: b.neighbour("c").failures > 2)
        self.assertIs(b.neighbour("c").state, LinkState.WAITING)
        self.assertTrue(b.neighbour("c").reason)
        self.assertEqual(self.flushLoggedErrors(), [])


class Introductions(LinksRig):
    """Members that introduce themselves wrongly."""

    async def objection(self, node: Node, peer: FalseMember) -> str:
        await peer.shake()
        peer.send(*introduction(HELLO, peer.hello))
        await peer.wait_closed()
        (frames,) = peer.inbox
        self.assertEqual(frames[:2], [b"", REFUSED])
        self.assertEqual(node.tight.told, [])
        self.assertEqual(node.counters.get(f"{WIRE}_refused", Reason.NOT_AUTHENTICATED.code), 1)
        return frames[2].decode()

    async def test_a_stale_instance_is_refused(self) -> None:
        b = self.node("b")
        a = self.false_member(b)
        a.hello = attrs.evolve(a.hello, instance="0")
        self.assertIn("instance", await self.objection(b, a))

    async def test_a_peer_that_looks_for_an_earlier_instance_is_refused(self) -> None:
        b = self.node("b")
        a = self.false_member(b)
        a.hello = attrs.evolve(a.hello, peer_instance="0")
        self.assertIn("another instance", await self.objection(b, a))

    async def test_a_peer_that_looks_for_another_member_is_refused(self) -> None:
        b = self.node("b")
        a = self.false_member(b)
        a.hello = attrs.evolve(a.hello, peer="c")
        self.assertIn("another broker", await self.objection(b, a))

    async def test_a_member_without_a_name_is_refused(self) -> None:
        b = self.node("b")
        a = self.false_member(b)
        a.hello = attrs.evolve(a.hello, name="nobody")
        self.assertIn("no member", await self.objection(b, a))

    async def test_a_member_that_is_gone_is_refused_while_its_link_is_open(self) -> None:
        b = self.node("b")
        pair = Pair.new()
        a = await self.false_member(b, "a", pair).introduce()
        member = self.table.members["a"]
        # Another member with the same key, so that the handshake goes on.
        self.table.set("c", attrs.evolve(member, name="c"))
        self.table.set("a", None)
        again = self.stranger(b, pair)
        await again.shake()
        again.send(*introduction(HELLO, again.hello))
        await again.wait_closed()
        (frames,) = again.inbox
        self.assertEqual(frames[:2], [b"", REFUSED])
        self.assertIn(b"no member", frames[2])
        self.assertEqual((b.links.brokers(), b.tight.told), (["a"], [("up", "a")]))
        self.table.set("a", member)
        await self.stranger(b, pair).introduce()
        await a.wait_closed()
        self.assertEqual(b.links.brokers(), ["a"])
        self.assertIs(b.neighbour("a").state, LinkState.UP)

    async def test_the_member_with_the_higher_name_does_not_connect(self) -> None:
        b = self.node("b")
        self.assertIn("lower name", await self.objection(b, self.false_member(b, "c")))

    async def test_a_member_in_the_name_of_another_one_is_refused(self) -> None:
        c = self.node("c")
        self.table.set("b", Member("b", "1", "127.0.0.1:1", Pair.new().shown if self.curve else "x" * 40))
        a = self.false_member(c)
        a.hello = attrs.evolve(a.hello, name="b")
        self.assertIn("key", await self.objection(c, a))

    async def test_anything_but_hello_ends_the_connection(self) -> None:
        b = self.node("b")
        for count, frames in enumerate(
            ([b"tight", b"x"], [b""], [b"", b"PING", bytes(8)], [b"", HELLO], [b"", HELLO, *[b"x"] * 5], [b""] * 50), 1
        ):
            a = await self.false_member(b).shake()
            a.send(*frames)
            await a.wait_closed()
            refused = [b.counters.get(f"{WIRE}_refused", each.code) for each in (Reason.UNEXPECTED, Reason.SYNTAX)]
            self.assertEqual(sum(refused), count, frames)
        self.assertEqual(b.tight.told, [])

    async def test_a_second_connection_of_a_member_replaces_the_first(self) -> None:
        b = self.node("b")
        pair = Pair.new()
        first = await self.false_member(b, pair=pair).introduce()
        second = await self.stranger(b, pair).introduce()
        await first.wait_closed()
        self.assertEqual(b.tight.told, [("up", "a"), ("down", "a"), ("up", "a")])
        b.links.send("a", "tight", [b"x"])
        await second.until(lambda: [b"tight", b"x"] in second.inbox)


class IntroductionsWithoutKeys(Introductions):
    curve = False

    async def test_a_listener_on_other_interfaces_needs_a_key(self) -> None:
        with self.assertRaisesRegex(CannotListen, "need a key"):
            self.node("b", endpoint="tcp://0.0.0.0:0")

    async def test_a_member_on_another_machine_is_not_connected_to(self) -> None:
        a = self.node("a")
        self.table.set("b", Member("b", "1", "10.0.0.1:9100"))
        self.assertIs(a.neighbour("b").state, LinkState.IMPOSSIBLE)


class Neighbours(LinksRig):
    """Members that introduced themselves, and break the rules or do not read."""

    async def test_unknown_channels_and_words_are_ignored(self) -> None:
        b = self.node("b")
        a = await self.false_member(b).introduce()
        a.send(b"later", b"x")
        a.send(b"", b"LATER", b"x")
        a.send(b"")
        a.send(b"", b"PONG")
        a.send(b"tight", b"y", b"z")
        await a.until(lambda: b.tight.of("a"))
        self.assertEqual(b.tight.told, [("up", "a"), ("a", [b"y", b"z"])])
        self.assertEqual(b.links.counts()[f"{WIRE}.unknown"], 1)

    async def test_a_ping_is_answered_with_its_stamp(self) -> None:
        b = self.node("b")
        a = await self.false_member(b).introduce()
        stamp = struct.pack(">d", 1.5)
        a.send(b"", b"PING", stamp, b"more")
        await a.until(lambda: [b"", b"PONG", stamp] in a.inbox)

    async def test_a_malformed_ping_ends_the_link(self) -> None:
        b = self.node("b")
        a = await self.false_member(b).introduce()
        a.send(b"", b"PING", b"x")
        await a.wait_closed()
        self.assertEqual(b.tight.told, [("up", "a"), ("down", "a")])

    async def test_a_frame_beyond_the_limit_ends_the_link(self) -> None:
        b = self.node("b", limits=attrs.evolve(LIMITS, max_message=100_000))
        a = await self.false_member(b).introduce()
        a.raw.send(a.encoded(b"tight", bytes(100_001)))
        await a.wait_closed()
        self.assertEqual(b.tight.told, [("up", "a"), ("down", "a")])
        self.assertEqual(b.counters.get(f"{WIRE}_refused", Reason.TOO_LARGE.code), 1)

    async def test_a_message_beyond_the_limit_is_not_sent(self) -> None:
        b = self.node("b", limits=attrs.evolve(LIMITS, max_message=100_000))
        a = await self.false_member(b).introduce()
        for frames in ([bytes(100_001)], [bytes(90_000)] * 10, [b""] * 10_000):
            self.assertFalse(b.links.send("a", "tight", frames))
        self.assertTrue(b.links.send("a", "tight", [b"x"]))
        await a.until(lambda: [b"tight", b"x"] in a.inbox)
        self.assertEqual(b.links.counts()[f"{WIRE}.too_large"], 3)

    async def test_a_lossy_channel_drops_and_counts_where_the_neighbour_does_not_read(self) -> None:
        b = self.node("b", limits=FEW)
        a = await self.false_member(b).introduce()
        sent = self.choke(b, "loose")
        self.assertFalse(b.links.send("a", "loose", [b"x"]))
        self.assertEqual(b.links.counts()[f"{WIRE}.dropped"], 2)
        self.assertEqual(b.neighbour("a").dropped, 2)
        self.assertEqual(b.links.brokers(), ["a"])
        await a.until(lambda: sum(frames[0] == b"loose" for frames in a.inbox) == sent)
        numbers = [int(frames[1]) for frames in a.inbox if frames[0] == b"loose"]
        self.assertEqual(numbers, list(range(sent)))
        b.links.send("a", "loose", [b"room"])
        await a.until(lambda: [b"loose", b"room"] in a.inbox)

    async def test_another_channel_ends_the_link_where_the_neighbour_does_not_read(self) -> None:
        b = self.node("b", limits=FEW)
        a = await self.false_member(b).introduce()
        self.choke(b, "tight")
        # No receiver is called within a send.
        self.assertEqual(b.tight.downs("a"), 0)
        self.assertFalse(b.links.send("a", "loose", [b"x"]))
        await until(lambda: b.tight.downs("a") == 1)
        self.assertEqual(b.links.brokers(), [])
        await a.wait_closed()

    async def test_a_silent_neighbour_loses_the_link(self) -> None:
        clock = Clock()
        b = self.node("b", lifetime=clock)
        a = await self.false_member(b).introduce()
        clock.pump([0.1] * round(SILENCE * 10 - 1))
        a.send(b"tight", b"alive")
        await until(lambda: b.tight.of("a"))
        clock.pump([0.1] * round(SILENCE * 10 - 1))
        self.assertEqual(b.links.brokers(), ["a"])
        clock.pump([0.1] * 20)
        self.assertEqual(b.links.brokers(), [])
        self.assertEqual(b.tight.told[-1], ("down", "a"))
        await a.wait_closed()

    async def test_a_stall_of_this_broker_ends_no_link(self) -> None:
        clock = Clock()
        b = self.node("b", lifetime=clock)
        await self.false_member(b).introduce()
        clock.advance(60)
        self.assertEqual(b.links.brokers(), ["a"])

    def choke(self, node: Node, channel: str) -> int:
        """Send messages to a neighbour that does not read until one is refused. Returns how many were sent."""
        count = 0
        while node.links.send("a", channel, [b"%d" % count, BULKY]):
            count += 1
            assert count * len(BULKY) < KERNEL + BACKLOG
        return count
