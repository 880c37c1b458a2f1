"""The director's core alone, in this process, without sockets and codecs: the part whose cost could grow with the farm.

Among 10, 100 and 1,000 servers, each with six families and three protocols, and with 10,000 open contexts. The works
alternate, and medians count. The peer is a bare loop in the same process: it looks a name up, makes a token of 128
bits, notifies an object, and returns an answer.
"""

from __future__ import annotations

import gc
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

from twisted.internet.task import Clock

from bench.harness import Figure, Scenario, at_most
from broker.app.daemon import COLLECT_AFTER
from broker.core.director.director import Director
from broker.core.director.director_interfaces import UNLIMITED, DoReserve, Granted, IContextServer, Request

SIZES = (10, 100, 1_000)
"""The numbers of servers."""

CONTEXTS = 10_000
"""Open contexts, spread over the servers."""

FAMILIES = ("c", "ctx", "context", "rc", "rctx", "rcontext")
PROTOCOLS = ("tcp", "http", "rtcp")
"""The families and protocols of every server, as real ones have them; the last three families are restricted."""

FLAT = 1.5
"""The most that a reservation may cost among 1,000 servers, as a ratio to one among 10."""

BATCH = 2_000
"""Reservations, or arrivals, between two looks at the clock."""

REQUESTERS = 50
ROUNDS = 5
"""The number of measurements of each, by turns; the median counts."""

USERS_OF_CONTEXT = 10
TURN = 0.05
"""Seconds for which nothing may hold the reactor."""

Work = Callable[[], int]
"""Something to be measured: does it, and returns how often."""


class Sink:
    """A Context Server's link, or an administrator, of which only the count is kept."""

    def __init__(self) -> None:
        self.heard = 0

    def receive(self, news: object) -> None:
        self.heard += 1


class Farm:
    """A director with so many servers and contexts: plain ones, or clones of one of a hundred sets."""

    def __init__(self, servers: int, clones: bool = False) -> None:
        gc.set_threshold(*COLLECT_AFTER)  # as in the broker
        self.clock = Clock()
        self.director = Director(self.clock)
        self.links: list[IContextServer] = []
        self.names: list[str] = []
        for number in range(servers):
            link = self.director.join(f"cs{number}", Sink())
            for port, protocol in enumerate(PROTOCOLS):
                link.address(protocol, f"cs{number}:{port}")
            for family in FAMILIES:
                link.will_serve(family, UNLIMITED, family.startswith("r"))
            self.links.append(link)
        for number in range(CONTEXTS):
            name = f"context-{number % 100}-{number}" if clones else f"context-{number}"
            basecap = 20 if clones else UNLIMITED
            self.links[number % servers].opened(name, False, UNLIMITED, basecap, False)
            self.names.append(f"context-{number % 100}" if clones else name)
        self._turn = 0

    def reserve(self, new: bool = False) -> int:
        """A batch of reservations, and the end of their time."""
        names = self.names
        self._turn += 1
        place = self._turn * BATCH
        for number in range(place, place + BATCH):
            name = f"context-new{number}" if new else names[number % CONTEXTS]
            granted = self.director.reserve(Request(number % REQUESTERS, "tcp", name, f"user-{number}", False, BATCH))
            assert isinstance(granted, Granted)
        self.clock.advance(31)
        return BATCH


class Bare:
    """The reference of a reservation: a name looked up, a token made, an order told, an answer returned."""

    def __init__(self) -> None:
        self._contexts = {f"context-{number}": (Sink(), f"cs{number}:0") for number in range(CONTEXTS)}
        self._turn = 0

    def reserve(self) -> int:
        """A batch of answers."""
        self._turn += 1
        place = self._turn * BATCH
        for number in range(place, place + BATCH):
            granted = self._answer(f"context-{number % CONTEXTS}", f"user-{number}")
            assert isinstance(granted, Granted)
        return BATCH

    def _answer(self, context: str, user: str) -> Granted:
        link, hostport = self._contexts[context]
        token = str(secrets.randbits(128))
        link.receive(DoReserve(context, user, token))
        return Granted(context, hostport, token)


