"""The capacity jobs: their duration from segments to plan, beside a bare copy of the same segments to Parquet.

A journal of a week and a day is made, and the last day held back. Then, each in a fresh process with a heap of 1 GiB on
``local[2]``: the copy by an explicit schema (`bench.references.spark_copy`), all jobs from nothing, and all jobs again
after the last day was added. Core-seconds are those of Python, Java and all workers, so that other work of the machine
counts less than in seconds. The environment variable RECORDS sets another number of records.

Hourly runs: a journal of `NINE_WEEKS` and one of a year are made, the last hours held back, and all jobs run after each
hour that is added. The environment variable HOURS sets another number of hours.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.harness import Figure, Scenario, at_most
from bench.machine import SessionTime
from bench.servers import CHECKOUT, FailedError

RECORDS = int(os.environ.get("RECORDS", "2000000"))
"""Enough that the start of Spark is not all; the goals are meant for ten million."""

DAYS = 7
"""Over which they are spread; one more comes later."""

RATIO = 1.5
"""The most core-seconds that the jobs may take, as a ratio to the copy."""

START, MILLION = 35.0, 5.0
"""The most core-seconds of a run, and of each million records beside."""

HOURS = int(os.environ.get("HOURS", "6"))
"""Hourly runs with each of the two journals."""

NINE_WEEKS, YEAR = 63, 365
"""Days of the two journals. Eight weeks are the longest history that a forecast reads."""

DAILY, INTERVAL = 17_000, 120.0
"""Records a day of the hourly runs, and seconds between two beats: of 20 providers."""

FLAT = 1.2
"""The most that an hourly run may take after a year, as a ratio to one after nine weeks."""

SUBREAPER = 36
"""The option of prctl(2) by which processes that a child left are children of this process, which waits for them."""

INCREMENT = 22.0
"""Seconds that one more day may take, without the session's start."""

HEAP = "1g"

MASTER = "local[2]"

HERE = "  "
"""Before the line of a job (spark/capacity/progress.py); a note has more of it."""


@attrs.frozen
class Run:
    """One run: seconds of each job, and of the session's start; core-seconds of all processes."""

    jobs: dict[str, float]
    start: float
    core_seconds: float

    @property
    def work(self) -> float:
        """Seconds from the session's start to the report."""
        return sum(self.jobs.values())


