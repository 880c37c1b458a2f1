"""The cost of the jobs from segments to plan, beside a bare copy of the same segments to Parquet.

    python -m bench.spark [--records N] [--days D] [--runs N] [--json FILE] [--keep DIR]

bench/README.md says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from bench.common.machine import describe, load_average
from bench.common.report import table

CHECKOUT = Path(__file__).resolve().parent.parent

RECORDS = 2_000_000
"""Enough that the start of Spark is not all; the goals are meant for `FULL`."""

FULL = 10_000_000

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
    arguments = ["-P", "bench/spark_journal.py", *map(str, (journal, records, days, *shape))]
    return int([line for _, line in _lines(arguments, log)][-1])


def copy(segments: Path, out: Path, log: Path) -> Copied:
    """Measure the bare copy."""
    begin = time.monotonic()
    told = [line for _, line in _lines(["bench/spark_copy.py", str(segments), str(out), HEAP, MASTER], log)][-1]
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


@contextmanager
def _place(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with TemporaryDirectory(prefix="spark-bench-") as made:
            yield Path(made)
        return
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()


# reporting


def _median(values: Sequence[float]) -> str:
    spread = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.1f}{spread}"


def rows(rounds: Sequence[Measured]) -> list[list[str]]:
    """The lines of the table: seconds, cold and with one day more."""
    lines = [
        [name, *(_median([each.jobs[name] for each in of]) for of in _both(rounds))] for name in rounds[0].cold.jobs
    ]
    lines.append(["all jobs", *(_median([each.work for each in of]) for of in _both(rounds))])
    lines.append(["session's start", *(_median([each.start for each in of]) for of in _both(rounds))])
    lines.append(["whole process", *(_median([each.process for each in of]) for of in _both(rounds))])
    lines.append(["the copy", _median([each.copy.copy for each in rounds]), "-"])
    lines.append(["its session's start", _median([each.copy.start for each in rounds]), "-"])
    return lines


def _both(rounds: Sequence[Measured]) -> tuple[list[Run], list[Run]]:
    return [each.cold for each in rounds], [each.more for each in rounds]


def goals(rounds: Sequence[Measured]) -> tuple[list[list[str]], bool]:
    """The goals, and whether both are met."""
    ratio = statistics.median([each.ratio for each in rounds])
    more = statistics.median([each.more.work for each in rounds])
    lines = [
        ["all jobs / the copy", f"{ratio:.2f}", f"<= {RATIO:g}: {'met' if ratio <= RATIO else 'MISSED'}"],
        ["one day more, seconds", f"{more:.1f}", f"<= {INCREMENT:g}: {'met' if more <= INCREMENT else 'MISSED'}"],
    ]
    return lines, ratio <= RATIO and more <= INCREMENT


def main() -> int:
    arguments = argparse.ArgumentParser(description="The jobs from segments to plan, beside a bare copy to Parquet.")
    arguments.add_argument("--records", type=int, default=RECORDS, help=f"of the cold run ({RECORDS}; full: {FULL})")
    arguments.add_argument("--days", type=int, default=7, help="over which they are spread; one more comes after (7)")
    arguments.add_argument("--runs", type=int, default=1, help="how often each is run; the median counts")
    arguments.add_argument("--json", help="write all results to this file")
    arguments.add_argument("--keep", type=Path, help="work in this folder, and leave it there")
    options = arguments.parse_args()
    about = {"date": time.strftime("%Y-%m-%d %H:%M"), **describe()}
    for key, value in about.items():
        print(f"{key}: {value}")
    rounds = []
    with _place(options.keep) as place:
        wanted = options.records * (options.days + 1) // options.days
        records = generate(place / "journal", wanted, options.days + 1, place / "log")
        print(f"records: {records:,}, of which about {records // (options.days + 1):,} are the day that comes later")
        for number in range(options.runs):
            print(f"round {number + 1} ...", end="", file=sys.stderr, flush=True)
            rounds.append(measure(place, number))
            print(f" {rounds[-1].ratio:.2f}, {rounds[-1].more.work:.1f} s", file=sys.stderr, flush=True)
    print(f"load average at the end: {load_average()}\n")
    print("Seconds; medians\n")
    print(table(["", "cold", "one day more"], rows(rounds)), end="\n\n")
    lines, met = goals(rounds)
    print(table(["figure", "value", "goal"], lines))
    if options.json:
        about["load average at the end"] = load_average()
        with open(options.json, "w") as file:
            results = [attrs.asdict(each) for each in rounds]
            json.dump({"machine": about, "records": records, "rounds": results}, file, indent=1)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
