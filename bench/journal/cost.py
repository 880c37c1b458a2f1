"""The cost of the metrics journal for the reactor, and the delays that it causes, beside a reactor without one.

    python -m bench.journal.cost [--rows PATTERN,...] [--rounds N] [--json FILE] [--list]

bench/README.md says what is measured and how to read it. The exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from bench.common import command
from bench.common.figures import MIB, judged
from bench.common.machine import load_average
from bench.common.report import table
from bench.common.servers import CHECKOUT, die_with_parent
from bench.journal.reactor import Load

CPU_GOAL = 1.5
"""Microseconds of the reactor's CPU time that a record may cost."""

STALL_GOAL = 20.0
"""Milliseconds for which the journal may hold up the reactor."""

PATIENCE = 300.0
"""Seconds for one process, which runs for some tens of them."""

FULL = 64 * MIB
"""A segment of the usual size: sealed every 12 s at this rate."""

RATE = 20_000

SEALED = 10_000
"""Segments that are there already: a year and more of them, one each hour."""

LINE = (
    b'{"v":1,"broker":"bench","boot":"old","seq":%d,"ts":1795246600250000,"event":"hb","wire":"dbp","service":"service-1",'
    b'"provider":12,"label":"node12","endpoint":"192.0.2.1:5012","protocol":"tcp","interval_ms":10000,"hb_seq":12}\n'
)


def nothing(directory: Path) -> None:
    """The journal is new."""


def left(directory: Path) -> None:
    """A broker was killed just before its segment was full, and was there for more than a year."""
    (directory / "open").mkdir()
    with (directory / "open" / "bench-old-1.jsonl").open("wb") as file:
        for seq in range(FULL // len(LINE)):
            file.write(LINE % seq)
    content = gzip.compress(LINE % 1)
    for hours in range(SEALED):
        at = datetime.now(UTC) - timedelta(hours=hours)
        hour = directory / "segments" / f"date={at.date()}" / f"hour={at:%H}"
        hour.mkdir(parents=True)
        (hour / f"bench-older-{hours}.jsonl.gz").write_bytes(content)


@attrs.frozen
class Row:
    """One kind of load. ``costs``: what a record costs is judged by it."""

    name: str
    title: str
    load: Load
    costs: bool = False
    before: Callable[[Path], None] = nothing


ROWS = [
    Row("beats", "heartbeats, 4 connections", Load("hb", RATE, 30, 4, 0.002, FULL), True),
    Row("loads", "loads, 4 connections", Load("load", RATE, 30, 4, 0.002, FULL), True),
    Row("small", "heartbeats, segments of 1 MiB", Load("hb", RATE, 20, 20, 0.002, MIB)),
    Row("wide", "heartbeats, 1,000 connections in one turn", Load("hb", RATE, 30, 1_000, 0.05, FULL)),
    Row("hang", "the disk hangs for 8 s", Load("hb", RATE, 24, 20, 0.002, FULL, 8)),
    Row("left", "64 MiB left by a kill, 10,000 segments", Load("hb", RATE, 15, 20, 0.002, FULL), before=left),
]


@attrs.frozen
class Pair:
    """One round: the results of both processes."""

    without: dict[str, Any]
    journal: dict[str, Any]

    @property
    def cpu(self) -> float:
        """Microseconds of the reactor's CPU time for each record."""
        of = [each["cpu"] / each["messages"] * 1e6 for each in (self.without, self.journal)]
        return float(of[1] - of[0])


class FailedError(Exception):
    """A process that is measured failed; the text has its last words."""


def run(row: Row) -> Pair:
    """Run both beside each other: what slows the machine down for a while slows down both."""
    with TemporaryDirectory(prefix="journal-bench-") as directory:
        row.before(Path(directory))
        with ThreadPoolExecutor(2) as both:
            without, journal = both.map(lambda subject: run_one(subject, row, directory), ("none", "journal"))
    return Pair(without, journal)


def run_one(subject: str, row: Row, directory: str) -> dict[str, Any]:
    """Run one process to its end."""
    ended = subprocess.run(
        [sys.executable, "-m", "bench.journal.reactor", subject, directory, json.dumps(attrs.asdict(row.load))],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=die_with_parent,
    )
    if ended.returncode or ended.stderr:
        raise FailedError(f"{row.name}, {subject}: {ended.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(ended.stdout)
    counts = result["counts"]
    if counts and (counts["journal_records.dropped"] or counts["journal_errors.write"]):
        raise FailedError(f"{row.name}: records were lost: {counts}")
    return result


def longest(result: dict[str, Any], by: str) -> float:
    """Milliseconds of the longest time by which the reactor was late."""
    which = {"whole": "longest", "own": "own"}[by]
    return float(result[which][0][by]) * 1e3


def median_and_most(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f}, {max(values):.1f}"


def judge(row: Row, rounds: Sequence[Pair]) -> tuple[list[str], bool]:
    """The line of a row, and whether its goals are met."""
    cpu = statistics.median(each.cpu for each in rounds)
    own = [longest(each.journal, "own") for each in rounds]
    own_without = [longest(each.without, "own") for each in rounds]
    missed = []
    if row.costs and cpu > CPU_GOAL:
        missed.append("CPU")
    if max(own) > max(STALL_GOAL, *own_without):
        missed.append("stall")
    goals = [f"CPU <= {CPU_GOAL:g}"] if row.costs else []
    goals.append(f"stall <= {STALL_GOAL:g}")
    line = [
        row.title,
        f"{cpu:.2f} ({min(each.cpu for each in rounds):.2f}-{max(each.cpu for each in rounds):.2f})",
        str(sum(each.journal["counts"]["journal_segments.sealed"] for each in rounds)),
        median_and_most(own_without),
        median_and_most(own),
        median_and_most([longest(each.without, "whole") for each in rounds]),
        median_and_most([longest(each.journal, "whole") for each in rounds]),
        f"{', '.join(goals)}: {', '.join([judged(not missed), *missed])}",
    ]
    return line, not missed


HEADINGS = ["row", "CPU", "sealed", "late: none", "late: journal", "all: none", "all: journal", "goals"]


def main() -> int:
    arguments = ArgumentParser(description="What the metrics journal costs the reactor.")
    arguments.add_argument("--rounds", type=int, default=5, help="how often each is run, with and without (5)")
    options, names = command.parsed(arguments, "rows", {row.name: row.title for row in ROWS}, broker=False)
    about = command.begin()
    rows = [row for row in ROWS if row.name in names]
    rounds: dict[str, list[Pair]] = {name: [] for name in names}
    for number in range(options.rounds):
        for row in rows:
            pair = run(row)
            rounds[row.name].append(pair)
            text = f"{pair.cpu:.2f} µs, {longest(pair.journal, 'own'):.1f} ms"
            print(f"round {number + 1}, {row.name}: {text}", file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    print("CPU of a record: microseconds; how late the reactor was at most: milliseconds\n")
    lines = [judge(row, rounds[row.name]) for row in rows]
    print(table(HEADINGS, [line for line, _ in lines]))
    results = {name: [attrs.asdict(each) for each in of] for name, of in rounds.items()}
    command.write(options.json, about, rows=results)
    return 0 if all(met for _, met in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
