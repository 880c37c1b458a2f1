"""The harness of all benchmarks: rows, how they are run, and their tables.

A `Row` measures a subject and its peer, which does the same work, in turns and in fresh processes: CPU time for each
message first. A `Scenario` has figures of its own. `bench.__main__` runs the rows of all wires.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs
import zmq

from bench import traffic
from bench.machine import describe, load_average, raise_descriptor_limit
from bench.servers import Server, Subject
from bench.traffic import Sample

KIB, MIB = 1024, 1024 * 1024

WARM_UP = 0.4
"""Seconds of the same load before each measured stretch: the interpreter specialises its code, buffers grow."""

IDLE = 0.5
"""Seconds for which a server is watched before the load: what it takes doing nothing is not counted."""

BUSY = 0.95
"""The share of a core from which the generator is what is measured."""

S = TypeVar("S", bound=Server)

Start = Callable[[], AbstractContextManager[Any]]
"""Starts a fresh server."""


class Load(Protocol):
    """Traffic that is ready to run, again and again."""

    def run(self, seconds: float) -> Sample: ...
    def close(self) -> None: ...


@attrs.frozen
class Result:
    """One run against one server: the cost of each message in the unit of the row, microseconds of the generator's CPU
    for each, and messages a second."""

    cost: float
    generator: float = 0.0
    rate: float = 0.0

    @property
    def busy(self) -> float:
        """The share of a core that the generator took."""
        return self.generator * self.rate / 1e6


@attrs.frozen
class Row:
    """One line of the table of costs.

    - ``measure``: measures one server for so many seconds.
    - ``subject`` and ``peer``: start the servers that are compared; ``peer`` None where there is nothing to compare.
    - ``goal``: the most that the subject may cost, as a ratio to the peer. ``wanted``: messages a second that are
      enough, whatever the ratio.
    - ``original``: the figure of the original program on another machine, for comparison.
    """

    title: str
    measure: Callable[[Any, float], Result]
    subject: Start
    peer: Start | None
    goal: float | None = None
    wanted: float | None = None
    original: str = "-"
    unit: str = "µs"


def cpu(prepare: Callable[[S], Load]) -> Callable[[S, float], Result]:
    """Return a measurement of the server's CPU time for each message of a load, in microseconds."""

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


@attrs.frozen
class Measured:
    """All runs of one row."""

    row: Row
    subject: Sequence[Result]
    peer: Sequence[Result]

    @property
    def ratio(self) -> float | None:
        """The median of the subject as a ratio to that of the peer."""
        return median(self.subject, "cost") / median(self.peer, "cost") if self.peer else None

    @property
    def met(self) -> bool:
        """False if a goal was missed."""
        row, ratio = self.row, self.ratio
        if row.goal is None or ratio is None:
            return True
        return ratio <= row.goal or (row.wanted is not None and median(self.subject, "rate") >= row.wanted)

    def cells(self) -> list[str]:
        """The line of the table."""
        row, costs = self.row, [each.cost for each in self.subject]
        digits = 0 if min(costs) >= 100 else 2
        goal = "-"
        if row.goal is not None:
            wanted = "" if row.wanted is None else f" or >= {row.wanted:,.0f}/s"
            goal = f"<= {row.goal:g}{wanted}: {judged(self.met)}"
        return [
            row.title,
            f"{median(self.subject, 'cost'):,.{digits}f} {row.unit}",
            f"{min(costs):,.{digits}f}-{max(costs):,.{digits}f}",
            f"{median(self.peer, 'cost'):,.{digits}f}" if self.peer else "-",
            "-" if self.ratio is None else f"{self.ratio:.2f}",
            _rate(self.subject),
            _rate(self.peer),
            row.original,
            goal,
        ]


HEADINGS = ["row", "subject", "min-max", "peer", "ratio", "a second", "peer", "original", "goal"]


def measured(row: Row, runs: int, seconds: float, against: Path | None = None) -> Measured:
    """Measure subject and peer in turns, each time in fresh processes. ``against`` is a checkout whose broker takes the
    place of the peer."""
    results: tuple[list[Result], list[Result]] = [], []
    for _ in range(runs):
        with row.subject() as server:
            results[0].append(row.measure(server, seconds))
        peer = row.peer if against is None else row.subject
        if peer is not None:
            checkout = Subject.checkout
            Subject.checkout = against or checkout
            try:
                with peer() as server:
                    results[1].append(row.measure(server, seconds))
            finally:
                Subject.checkout = checkout
    return Measured(row, *results)


def _rate(results: Sequence[Result]) -> str:
    if not results or not median(results, "rate"):
        return "-"
    limit = " LIMIT" if median(results, "busy") >= BUSY else ""
    return f"{median(results, 'rate'):,.0f}{limit}"


# figures


@attrs.frozen
class Figure:
    """One thing that was measured. ``met`` is None where there is no goal."""

    what: str
    value: str
    goal: str = "-"
    met: bool | None = None

    def cells(self) -> list[str]:
        """The line of a table."""
        return [self.what, self.value, self.goal if self.met is None else f"{self.goal}: {judged(self.met)}"]


def judged(met: bool) -> str:
    """A goal's outcome, in the word that one looks for."""
    return "met" if met else "MISSED"