def costs(works: Mapping[str, Work], seconds: float) -> dict[str, float]:
    """Microseconds of CPU for each time, of each of them: by turns, after once that does not count."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(ROUNDS):
        for name, work in works.items():
            done = 0
            begun = time.process_time()
            while (spent := time.process_time() - begun) < seconds:
                done += work()
            found[name].append(1e6 * spent / done)
    return {name: statistics.median(each) for name, each in found.items()}


def reservations(make: Callable[[int], Work], seconds: float) -> list[Figure]:
    """Their cost among few and many servers."""
    works: dict[str, Work] = {"bare": Bare().reserve}
    works.update({str(size): make(size) for size in SIZES})
    gc.collect()
    cost = costs(works, seconds)
    bare = cost.pop("bare")
    figures = [Figure("a bare loop: look up, token, order, answer", f"{bare:.2f} µs")]
    for size, each in cost.items():
        what = f"among {size} servers: each, as a ratio to the bare loop, a CPU-second"
        figures.append(Figure(what, f"{each:.2f} µs, {each / bare:.1f}, {1e6 / each:,.0f}"))
    few, many = cost[str(SIZES[0])], cost[str(SIZES[-1])]
    return [*figures, at_most(f"{SIZES[-1]:,} servers, as a ratio to {SIZES[0]}", many / few, FLAT, "{:.2f}")]


def dumped(_: float) -> list[Figure]:
    """A dump of everything, piece by piece, and the end of a large server: how long each holds the reactor."""
    farm = Farm(SIZES[-1])
    for number, name in enumerate(farm.names):
        for user in range(USERS_OF_CONTEXT):
            farm.links[number % SIZES[-1]].entered(name, f"user-{number}-{user}")
    begun = time.perf_counter()
    pieces = farm.director.dump(3, None, None).pieces
    first = time.perf_counter() - begun
    longest = 0.0
    count = 0
    while True:
        begun = time.perf_counter()
        piece = next(pieces, None)
        longest = max(longest, time.perf_counter() - begun)
        if piece is None:
            break
        count += 1
    begun = time.perf_counter()
    farm.director.users()
    listed = time.perf_counter() - begun
    large = farm.director.join("large", Sink())
    large.address("tcp", "large:1")
    farm.director.watch_context(Sink(), "context-large")
    farm.director.watch_user(Sink(), "user-anon")
    for number in range(CONTEXTS):
        large.opened(f"context-large-{number}", False, UNLIMITED, UNLIMITED, False)
        for user in range(3):
            large.entered(f"context-large-{number}", f"user-anon-{number}x{user}")
    begun = time.perf_counter()
    large.leave()
    ended = longest_turn = time.perf_counter() - begun
    while any(call.getTime() <= farm.clock.seconds() for call in farm.clock.calls):
        begun = time.perf_counter()
        farm.clock.calls.pop(0).func()
        turn = time.perf_counter() - begun
        ended += turn
        longest_turn = max(longest_turn, turn)
    users = CONTEXTS * USERS_OF_CONTEXT
    return [
        at_most(f"a dump of {users:,} users begins, ms", 1e3 * first, 1e3 * TURN, "{:.2f}"),
        at_most(f"the longest of its {count:,} pieces, ms", 1e3 * longest, 1e3 * TURN, "{:.2f}"),
        at_most(f"the list of {users:,} users, ms", 1e3 * listed, 1e3 * TURN, "{:.2f}"),
        Figure("the end of a server with 10,000 clones and 30,000 users, all watched, ms", f"{1e3 * ended:.0f}"),
        at_most("the longest of its turns, ms", 1e3 * longest_turn, 1e3 * TURN, "{:.2f}"),
    ]


ROWS = {
    name: Scenario(f"Reservations for {what}", 0.25, partial(reservations, make))
    for name, what, make in (
        ("open", f"{CONTEXTS:,} open contexts", lambda size: Farm(size).reserve),
        ("clones", f"a hundred clone sets with {CONTEXTS:,} open clones", lambda size: Farm(size, clones=True).reserve),
        ("new", "contexts that are not open", lambda size: partial(Farm(size).reserve, new=True)),
    )
}
ROWS |= {
    "large": Scenario("What holds the reactor in a large farm", 0.0, dumped),
}
