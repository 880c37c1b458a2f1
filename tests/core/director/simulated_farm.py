"""A farm for an hour of its own time: Context Servers that die and come back, users that come, stay and leave.

All events are drawn beforehand from a seed, so that two ways of placing users meet the same hour. One is the director,
which has only the reports of the servers. The other, `Oracle`, sees at any time into every server, and is plain enough
to be right: it looks at all of them for each user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Protocol

import attrs
from twisted.internet.task import Clock

from broker.core.director.director import Director
from broker.core.director.director_interfaces import (
    ContextDump,
    Denied,
    DirectorSettings,
    DoReserve,
    Granted,
    IContextServer,
    Order,
    Request,
)

HOUR = 3_600.0
SERVERS = 50
SMALL = 5
"""Servers that are small enough to be full for most of the time."""
USERS = 20_000
LOAD_OF_USER = 0.0004
LOAD_OF_CONTEXT = 0.0004
REPORT_EVERY = 30.0
"""Seconds between two load reports of a server, as real ones have them."""


@attrs.frozen
class Kind:
    """The properties of contexts of a name. ``basecap`` under 0: not cloned."""

    name: str
    maxcap: int
    basecap: int


@attrs.frozen
class Visit:
    """One user's hour.

    ``travel`` is the time from a reservation to the server, ``stay`` the time there; ``shows`` is True if the user
    comes at all, ``returns`` if they reserve again when their server ends. An ``impatient`` user asks again before they
    come, and goes to the last server.
    """

    time: float
    user: str
    kind: Kind
    travel: float
    stay: float
    shows: bool
    returns: bool
    impatient: bool


@attrs.define(eq=False)
class Room:
    """An open context."""

    name: str
    kind: Kind
    users: set[str] = attrs.Factory(set)
    coming: int = 0


@attrs.define(eq=False)
class Machine:
    """A Context Server, and how many are on their way to it."""

    label: str
    capacity: int
    alive: bool = True
    rooms: dict[str, Room] = attrs.Factory(dict)
    users: int = 0
    coming: int = 0
    lives: int = 0
    links: list[IContextServer] = attrs.Factory(list)
    orders: list[Order] = attrs.Factory(list)

    @property
    def load(self) -> float:
        return LOAD_OF_USER * self.users + LOAD_OF_CONTEXT * len(self.rooms)

    def receive(self, order: Order) -> None:
        self.orders.append(order)


@attrs.define(eq=False)
class Trip:
    """A user on the way to a place."""

    machine: Machine
    name: str
    life: int
    room: Room | None
    counted: bool = False
    over: bool = False


class Placing(Protocol):
    """The side that places users, and receives the reports of the machines."""

    def place(self, user: str, kind: Kind) -> tuple[Machine, str] | None:
        """The machine and the context that the user is to enter; None if they are denied."""

    def born(self, machine: Machine) -> None: ...

    def died(self, machine: Machine) -> None: ...

    def opened(self, machine: Machine, room: Room) -> None: ...

    def closed(self, machine: Machine, room: Room) -> None: ...

    def entered(self, machine: Machine, room: Room, user: str) -> None: ...

    def left(self, machine: Machine, room: Room, user: str) -> None: ...

    def reported(self, machine: Machine) -> None: ...

    def looked_at(self) -> None:
        """Once a minute: compare what is known with what is."""


class World:
    """The hour. ``clock`` is moved along with it."""

    def __init__(self, seed: int, make: Callable[[World], Placing]) -> None:
        random = Random(seed)
        self.clock = Clock()
        self.machines = [Machine(f"cs{n}", 60 if n < SMALL else 220) for n in range(SERVERS)]
        self.random = random
        self.highest = 0.0
        self.denied = self.visits = self.entries = self.deaths = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._clones = count(1)
        self._kinds: dict[str, Kind] = {}
        self.placing = make(self)
        for machine in self.machines:
            self.placing.born(machine)
            self._at(random.uniform(0, REPORT_EVERY), self._reports(machine))
        for visit in _visits(random):
            self._kinds[visit.kind.name] = visit.kind
            self._at(visit.time, partial(self._arrive, visit, ""))
        for number in range(1, int(HOUR // 90)):
            self._at(number * 90.0, partial(self._die, random.choice(self.machines)))
        for number in range(1, int(HOUR // 60)):
            self._at(number * 60.0, self.placing.looked_at)

    def run(self) -> None:
        """Let the hour pass."""
        events = self._events
        while events and events[0][0] <= HOUR:
            time, _, event = heappop(events)
            self.clock.advance(time - self.clock.seconds())
            event()
        self.placing.looked_at()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heappush(self._events, (time, next(self._order), event))

    def _in(self, seconds: float, event: Callable[[], None]) -> None:
        self._at(self.clock.seconds() + seconds, event)

    def _reports(self, machine: Machine) -> Callable[[], None]:
        def report() -> None:
            if machine.alive:
                self.placing.reported(machine)
            self._in(REPORT_EVERY, report)

        return report

    def _arrive(self, visit: Visit, again: str) -> None:
        self.visits += 1
        user = visit.user + again
        trip = self._set_out(visit, user)
        if trip is None:
            self.denied += 1
            return
        if visit.impatient:
            self._in(visit.travel / 2, partial(self._ask_again, visit, user, trip))

    def _ask_again(self, visit: Visit, user: str, trip: Trip) -> None:
        """The user counts as on the way once, at the place of the last answer, unless that is a denial."""
        self._turn_back(trip)
        if self._set_out(visit, user) is None:
            self._go(visit, user, attrs.evolve(trip, counted=False, over=False), visit.travel / 2)

    def _set_out(self, visit: Visit, user: str) -> Trip | None:
        """Ask for a place, and be on the way to it. Returns None if there is none."""
        place = self.placing.place(user, visit.kind)
        if place is None:
            return None
        machine, name = place
        trip = Trip(machine, name, machine.lives, machine.rooms.get(name))
        self._go(visit, user, trip, visit.travel)
        return trip

    def _go(self, visit: Visit, user: str, trip: Trip, travel: float) -> None:
        if visit.shows:
            self._count(trip, 1)
        self._in(travel, partial(self._end_trip, visit, user, trip))

    def _turn_back(self, trip: Trip) -> None:
        trip.over = True
        if trip.counted:
            self._count(trip, -1)

    def _count(self, trip: Trip, by: int) -> None:
        trip.counted = by > 0
        if trip.machine.lives == trip.life:
            trip.machine.coming += by
            if trip.room is not None:
                trip.room.coming += by

    def _end_trip(self, visit: Visit, user: str, trip: Trip) -> None:
        if trip.over or not visit.shows:
            return
        self._turn_back(trip)
        if trip.machine.alive:
            self._enter(trip.machine, trip.name, visit, user)

    def _enter(self, machine: Machine, name: str, visit: Visit, user: str) -> None:
        room = machine.rooms.get(name)
        kind = visit.kind
        if room is None and kind.basecap >= 0:
            room = next(
                (room for room in machine.rooms.values() if room.kind is kind and len(room.users) < kind.basecap), None
            )
        if room is None:
            clone = kind.basecap >= 0 and name == kind.name
            room = Room(f"{name}-{next(self._clones)}" if clone else name, kind)
            machine.rooms[room.name] = room
            self.placing.opened(machine, room)
        instance = f"{user}-{next(self._order)}"
        room.users.add(instance)
        machine.users += 1
        self.entries += 1
        assert machine.users <= machine.capacity, f"{machine.label} has more users than it can hold"
        assert len(room.users) <= kind.maxcap, f"{room.name} has more users than it can hold"
        self.highest = max(self.highest, machine.load)
        self.placing.entered(machine, room, instance)
        life = machine.lives

        def leave() -> None:
            if machine.lives == life:
                self._leave(machine, room, instance)
            elif visit.returns and not user.endswith("r"):
                self._arrive(visit, "r")

        self._in(visit.stay, leave)

    def _leave(self, machine: Machine, room: Room, instance: str) -> None:
        room.users.remove(instance)
        machine.users -= 1
        self.placing.left(machine, room, instance)
        if not room.users:
            del machine.rooms[room.name]
            self.placing.closed(machine, room)

    def _die(self, machine: Machine) -> None:
        if not machine.alive:
            return
        self.deaths += 1
        machine.alive = False
        machine.lives += 1
        machine.users = machine.coming = 0
        machine.rooms.clear()
        self.placing.died(machine)
        self._in(120.0, lambda: self._come_back(machine))

    def _come_back(self, machine: Machine) -> None:
        machine.alive = True
        self.placing.born(machine)


def _visits(random: Random) -> Iterator[Visit]:
    rooms = [Kind(f"context-room{n}", random.randint(8, 40), -1) for n in range(3_000)]
    halls = [Kind(f"context-hall{n}", 12, 8) for n in range(12)]
    weights = [1 / (n + 20) for n in range(len(rooms))]
    kinds = random.choices(rooms, weights, k=USERS)
    for number, kind in enumerate(kinds):
        yield Visit(
            random.uniform(0, HOUR),
            f"user-u{number}",
            random.choice(halls) if random.random() < 0.3 else kind,
            random.uniform(0.2, 5.0),
            min(random.expovariate(1 / 1_000.0), HOUR),
            random.random() < 0.97,
            random.random() < 0.5,
            random.random() < 0.2,
        )


class Directed:
    """The director, and the machines as its links.

    After twenty minutes every machine opens a second link, as real ones do when the broker was restarted, and reports
    everything on both, on the newer one first or last by chance.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.director = Director(world.clock, DirectorSettings())
        self._machines: dict[str, Machine] = {}
        world._at(HOUR / 3, self._double)

    def place(self, user: str, kind: Kind) -> tuple[Machine, str] | None:
        try:
            answer = self.director.reserve(Request(user, "tcp", kind.name, user, False, 10))
        except Denied:
            return None
        assert isinstance(answer, Granted), answer
        machine = self._machines[answer.hostport]
        assert machine.alive
        assert machine.orders == [DoReserve(answer.context, user, answer.reservation)]
        machine.orders.clear()
        if answer.context != kind.name:
            room = machine.rooms[answer.context]
            assert len(room.users) + room.coming < kind.basecap, "a clone was chosen that has no room"
        return machine, answer.context

    def born(self, machine: Machine) -> None:
        self._machines[f"{machine.label}:1"] = machine
        machine.links = []
        for _ in range(1 if self._world.clock.seconds() < HOUR / 3 else 2):
            self._connect(machine)

    def _connect(self, machine: Machine) -> None:
        link = self.director.join(machine.label, machine)
        machine.links.append(link)
        link.address("tcp", f"{machine.label}:1")
        link.will_serve("context", machine.capacity, False)
        for room in machine.rooms.values():
            link.opened(room.name, False, room.kind.maxcap, room.kind.basecap, False)
            for user in room.users:
                link.entered(room.name, user)

    def _double(self) -> None:
        for machine in self._world.machines:
            if machine.alive:
                self._connect(machine)

    def _each(self, machine: Machine) -> list[IContextServer]:
        return machine.links[:: self._world.random.choice((1, -1))]

    def died(self, machine: Machine) -> None:
        for link in self._each(machine):
            link.leave()

    def opened(self, machine: Machine, room: Room) -> None:
        for link in self._each(machine):
            link.opened(room.name, link is machine.links[-1], room.kind.maxcap, room.kind.basecap, False)

    def closed(self, machine: Machine, room: Room) -> None:
        for link in self._each(machine):
            link.closed(room.name)

    def entered(self, machine: Machine, room: Room, user: str) -> None:
        for link in self._each(machine):
            link.entered(room.name, user)
        assert self.director.find_user(user).contexts == (room.name,)

    def left(self, machine: Machine, room: Room, user: str) -> None:
        for link in self._each(machine):
            link.exited(room.name, user)
        assert not self.director.find_user(user).on

    def reported(self, machine: Machine) -> None:
        for link in self._each(machine):
            link.load(machine.load)

    def looked_at(self) -> None:
        machines = [machine for machine in self._world.machines if machine.alive]
        assert all(machine.orders == [] for machine in machines), "a server was told to close something"
        there = {user: room.name for m in machines for room in m.rooms.values() for user in room.users}
        assert set(self.director.users()) == set(there)
        for user, name in there.items():
            assert self.director.find_user(user).contexts == (name,)
        dump = self.director.dump(2, None, None)
        rooms = {room.name: len(room.users) for machine in machines for room in machine.rooms.values()}
        assert (dump.providers, dump.contexts, dump.users) == (len(machines), len(rooms), len(there))
        assert {piece.context: piece.count for piece in dump.pieces if isinstance(piece, ContextDump)} == rooms


