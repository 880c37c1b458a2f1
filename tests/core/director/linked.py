"""Directors of several brokers: simulated links and claims, and Context Servers that are connected to all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import IQueueOwners, Member, QueueClaim
from broker.core.director.director_interfaces import (
    UNLIMITED,
    Close,
    ContextDump,
    DirectorSettings,
    DoReserve,
    Granted,
    IContextServer,
    ProviderDump,
    Request,
)
from broker.core.director.linked_director import LinkedDirector
from broker.core.director.returning import WITHIN
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import BROKER, Service
from tests.cluster.links.rig import Members, Table
from tests.core.cluster.network import Network

Changed = Callable[[str, str, QueueClaim | None], None]
Key = tuple[str, str]


class Claims:
    """The claims in etcd, which ``cut`` brokers cannot reach. All learn of a change within ``slowest`` seconds."""

    def __init__(self, clock: Clock, random: Random, slowest: float) -> None:
        self.clock = clock
        self.random = random
        self.slowest = slowest
        self.owners: dict[Key, str] = {}
        self.views: dict[str, Owners] = {}
        self.cut: set[str] = set()
        self.taken = 0

    def set(self, key: Key, owner: str | None) -> None:
        if owner is None:
            self.owners.pop(key, None)
        else:
            self.owners[key] = owner
            self.taken += 1
        for view in self.views.values():
            self.clock.callLater(self.random.uniform(0, self.slowest), view.read)

    def end(self, broker: str) -> None:
        """The lease of a broker ends."""
        for key in [key for key, owner in self.owners.items() if owner == broker]:
            self.set(key, None)
        view = self.views.get(broker)
        if view is not None:
            view.lost()


@implementer(IQueueOwners)
class Owners:
    """The claims as one broker knows them."""

    def __init__(self, claims: Claims, name: str) -> None:
        self.claims = claims
        self.name = name
        self.known: dict[Key, str] = {}
        self.watchers: list[Changed] = []
        claims.views[name] = self
        self.read()

    def read(self) -> None:
        if self.name not in self.claims.cut and self.claims.views.get(self.name) is self:
            self.know(dict(self.claims.owners))

    def lost(self) -> None:
        self.know({key: owner for key, owner in self.known.items() if owner != self.name})

    def know(self, owners: dict[Key, str]) -> None:
        before, self.known = self.known, owners
        for key in sorted({*before, *owners}):
            if before.get(key) != owners.get(key):
                for changed in tuple(self.watchers):
                    changed(*key, self.claim_of(*key))

    def claim(self, space: str, name: str, lasting: bool = False, shared: bool = False) -> Deferred[QueueClaim]:
        if self.name in self.claims.cut:
            return fail(Refusal(Reason.UNAVAILABLE, "etcd cannot be reached"))
        answer: Deferred[QueueClaim] = Deferred()
        claims = self.claims

        def write() -> None:
            if (space, name) not in claims.owners and claims.views.get(self.name) is self:
                claims.set((space, name), self.name)
            self.read()
            answer.callback(QueueClaim(claims.owners[space, name]))

        claims.clock.callLater(claims.random.uniform(0, claims.slowest), write)
        return answer

    def claim_of(self, space: str, name: str) -> QueueClaim | None:
        owner = self.known.get((space, name))
        return None if owner is None else QueueClaim(owner)

    def release(self, space: str, name: str) -> Deferred[None]:
        if self.known.get((space, name)) == self.name and self.name not in self.claims.cut:
            self.claims.set((space, name), None)
        return succeed(None)

    def watch_claims(self, changed: Changed) -> IWait:
        self.watchers.append(changed)
        return _Watch(self.watchers, changed)


@implementer(IWait)
class _Watch:
    def __init__(self, watchers: list[Changed], changed: Changed) -> None:
        self.watchers, self.changed = watchers, changed

    def cancel(self) -> None:
        self.watchers.remove(self.changed)


class Line:
    """A Context Server's connection to one director."""

    link: IContextServer

    def __init__(self, server: ContextServer, broker: str) -> None:
        self.server = server
        self.broker = broker
        self.heard: list[object] = []

    def receive(self, order: object) -> None:
        self.heard.append(order)
        self.server.receive(self, order)


class ContextServer:
    """A Context Server as the real ones are: it reports the same over each connection, with ``yours`` to the director
    whose reservation opened the context. It closes what it is told to close."""

    def __init__(self, brokers: Brokers, label: str, capacity: int = UNLIMITED) -> None:
        self.brokers = brokers
        self.label = label
        self.capacity = capacity
        self.lines: dict[str, Line] = {}
        self.rooms: dict[str, set[str]] = {}
        self.admits: dict[str, tuple[str, str | None, str]] = {}
        """Context, user and broker of each reservation."""
        self.closed_as_duplicates: list[str] = []
        self.opened = 0

    @property
    def hostport(self) -> str:
        return f"{self.label}:1"

    def connect(self, *names: str) -> ContextServer:
        for broker in names:
            line = self.lines[broker] = Line(self, broker)
            line.link = self.brokers.directors[broker].join(self.label, line)
            line.link.address("tcp", self.hostport)
            line.link.will_serve("context", self.capacity, False)
            for room, users in self.rooms.items():
                line.link.opened(room, False, UNLIMITED, UNLIMITED, False)
                for user in users:
                    line.link.entered(room, user)
        return self

    def lose(self, broker: str) -> None:
        """The director's broker has died."""
        line = self.lines.pop(broker, None)
        if line is not None:
            line.link.leave()

    def receive(self, line: Line, order: object) -> None:
        if isinstance(order, DoReserve):
            self.admits[order.reservation] = order.context, order.user, line.broker
        elif isinstance(order, Close) and order.dup and order.context is not None:
            self.closed_as_duplicates.append(order.context)
            # Not within the call of the director.
            self.brokers.clock.callLater(0.001, self.close, order.context)

    def open(self, room: str, by: str = "", maxcap: int = UNLIMITED) -> None:
        if room not in self.rooms:
            self.opened += 1
            self.rooms[room] = set()
            for broker, line in sorted(self.lines.items(), key=lambda item: item[0] != by):
                line.link.opened(room, broker == by, maxcap, maxcap, False)

    def close(self, room: str) -> None:
        if self.rooms.pop(room, None) is not None:
            for line in self.lines.values():
                line.link.closed(room)

    def enter(self, granted: Granted) -> bool:
        """A user arrives. Returns False if the reservation is not known."""
        admitted = self.admits.pop(granted.reservation, None)
        if admitted is None or admitted[0] != granted.context:
            return False
        room, user, by = admitted
        self.open(room, by)
        self.brokers.visits += 1
        name = f"{user or 'user-anon'}-{self.brokers.visits}"
        self.rooms[room].add(name)
        for line in self.lines.values():
            line.link.entered(room, name)
        return True


