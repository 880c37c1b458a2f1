"""Random histories of several directors: servers change brokers, links and brokers fail, and all agree afterwards."""

from __future__ import annotations

from random import Random

import pytest

from broker.core.director.director_interfaces import Close, Denied, Granted
from broker.core.director.sharing.records import HELD_SECONDS
from broker.core.errors import Refusal
from tests.core.director.rig import check
from tests.core.director.sharing.network import Brokers, Side, view

NAMES = ("a", "b", "c")
STEPS = 250


class Machine:
    """A Context Server: what is open on it, who is in it, and its connections by their brokers."""

    def __init__(self, brokers: Brokers, label: str) -> None:
        self.brokers = brokers
        self.label = label
        self.rooms: dict[str, set[str]] = {}
        self.sides: dict[str, Side] = {}

    def connect(self, broker: str) -> None:
        side = self.sides[broker] = self.brokers.server(broker, self.label, capacity=30)
        for room, users in self.rooms.items():
            side.open(room, *users)

    def disconnect(self, broker: str, told: bool = True) -> None:
        side = self.sides.pop(broker)
        if told:
            side.link.leave()

    def open(self, room: str, by: str | None = None) -> None:
        if room not in self.rooms:
            self.rooms[room] = set()
            for broker, side in self.sides.items():
                side.open(room, yours=broker == by)

    def close(self, room: str) -> None:
        if self.rooms.pop(room, None) is not None:
            for side in self.sides.values():
                side.link.closed(room)

    def enter(self, room: str, user: str) -> None:
        if user not in self.rooms[room]:
            self.rooms[room].add(user)
            for side in self.sides.values():
                side.link.entered(room, user)

    def exit(self, room: str, user: str) -> None:
        self.rooms[room].discard(user)
        for side in self.sides.values():
            side.link.exited(room, user)

    def obey(self) -> None:
        """Close what the directors do not want to be open twice."""
        for side in tuple(self.sides.values()):
            for order in side.take():
                if isinstance(order, Close) and order.dup and order.context is not None:
                    self.close(order.context)


class History:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = Brokers(*NAMES, seed=seed, slowest=0.05)
        self.machines = [Machine(self.brokers, f"cs{number}") for number in range(4)]
        self.cut: set[tuple[str, str]] = set()
        self.dead: set[str] = set()
        self.visits = 0

    def step(self) -> None:
        random = self.random
        machine = random.choice(self.machines)
        alive = [name for name in NAMES if name not in self.dead]
        kind = random.random()
        if kind < 0.12:
            broker = random.choice(alive)
            if broker in machine.sides:
                machine.disconnect(broker)
            else:
                machine.connect(broker)
        elif kind < 0.25:
            machine.open(f"context-{random.randrange(6)}")
        elif kind < 0.33 and machine.rooms:
            machine.close(random.choice(sorted(machine.rooms)))
        elif kind < 0.55 and machine.rooms:
            room = random.choice(sorted(machine.rooms))
            if machine.rooms[room] and random.random() < 0.4:
                machine.exit(room, random.choice(sorted(machine.rooms[room])))
            else:
                machine.enter(room, f"user-u{random.randrange(9)}-{random.randrange(3)}")
        elif kind < 0.8:
            self.visit(random.choice(alive))
        elif kind < 0.86:
            one, two = sorted(random.sample(NAMES, 2))
            if not {one, two} & self.dead:
                if (one, two) in self.cut:
                    self.cut.discard((one, two))
                    self.brokers.network.up(one, two)
                else:
                    self.cut.add((one, two))
                    self.brokers.network.down(one, two)
        elif kind < 0.88 and len(alive) > 1:
            self.die(random.choice(alive))
        elif kind < 0.92 and self.dead:
            self.revive(random.choice(sorted(self.dead)))
        self.brokers.clock.pump([0.01] * random.randrange(8))
        for each in self.machines:
            each.obey()

    def visit(self, broker: str) -> None:
        """A user asks, and goes to the chosen server."""
        user = f"user-u{self.random.randrange(9)}"
        try:
            answer = self.brokers.reserve(broker, f"context-{self.random.randrange(6)}", user)
        except Refusal:
            return
        if isinstance(answer, Denied):
            return
        if answer.delivered is None:
            self.arrive(True, answer, user)
        else:
            answer.delivered.addCallback(self.arrive, answer, user)

    def arrive(self, delivered: bool, answer: Granted, user: str) -> None:
        if not delivered:
            return
        [machine] = [each for each in self.machines if f"{each.label}:1" == answer.hostport]
        if machine.sides and self.random.random() < 0.8:
            machine.open(answer.context, by=self.random.choice(sorted(machine.sides)))
            machine.enter(answer.context, f"{user}-{self.random.randrange(3)}")
            self.visits += 1

    def die(self, broker: str) -> None:
        for machine in self.machines:
            if broker in machine.sides:
                machine.disconnect(broker, told=False)
        self.brokers.kill(broker)
        self.dead.add(broker)
        self.cut = {pair for pair in self.cut if broker not in pair}

    def revive(self, broker: str) -> None:
        self.dead.discard(broker)
        self.brokers.start(broker)

    def heal(self) -> None:
        for broker in sorted(self.dead):
            self.revive(broker)
        for pair in sorted(self.cut):
            self.brokers.network.up(*pair)
        for _ in range(3):
            self.brokers.settle(1)
            for machine in self.machines:
                machine.obey()
        self.brokers.clock.pump([0.5] * round(HELD_SECONDS / 0.5 + 2))
        for machine in self.machines:
            machine.obey()
        self.brokers.settle(1)


@pytest.mark.parametrize("seed", range(40))
def test_after_any_history_all_directors_know_the_truth(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        for director in history.brokers.directors.values():
            check(director)
    history.heal()
    directors = list(history.brokers.directors.values())
    views = [view(each) for each in directors]
    assert views[1] == views[0]
    assert views[2] == views[0]
    there = {machine.label: machine for machine in history.machines if machine.sides}
    for director in directors:
        check(director)
        assert set(director.providers()) == set(there)
        assert set(director.contexts()) == {room for machine in there.values() for room in machine.rooms}
        # Of a context that two servers have open, one is shown; its users are there.
        for room in director.contexts():
            label = director.find_context(room).provider
            assert label is not None
            users = {user for user in director.users() if room in director.find_user(user).contexts}
            assert {user for user in users if user in there[label].rooms[room]} == there[label].rooms[room]
    assert history.visits > 5
    history.brokers.clock.pump([1.0] * 40)
    for director in directors:
        assert director.counts()["reservations"] == director.counts()["placements"] == 0
        director.stop(farewell=False)
    assert history.brokers.clock.getDelayedCalls() == []
