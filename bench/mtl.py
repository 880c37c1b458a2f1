"""What the MTL wire costs, in CPU time for each delivery, beside a bare tuned ROUTER; how fast queues are; how long
Contents take.

    python bench/mtl.py [--rows PATTERN,...] [--runs N] [--turns N] [--seconds S] [--subject KIND] [--json FILE]

README.md says what the rows are and how to read them.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import command
import earlier
import mtl_servers
import zmq
from figures import judged, median
from machine import load_average
from mtl_peers import RESOURCE
from mtl_servers import DURABLE, Keys, MtlServer
from mtl_traffic import RATE, FanOut, Listener, Pacer, Queue, percentile
from processes import Load, Remote
from report import table

GOALS = {1: 0.8, 10: 0.5, 100: 0.45}
"""The most that a delivery of 100 B may cost, as a ratio to the bare ROUTER's, by the number of readers."""

LONG_GOAL = 1.0
"""The same for 10 KiB: the kernel's copies dominate."""

QUEUE_GOAL = 1.3
"""The least that a queue confirms, as a ratio to the earlier version."""

SINGLE_GOAL = 0.7
"""The most that a Content may cost where there is one at a time, as a ratio to the earlier version."""

WARM_UP = 0.3
"""Seconds of the same load before the first measured stretch."""

IDLE = 0.3
"""Seconds for which a server is watched before the load: what it takes doing nothing is not counted."""

SIZES = {"100": ("100 B", 100), "10k": ("10 KiB", 10 * 1024)}

KEYS = Keys(*zmq.curve_keypair())
"""Of all servers that want CURVE."""

Started = Callable[[Keys | None], AbstractContextManager[MtlServer]]

SUBJECTS: dict[str, Started] = {"broker": mtl_servers.broker, "reference": mtl_servers.reference}


@attrs.frozen
class Options:
    """How much is measured: ``runs`` with fresh processes, in each of them ``turns`` of so many ``seconds``."""

    runs: int
    turns: int
    seconds: float
    subject: Started
    before: Path | None = None
    """A checkout of the earlier version, where a row needs it."""


class Side:
    """A server and its load, taking turns with others."""

    def __init__(self, server: MtlServer, prepare: Callable[..., Load], *arguments: Any) -> None:
        before = server.cpu()
        time.sleep(IDLE)
        self._idle = (server.cpu() - before) / IDLE
        self._server = server
        self._load = Remote(prepare, server, *arguments)
        self.stop = self._load.stop
        self._load.run(WARM_UP)

    def measure(self, seconds: float) -> Result:
        """Run the load for so long."""
        before = self._server.cpu()
        sample, own = self._load.run(seconds)
        used = self._server.cpu() - before - self._idle * sample.seconds
        each = 1e6 / sample.messages
        return Result(used * each, own * each, sample.messages / sample.seconds)


@attrs.frozen
class Result:
    """One measured stretch: microseconds of CPU for each message, of the server and of its generator; and the rate."""

    cost: float
    generator: float
    rate: float

    @property
    def busy(self) -> float:
        """The share of a core that the generator took."""
        return self.generator * self.rate / 1e6


def _shares(results: Sequence[Result]) -> str:
    return f"{median(results, 'busy'):.0%}"


def _spread(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}}-{max(values):{form}}"


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
                _spread(self.ratios, ".2f"),
                f"{median(self.subject, 'rate'):,.0f}",
                f"{median(self.reference, 'rate'):,.0f}",
                _shares(self.subject),
                _shares(self.reference),
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


# beside the earlier version


def _beside_earlier(
    options: Options, prepare: Callable[..., Load], *arguments: Any
) -> tuple[list[Result], list[Result]]:
    """Stretches of the broker, and of the earlier version beside it, in turns."""
    results: tuple[list[Result], list[Result]] = [], []
    for _ in range(options.runs):
        with ExitStack() as stack:
            servers = [stack.enter_context(mtl_servers.broker(None, checkout)) for checkout in (None, options.before)]
            sides = [Side(server, prepare, *arguments) for server in servers]
            for side in sides:
                stack.callback(side.stop)
            both = list(zip(sides, results, strict=True))
            for turn in range(options.turns):
                for side, came in both if turn % 2 else reversed(both):
                    came.append(side.measure(options.seconds))
    return results


@attrs.frozen
class QueueRow:
    """A queue: one writer that is confirmed, so many readers that confirm.

    With ``single`` the goal is about what a Content costs, and else about how many are confirmed.
    """

    name: str
    title: str
    queue: str
    readers: int
    window: int
    size: int
    multiple: bool = False
    single: bool = False
    earlier = True

    def run(self, options: Options) -> Outcome:
        """Measure the broker and the earlier version in turns."""
        arguments = self.queue, self.readers, self.window, self.size, self.multiple
        return EarlierOutcome(self, *_beside_earlier(options, Queue, *arguments))


@attrs.frozen
class SingleRow:
    """The test profile: one writer, one reader, one Content of 100 B at a time."""

    name: str
    title: str
    single = True
    earlier = True

    def run(self, options: Options) -> Outcome:
        """Measure the broker and the earlier version in turns."""
        return EarlierOutcome(self, *_beside_earlier(options, FanOut, 1, SIZES["100"][1], 1))


@attrs.frozen
class EarlierOutcome:
    """All stretches of such a row: of the broker, and of the earlier version."""

    row: QueueRow | SingleRow
    results: Sequence[Result]
    before: Sequence[Result]

    def _ratio(self, figure: str) -> float:
        """The median of the turns' own ratios: what slows the machine down slows down both."""
        pairs = zip(self.results, self.before, strict=True)
        ratios: list[float] = [getattr(one, figure) / getattr(other, figure) for one, other in pairs]
        return statistics.median(ratios)

    @property
    def met(self) -> bool:
        return self._ratio("cost") <= SINGLE_GOAL if self.row.single else self._ratio("rate") >= QUEUE_GOAL

    def said(self) -> str:
        return f"{self._ratio('rate'):.2f}, CPU {self._ratio('cost'):.2f}"

    def lines(self) -> list[list[str]]:
        goal = f"CPU <= {SINGLE_GOAL:g}" if self.row.single else f"a second >= {QUEUE_GOAL:g}"
        return [
            [
                self.row.title,
                f"{median(self.results, 'rate'):,.0f}",
                _spread([result.rate for result in self.results], ",.0f"),
                f"{median(self.before, 'rate'):,.0f}",
                f"{self._ratio('rate'):.2f}",
                f"{median(self.results, 'cost'):.1f}",
                f"{median(self.before, 'cost'):.1f}",
                f"{self._ratio('cost'):.2f}",
                _shares(self.results),
                f"{goal}: {judged(self.met)}",
            ]
        ]

    def plain(self) -> dict[str, object]:
        return {
            "broker": [attrs.asdict(each) for each in self.results],
            "earlier": [attrs.asdict(each) for each in self.before],
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
            _spread([each.p50 for each in came], ",.0f"),
            f"{median(came, 'p99'):,.0f}",
            _spread([each.p99 for each in came], ",.0f"),
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
