"""The links as operators see them."""

from __future__ import annotations

from broker.cluster.links.link_messages import LINK_COUNTERS
from broker.cluster.links.links import links_view
from broker.core.cluster.cluster_interfaces import Member
from broker.wires.tables import Documentation
from tests.cluster.links.rig import LinksRig
from tests.net.waiting import until
from tests.wires.contexts import page


class Views(LinksRig):
    async def test_the_table_of_links(self) -> None:
        a, b = self.node("a"), self.node("b")
        await self.linked(a, b)
        self.table.set("c", Member("c", "1"))
        b.links.send("a", "loose", [b"x"])
        await until(lambda: a.loose.of("b"))
        up, impossible = page([links_view(a.links)], "cluster links")
        self.assertEqual(
            {name: up[name] for name in ("peer", "state", "address", "sent", "received", "dropped", "queued")},
            {
                "peer": "b",
                "state": "up",
                "address": b.member.link,
                "sent": 0,
                "received": 1,
                "dropped": 0,
                "queued": 0,
            },
        )
        self.assertEqual(
            (impossible["peer"], impossible["state"], impossible["reason"]),
            ("c", "impossible", "it has published no key"),
        )
        [expected, _] = page([links_view(b.links)], "cluster links")
        self.assertEqual((expected["peer"], expected["state"]), ("a", "up"))

    async def test_each_counter_is_documented(self) -> None:
        documentation = Documentation(LINK_COUNTERS)
        a = self.node("a")
        for name in a.links.counts():
            self.assertIsNotNone(documentation.of(name), name)
        self.assertEqual(a.links.place()["address"], f"tcp://{a.member.link}")  # type: ignore[index]
        a.links.unbind()
        self.assertIsNone(a.links.place())
