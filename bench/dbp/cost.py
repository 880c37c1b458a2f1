"""The cost of the DBP wire, in CPU time of the broker's process for each message, beside a bare tuned loop.

    python -m bench.dbp.cost [--rows PATTERN,...] [--runs N] [--seconds S] [--json FILE] [--list]

bench/README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import count
from pathlib import Path

import attrs

from bench.common import command, traffic
from bench.common import earlier_version as earlier
from bench.common.figures import judged, median
from bench.common.machine import load_average
from bench.common.report import table
from bench.dbp import peers as dbp_peers
from bench.dbp import servers as dbp_servers
from bench.dbp.peers import SERVICES
from bench.dbp.servers import DbpServer
from bench.dbp.traffic import Arrivals, Beats, Clients, Present
from bench.elko import cost as elko
from bench.elko.cost import IDLE
from bench.zmtp.peer import Frames

GOAL = 1.3
"""The most that the broker may cost, as a ratio to the bare loop; in some rows only if it is slower than is wanted."""

EARLIER_GOAL = 0.7
"""The most that a request may cost where there is one at a time, as a ratio to the earlier version."""

UDP_GOAL = 1.05
"""The most that a heartbeat by UDP may cost, as a ratio to the earlier version: no more, but for what runs differ."""

BEATS = 20_000
"""Heartbeats a second, which every version keeps up with."""

PORTS = 50
"""The address that they come from."""

WINDOW = 64
"""Requests in flight, of each client, as the original was measured with."""

LISTS = 8
"""Lists of a thousand in flight: each is 125 kB."""

PRESENT = 4_000
"""Connections that wait to register: each may do so once."""

BUSY = 0.95
"""The share of a core from which the generator is what is measured."""

STEADY = 10.0
"""Seconds from the beginning of a run for which the time frame must stay as it is."""


@attrs.frozen
class Result:
    """One run against one server: microseconds of CPU for each message.

    ``generator`` is the generator's own CPU time for each, ``rate`` how many there were in a second.
    """

    cost: float
    generator: float
    rate: float

    @property
    def busy(self) -> float:
        """The share of a core that the generator took."""
        return self.generator * self.rate / 1e6


@attrs.frozen
class Row:
    """One line of the table.

    ``least`` and ``most`` are what the original reached in a second, with one thread, on another machine. ``goal`` is
    the most that the broker may cost, as a ratio to the reference; a row with a rate that is ``wanted`` is met by that
    rate, too. The reference is the bare loop, or ``earlier``: the broker of `bench.common.earlier_version.COMMIT`.
    """

    name: str
    title: str
    measure: Callable[[DbpServer, float], Result]
    least: float | None
    most: float | None
    wanted: float | None = None
    goal: float | None = None
    reference: str = "bare"


# how a row is measured


def requests(
    clients: int, window: int, asked: Sequence[str], numbers: Sequence[Sequence[int]], services: int = SERVICES
) -> Callable[[DbpServer, float], Result]:
    """CPU time for each request: ``asked`` in turn, of which each is answered with the services of these numbers."""

    def prepare(server: DbpServer) -> Clients:
        if server.broker:
            dbp_peers.register(server.port, [dbp_peers.registration(number) for number in range(services)])
        at = dbp_peers.steady(STEADY)
        replies = [dbp_peers.reply(at, dbp_peers.listed(each)) for each in numbers]
        return Clients(dbp_peers.clients(server.port, clients), list(map(dbp_peers.request, asked)), replies, window)

    measured = elko.cpu(prepare)

    def measure(server: DbpServer, seconds: float) -> Result:
        result = measured(server, seconds)
        return Result(result.cost, result.generator, result.rate)

    return measure


def one_of_many(clients: int, window: int) -> Callable[[DbpServer, float], Result]:
    """Requests for one service, for each of them in turn."""
    return requests(
        clients, window, [dbp_peers.name(n) for n in range(SERVICES)], [[number] for number in range(SERVICES)]
    )


def arrivals(kind: bytes, parallel: int) -> Callable[[DbpServer, float], Result]:
    """CPU time for each registration, with its connection; and that ends when it was answered."""
    hermes = kind == b"REQ"

    def messages() -> Iterator[bytes]:
        for number in count():
            yield dbp_peers.encoded(_registration(number, hermes))

    def prepare(server: DbpServer) -> Arrivals:
        answer = dbp_peers.encoded(_approval(dbp_peers.steady(STEADY), hermes))
        return Arrivals(server.port, kind, messages(), answer, parallel)

    measured = elko.cpu(prepare)

    def measure(server: DbpServer, seconds: float) -> Result:
        result = measured(server, seconds)
        return Result(result.cost, result.generator, result.rate)

    return measure


def present(window: int) -> Callable[[DbpServer, float], Result]:
    """CPU time for each registration by a connection that is there already."""

    def measure(server: DbpServer, seconds: float) -> Result:
        before = server.cpu()
        time.sleep(IDLE)
        idle = (server.cpu() - before) / IDLE
        messages, own, used, taken = 0, 0.0, 0.0, 0.0
        for number in count():
            at = dbp_peers.steady(STEADY)
            registrations = [_registration(PRESENT * number + i, hermes=False) for i in range(PRESENT)]
            peers = dbp_peers.clients(server.port, PRESENT)
            load = Present(peers, registrations, dbp_peers.agreement(at), window)
            try:
                time.sleep(IDLE)  # until they are connected, and the last ones are forgotten
                server_before, own_before = server.cpu(), time.process_time()
                sample = load.run()
                if number:  # the first is to warm up
                    own += time.process_time() - own_before
                    used += server.cpu() - server_before - idle * sample.seconds
                    messages += sample.messages
                    taken += sample.seconds
            finally:
                load.close()
            if taken >= seconds:
                break
        return Result(1e6 * used / messages, 1e6 * own / messages, messages / taken)

    return measure


def beats(server: DbpServer, seconds: float) -> Result:
    """CPU time for each heartbeat by UDP, of services that are registered. Raises `Stuck` if any is dropped."""

    def prepare(server: DbpServer) -> Beats:
        for number in range(SERVICES):
            with closing(dbp_peers.client(server.port)) as peer:
                answer = peer.ask(*dbp_peers.beating(number, dbp_peers.LONGEST))
                if answer[1] != b"OwO":
                    raise traffic.Stuck(f"a registration was answered by {answer!r:.300}")
        sockets = [dbp_peers.datagrams() for _ in range(PORTS)]
        for sock in sockets:
            sock.connect((traffic.HOST, server.udp))
        return Beats(sockets, [dbp_peers.heartbeat(dbp_peers.name(n)) for n in range(SERVICES)], BEATS)

    result = elko.cpu(prepare)(server, seconds)
    if dropped := server.counters()["dbp_datagrams.dropped"]:
        raise traffic.Stuck(f"{dropped} heartbeats were dropped")
    return Result(result.cost, result.generator, result.rate)


def _registration(number: int, hermes: bool) -> Frames:
    return dbp_peers.registration(number) if hermes else dbp_peers.beating(number, dbp_peers.LONGEST)


def _approval(at: bytes, hermes: bool) -> Frames:
    return dbp_peers.approval(at) if hermes else dbp_peers.agreement(at)


# the rows

_BEST = 12_840
"""Requests for one name that the original answers in a second at its best."""

_LISTS = 300
"""Lists of a thousand that it answers."""

_REGISTRATIONS = 9_360

ROWS = [
    Row("info-1", f"one service, 1 client, window {WINDOW}", one_of_many(1, WINDOW), 8_180, 10_460, goal=GOAL),
    Row("info-20", f"one service, 20 clients, window {WINDOW}", one_of_many(20, WINDOW), 8_130, _BEST, goal=GOAL),
    Row("info-single", "one service, 1 client, one at a time", one_of_many(1, 1), 3_400, 4_020),
    Row(
        "earlier-info-single",
        f"{earlier.COMMIT}: one service, 1 client, one at a time",
        one_of_many(1, 1),
        3_400,
        4_020,
        goal=EARLIER_GOAL,
        reference="earlier",
    ),
    Row(
        "earlier-udp",
        f"{earlier.COMMIT}: heartbeats by UDP, {BEATS:,} a second",
        beats,
        None,
        None,
        goal=UDP_GOAL,
        reference="earlier",
    ),
    Row(
        "list-1000",
        f"all of {SERVICES:,} services, window {LISTS}",
        requests(1, LISTS, [""], [range(SERVICES)]),
        282,
        321,
        20 * _LISTS,
        GOAL,
    ),
    Row(
        "list-1000-single",
        f"all of {SERVICES:,} services, one at a time",
        requests(1, 1, [""], [range(SERVICES)]),
        282,
        321,
    ),
    Row(
        f"register-{WINDOW}",
        f"registrations of connections that are there, {WINDOW} at a time",
        present(WINDOW),
        4_100,
        _REGISTRATIONS,
        _REGISTRATIONS,
        GOAL,
    ),
    Row("register-1", "the same, one at a time", present(1), 1_800, 2_960),
    Row("dealer-50", "new DEALERs that register, 50 at a time", arrivals(b"DEALER", 50), None, None),
    Row("dealer-1", "the same, one at a time", arrivals(b"DEALER", 1), None, None),
    Row("req-50", "new REQs that register as Hermes', 50 at a time", arrivals(b"REQ", 50), None, None),
    Row("req-1", "the same, one at a time", arrivals(b"REQ", 1), 1_170, 1_340),
]


# running and reporting


@attrs.frozen
class Measured:
    """All runs of one row."""

    row: Row
    broker: Sequence[Result]
    reference: Sequence[Result]

    @property
    def ratio(self) -> float:
        return median(self.broker, "cost") / median(self.reference, "cost")

    @property
    def rate(self) -> float:
        return median(self.broker, "rate")

    @property
    def met(self) -> bool:
        wanted, goal = self.row.wanted, self.row.goal
        return goal is None or self.ratio <= goal or (wanted is not None and self.rate >= wanted)

    def goals(self) -> str:
        wanted, goal = self.row.wanted, self.row.goal
        if goal is None:
            return "-"
        rate = "" if wanted is None else f">= {wanted:,.0f}/s or "
        return f"{rate}<= {goal:g} ref: {judged(self.met)}"

    def cells(self) -> list[str]:
        spread = [result.cost for result in self.broker]
        row = self.row
        return [
            row.title,
            f"{median(self.broker, 'cost'):.1f}",
            f"{min(spread):.1f}-{max(spread):.1f}",
            f"{median(self.reference, 'cost'):.1f}",
            f"{self.ratio:.2f}",
            f"{self.rate:,.0f}",
            f"{median(self.reference, 'rate'):,.0f}",
            "-" if row.least is None else f"{row.least:,.0f}-{row.most:,.0f}",
            _busy(self.broker),
            _busy(self.reference),
            self.goals(),
        ]


def _busy(results: Sequence[Result]) -> str:
    busy = median(results, "busy")
    return f"{busy:.0%}{' LIMIT' if busy >= BUSY else ''}"


HEADINGS = [
    "row",
    "broker",
    "min-max",
    "reference",
    "ratio",
    "a second",
    "reference",
    "original",
    "generator",
    "generator with reference",
    "goals",
]


def started(row: Row, subject: bool, before: Path | None) -> AbstractContextManager[DbpServer]:
    """A fresh server. ``before`` is the checkout of the earlier version."""
    if subject:
        return dbp_servers.broker()
    return dbp_servers.broker(before) if row.reference == "earlier" else dbp_servers.reference()


def run(row: Row, runs: int, seconds: float, before: Path | None) -> Measured:
    """Measure the broker and the reference in turns, each time in fresh processes."""
    results: dict[bool, list[Result]] = {True: [], False: []}
    for _ in range(runs):
        for broker in (True, False):
            with started(row, broker, before) as server:
                results[broker].append(row.measure(server, seconds))
    return Measured(row, results[True], results[False])


def main() -> int:
    arguments = ArgumentParser(description="CPU time of the DBP wire, beside a bare tuned loop.")
    command.add_measuring(arguments, runs=3, seconds=1.0, quick={"runs": 2, "seconds": 0.6})
    command.add_rest(arguments)
    options, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS})
    rows = [row for row in ROWS if row.name in names]
    traffic.Poll.rest = options.rest / 1e6
    about = command.begin()
    measured = []
    with ExitStack() as stack:
        before = stack.enter_context(earlier.checkout()) if any(row.reference == "earlier" for row in rows) else None
        for row in rows:
            print(f"{row.name} ...", end="", file=sys.stderr, flush=True)
            measured.append(run(row, options.runs, options.seconds, before))
            print(f" {measured[-1].ratio:.2f}, {measured[-1].rate:,.0f}/s", file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    print(f"Microseconds of CPU for each message; medians of {options.runs}\n")
    print(table(HEADINGS, [each.cells() for each in measured]))
    command.write(options.json, about, rows=[_plain(each) for each in measured])
    return 0 if all(each.met for each in measured) else 1


def _plain(measured: Measured) -> dict[str, object]:
    return {
        "row": measured.row.name,
        "broker": [attrs.asdict(result) for result in measured.broker],
        "reference": [attrs.asdict(result) for result in measured.reference],
        "original": [measured.row.least, measured.row.most],
        "met": measured.met,
    }


if __name__ == "__main__":
    sys.exit(main())
