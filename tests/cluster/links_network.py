"""Links between brokers in memory: a full mesh that is cut and healed by the test.

network = LinksNetwork(clock)
a, b = network.links("a"), network.links("b")   # two `ILinks`
a.serve("topics", receiver)
network.open()                                  # `up` at both sides of each pair
network.cut("a", "b"); network.heal("a", "b")   # `down`, `up`
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import ILinks, LinkReceiver

CAPACITY = 1_000
"""Messages on the way from one broker to another at most, unless the test says otherwise."""

REOPEN = 0.5
"""Seconds after which a link that ended because its queue was full is opened again."""


class LinksNetwork:
    """The network of all links.

    ``delay`` is the least time from `ILinks.send` to `LinkReceiver.receive`, in seconds; ``rng`` adds up to as much
    again to each message. Messages of one broker arrive at another in the order in which they were sent. ``capacity``
    bounds the messages of one direction that are on the way.
    """

    def __init__(
        self,
        clock: IReactorTime,
        rng: random.Random | None = None,
        delay: float = 0.001,
        capacity: int = CAPACITY,
    ) -> None:
        self.clock = clock
        self.rng = rng or random.Random(0)
        self.delay = delay
        self.capacity = capacity
        self.dropped = 0
        """Messages of lossy channels that were dropped because a queue was full."""
        self._all: dict[str, SimulatedLinks] = {}
        self._open: dict[tuple[str, str], int] = {}
        """Open links by the names of both sides in order, with a number of their own for each time."""
        self._cut: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)

    def links(self, name: str) -> SimulatedLinks:
        """Return the links of a broker, which is added to the network without an open link; see `open`."""
        assert name not in self._all
        made = self._all[name] = SimulatedLinks(self, name)
        return made

    def open(self) -> None:
        """Open the links of all pairs that are not cut."""
        for one, other in itertools.combinations(sorted(self._all), 2):
            self._connect((one, other))

    def cut(self, one: str, other: str) -> None:
        """End the link of a pair until `heal`; messages on the way are lost."""
        pair = _pair(one, other)
        self._cut.add(pair)
        self._disconnect(pair)

    def heal(self, one: str, other: str) -> None:
        """Open the link of a pair again."""
        pair = _pair(one, other)
        self._cut.discard(pair)
        self._connect(pair)

    def isolate(self, name: str) -> None:
        """Cut a broker off from all others."""
        for other in sorted(self._all):
            if other != name:
                self.cut(name, other)

    def rejoin(self, name: str) -> None:
        """Heal the links of a broker to all others."""
        for other in sorted(self._all):
            if other != name:
                self.heal(name, other)

    def remove(self, name: str) -> None:
        """End a broker: its side gets no further calls."""
        self._all.pop(name).ended = True
        for pair in [pair for pair in self._open if name in pair]:
            self._disconnect(pair)

    # for the links

    def neighbours(self, name: str) -> list[str]:
        """Return the brokers to which a broker has an open link."""
        return sorted(one if other == name else other for one, other in self._open if name in (one, other))

    def transmit(self, sender: SimulatedLinks, to: str, channel: str, frames: Sequence[bytes]) -> bool:
        """Send a message; see `ILinks.send`."""
        number = self._open.get(_pair(sender.name, to))
        if number is None:
            return False
        if len(sender.arrivals.setdefault(to, [])) >= self.capacity:
            if sender.lossy[channel]:
                self.dropped += 1
            else:
                pair = _pair(sender.name, to)
                self._disconnect(pair)
                self.clock.callLater(REOPEN, self._connect, pair)
            return False
        now = self.clock.seconds()
        arrivals = sender.arrivals[to]
        arrival = now + self.delay * (1 + self.rng.random())
        if arrivals:
            arrival = max(arrival, arrivals[-1])
        arrivals.append(arrival)
        self.clock.callLater(arrival - now, self._arrive, sender, to, number, channel, tuple(frames))
        return True

    def _arrive(self, sender: SimulatedLinks, to: str, number: int, channel: str, frames: tuple[bytes, ...]) -> None:
        if self._open.get(_pair(sender.name, to)) != number:
            return
        sender.arrivals[to].pop(0)
        receiver = self._all[to].receivers.get(channel)
        if receiver is not None:
            receiver.receive(sender.name, frames)

    def _connect(self, pair: tuple[str, str]) -> None:
        if pair in self._open or pair in self._cut or not all(name in self._all for name in pair):
            return
        self._open[pair] = next(self._numbers)
        for name, other in (pair, pair[::-1]):
            self._all[name].arrivals[other] = []
            for receiver in list(self._all[name].receivers.values()):
                receiver.up(other)

    def _disconnect(self, pair: tuple[str, str]) -> None:
        if self._open.pop(pair, None) is None:
            return
        for name, other in (pair, pair[::-1]):
            if name in self._all:
                for receiver in list(self._all[name].receivers.values()):
                    receiver.down(other)


@implementer(ILinks)
class SimulatedLinks:
    """The side of one broker; see `LinksNetwork`."""

    def __init__(self, network: LinksNetwork, name: str) -> None:
        self.name = name
        self.receivers: dict[str, LinkReceiver] = {}
        self.lossy: dict[str, bool] = {}
        self.arrivals: dict[str, list[float]] = {}
        """Times of arrival of the messages that are on the way, by receiver."""
        self.ended = False
        self._network = network

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        assert channel not in self.receivers
        self.receivers[channel] = receiver
        self.lossy[channel] = lossy

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        return not self.ended and self._network.transmit(self, broker, channel, frames)

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        for broker in self.brokers():
            self.send(broker, channel, frames)

    def brokers(self) -> Sequence[str]:
        return () if self.ended else self._network.neighbours(self.name)


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
