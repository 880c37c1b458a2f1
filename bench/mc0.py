"""What the mc0 wire costs, in CPU time of the broker's process for each message, beside a bare tuned loop.

    python bench/mc0.py [--rows PATTERN,...] [--runs N] [--seconds S] [--subject KIND] [--json FILE] [--list]

README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence

import attrs
import command
import elko
import mc0_servers
import traffic
from elko import WARM_UP
from figures import judged, median
from machine import load_average
from mc0_peers import TOPIC, opened, subscribed
from mc0_servers import Mc0Server
from mc0_traffic import WINDOW, Flow, messages_between
from mc0_zmtp import new_keys
from report import table

GOAL = 1.3
"""The most that the broker may cost, as a ratio to the tuned loop."""

FAN_OUT_GOAL = 1.1
"""The same where a message goes to a hundred: what is done once for it hardly counts any more."""

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
    """What the broker in C++ took on another machine: microseconds, and how many messages a second it reached."""

    cost: float | None = None
    rate: float | None = None
    p99: float | None = None


@attrs.frozen
class Row:
    """One line of a table. ``goal`` is the most that the subject may cost, as a ratio to the tuned loop."""

    name: str
    title: str
    measure: Callable[[Mc0Server, float], Result]
    curve: bool
    goal: float | None
    original: Original = Original()
    subject: str = "broker"
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
    """How long messages take from one peer to another."""
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


def puts(subscribers: int, size: int) -> Callable[[Mc0Server], Flow]:
    """One publishes, so many get it; bodies have ``size`` bytes and a number."""
    bodies = [b"%08d" % i + b"." * (size - 8) for i in range(100 if size < 1_000 else 20)]

    def prepare(server: Mc0Server) -> Flow:
        return Flow(
            opened(server, b"publisher"),
            [subscribed(server, b"subscriber-%03d" % i) for i in range(subscribers)],
            [[b"", b"PUT", b"TOPIC", TOPIC, b"", body] for body in bodies],
            [[b"", b"MESSAGE", b"TOPIC", TOPIC, b"", body] for body in bodies],
            WINDOW,
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
    (False, 1, "100"): Original(5.8, 192_326),
    (False, 10, "100"): Original(2.1, 505_188),
    (False, 100, "100"): Original(1.9, 579_360),
    (False, 1, "10k"): Original(None, 30_348),
    (False, 10, "10k"): Original(None, 68_026),
    (False, 100, "10k"): Original(None, 60_168),
    (True, 1, "100"): Original(11.9, 83_491),
    (True, 10, "100"): Original(5.7, 160_544),
    (True, 100, "100"): Original(5.1, 175_769),
    (True, 1, "10k"): Original(None, 13_606),
    (True, 10, "10k"): Original(None, 21_877),
    (True, 100, "10k"): Original(None, 29_553),
}

_ACKNOWLEDGED = {
    (False, 1): Original(None, 5_780),
    (False, 100): Original(None, 159_507),
    (True, 1): Original(None, 4_983),
    (True, 100): Original(None, 71_880),
}

_LATENCIES = {False: Original(216, p99=334), True: Original(236, p99=392)}


def _rows(curve: bool) -> list[Row]:
    """Those of one mechanism."""
    name, title = ("curve", "CURVE") if curve else ("null", "NULL")
    rows = [
        Row(
            f"{name}-put-{count}-{size}",
            f"{title}: {label} to {count}, a delivery",
            cpu(puts(count, bytes_)),
            curve,
            FAN_OUT_GOAL if count == 100 else GOAL,
            _ORIGINALS[curve, count, size],
        )
        for size, (label, bytes_) in _SIZES.items()
        for count in (1, 10, 100)
    ]
    rows += [
        Row(
            f"{name}-ack-{window}",
            f"{title}: PUT and OK, window {window}",
            cpu(acknowledged(window)),
            curve,
            GOAL,
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
            curve,
            GOAL,
            _LATENCIES[curve],
            latency=True,
        ),
    ]


ROWS = [
    *_rows(False),
    *_rows(True),
    *(
        Row(
            f"txzmq-{count}",
            f"txzmq: 100 B to {count}, a delivery",
            cpu(puts(count, 100)),
            False,
            None,
            subject="txzmq",
        )
        for count in (1, 10, 100)
    ),
]


# running and reporting


@attrs.frozen
class Measured:
    """All runs of one row: of its subject, and of the tuned loop."""

    row: Row
    subject: Sequence[Result]
    reference: Sequence[Result]

    @property
    def ratio(self) -> float:
        return median(self.subject, "cost") / median(self.reference, "cost")

    def misses(self) -> list[str]:
        """The goals that were not met."""
        goal = self.row.goal
        return [f"over {goal:g} x reference"] if goal is not None and self.ratio > goal else []

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
            _or_dash(original.cost, "g"),
            "-" if original.cost is None else f"{cost / original.cost:.2f}",
        ]
        if self.row.latency:
            p99 = [f"{median(results, 'p99'):.0f}" for results in (self.subject, self.reference)]
            return [*cells, *p99, _or_dash(original.p99, "g"), self.goals()]
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


_COMMON = ["row", "broker", "min-max", "reference", "ratio", "original", "ratio"]
COSTS = [*_COMMON, "a second", "original", "generator", "goals"]
LATENCIES = [*_COMMON, "99 %", "reference", "original", "goals"]


def run(row: Row, runs: int, seconds: float) -> Measured:
    """Measure the subject and the reference in turns, each time in fresh processes."""
    keys = KEYS if row.curve else None
    results: dict[bool, list[Result]] = {True: [], False: []}
    for _ in range(runs):
        for subject in (True, False):
            kind = row.subject if subject else "tuned"
            with mc0_servers.broker(keys) if kind == "broker" else mc0_servers.reference(kind, keys) as server:
                results[subject].append(row.measure(server, seconds))
    return Measured(row, results[True], results[False])


def main() -> int:
    arguments = ArgumentParser(description="CPU time and latency of the mc0 wire, beside a bare tuned loop.")
    command.add_measuring(arguments, runs=5, seconds=2.0)
    command.add_rest(arguments)
    arguments.add_argument(
        "--subject",
        choices=["tuned", "txzmq"],
        help="measure this server of mc0_reference.py instead of the broker; tuned tells how far ratios can be trusted",
    )
    options, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS})
    rows = [row for row in ROWS if row.name in names]
    traffic.Poll.rest = options.rest / 1e6
    about = command.begin()
    measured = []
    for row in rows:
        if options.subject is not None and row.subject == "broker":
            row = attrs.evolve(row, subject=options.subject)
        print(f"{row.name} ...", end="", file=sys.stderr, flush=True)
        measured.append(run(row, options.runs, options.seconds))
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
        "subject results": [attrs.asdict(result) for result in measured.subject],
        "tuned results": [attrs.asdict(result) for result in measured.reference],
        "original": attrs.asdict(measured.row.original),
        "misses": measured.misses(),
    }


if __name__ == "__main__":
    sys.exit(main())