class Brokers:
    """Brokers with a director each, all linked, and Context Servers."""

    def __init__(
        self, *names: str, seed: int = 1, slowest: float = 0.0, settings: DirectorSettings | None = None
    ) -> None:
        self.clock = Clock()
        self.settings = settings or DirectorSettings()
        self.network = Network(self.clock, seed, slowest)
        self.claims = Claims(self.clock, Random(seed), slowest)
        self.table = Table()
        self.directors: dict[str, LinkedDirector] = {}
        self.servers: dict[str, ContextServer] = {}
        self.offers: dict[str, list[list[str]]] = {name: [] for name in names}
        """The listeners elsewhere, at each of their changes."""
        self.visits = 0
        for name in names:
            self.start(name, link=False)
        for index, one in enumerate(names):
            for two in names[index + 1 :]:
                self.network.up(one, two)
        self.settle()

    def start(self, name: str, link: bool = True) -> LinkedDirector:
        """Start a broker, for the first time or again."""
        self.table.set(name, Member(name, ""))

        def changed() -> None:
            self.offers[name].append([each.hostport for each in director.elsewhere()])

        director = LinkedDirector(
            self.clock,
            self.settings,
            Members(name, self.table),
            Owners(self.claims, name),
            self.network.add(name),
            changed,
        )
        others = list(self.directors)
        self.directors[name] = director
        if link:
            for other in others:
                self.network.up(name, other)
        director.announce([Service("director-provider", f"{name}:9010", BROKER)])
        return director

    def kill(self, name: str) -> LinkedDirector:
        """End a broker at once. Its lease stays until `expire`."""
        director = self.directors.pop(name)
        del self.claims.views[name]
        for other in self.directors:
            self.network.down(name, other)
        director.stop()
        for server in self.servers.values():
            server.lose(name)
        return director

    def expire(self, name: str) -> None:
        """The lease of a dead broker ends."""
        self.claims.end(name)
        self.table.set(name, None)

    def settle(self, seconds: float = 0.5) -> None:
        """Let messages arrive."""
        self.clock.pump([0.01] * round(seconds / 0.01))

    def warm(self) -> str:
        """Let the directors become warm, and return the one that is active then."""
        self.clock.pump([0.5] * round(WITHIN / 0.5))
        self.settle(2)
        return self.active()

    def active(self) -> str:
        [name] = self.claims.owners.values()
        return name

    def server(self, label: str, *names: str, capacity: int = UNLIMITED) -> ContextServer:
        """Connect a new Context Server, to all directors if none are named."""
        server = self.servers[label] = ContextServer(self, label, capacity)
        return server.connect(*(names or self.directors))

    def at(self, granted: object) -> ContextServer:
        assert isinstance(granted, Granted), granted
        return self.servers[granted.hostport.partition(":")[0]]

    def ask(
        self,
        broker: str,
        context: str,
        user: str | None = None,
        by: object = None,
        most: int = 9,
    ) -> list[object]:
        """Ask a director. The list gets the answer, a `Granted` or a `Refusal`."""
        answers: list[object] = []
        request = Request(by or object(), "tcp", context, user, False, most)
        maybeDeferred(self.directors[broker].reserve, request).addBoth(
            lambda answer: answers.append(answer.value if isinstance(answer, Failure) else answer)
        )
        return answers

    def granted(self, broker: str, context: str, user: str | None = None, **more: object) -> Granted:
        """Ask, and wait for the answer."""
        answers = self.ask(broker, context, user, **more)  # type: ignore[arg-type]
        self.settle()
        [answer] = answers
        assert isinstance(answer, Granted), answer
        return answer

    def count(self, broker: str, name: str) -> int:
        return self.directors[broker].counts()[name]


def view(director: LinkedDirector) -> object:
    """All that a director shows of its farm, in an order that is alike at all directors."""
    servers: dict[Sequence[str], object] = {}
    present: dict[str, Iterable[str]] = {}
    for piece in director.dump(3, None, None).pieces:
        if isinstance(piece, ProviderDump):
            present = {}
            key = tuple(sorted(piece.hostports))
            servers[key] = (piece.contexts, piece.users, piece.capacity, sorted(piece.serving), present)
        else:
            assert isinstance(piece, ContextDump)
            present[piece.context] = sorted(piece.users)
    return servers
