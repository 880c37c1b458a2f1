"""The cost of the Elko broker, in CPU time of its process for each message, beside a bare Twisted server.

    python -m bench.elko.cost [--rows PATTERN,...] [--runs N] [--seconds S] [--json FILE] [--list]

bench/README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

import attrs

from bench.common import command, machine, servers, traffic
from bench.common.figures import judged
from bench.common.report import table
from bench.common.servers import Server
from bench.common.traffic import FanOut, Pipeline, Sample, Visits
from bench.elko import messages

WARM_UP = 0.4
"""Seconds of the same load before each measured stretch: the interpreter specialises its code, buffers grow."""

IDLE = 0.5
"""Seconds for which a server is watched before the load: what it takes doing nothing is not counted."""

SETTLE = 1.5
"""Seconds from the last connection until memory is read: the broker writes what it stores within half a second."""

SERVICES = 1_000

LOADS_A_PING = 100
"""Loads are not answered; each unit of so many messages ends with a ping, that says that they were taken."""

ECHO_GOAL = 1.2
VISIT_GOAL = 1.3
"""The most that the broker may cost, as a ratio to the bare server."""

REGISTER_GOAL = 1.7
"""The most that a visit may cost, as a ratio to the plain registry, which has none of the broker's guarantees."""

HALF = 0.5
"""The most that it may cost on one pipelined connection, as a ratio to the original."""


S = TypeVar("S", bound=Server)


class Load(Protocol):
    """Traffic that is ready to run, again and again."""

    def run(self, seconds: float) -> Sample: ...
    def close(self) -> None: ...


@attrs.frozen
class Result:
    """One run against one server: microseconds of CPU (or, for memory, bytes) for each message, and the generator's."""

    cost: float
    generator: float = 0.0
    rate: float = 0.0


@attrs.frozen
class Row:
    """One line of the table.

    ``prepare`` connects to a server and makes the load; ``java`` is the original's best figure; ``of_java`` and
    ``of_reference`` are the most that the broker may cost, as ratios.
    """

    name: str
    title: str
    reference: str
    measure: Callable[[Server, float], Result]
    java: float | None
    of_java: float = 1.0
    of_reference: float | None = None
    unit: str = "us"


# how a row is measured


def cpu(prepare: Callable[[S], Load]) -> Callable[[S, float], Result]:
    """CPU time for each message of a load."""

    def measure(server: S, seconds: float) -> Result:
        before = server.cpu()
        time.sleep(IDLE)
        idle = (server.cpu() - before) / IDLE
        load = prepare(server)
        try:
            load.run(WARM_UP)
            server_before, own_before = server.cpu(), time.process_time()
            sample = load.run(seconds)
            own = time.process_time() - own_before
            used = server.cpu() - server_before - idle * sample.seconds
        finally:
            load.close()
        each = 1e6 / sample.messages
        return Result(used * each, own * each, sample.messages / sample.seconds)

    return measure


def memory(connections: int) -> Callable[[Server, float], Result]:
    """Resident memory for each connection that has authenticated and offers one service."""

    def measure(server: Server, _: float) -> Result:
        time.sleep(IDLE)
        before = server.resident()
        with ExitStack() as stack:
            for i in range(connections):
                name = f"server-{i:05d}"
                opening = (
                    messages.auth(name) + messages.willserve([name], f"10.0.0.1:{10_000 + i}", name) + messages.PING
                )
                stack.enter_context(traffic.opened(server.port, opening, 1, source=1 + i % 20))
            time.sleep(SETTLE)
            used = server.resident() - before
        return Result(used / connections)

    return measure


# loads


def connections(server: Server, count: int) -> list[socket.socket]:
    """Connections that are ready; the broker's are authenticated."""
    opening = messages.auth("bench") + messages.PING if server.broker else b""
    return [traffic.opened(server.port, opening, 1) for _ in range(count)]


def pings(count: int, window: int) -> Callable[[Server], Load]:
    """Pings on so many connections."""
    return lambda server: Pipeline(connections(server, count), window, [messages.PING])


class WithProvider:
    """A load, and a provider that has to stay for it."""

    def __init__(self, load: Load, provider: socket.socket) -> None:
        self.run = load.run
        self._load = load
        self._provider = provider

    def close(self) -> None:
        self._load.close()
        self._provider.close()