def at_most(what: str, value: float, most: float, form: str) -> Figure:
    """A figure that may not be larger."""
    return Figure(what, form.format(value), f"<= {form.format(most)}", value <= most)


def at_least(what: str, value: float, least: float, form: str) -> Figure:
    """A figure that may not be smaller."""
    return Figure(what, form.format(value), f">= {form.format(least)}", value >= least)


def exactly(what: str, value: object, wanted: object) -> Figure:
    """A figure that must be this."""
    return Figure(what, str(value), str(wanted), value == wanted)


def median(results: Sequence[object], figure: str) -> float:
    """The median of one attribute of them."""
    values: list[float] = [getattr(result, figure) for result in results]
    return statistics.median(values)


@attrs.frozen
class Scenario:
    """A row with figures of its own, and how long it goes on: by default, and with ``--quick``."""

    title: str
    seconds: float
    run: Callable[[float], list[Figure]]
    quick: float | None = None

    def measured(self, seconds: float | None, quick: bool = False) -> list[Figure]:
        """Run it for so long, or for its own time."""
        return self.run((self.quick if quick else None) or seconds or self.seconds)


def figure_table(figures: Sequence[Figure]) -> str:
    """The figures of one scenario as Markdown."""
    return table(["figure", "value", "goal"], [figure.cells() for figure in figures])


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, its columns aligned."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


# the command line


def parsed(arguments: ArgumentParser, titles: Mapping[str, str]) -> tuple[Namespace, list[str]]:
    """Parse the command line. Returns the options, and the names of the rows to run.

    Ends the process if they are only to be listed, or none has such a name.
    """
    arguments.add_argument("--rows", default="*", help="patterns of the rows to run, with commas between")
    arguments.add_argument("--json", metavar="FILE", help="write all results to this file")
    arguments.add_argument("--checkout", type=Path, help="measure the broker of this checkout instead of this one's")
    arguments.add_argument("--list", action="store_true", help="list the rows")
    options = arguments.parse_args()
    if options.list:
        width = max(map(len, titles)) + 2
        print("\n".join(f"{name:{width}}{title}" for name, title in titles.items()))
        arguments.exit()
    if options.checkout is not None:
        Subject.checkout = options.checkout.resolve()
    names = [name for name in titles if any(fnmatchcase(name, each) for each in options.rows.split(","))]
    if not names:
        arguments.error(f"no row is called {options.rows}; --list shows them")
    return options, names


class _Quick(Action):
    """Sets several options at once."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: object, option: str | None = None) -> None:
        namespace.quick, namespace.runs, namespace.seconds = True, 2, 1.0


def begin() -> dict[str, str]:
    """Get ready, and print what the figures depend on. That is returned, too."""
    raise_descriptor_limit()
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        **describe(),
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
    }
    for key, value in about.items():
        print(f"{key}: {value}")
    return about


def write(path: str | None, about: Mapping[str, str], **results: object) -> None:
    """Write the results, if a file was given for them."""
    if path is not None:
        machine = {**about, "load average at the end": load_average()}
        with open(path, "w") as file:
            json.dump({"machine": machine, **results}, file, indent=1)


def main(rows: Mapping[str, Row | Scenario]) -> int:
    """Run the rows that the command line selects. Returns the exit status: 1 if a goal was missed."""
    arguments = ArgumentParser(prog="python -m bench", description="CPU time for each message, beside a peer.")
    arguments.add_argument("--runs", type=int, default=3, help="how often each row is run; medians count [3]")
    arguments.add_argument("--seconds", type=float, help="of each measured stretch [2, or the scenario's own]")
    arguments.add_argument("--quick", action=_Quick, nargs=0, default=False, help="--runs 2 --seconds 1")
    arguments.add_argument("--against", type=Path, help="compare with the broker of this checkout, not with the peer")
    arguments.add_argument(
        "--rest",
        type=float,
        default=1e6 * traffic.REST,
        help="microseconds that generators on plain sockets rest; 0: until something comes",
    )
    options, names = parsed(arguments, {name: row.title for name, row in rows.items()})
    traffic.Poll.rest = options.rest / 1e6
    about = begin()
    costs: dict[str, Measured] = {}
    figures: dict[str, list[Figure]] = {}
    against = None if options.against is None else options.against.resolve()
    for name in names:
        row = rows[name]
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        if isinstance(row, Row):
            costs[name] = each = measured(row, options.runs, options.seconds or 2.0, against)
            print("" if each.ratio is None else f" {each.ratio:.2f}", file=sys.stderr, flush=True)
        else:
            figures[name] = row.measured(options.seconds, options.quick)
            print(file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    if costs:
        print(f"Medians of {options.runs}\n\n{table(HEADINGS, [each.cells() for each in costs.values()])}\n")
    for name, found in figures.items():
        print(f"{name}: {rows[name].title}\n\n{figure_table(found)}\n")
    write(
        options.json,
        about,
        rows={
            name: {"subject": list(map(attrs.asdict, each.subject)), "peer": list(map(attrs.asdict, each.peer))}
            for name, each in costs.items()
        },
        scenarios={name: list(map(attrs.asdict, found)) for name, found in figures.items()},
    )
    missed = [not each.met for each in costs.values()]
    missed += [figure.met is False for found in figures.values() for figure in found]
    return 1 if any(missed) else 0
