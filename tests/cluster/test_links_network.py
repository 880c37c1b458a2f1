"""The simulated links keep what `ILinks` promises."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.task import Clock
from zope.interface.verify import verifyObject

from broker.core.cluster.cluster_interfaces import ILinks
from tests.cluster.links_network import REOPEN, LinksNetwork


class Received:
    """A receiver that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str] | tuple[str, str, list[bytes]]] = []

    def up(self, broker: str) -> None:
        self.calls.append(("up", broker))

    def down(self, broker: str) -> None:
        self.calls.append(("down", broker))

    def receive(self, broker: str, frames: Sequence[bytes]) -> None:
        self.calls.append(("receive", broker, list(frames)))


def mesh(*names: str, lossy: bool = False, capacity: int = 1_000):
    clock = Clock()
    network = LinksNetwork(clock, capacity=capacity)
    links = {name: network.links(name) for name in names}
    received = {name: Received() for name in names}
    for name in names:
        assert verifyObject(ILinks, links[name])
        links[name].serve("channel", received[name], lossy)
    network.open()
    for each in received.values():
        each.calls.clear()
    return clock, network, links, received


def test_messages_arrive_in_order_at_the_neighbours_only() -> None:
    clock, _, links, received = mesh("a", "b", "c")
    for number in range(100):
        links["a"].broadcast("channel", [b"%d" % number])
    assert received["b"].calls == []
    clock.advance(1)
    expected = [("receive", "a", [b"%d" % number]) for number in range(100)]
    assert received["b"].calls == received["c"].calls == expected
    assert received["a"].calls == []


def test_a_cut_loses_what_is_on_the_way_and_says_down_and_up() -> None:
    clock, network, links, received = mesh("a", "b")
    links["a"].send("b", "channel", [b"lost"])
    network.isolate("a")
    assert not links["a"].send("b", "channel", [b"no link"])
    assert links["a"].brokers() == []
    network.rejoin("a")
    links["a"].send("b", "channel", [b"later"])
    clock.advance(1)
    assert received["b"].calls == [("down", "a"), ("up", "a"), ("receive", "a", [b"later"])]
    assert received["a"].calls == [("down", "b"), ("up", "b")]


def test_a_full_queue_of_a_lossy_channel_drops() -> None:
    clock, network, links, received = mesh("a", "b", lossy=True, capacity=2)
    assert [links["a"].send("b", "channel", [b"x"]) for _ in range(4)] == [True, True, False, False]
    clock.advance(1)
    assert len(received["b"].calls) == 2
    assert network.dropped == 2


def test_a_full_queue_of_another_channel_ends_the_link_for_a_moment() -> None:
    clock, _, links, received = mesh("a", "b", capacity=1)
    assert [links["a"].send("b", "channel", [b"x"]) for _ in range(2)] == [True, False]
    assert received["a"].calls == [("down", "b")]
    clock.advance(REOPEN)
    assert received["b"].calls == [("down", "a"), ("up", "a")]
    assert links["a"].brokers() == ["b"]
