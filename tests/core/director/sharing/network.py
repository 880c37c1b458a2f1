"""Directors of several brokers on simulated links: a hand clock, and delays that are drawn from a seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from twisted.internet.task import Clock
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import ILinks, LinkReceiver
from broker.core.director.director_interfaces import (
    UNLIMITED,
    ContextDump,
    Denied,
    DirectorSettings,
    Granted,
    IContextServer,
    ProviderDump,
)
from broker.core.director.sharing.shared_director import SharedDirector


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


class Side:
    """A Context Server's connection to one broker; it records what it is told."""

    link: IContextServer

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def hear(self, order: object) -> None:
        self.heard.append(order)

    def take(self) -> list[Any]:
        heard, self.heard = self.heard, []
        return heard

    def open(self, context: str, *users: str, yours: bool = False, maxcap: int = UNLIMITED, basecap: int = -1) -> None:
        self.link.opened(context, yours, maxcap, basecap, False)
        for user in users:
            self.link.entered(context, user)


class Brokers:
    """Brokers with a director each, all linked."""

    def __init__(self, *names: str, seed: int = 1, slowest: float = 0.0, settings: DirectorSettings | None = None):
        self.clock = Clock()
        self.settings = settings or DirectorSettings()
        self.network = Network(self.clock, seed, slowest)
        self.directors: dict[str, SharedDirector] = {}
        for name in names:
            self.start(name, link=False)
        for index, one in enumerate(names):
            for two in names[index + 1 :]:
                self.network.up(one, two)
        self.settle()

    def start(self, name: str, link: bool = True) -> SharedDirector:
        """Start a broker, for the first time or again."""
        others = [other for other in self.directors if other != name]
        made = self.directors[name] = SharedDirector(self.clock, self.settings, self.network.add(name), name)
        if link:
            for other in others:
                self.network.up(name, other)
        return made

    def kill(self, name: str) -> None:
        """End a broker with all its connections. Messages that its director sends afterwards are lost."""
        director = self.directors.pop(name)
        director.stop(farewell=False)
        for other in self.directors:
            self.network.down(name, other)

    def settle(self, seconds: float = 0.5) -> None:
        """Let messages arrive."""
        self.clock.pump([0.01] * round(seconds / 0.01))

    def server(
        self,
        broker: str,
        label: str,
        addresses: dict[str, str] | None = None,
        capacity: int = UNLIMITED,
        families: Iterable[str] = ("context",),
    ) -> Side:
        side = Side()
        side.link = self.directors[broker].join(label, side)
        for protocol, hostport in ({"tcp": f"{label}:1"} if addresses is None else addresses).items():
            side.link.address(protocol, hostport)
        for family in families:
            side.link.will_serve(family, capacity, False)
        return side

    def reserve(self, broker: str, context: str, user: str | None = None, by: object = None) -> Granted | Denied:
        try:
            return self.directors[broker].reserve(by or object(), "tcp", context, user, False, 100)
        except Denied as denied:
            return denied

    def granted(self, broker: str, context: str, user: str | None = None, by: object = None) -> Granted:
        answer = self.reserve(broker, context, user, by)
        assert isinstance(answer, Granted), answer
        return answer

    def count(self, broker: str, name: str) -> int:
        return self.directors[broker].counts()[name]


def view(director: SharedDirector) -> object:
    """All that a director knows of its farm, in an order that is alike at all directors."""
    servers: dict[tuple[str, ...], tuple[ProviderDump, dict[str, tuple[str, ...]]]] = {}
    present: dict[str, tuple[str, ...]] = {}
    for piece in director.dump(3, None, None).pieces:
        if isinstance(piece, ProviderDump):
            present = {}
            servers[tuple(sorted(piece.hostports))] = piece, present
        else:
            assert isinstance(piece, ContextDump)
            present[piece.context] = tuple(sorted(piece.users))
    return {
        key: (
            each.contexts, each.users, each.capacity, tuple(sorted(each.protocols)), tuple(sorted(each.serving)),
            each.broker, contexts,
        )
        for key, (each, contexts) in servers.items()
    }  # fmt: skip
