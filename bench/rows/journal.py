"""The metrics journal: its cost for the reactor, and the delays that it causes, beside a reactor without one.

The journal is a part of any reactor's work, so `bench.references.journal` is a reactor whose other work is known
exactly. Both processes run beside each other, so that a slow phase of the machine slows down both. A run in which a
record is dropped fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from bench.harness import MIB, Figure, Scenario, at_most
from bench.references.journal import Load
from bench.servers import CHECKOUT, FailedError, die_with_parent

CPU_GOAL = 1.5
"""Microseconds of the reactor's CPU time that a record may cost."""

STALL_GOAL = 20.0
"""Milliseconds for which the journal may hold up the reactor, if the reactor without it is not held up for longer."""

PATIENCE = 300.0
"""Seconds for one process, which runs for some tens of them."""

FULL = 64 * MIB
"""A segment of the usual size: sealed every 12 s at this rate."""

RATE = 20_000


def compared(
    kind: str, connections: int, turn: float, segment: int, rate: int = RATE
) -> Callable[[float], list[Figure]]:
    """Return the comparison of both processes under a load."""

    def run(seconds: float) -> list[Figure]:
        load = Load(kind, rate, seconds, connections, turn, segment)
        with TemporaryDirectory(prefix="journal-bench-") as directory, ThreadPoolExecutor(2) as both:
            without, journal = both.map(lambda subject: _one(subject, load, directory), ("none", "journal"))
        cost = [1e6 * each["cpu"] / each["messages"] for each in (without, journal)]
        late = [1e3 * each["late"] for each in (without, journal)]
        return [
            at_most("CPU of the reactor for a record, µs", cost[1] - cost[0], CPU_GOAL, "{:.2f}"),
            Figure("CPU of a message, with and without the journal, µs", f"{cost[1]:.2f}, {cost[0]:.2f}"),
            at_most("the longest time that the reactor was late, ms", late[1], max(STALL_GOAL, late[0]), "{:.1f}"),
            Figure("segments sealed", str(journal["counts"]["journal_segments.sealed"])),
            Figure("records a second", f"{journal['messages'] / seconds:,.0f}"),
            Figure("bytes written for a record", f"{journal['written'] / journal['messages']:.0f}"),
            Figure("CPU of the thread for a record, µs", f"{1e6 * journal['thread'] / journal['messages']:.2f}"),
        ]

    return run


def _one(subject: str, load: Load, directory: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "bench.references.journal", subject, directory, json.dumps(attrs.asdict(load))],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=die_with_parent,
    )
    if ended.returncode or ended.stderr:
        raise FailedError(f"{subject}: {ended.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(ended.stdout)
    counts = result["counts"]
    if counts and (counts["journal_records.dropped"] or counts["journal_errors.write"]):
        raise FailedError(f"{subject}: records were lost: {counts}")
    return result


ROWS = {
    "beats": Scenario("Heartbeats, 4 connections", 30.0, compared("hb", 4, 0.002, FULL), quick=8.0),
    "loads": Scenario("Loads, 4 connections", 30.0, compared("load", 4, 0.002, FULL), quick=8.0),
    "loads-50k": Scenario("Loads, 50,000 a second", 20.0, compared("load", 4, 0.002, FULL, 50_000), quick=8.0),
    "small": Scenario("Heartbeats, segments of 1 MiB", 20.0, compared("hb", 20, 0.002, MIB), quick=8.0),
    "wide": Scenario("Heartbeats, 1,000 connections in one turn", 30.0, compared("hb", 1_000, 0.05, FULL), quick=8.0),
}
