"""The cost of the MTL wire, in CPU time for each delivery, beside a bare tuned ROUTER; the speed of queues; the
latency of Contents.

    python -m bench.mtl.cost [--rows PATTERN,...] [--runs N] [--turns N] [--seconds S] [--subject KIND] [--json FILE]

bench/README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import attrs
import zmq

from bench.common import command
from bench.common import earlier_version as earlier
from bench.common.figures import judged, median
from bench.common.machine import load_average
from bench.common.processes import Remote
from bench.common.report import table
from bench.mtl import servers as mtl_servers
from bench.mtl.earlier_version import EarlierOutcome, QueueRow, SingleRow
from bench.mtl.peers import RESOURCE
from bench.mtl.servers import DURABLE, Keys, MtlServer
from bench.mtl.sides import SIZES, WARM_UP, Options, Result, Side, Started, shares, spread
from bench.mtl.traffic import RATE, FanOut, Listener, Pacer, percentile

GOALS = {1: 0.8, 10: 0.5, 100: 0.45}
"""The most that a delivery of 100 B may cost, as a ratio to the bare ROUTER's, by the number of readers."""

LONG_GOAL = 1.0
"""The same for 10 KiB: the kernel's copies dominate."""

KEYS = Keys(*zmq.curve_keypair())
"""Of all servers that want CURVE."""

SUBJECTS: dict[str, Started] = {"broker": mtl_servers.broker, "reference": mtl_servers.reference}


@contextmanager
def _both(options: Options, keys: Keys | None = None) -> Iterator[tuple[MtlServer, MtlServer]]:
    with options.subject(keys) as subject, mtl_servers.reference(keys) as reference:
        yield subject, reference


# fan-out


@attrs.frozen
class FanOutRow:
    """The test profile: one writer, so many readers."""

    name: str
    title: str
    readers: int
    size: int
    curve: bool
    earlier = False

    def run(self, options: Options) -> Outcome:
        """Measure the subject and the reference in turns."""
        subjects: list[Result] = []
        references: list[Result] = []
        for _ in range(1 if self.curve else options.runs):  # of which nothing is wanted
            with ExitStack() as stack:
                servers = stack.enter_context(_both(options, KEYS if self.curve else None))
                sides = [Side(server, FanOut, self.readers, self.size) for server in servers]
                for side in sides:
                    stack.callback(side.stop)
                subject, reference = sides
                for turn in range(options.turns):
                    # In turns also who is first, so that a machine that gets slower all the time favours nobody.
                    for side in (subject, reference) if turn % 2 else (reference, subject):
                        (subjects if side is subject else references).append(side.measure(options.seconds))
        return FanOutOutcome(self, subjects, references)


