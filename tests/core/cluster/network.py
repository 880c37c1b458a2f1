"""Simulated links between brokers: a hand clock, and delays that are drawn from a seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

from twisted.internet.task import Clock
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import ILinks, LinkReceiver


@implementer(ILinks)
class Links:
    """The links of one broker."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.receivers: dict[str, LinkReceiver] = {}

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        self.receivers[channel] = receiver

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        return self.network.send(self.name, broker, channel, frames)

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        for broker in self.brokers():
            self.send(broker, channel, frames)

    def brokers(self) -> Sequence[str]:
        return sorted(other for here, other in self.network.open if here == self.name)


class Network:
    """Brokers and the links between them. A message takes up to ``slowest`` seconds, those of one link in order."""

    def __init__(self, clock: Clock, seed: int = 1, slowest: float = 0.0) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.slowest = slowest
        self.links: dict[str, Links] = {}
        self.open: dict[tuple[str, str], deque[tuple[str, Sequence[bytes]]]] = {}
        self.sent = 0
        self.largest = 0
        self.longest = 0
        self.held: set[tuple[str, str]] = set()
        """Directions in which messages wait."""

    def add(self, name: str) -> Links:
        made = self.links[name] = Links(self, name)
        return made

    def up(self, one: str, two: str) -> None:
        for here, other in ((one, two), (two, one)):
            self.open[here, other] = deque()
        for here, other in ((one, two), (two, one)):
            for receiver in self.links[here].receivers.values():
                receiver.up(other)

    def down(self, one: str, two: str) -> None:
        for here, other in ((one, two), (two, one)):
            if self.open.pop((here, other), None) is not None:
                for receiver in self.links[here].receivers.values():
                    receiver.down(other)

    def send(self, here: str, other: str, channel: str, frames: Sequence[bytes]) -> bool:
        queue = self.open.get((here, other))
        if queue is None:
            return False
        self.sent += 1
        self.largest = max(self.largest, sum(map(len, frames)))
        queue.append((channel, frames))
        self.longest = max(self.longest, len(queue))
        self.clock.callLater(self.random.uniform(0, self.slowest), self._arrive, here, other, queue)
        return True

    def _arrive(self, here: str, other: str, queue: deque[tuple[str, Sequence[bytes]]]) -> None:
        # The first of the queue, whichever message's time it is: the order is kept.
        if self.open.get((here, other)) is not queue or not queue or (here, other) in self.held:
            return
        channel, frames = queue.popleft()
        receiver = self.links[other].receivers.get(channel)
        if receiver is not None:
            receiver.receive(here, frames)

    def release(self, here: str, other: str) -> None:
        """Deliver what waits."""
        self.held.discard((here, other))
        queue = self.open.get((here, other))
        while queue:
            self._arrive(here, other, queue)
