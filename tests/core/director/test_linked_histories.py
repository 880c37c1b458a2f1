"""Random histories of several directors: brokers, links and etcd fail, and afterwards all know the same."""

from __future__ import annotations

import pytest

from broker.core.director.director_interfaces import Granted
from broker.core.director.returning import WITHIN
from tests.core.director.linked import Brokers, ContextServer, view
from tests.core.director.rig import check
from tests.examples import sampled

NAMES = ("a", "b", "c")
STEPS = 250


class History:
    def __init__(self, seed: int) -> None:
        self.brokers = Brokers(*NAMES, seed=seed, slowest=0.05)
        self.random = self.brokers.claims.random
        self.servers = [self.brokers.server(f"cs{number}", capacity=30) for number in range(4)]
        self.cut: set[tuple[str, str]] = set()
        self.leases = set(NAMES)
        """Brokers whose leases have not ended."""
        self.answers: list[list[object]] = []
        self.asked = self.entered = 0

    def step(self) -> None:
        random, brokers = self.random, self.brokers
        alive = sorted(brokers.directors)
        server = random.choice(self.servers)
        kind = random.random()
        if kind < 0.5:
            self.asked += 1
            user = f"user-u{random.randrange(9)}"
            self.answers.append(brokers.ask(random.choice(alive), f"context-{random.randrange(6)}", user))
        elif kind < 0.6 and server.rooms:
            server.close(random.choice(sorted(server.rooms)))
        elif kind < 0.7 and server.rooms:
            self.leave(server, random.choice(sorted(server.rooms)))
        elif kind < 0.76:
            one, two = sorted(random.sample(NAMES, 2))
            if {one, two} <= set(alive):
                self.turn(one, two)
        elif kind < 0.78 and len(alive) > 1:
            self.die(random.choice(alive))
        elif kind < 0.83:
            for name in sorted(set(NAMES) - set(alive)):
                self.revive(name)
        elif kind < 0.86:
            brokers.claims.cut ^= {random.choice(alive)}
        elif kind < 0.89:
            for name in sorted(self.leases & (brokers.claims.cut | set(NAMES) - set(alive))):
                self.expire(name)
        brokers.clock.pump([0.01] * random.randrange(30))
        self.arrive()

    def arrive(self) -> None:
        """Users go where they were sent."""
        for answer in self.answers:
            if answer and isinstance(answer[0], Granted) and self.random.random() < 0.9:
                self.entered += self.brokers.at(answer[0]).enter(answer[0])
        self.answers = [each for each in self.answers if not each]

    def leave(self, server: ContextServer, room: str) -> None:
        for user in sorted(server.rooms[room])[:1]:
            server.rooms[room].discard(user)
            for line in server.lines.values():
                line.link.exited(room, user)

    def turn(self, one: str, two: str) -> None:
        if (one, two) in self.cut:
            self.cut.discard((one, two))
            self.brokers.network.up(one, two)
        else:
            self.cut.add((one, two))
            self.brokers.network.down(one, two)

    def die(self, name: str) -> None:
        self.brokers.kill(name)
        self.cut = {pair for pair in self.cut if name not in pair}

    def expire(self, name: str) -> None:
        self.leases.discard(name)
        if name in self.brokers.directors:
            self.brokers.claims.end(name)
        else:
            self.brokers.expire(name)

    def revive(self, name: str) -> None:
        self.leases.add(name)
        self.brokers.start(name)
        for server in self.servers:
            server.connect(name)

    def heal(self) -> None:
        brokers = self.brokers
        for name in sorted(set(NAMES) - set(brokers.directors)):
            self.revive(name)
        for pair in sorted(self.cut):
            brokers.network.up(*pair)
        brokers.claims.cut.clear()
        for owners in brokers.claims.views.values():
            owners.read()
        brokers.settle(1)
        self.arrive()
        brokers.clock.pump([0.5] * round(2 * WITHIN))
        self.arrive()
        brokers.settle(2)


@pytest.mark.parametrize("seed", sampled(range(40)))
def test_after_any_history_all_directors_know_the_truth(seed: int) -> None:
    history = History(seed)
    brokers = history.brokers
    for _ in range(STEPS):
        history.step()
        for director in brokers.directors.values():
            check(director)
    history.heal()
    directors = list(brokers.directors.values())
    assert {director.decider for director in directors} == {brokers.active()}
    views = [view(each) for each in directors]
    assert views[1] == views[0]
    assert views[2] == views[0]
    for director in directors:
        check(director)
        assert set(director.contexts()) == {room for server in history.servers for room in server.rooms}
        # Of a context that two servers have open, one is shown; its users are there.
        for room in director.contexts():
            label = director.find_context(room).provider
            assert label is not None
            assert director.dump(3, label, room).users == len(brokers.servers[label].rooms[room])
    assert history.entered > 30
    # Every request was answered, and each user who had an answer was admitted, but for those of a server that is full.
    assert not history.answers
    brokers.clock.pump([1.0] * 40)
    for director in directors:
        assert director.counts()["reservations"] == director.counts()["placements"] == 0
        director.stop()
    brokers.settle(1)
    assert brokers.clock.getDelayedCalls() == []