@attrs.frozen
class FanOutOutcome:
    """All stretches of such a row."""

    row: FanOutRow
    subject: Sequence[Result]
    reference: Sequence[Result]

    @property
    def ratios(self) -> list[float]:
        """Of each turn: what slows the machine down slows down both."""
        return [one.cost / other.cost for one, other in zip(self.subject, self.reference, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def goal(self) -> float | None:
        if self.row.curve:
            return None
        return GOALS[self.row.readers] if self.row.size == SIZES["100"][1] else LONG_GOAL

    @property
    def met(self) -> bool:
        return self.goal is None or self.ratio <= self.goal

    def said(self) -> str:
        return f"{self.ratio:.2f}"

    def lines(self) -> list[list[str]]:
        return [
            [
                self.row.title,
                f"{median(self.subject, 'cost'):.2f}",
                f"{median(self.reference, 'cost'):.2f}",
                f"{self.ratio:.2f}",
                spread(self.ratios, ".2f"),
                f"{median(self.subject, 'rate'):,.0f}",
                f"{median(self.reference, 'rate'):,.0f}",
                shares(self.subject),
                shares(self.reference),
                "-" if self.goal is None else f"<= {self.goal:g}: {judged(self.met)}",
            ]
        ]

    def plain(self) -> dict[str, object]:
        return {
            "subject": [attrs.asdict(each) for each in self.subject],
            "reference": [attrs.asdict(each) for each in self.reference],
            "ratio": self.ratio,
            "goal": self.goal,
            "met": self.met,
        }


# latency


@attrs.frozen
class Latencies:
    """One stretch: microseconds that half of the Contents did not exceed, and 99 of 100."""

    p50: float
    p99: float

    @classmethod
    def of(cls, took: Sequence[float]) -> Latencies:
        return cls(percentile(took, 0.5), percentile(took, 0.99))


@attrs.frozen
class LatencyRow:
    """One writer, one reader, and `RATE` Contents a second."""

    name: str
    title: str
    profile: str
    resource: str
    size: int
    earlier = False

    def run(self, options: Options) -> Outcome:
        """Measure the subject and the reference in turns."""
        outcome = LatencyOutcome(self)
        for _ in range(options.runs):
            with ExitStack() as stack:
                profiles = (self.profile, self.resource), ("test", RESOURCE)
                pairs = [
                    self._pair(stack, server, *profile)
                    for server, profile in zip(stack.enter_context(_both(options)), profiles, strict=True)
                ]
                for _ in range(options.turns):
                    for (listener, pacer), came in zip(pairs, (outcome.subject, outcome.reference), strict=True):
                        listener.start(options.seconds)
                        confirmed, _ = pacer.run(options.seconds)
                        took, _ = listener.result(options.seconds)
                        came.append(Latencies.of(took))
                        if confirmed:
                            outcome.confirmed.append(Latencies.of(confirmed))
        return outcome

    def _pair(self, stack: ExitStack, server: MtlServer, profile: str, resource: str) -> tuple[Remote, Remote]:
        listener = Remote(Listener, server, profile, resource)
        stack.callback(listener.stop)
        pacer = Remote(Pacer, server, profile, resource, self.size)
        stack.callback(pacer.stop)
        listener.start(WARM_UP)
        pacer.run(WARM_UP)
        listener.result(WARM_UP)
        return listener, pacer


@attrs.frozen
class LatencyOutcome:
    """All stretches of such a row. ``confirmed`` is how long it took until the writer was told, where it is."""

    row: LatencyRow
    subject: list[Latencies] = attrs.field(factory=list)
    reference: list[Latencies] = attrs.field(factory=list)
    confirmed: list[Latencies] = attrs.field(factory=list)
    met = True

    def said(self) -> str:
        return f"{median(self.subject, 'p50'):.0f} us"

    def lines(self) -> list[list[str]]:
        lines = [self._line(self.row.title, self.subject)]
        if self.confirmed:
            lines.append(self._line(f"{self.row.title}, until the writer has its Confirm", self.confirmed))
        return lines

    def _line(self, title: str, came: Sequence[Latencies]) -> list[str]:
        return [
            title,
            f"{median(came, 'p50'):,.0f}",
            spread([each.p50 for each in came], ",.0f"),
            f"{median(came, 'p99'):,.0f}",
            spread([each.p99 for each in came], ",.0f"),
            f"{median(self.reference, 'p50'):,.0f}",
            f"{median(self.reference, 'p99'):,.0f}",
        ]

    def plain(self) -> dict[str, object]:
        return {
            name: [attrs.asdict(each) for each in getattr(self, name)] for name in ("subject", "reference", "confirmed")
        }


Row = FanOutRow | QueueRow | SingleRow | LatencyRow
Outcome = FanOutOutcome | EarlierOutcome | LatencyOutcome


# the rows


def _rows() -> Iterator[Row]:
    for curve in (False, True):
        for size, (label, number) in SIZES.items():
            for readers in GOALS:
                name = f"fan-out-{readers}-{size}"
                title = f"{label} to {readers}"
                if curve:
                    name, title = f"curve-{name}", f"CURVE: {title}"
                yield FanOutRow(name, title, readers, number, curve)
    for where in ("memory", DURABLE):
        for size, (label, number) in SIZES.items():
            for window in (100, 1_000):
                name, title = f"queue-{where}-{window}-{size}", f"{where}: {label}, window {window:,}"
                yield QueueRow(name, title, where, 1, window, number)
        small = f"{where}: 100 B, window 1,000"
        yield QueueRow(f"queue-{where}-multiple", f"{small}, Confirms for many", where, 1, 1_000, 100, True)
        yield QueueRow(f"queue-{where}-4", f"{small}, 4 readers", where, 4, 1_000, 100)
        yield QueueRow(f"queue-{where}-unread", f"{small}, nobody reads", where, 0, 1_000, 100)
    yield SingleRow("earlier-test-single", "test profile: 100 B, one at a time")
    yield QueueRow("earlier-queue-single", "memory: 100 B, one at a time", "memory", 1, 1, 100, single=True)
    yield LatencyRow("latency-test", "test profile", "test", RESOURCE, 100)
    yield LatencyRow("latency-topic", "topic", "topic", "bench.latency", 100)
    for where in ("memory", DURABLE):
        yield LatencyRow(f"latency-queue-{where}", f"queue, {where}", "queue", where, 100)


ROWS = list(_rows())

TABLES: dict[type[Outcome], tuple[str, list[str]]] = {
    FanOutOutcome: (
        "Microseconds of CPU for each delivery of the test profile",
        ["row", "broker", "bare", "ratio", "min-max", "a second", "bare", "generator", "with bare", "goals"],
    ),
    EarlierOutcome: (
        f"Contents a second, confirmed where it is a queue, and microseconds of CPU for each, beside {earlier.COMMIT}",
        ["row", "a second", "min-max", "earlier", "ratio", "CPU", "earlier", "ratio", "generator", "goals"],
    ),
    LatencyOutcome: (
        f"Microseconds that a Content takes, {RATE:,} a second of 100 B",
        ["row", "50 %", "min-max", "99 %", "min-max", "bare 50 %", "bare 99 %"],
    ),
}


def main() -> int:
    arguments = ArgumentParser(description="CPU time, throughput and latency of the MTL wire, beside a bare ROUTER.")
    command.add_measuring(arguments, runs=2, seconds=0.4, quick={"runs": 1, "turns": 4, "seconds": 0.4})
    arguments.add_argument("--turns", type=int, default=4, help="stretches of each run, broker and reference in turns")
    arguments.add_argument(
        "--subject",
        choices=SUBJECTS,
        default="broker",
        help="what is measured in the rows of the test profile: the bare ROUTER against itself shows how far ratios "
        "can be trusted",
    )
    given, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS})
    rows = [row for row in ROWS if row.name in names]
    about = command.begin()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        before = stack.enter_context(earlier.checkout()) if any(row.earlier for row in rows) else None
        options = Options(given.runs, given.turns, given.seconds, SUBJECTS[given.subject], before)
        for row in rows:
            print(f"{row.name} ...", end="", file=sys.stderr, flush=True)
            outcomes.append(row.run(options))
            print(f" {outcomes[-1].said()}", file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    for kind, (title, headings) in TABLES.items():
        lines = [line for outcome in outcomes if type(outcome) is kind for line in outcome.lines()]
        if lines:
            print(f"{title}; medians of all turns\n\n{table(headings, lines)}\n")
    command.write(given.json, about, rows={outcome.row.name: outcome.plain() for outcome in outcomes})
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