class Oracle:
    """Places each user at the best server, with the present state of all machines and the users under way."""

    def __init__(self, world: World) -> None:
        self._machines = world.machines
        self._placed: dict[str, tuple[Machine, int, float]] = {}
        self._clock = world.clock

    def place(self, user: str, kind: Kind) -> tuple[Machine, str] | None:
        alive = [machine for machine in self._machines if machine.alive]
        free = [machine for machine in alive if machine.users + machine.coming < machine.capacity]
        for machine in alive:
            room = machine.rooms.get(kind.name)
            if room is not None:
                fits = machine in free and len(room.users) + room.coming < kind.maxcap
                return (machine, kind.name) if fits else None
        if kind.basecap >= 0:
            for machine in free:
                for room in machine.rooms.values():
                    if room.kind is kind and len(room.users) + room.coming < kind.basecap:
                        return machine, room.name
        placed, life, until = self._placed.get(kind.name, (None, 0, 0.0))
        if placed in free and placed is not None and placed.lives == life and self._clock.seconds() < until:
            return placed, kind.name
        if not free:
            return None
        machine = min(free, key=lambda machine: machine.load + LOAD_OF_USER * machine.coming)
        self._placed[kind.name] = (machine, machine.lives, self._clock.seconds() + 5.0)
        return machine, kind.name

    def nothing(self, *_: object) -> None:
        """It has seen that already."""

    born = died = opened = closed = entered = left = reported = looked_at = nothing