def finds(count: int, window: int, known: bool = True) -> Callable[[Server], Load]:
    """Finds among 1,000 services, each in its turn, or finds of one that is unknown."""
    names = [f"service-{i:04d}" for i in range(SERVICES)]
    queries = [messages.find(name) for name in names] if known else [messages.find("service-none")]

    def prepare(server: Server) -> Load:
        load = Pipeline(connections(server, count), window, queries)
        if not server.broker:
            return load
        opening = messages.auth("provider") + messages.willserve(names) + messages.PING
        return WithProvider(load, traffic.opened(server.port, opening, 1))

    return prepare


def loads(server: Server) -> Load:
    """Load reports that nobody watches. The echo server answers them too: that is its message, in and out."""
    reports = [messages.load(i / 100) for i in range(LOADS_A_PING - 1)]
    unit = b"".join(reports) + messages.PING
    replies = 1 if server.broker else LOADS_A_PING
    return Pipeline(connections(server, 1), 8_000, [unit], LOADS_A_PING, replies)


def watched_loads(watchers: int, batch: int) -> Callable[[Server], Load]:
    """Load reports that all watchers are told of, so many reports at once."""

    def prepare(server: Server) -> Load:
        if server.broker:
            opening = messages.auth("watcher", "admin") + messages.WATCH_LOADS + messages.PING
            replies = 2
        else:
            opening, replies = messages.message("watch"), 1
        sockets = [traffic.opened(server.port, opening, replies) for _ in range(watchers)]
        return FanOut(connections(server, 1)[0], sockets, [messages.load(i / 100) for i in range(100)], batch)

    return prepare


def visits(parallel: int, packets: bool = False) -> Callable[[Server], Load]:
    """Connections that authenticate, offer a service, ping and close: all in one packet, or each in one of its own."""

    def prepare(server: Server) -> Load:
        names = [f"visitor-{i:02d}" for i in range(parallel)]
        visits = [[messages.auth(name), messages.willserve([name]), messages.PING] for name in names]
        return Visits(server.port, visits if packets else [[b"".join(visit)] for visit in visits])

    return prepare


ROWS = [
    Row("ping-1", "ping, 1 connection, window 8000", "echo", cpu(pings(1, 8_000)), 11.4, HALF, ECHO_GOAL),
    Row("ping-50", "ping, 50 connections, window 400", "echo", cpu(pings(50, 400)), 6.2, 1, ECHO_GOAL),
    Row("ping-50-single", "ping, 50 connections, 1 in flight each", "echo", cpu(pings(50, 50)), 24.3, 1, ECHO_GOAL),
    Row(
        "find-1", "find, 1,000 services, 1 connection, window 8000", "echo", cpu(finds(1, 8_000)), 9.5, HALF, ECHO_GOAL
    ),
    Row("find-50", "find, 1,000 services, 50 connections, window 400", "echo", cpu(finds(50, 400)), 9.1, 1, ECHO_GOAL),
    Row("find-unknown", "find, unknown service, 50 connections", "echo", cpu(finds(50, 400, False)), 9.0, 1, ECHO_GOAL),
    Row("load-0", "load, no watcher", "echo", cpu(loads), 3.5, HALF),
    Row("load-1", "load, 1 watcher, a delivery", "fanout", cpu(watched_loads(1, 400)), 10.4),
    Row("load-100", "load, 100 watchers, a delivery", "fanout", cpu(watched_loads(100, 400)), 2.6),
    Row("load-100-single", "the same, one report at a time", "fanout", cpu(watched_loads(100, 1)), None),
    Row("visit", "connect, auth, willserve, ping, close; 20 at once", "answer", cpu(visits(20)), 112.0, 1, VISIT_GOAL),
    Row("visit-single", "the same, one at a time", "answer", cpu(visits(1)), 192.0, 1, VISIT_GOAL),
    Row(
        "visit-packets",
        "the same, a packet for each message; 20 at once",
        "answer",
        cpu(visits(20, True)),
        None,
        1,
        VISIT_GOAL,
    ),
    Row(
        "visit-packets-single",
        "the same, a packet for each message; one at a time",
        "answer",
        cpu(visits(1, True)),
        None,
        1,
        VISIT_GOAL,
    ),
    Row(
        "visit-register",
        "connect, auth, willserve, ping, close; 20 at once",
        "register",
        cpu(visits(20)),
        None,
        1,
        REGISTER_GOAL,
    ),
    Row(
        "visit-packets-register",
        "the same, a packet for each message; 20 at once",
        "register",
        cpu(visits(20, True)),
        None,
        1,
        REGISTER_GOAL,
    ),
    Row("memory-2000", "memory for an idle provider, of 2,000", "answer", memory(2_000), 21_000.0, unit="B"),
    Row("memory-10000", "memory for an idle provider, of 10,000", "answer", memory(10_000), 21_000.0, unit="B"),
]


