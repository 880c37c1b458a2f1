"""The cost of the mc0 wire, in CPU time of the broker's process for each message, beside a bare tuned loop.

    python -m bench.mc0.cost [--rows PATTERN,...] [--runs N] [--seconds S] [--subject KIND] [--json FILE] [--list]

bench/README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import math
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import attrs

from bench.common import command, traffic
from bench.common import earlier_version as earlier
from bench.common.figures import judged, median
from bench.common.machine import load_average
from bench.common.report import table
from bench.elko import cost as elko
from bench.elko.cost import WARM_UP
from bench.mc0 import servers as mc0_servers
from bench.mc0.peers import TOPIC, opened, subscribed
from bench.mc0.servers import Mc0Server
from bench.mc0.traffic import WINDOW, Flow, messages_between
from bench.zmtp.peer import new_keys

GOALS = {1: 0.65, 10: 0.3, 100: 0.2}
"""The most that a delivery of 100 B may cost with NULL, as a ratio to the tuned loop, by the number of subscribers."""

LONG_GOAL = 1.0
"""The same for 10 KiB: the kernel's copies dominate."""

COMPILED_GOALS = {1: 1.2, 10: 1.0, 100: 1.0}
"""The same with CURVE and the compiled helper, for both sizes."""

PYTHON_GOAL = 2.0
"""The same with CURVE and without the helper."""

ACKNOWLEDGED_GOAL = 0.8
"""The most that an acknowledged PUT may cost, and a message may take, in the median and at 99 %."""

EARLIER_GOAL = 0.7
"""The most that a message may cost where there is one at a time, as a ratio to the earlier version."""

NEVER = 3_600.0
"""Seconds between the NOOPs of the bare protocol: none in a run."""

BEHIND, SHORT_BUFFER = 200, 65_536
"""Messages on their way to subscribers for which the kernel takes so many bytes: nearly all of them are in queues of
the server, which accounts for their memory."""

RATE = 1_000
"""Messages a second whose latency is measured."""

KEYS = new_keys()
"""Of all servers that want CURVE."""


@attrs.frozen
class Result:
    """One run against one server: microseconds for each message, of CPU or of latency.

    ``generator`` is the generator's own CPU time for each, ``rate`` how many there were in a second, ``p99`` the
    latency that one of a hundred messages exceeded.
    """

    cost: float
    generator: float = 0.0
    rate: float = 0.0
    p99: float = 0.0


@attrs.frozen
class Original:
    """The broker in C++ on another machine: microseconds, and messages a second.

    ``slower`` is what it took on a slower machine, where several runs were made. ``ratio`` is its cost there as a ratio
    to the tuned loop, both in one run.
    """

    cost: float | None = None
    rate: float | None = None
    p99: float | None = None
    slower: str = "-"
    ratio: float | None = None


@attrs.frozen
class Row:
    """One line of a table. ``goal`` is the most that the subject may cost, as a ratio to the reference.

    ``sealing`` says how a broker encrypts (see `bench.mc0.servers.SEALING`); None is without CURVE. The reference is a
    server of `bench/mc0/reference.py`, or ``earlier``: the broker of `bench.common.earlier_version.COMMIT`.
    """

    name: str
    title: str
    measure: Callable[[Mc0Server, float], Result]
    sealing: str | None
    goal: float | None
    original: Original = Original()
    subject: str = "broker"
    reference: str = "tuned"
    latency: bool = False


# how a row is measured


def cpu(prepare: Callable[[Mc0Server], Flow]) -> Callable[[Mc0Server, float], Result]:
    """CPU time for each message of a load."""

    measured = elko.cpu(prepare)

    def measure(server: Mc0Server, seconds: float) -> Result:
        result = measured(server, seconds)
        return Result(result.cost, result.generator, result.rate)

    return measure