def _lines(
    arguments: Sequence[str], log: Path, used: Callable[[float], object] = lambda _: None
) -> Iterator[tuple[float, str]]:
    """Run a Python of its own in the checkout; yield its lines and when they came. In the end ``used`` is called with
    the core-seconds of all processes of its session."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            start_new_session=True,
        )
        took = SessionTime(process.pid)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield time.monotonic(), line.rstrip("\n")
            if process.wait():
                raise FailedError(f"{arguments[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
        finally:
            process.kill()
            process.wait()
            _wait_for_children()
            used(took.stop())


def _wait_for_children() -> None:
    """Wait until all have ended: Java outlives Python."""
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def copy(segments: Path, out: Path, log: Path) -> Run:
    """Measure the bare copy."""
    arguments = ["bench/references/spark_copy.py", str(segments), str(out), HEAP, MASTER]
    used: list[float] = []
    *_, (_, told) = _lines(arguments, log, used.append)
    seconds = json.loads(told)
    return Run({"copy": seconds["copy"]}, seconds["start"], *used)


def run(journal: Path, out: Path, log: Path) -> Run:
    """Measure a run of all jobs by the lines that it prints: each comes at the end of its job.

    The time before the first of them is the session's start and the first job. They are told apart by the lock of
    the out directory, which is written between them.
    """
    lock = out / ".lock"
    lock.unlink(missing_ok=True)
    used: list[float] = []
    begin, wall = time.monotonic(), time.time()
    arguments = ["-m", "spark.capacity", "run", "--journal", str(journal), "--out", str(out)]
    jobs: dict[str, float] = {}
    last, start = begin, 0.0
    for at, line in _lines([*arguments, "--master", MASTER, "--memory", HEAP], log, used.append):
        if not line.startswith(HERE) or line.startswith(HERE + " "):
            continue
        if not jobs:
            start = lock.stat().st_mtime - wall
            last = begin + start
        jobs[line.split()[0]] = at - last
        last = at
    return Run(jobs, start, *used)


def _journal(place: Path, records: int, days: int, *more: str) -> Path:
    """Make a journal. Returns its segments."""
    journal = place / "journal"
    arguments = ["-P", "bench/references/spark_journal.py", str(journal), str(records), str(days), *more]
    for _ in _lines(arguments, place / "log"):
        pass
    return journal / "segments"


def _files(out: Path) -> tuple[int, int]:
    """Return the numbers of files of the tables and of the lake."""
    paths = [each.relative_to(out) for each in out.rglob("*") if each.is_file()]
    lake = sum(each.parts[0] == "lake" for each in paths)
    return len(paths) - lake, lake


def jobs(seconds: float) -> list[Figure]:
    """A copy, a cold run, and a run with one day more; each in a fresh process."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with TemporaryDirectory(prefix="spark-bench-") as made:
        place = Path(made)
        log = place / "log"
        segments = _journal(place, RECORDS * (DAYS + 1) // DAYS, DAYS + 1)
        day = max(segments.glob("date=*"))
        held = day.rename(place / day.name)
        copied = copy(segments, place / "copy", log)
        cold = run(place / "journal", place / "plan", log)
        held.rename(day)
        more = run(place / "journal", place / "plan", log)
    return [
        at_most(
            "all jobs, core-seconds by those of the copy", cold.core_seconds / copied.core_seconds, RATIO, "{:.2f}"
        ),
        at_most(
            f"core-seconds of a million records, beside {START:g}",
            (cold.core_seconds - START) / (RECORDS / 1e6),
            MILLION,
            "{:.1f}",
        ),
        at_most("one day more, s", more.work, INCREMENT, "{:.1f}"),
        Figure("the copy, s, core-s", f"{copied.work:.1f}, {copied.core_seconds:.1f}"),
        Figure("all jobs, s, core-s", f"{cold.work:.1f}, {cold.core_seconds:.1f}"),
        Figure(
            "starts of the session: copy, cold, one day more, s",
            ", ".join(f"{each.start:.1f}" for each in (copied, cold, more)),
        ),
        *(
            Figure(f"{name}: cold, one day more, s", f"{took:.1f}, {more.jobs[name]:.1f}")
            for name, took in cold.jobs.items()
        ),
    ]


@attrs.frozen
class Hourly:
    """Means of the hourly runs with one journal: seconds and core-seconds, files that a run adds."""

    seconds: float
    core_seconds: float
    files: float
    lake: float


def _hourly(days: int) -> Hourly:
    with TemporaryDirectory(prefix="spark-bench-") as made:
        place = Path(made)
        segments, out, log = _journal(place, DAILY * days, days, str(INTERVAL)), place / "plan", place / "log"
        held = sorted(segments.glob("date=*/hour=*"))[-HOURS:]
        for hour in held:
            hour.rename(place / "-".join(hour.parts[-2:]))
        run(place / "journal", out, log)
        first, runs = _files(out), []
        for hour in held:
            hour.parent.mkdir(exist_ok=True)
            (place / "-".join(hour.parts[-2:])).rename(hour)
            runs.append(run(place / "journal", out, log))
        files, lake = ((last - before) / HOURS for last, before in zip(_files(out), first, strict=True))
        seconds, core_seconds = (sum(map(each, runs)) / HOURS for each in (lambda r: r.work, lambda r: r.core_seconds))
        return Hourly(seconds, core_seconds, files, lake)


def hours(seconds: float) -> list[Figure]:
    """Hourly runs after some weeks, and after a year."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    weeks, year = _hourly(NINE_WEEKS), _hourly(YEAR)
    ratio = year.core_seconds / weeks.core_seconds
    return [
        at_most(f"an hourly run after {YEAR} days by one after {NINE_WEEKS}, core-seconds", ratio, FLAT, "{:.2f}"),
        *(
            Figure(
                f"{name}, after {NINE_WEEKS} days, after {YEAR}", f"{getattr(weeks, of):.1f}, {getattr(year, of):.1f}"
            )
            for name, of in (
                ("an hourly run, s", "seconds"),
                ("an hourly run, core-s", "core_seconds"),
                ("files that it adds to the tables", "files"),
                ("files that it adds to the lake", "lake"),
            )
        ),
    ]


ROWS = {
    "jobs": Scenario(f"The capacity jobs on {RECORDS:,} records", 0.0, jobs),
    "hours": Scenario(f"{HOURS} hourly runs after {NINE_WEEKS} days and after a year", 0.0, hours),
}