# running and reporting


@contextmanager
def started(row: Row, broker: bool) -> Iterator[Server]:
    """A fresh server of the one kind or the other."""
    with servers.broker() if broker else servers.reference(row.reference) as server:
        yield server


@attrs.frozen
class Measured:
    """All runs of one row."""

    row: Row
    broker: Sequence[Result]
    reference: Sequence[Result]

    @property
    def cost(self) -> float:
        return statistics.median(result.cost for result in self.broker)

    @property
    def reference_cost(self) -> float:
        return statistics.median(result.cost for result in self.reference)

    @property
    def ratio(self) -> float:
        return self.cost / self.reference_cost

    def misses(self) -> list[str]:
        """The goals that were not met."""
        row, missed = self.row, []
        if row.of_reference is not None and self.ratio > row.of_reference:
            missed.append(f"over {row.of_reference:g} x reference")
        if row.java is not None and self.cost >= row.java * row.of_java:
            missed.append(f"not below {row.of_java:g} x original")
        return missed

    def goals(self) -> str:
        row = self.row
        texts = [] if row.of_reference is None else [f"<= {row.of_reference:g} ref"]
        texts += [] if row.java is None else [f"< {row.of_java:g} orig" if row.of_java != 1 else "< orig"]
        missed = self.misses()
        if not texts:
            return "-"
        return f"{', '.join(texts)}: {', '.join([judged(not missed), *missed])}"

    def cells(self) -> list[str]:
        row = self.row
        generator = statistics.median(result.generator for result in self.broker)
        spread = (
            f"{min(r.cost for r in self.broker):.{_digits(row)}f}-{max(r.cost for r in self.broker):.{_digits(row)}f}"
        )
        return [
            row.title,
            f"{self.cost:.{_digits(row)}f}",
            spread,
            f"{self.reference_cost:.{_digits(row)}f}",
            f"{self.ratio:.2f}",
            "-" if row.java is None else f"{row.java:g}",
            "-" if row.java is None else f"{self.cost / row.java:.2f}",
            f"{generator:.1f}" if generator else "-",
            self.goals(),
        ]


def _digits(row: Row) -> int:
    return 2 if row.unit == "us" else 0


HEADINGS = ["row", "broker", "min-max", "reference", "ratio", "original", "ratio", "generator", "goals"]


def run(row: Row, runs: int, seconds: float) -> Measured:
    """Measure the broker and the reference in turns, each time in fresh processes."""
    results: dict[bool, list[Result]] = {True: [], False: []}
    for _ in range(runs):
        for broker in (True, False):
            with started(row, broker) as server:
                results[broker].append(row.measure(server, seconds))
    return Measured(row, results[True], results[False])


def main() -> int:
    arguments = ArgumentParser(description="CPU time and memory of the Elko broker, beside bare Twisted servers.")
    command.add_measuring(arguments, runs=5, seconds=2.0, quick={"runs": 3, "seconds": 1.0})
    command.add_rest(arguments)
    options, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS})
    rows = [row for row in ROWS if row.name in names]
    traffic.Poll.rest = options.rest / 1e6
    about = command.begin()
    measured = []
    for row in rows:
        print(f"{row.name} ...", end="", file=sys.stderr, flush=True)
        measured.append(run(row, options.runs, options.seconds))
        print(f" {measured[-1].cost:.2f} / {measured[-1].reference_cost:.2f} {row.unit}", file=sys.stderr, flush=True)
    print(f"load average at the end: {machine.load_average()}\n")
    print("Microseconds of CPU for each message (memory: bytes for each provider); medians of", options.runs, "\n")
    print(table(HEADINGS, [each.cells() for each in measured]))
    command.write(options.json, about, rows=[_plain(each) for each in measured])
    return 1 if any(each.misses() for each in measured) else 0


def _plain(measured: Measured) -> dict[str, object]:
    return {
        "row": measured.row.name,
        "unit": measured.row.unit,
        "broker": [attrs.asdict(result) for result in measured.broker],
        "reference": [attrs.asdict(result) for result in measured.reference],
        "original": measured.row.java,
        "misses": measured.misses(),
    }


if __name__ == "__main__":
    sys.exit(main())