def latency(server: Mc0Server, seconds: float) -> Result:
    """The latency of messages from one peer to another."""
    receiver = subscribed(server, b"receiver")
    body = b"." * 100
    pace = messages_between(
        opened(server, b"sender"),
        receiver,
        [b"", b"PUT", b"TOPIC", TOPIC, b"", body],
        [b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body],
        1 / RATE,
    )
    try:
        pace.run(WARM_UP)
        took = sorted(pace.run(seconds))
    finally:
        pace.close()
    if math.isinf(took[-1]):
        raise traffic.Stuck("a message did not arrive")
    return Result(1e6 * took[len(took) // 2], rate=len(took) / seconds, p99=1e6 * took[len(took) * 99 // 100])


# loads


def puts(subscribers: int, size: int, window: int = WINDOW, buffer: int | None = None) -> Callable[[Mc0Server], Flow]:
    """One publishes, so many get it; bodies have ``size`` bytes and a number. With ``buffer`` the kernel takes so many
    bytes for each subscriber."""
    bodies = [b"%08d" % i + b"." * (size - 8) for i in range(100 if size < 1_000 else 20)]

    def prepare(server: Mc0Server) -> Flow:
        receivers = [subscribed(server, b"subscriber-%03d" % i) for i in range(subscribers)]
        if buffer is not None:
            for each in receivers:
                each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        return Flow(
            opened(server, b"publisher"),
            receivers,
            [[b"", b"PUT", b"TOPIC", TOPIC, b"", body] for body in bodies],
            [[b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body] for body in bodies],
            window,
        )

    return prepare


def acknowledged(window: int) -> Callable[[Mc0Server], Flow]:
    """One publishes to a topic that nobody has, and gets an OK for each message."""
    numbers = [b"%08d" % i for i in range(100)]

    def prepare(server: Mc0Server) -> Flow:
        peer = opened(server, b"publisher")
        return Flow(
            peer,
            [peer],
            [[b"", b"PUT", b"ID", number, b"TOPIC", b"nobody", b"", b"." * 100] for number in numbers],
            [[b"", b"OK", b"ID", number] for number in numbers],
            window,
        )

    return prepare


# the rows

_SIZES = {"100": ("100 B", 100), "10k": ("10 KiB", 10 * 1024)}

_ORIGINALS = {
    (False, 1, "100"): Original(5.8, 192_326, slower="7.2-8.0", ratio=7.5 / 19.8),
    (False, 10, "100"): Original(2.1, 505_188, slower="3.2-3.4", ratio=3.3 / 7.0),
    (False, 100, "100"): Original(1.9, 579_360, slower="2.7-3.1", ratio=2.9 / 3.9),
    (False, 1, "10k"): Original(None, 30_348),
    (False, 10, "10k"): Original(None, 68_026),
    (False, 100, "10k"): Original(None, 60_168),
    (True, 1, "100"): Original(11.9, 83_491, slower="14-17"),
    (True, 10, "100"): Original(5.7, 160_544, slower="6.0-7.8"),
    (True, 100, "100"): Original(5.1, 175_769, slower="6.8-7.0"),
    (True, 1, "10k"): Original(None, 13_606),
    (True, 10, "10k"): Original(None, 21_877),
    (True, 100, "10k"): Original(None, 29_553),
}

_ACKNOWLEDGED = {
    (False, 1): Original(None, 5_780, slower="47-259"),
    (False, 100): Original(None, 159_507, slower="5.8-10"),
    (True, 1): Original(None, 4_983),
    (True, 100): Original(None, 71_880),
}

_LATENCIES = {False: Original(216, p99=334, slower="310-417"), True: Original(236, p99=392)}


def _rows(sealing: str | None) -> list[Row]:
    """Those of one mechanism: CURVE, if it is said who encrypts."""
    curve = sealing is not None
    name, title = (f"curve-{sealing}", f"CURVE, {sealing}") if curve else ("null", "NULL")
    rows = [
        Row(
            f"{name}-put-{count}-{size}",
            f"{title}: {label} to {count}, a delivery",
            cpu(puts(count, bytes_)),
            sealing,
            _goal(sealing, count, size),
            _ORIGINALS[curve, count, size],
        )
        for size, (label, bytes_) in _SIZES.items()
        for count in GOALS
    ]
    rows += [
        Row(
            f"{name}-ack-{window}",
            f"{title}: PUT and OK, window {window}",
            cpu(acknowledged(window)),
            sealing,
            None if curve else ACKNOWLEDGED_GOAL,
            _ACKNOWLEDGED[curve, window],
        )
        for window in (1, 100)
    ]
    return [
        *rows,
        Row(
            f"{name}-latency",
            f"{title}: PUT to MESSAGE, {RATE:,} a second",
            latency,
            sealing,
            None if curve else ACKNOWLEDGED_GOAL,
            _LATENCIES[curve],
            latency=True,
        ),
    ]


def _goal(sealing: str | None, subscribers: int, size: str) -> float:
    if sealing is None:
        return GOALS[subscribers] if size == "100" else LONG_GOAL
    return COMPILED_GOALS[subscribers] if sealing == "compiled" else PYTHON_GOAL


ROWS = [
    *_rows(None),
    *(
        Row(
            f"null-behind-{count}-10k",
            f"NULL: 10 KiB to {count} with short buffers, a delivery",
            cpu(puts(count, 10 * 1024, BEHIND, SHORT_BUFFER)),
            None,
            LONG_GOAL,
        )
        for count in (1, 10)
    ),
    *_rows("compiled"),
    *_rows("python"),
    Row(
        "earlier-ack-1",
        f"{earlier.COMMIT}: PUT and OK, window 1",
        cpu(acknowledged(1)),
        None,
        EARLIER_GOAL,
        reference="earlier",
    ),
    Row(
        "bare-ack-1",
        "bare Twisted protocol: PUT and OK, window 1",
        cpu(acknowledged(1)),
        None,
        None,
        subject="bare",
    ),
    *(
        Row(
            f"txzmq-{count}",
            f"txzmq: 100 B to {count}, a delivery",
            cpu(puts(count, 100)),
            None,
            None,
            subject="txzmq",
        )
        for count in GOALS
    ),
]


# running and reporting


@attrs.frozen
class Measured:
    """All runs of one row: of its subject, and of the reference."""

    row: Row
    subject: Sequence[Result]
    reference: Sequence[Result]

    @property
    def ratios(self) -> dict[str, float]:
        """The figures that have the goal, as ratios to the reference's."""
        figures = {"cost": "50 %", "p99": "99 %"} if self.row.latency else {"cost": "cost"}
        return {
            title: median(self.subject, figure) / median(self.reference, figure) for figure, title in figures.items()
        }

    @property
    def ratio(self) -> float:
        return median(self.subject, "cost") / median(self.reference, "cost")

    def misses(self) -> list[str]:
        """The goals that were not met."""
        goal = self.row.goal
        if goal is None:
            return []
        return [f"{title} over {goal:g} x reference" for title, ratio in self.ratios.items() if ratio > goal]

    def goals(self) -> str:
        if self.row.goal is None:
            return "-"
        missed = self.misses()
        return f"<= {self.row.goal:g} ref: {', '.join([judged(not missed), *missed])}"

    def cells(self) -> list[str]:
        digits = 0 if self.row.latency else 2
        original, cost = self.row.original, median(self.subject, "cost")
        spread = [result.cost for result in self.subject]
        cells = [
            self.row.title,
            f"{cost:.{digits}f}",
            f"{min(spread):.{digits}f}-{max(spread):.{digits}f}",
            f"{median(self.reference, 'cost'):.{digits}f}",
            f"{self.ratio:.2f}",
            _or_dash(original.ratio, ".2f"),
            _or_dash(original.cost, "g"),
            original.slower,
        ]
        if self.row.latency:
            p99 = [f"{median(results, 'p99'):.0f}" for results in (self.subject, self.reference)]
            return [*cells, *p99, f"{self.ratios['99 %']:.2f}", _or_dash(original.p99, "g"), self.goals()]
        rate = f"{median(self.subject, 'rate'):,.0f}"
        return [
            *cells,
            rate,
            _or_dash(original.rate, ",.0f"),
            f"{median(self.subject, 'generator'):.1f}",
            self.goals(),
        ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


_COMMON = ["row", "broker", "min-max", "reference", "ratio", "C++ ratio", "C++", "slower machine"]
COSTS = [*_COMMON, "a second", "C++", "generator", "goals"]
LATENCIES = [*_COMMON, "99 %", "reference", "ratio", "C++", "goals"]


def started(kind: str, sealing: str | None, before: Path | None) -> AbstractContextManager[Mc0Server]:
    """A fresh server. ``before`` is the checkout of the earlier version."""
    keys = None if sealing is None else KEYS
    if kind == "broker":
        return mc0_servers.broker(keys, sealing=sealing)
    if kind == "earlier":
        return mc0_servers.broker(keys, checkout=before)
    if kind == "bare":
        return mc0_servers.bare(NEVER)
    return mc0_servers.reference(kind, keys)


def run(row: Row, runs: int, seconds: float, before: Path | None) -> Measured:
    """Measure the subject and the reference in turns, each time in fresh processes."""
    results: dict[bool, list[Result]] = {True: [], False: []}
    for _ in range(runs):
        for subject in (True, False):
            with started(row.subject if subject else row.reference, row.sealing, before) as server:
                results[subject].append(row.measure(server, seconds))
    return Measured(row, results[True], results[False])


def main() -> int:
    arguments = ArgumentParser(description="CPU time and latency of the mc0 wire, beside a bare tuned loop.")
    command.add_measuring(arguments, runs=5, seconds=2.0, quick={"runs": 3, "seconds": 1.0})
    command.add_rest(arguments)
    arguments.add_argument(
        "--subject",
        choices=["tuned", "txzmq"],
        help="measure this server of bench/mc0/reference.py, not the broker; tuned tells how far ratios can be trusted",
    )
    options, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS})
    rows = [row for row in ROWS if row.name in names]
    traffic.Poll.rest = options.rest / 1e6
    about = command.begin()
    measured = []
    with ExitStack() as stack:
        before = stack.enter_context(earlier.checkout()) if any(row.reference == "earlier" for row in rows) else None
        for row in rows:
            if options.subject is not None and row.subject == "broker":
                row = attrs.evolve(row, subject=options.subject)
            print(f"{row.name} ...", end="", file=sys.stderr, flush=True)
            measured.append(run(row, options.runs, options.seconds, before))
            print(f" {measured[-1].ratio:.2f}", file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    for latencies, headings, what in (
        (False, COSTS, "Microseconds of CPU for each message"),
        (True, LATENCIES, "Microseconds that a message takes"),
    ):
        cells = [each.cells() for each in measured if each.row.latency == latencies]
        if cells:
            print(f"{what}; medians of {options.runs}\n\n{table(headings, cells)}\n")
    command.write(options.json, about, rows=[_plain(each) for each in measured])
    return 1 if any(each.misses() for each in measured) else 0


def _plain(measured: Measured) -> dict[str, object]:
    return {
        "row": measured.row.name,
        "subject": measured.row.subject,
        "reference": measured.row.reference,
        "subject results": [attrs.asdict(result) for result in measured.subject],
        "reference results": [attrs.asdict(result) for result in measured.reference],
        "original": attrs.asdict(measured.row.original),
        "misses": measured.misses(),
    }


if __name__ == "__main__":
    sys.exit(main())
