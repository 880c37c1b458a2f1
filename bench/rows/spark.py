"""The capacity jobs: their duration from segments to plan, beside a bare copy of the same segments to Parquet.

A journal of a week and a day is made, and the last day held back. Then, each in a fresh process with a heap of 1 GiB on
``local[2]``: the copy by an explicit schema (`bench.references.spark_copy`), all jobs from nothing, and all jobs again
after the last day was added. The environment variable RECORDS sets another number of records.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.harness import Figure, Scenario, at_most

CHECKOUT = Path(__file__).resolve().parents[2]

RECORDS = int(os.environ.get("RECORDS", "2000000"))
"""Enough that the start of Spark is not all; the goals are meant for ten million."""

DAYS = 7
"""Over which they are spread; one more comes later."""

RATIO = 1.7
"""The most that the jobs may take, as a ratio to the copy."""

INCREMENT = 22.0
"""Seconds that one more day may take, without the session's start."""

HEAP = "1g"

MASTER = "local[2]"

PATIENCE = 3600.0
"""Seconds for one process: ten million records take some minutes on a machine that does other work as well."""

HERE = "  "
"""Before the line of a job (spark/capacity/progress.py); a note has more of it."""


@attrs.frozen
class Run:
    """One run of the jobs: seconds of each, of the session's start, and of the whole process."""

    jobs: dict[str, float]
    start: float
    process: float

    @property
    def work(self) -> float:
        """Seconds from the session's start to the report."""
        return sum(self.jobs.values())


@attrs.frozen
class Copied:
    """One bare copy: seconds of the copy, of the session's start, and of the whole process."""

    copy: float
    start: float
    process: float


@attrs.frozen
class Measured:
    """Everything of one round."""

    copy: Copied
    cold: Run
    more: Run

    @property
    def ratio(self) -> float:
        return self.cold.work / self.copy.copy


# processes


class FailedError(Exception):
    """A process that is measured failed; the text has its last words."""


def environment() -> dict[str, str]:
    """Return the environment of a measured process."""
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


def _lines(arguments: Sequence[str], log: Path) -> Iterator[tuple[float, str]]:
    """Run a Python of its own in the checkout; yield its lines and when they came."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=CHECKOUT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield time.monotonic(), line.rstrip("\n")
            if process.wait(PATIENCE):
                raise FailedError(f"{arguments[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
        finally:
            process.kill()
            process.wait()


def generate(journal: Path, records: int, days: float, log: Path, *shape: float) -> int:
    """Make a journal; return how many records it has. ``shape`` is the services, their interval and that of reports."""
    arguments = ["-P", "bench/references/spark_journal.py", *map(str, (journal, records, days, *shape))]
    return int([line for _, line in _lines(arguments, log)][-1])


def copy(segments: Path, out: Path, log: Path) -> Copied:
    """Measure the bare copy."""
    begin = time.monotonic()
    told = [line for _, line in _lines(["bench/references/spark_copy.py", str(segments), str(out), HEAP, MASTER], log)][
        -1
    ]
    seconds = json.loads(told)
    return Copied(seconds["copy"], seconds["start"], time.monotonic() - begin)


def run(journal: Path, out: Path, log: Path) -> Run:
    """Measure a run of all jobs by the lines that it prints: each comes at the end of its job.

    The time before the first of them is the session's start and the first job. They are told apart by the lock of
    the out directory, which is written between them.
    """
    lock = out / ".lock"
    lock.unlink(missing_ok=True)
    begin, wall = time.monotonic(), time.time()
    arguments = ["-m", "spark.capacity", "run", "--journal", str(journal), "--out", str(out)]
    jobs: dict[str, float] = {}
    last, start = begin, 0.0
    for at, line in _lines([*arguments, "--master", MASTER, "--memory", HEAP], log):
        if not line.startswith(HERE) or line.startswith(HERE + " "):
            continue
        if not jobs:
            start = lock.stat().st_mtime - wall
            last = begin + start
        jobs[line.split()[0]] = at - last
        last = at
    return Run(jobs, start, time.monotonic() - begin)


# rounds


def hold_back(segments: Path, aside: Path) -> Path:
    """Take the last day out of the journal; return where it is."""
    day = max(segments.glob("date=*"))
    day.rename(aside / day.name)
    return aside / day.name


def measure(place: Path, number: int) -> Measured:
    """One round: a copy, a cold run, and a run with one day more; each in a fresh process."""
    journal, aside = place / "journal", place / "aside"
    segments, out, log = journal / "segments", place / f"plan-{number}", place / "log"
    aside.mkdir(exist_ok=True)
    day = hold_back(segments, aside)
    try:
        copied = copy(segments, place / f"copy-{number}", log)
        cold = run(journal, out, log)
    finally:
        day.rename(segments / day.name)
    return Measured(copied, cold, run(journal, out, log))


def jobs(_: float) -> list[Figure]:
    """One round."""
    with TemporaryDirectory(prefix="spark-bench-") as made:
        place = Path(made)
        generate(place / "journal", RECORDS * (DAYS + 1) // DAYS, DAYS + 1, place / "log")
        each = measure(place, 1)
    times = [
        Figure(f"{name}: cold, one day more, s", f"{seconds:.1f}, {each.more.jobs[name]:.1f}")
        for name, seconds in each.cold.jobs.items()
    ]
    return [
        at_most("all jobs, as a ratio to the copy", each.ratio, RATIO, "{:.2f}"),
        at_most("one day more, s", each.more.work, INCREMENT, "{:.1f}"),
        Figure("the copy, s", f"{each.copy.copy:.1f}"),
        Figure(
            "starts of the session: copy, cold, one day more, s",
            ", ".join(f"{start:.1f}" for start in (each.copy.start, each.cold.start, each.more.start)),
        ),
        *times,
    ]


ROWS = {"jobs": Scenario(f"The capacity jobs on {RECORDS:,} records", 0.0, jobs)}
