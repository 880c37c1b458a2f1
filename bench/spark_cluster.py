"""The jobs on a standalone cluster of Spark with worker processes: what they read, and what their tasks need.

    python -m bench.spark_cluster [--records N] [--days D] [--instances N] [--workers N] [--hourly]
        [--json FILE] [--keep DIR]

bench/README.md says what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import attrs
import pyspark

from bench.common.machine import describe, load_average, peak_resident
from bench.common.report import table
from bench.common.servers import free_port
from bench.spark import CHECKOUT, HEAP, HERE, FailedError, environment, generate

RECORDS = 4_000_000
"""Enough that each date is worth a task; the goal is meant for `FULL`."""

FULL = 100_000_000

DAYS = 30

INSTANCES = 10_000
"""Instances of the one service of the second journal."""

AMPLIFICATION = 1.5
"""The most that a job may read, as a ratio to the bytes there."""

FIRST = 20_000
"""Records of the journal that shows what a run reads at its start: Java's and Python's own files, mostly."""

SAMPLE = 0.25
"""Seconds between two looks at the processes. A worker of Python is reused for many tasks, so that few end unseen."""

PATIENCE = 7_200.0
"""Seconds for one run."""

START = 60.0
"""Seconds for the master and its workers to start."""


@attrs.frozen
class Usage:
    """Figures of the processes of a run so far."""

    read: int
    """Bytes that they read, from files, in their cache or not, and from each other."""
    java: int
    """What of these the processes of Java read."""
    python: int
    """The most memory that one worker of Python held, in bytes."""


@attrs.frozen
class Job:
    """One job: seconds from the end of the one before, and the bytes read in them."""

    name: str
    seconds: float
    read: int
    java: int
    """What of these the processes of Java read."""
    python: int
    """The most memory that one worker of Python held up to its end, in bytes."""


@attrs.frozen
class Tasks:
    """The tasks of a run, by Spark's own log of events."""

    count: int
    seconds: float
    """The sum of their durations."""
    longest: float
    busy: float
    """Seconds in which at least one task ran."""


@attrs.frozen
class Run:
    """One run of all jobs."""

    jobs: tuple[Job, ...]
    seconds: float
    tasks: Tasks
    python: int
    """The most memory that one worker of Python held, in bytes."""

    @property
    def serial(self) -> float:
        """Seconds in which no task ran: the driver alone worked, the session's start included."""
        return self.seconds - self.tasks.busy


# processes


def _children(root: int) -> Iterator[int]:
    """The process and all that it started."""
    yield root
    try:
        threads = [Path(f"/proc/{root}/task/{each}/children") for each in os.listdir(f"/proc/{root}/task")]
        children = [pid for each in threads for pid in each.read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _children(int(child))


class Watch:
    """Samples the processes below some roots, in a thread, until it is closed."""

    def __init__(self, roots: list[int]) -> None:
        self._roots = roots
        self._read: dict[int, int] = {}
        self._java: set[int] = set()
        self._python = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def usage(self) -> Usage:
        """The figures so far."""
        self._look()
        java = sum(read for pid, read in self._read.items() if pid in self._java)
        return Usage(sum(self._read.values()), java, self._python)

    def close(self) -> None:
        """End the samples."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SAMPLE):
            self._look()

    def _look(self) -> None:
        for pid in [pid for root in self._roots for pid in _children(root)]:
            try:
                place = Path(f"/proc/{pid}")
                io = dict(line.split(": ") for line in (place / "io").read_text().splitlines())
                self._read[pid] = int(io["rchar"])
                command = (place / "cmdline").read_bytes()
                if b"java" in command:
                    self._java.add(pid)
                elif b"pyspark" in command:
                    self._python = max(self._python, peak_resident(pid))
            except (OSError, LookupError, ValueError):
                continue  # it has ended meanwhile


@contextmanager
def cluster(place: Path, workers: int) -> Iterator[tuple[str, list[int]]]:
    """A standalone master and its workers, with one core each. Yields its URL and the workers' process ids."""
    port, page = free_port(), free_port()
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    url = f"spark://127.0.0.1:{port}"
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = ["org.apache.spark.deploy.worker.Worker", url, "--host", "127.0.0.1", "--cores", "1", "--memory", "2g"]
    variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:

        def start(*arguments: str) -> int:
            log = stack.enter_context((place / "cluster.log").open("a"))
            process = subprocess.Popen(
                [spark_class, *arguments], env=variables, stdout=log, stderr=subprocess.STDOUT, cwd=place
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process.pid

        start(*master, "--webui-port", str(page))
        pids = [start(*worker, "--work-dir", str(place / f"work-{n}"), "--webui-port", "0") for n in range(workers)]
        deadline = time.monotonic() + START
        while _alive(page) < workers:
            if time.monotonic() > deadline:
                raise FailedError(f"the cluster did not start: {(place / 'cluster.log').read_text()[-2000:]}")
            time.sleep(0.5)
        yield url, pids


def _alive(page: int) -> int:
    """Return the number of workers that the master knows."""
    try:
        with urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            alive: int = json.load(answer)["aliveworkers"]
            return alive
    except OSError:
        return 0


def run(journal: Path, out: Path, place: Path, url: str, workers: list[int]) -> Run:
    """Measure one run of all jobs by the lines that it prints: each comes at the end of its job."""
    events = place / f"events-{out.name}"
    shutil.rmtree(events, ignore_errors=True)
    events.mkdir()
    configuration = place / "conf"
    configuration.mkdir(exist_ok=True)
    (configuration / "spark-defaults.conf").write_text(
        "spark.eventLog.enabled true\n"
        f"spark.eventLog.dir {events.as_uri()}\n"
        "spark.eventLog.compress false\n"
        "spark.eventLog.rolling.enabled false\n"
        f"spark.executor.memory {HEAP}\n"
        f"spark.executorEnv.PYTHONPATH {CHECKOUT}\n"
        "spark.driver.host 127.0.0.1\n"
    )
    variables = {**environment(), "SPARK_CONF_DIR": str(configuration), "SPARK_LOCAL_IP": "127.0.0.1"}
    arguments = ["-m", "spark.capacity", "run", "--journal", str(journal), "--out", str(out), "--master", url]
    begin = time.monotonic()
    with (place / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments, "--memory", HEAP],
            cwd=CHECKOUT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
        )
    watch = Watch([process.pid, *workers])
    jobs: list[Job] = []
    last, before = begin, watch.usage()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(HERE) and not line.startswith(HERE + " "):
                now, usage = time.monotonic(), watch.usage()
                read, java = usage.read - before.read, usage.java - before.java
                jobs.append(Job(line.split()[0], now - last, read, java, usage.python))
                last, before = now, usage
        if process.wait(PATIENCE):
            raise FailedError(f"the run ended with {process.returncode}: {(place / 'log').read_text()[-2000:]}")
    finally:
        process.kill()
        process.wait()
        watch.close()
    return Run(tuple(jobs), time.monotonic() - begin, tasks(events), watch.usage().python)


def hour_by_hour(journal: Path, out: Path, place: Path, url: str, workers: list[int]) -> Run:
    """Run the jobs after each hour of the last date, as the timer does, and measure the last run."""
    segments, later = journal / "segments", place / f"{journal.name}-later"
    last = max(segments.iterdir())
    later.mkdir()
    hours = sorted(last.iterdir())
    for hour in hours[1:]:
        hour.rename(later / hour.name)
    measured = run(journal, out, place, url, workers)
    for hour in hours[1:]:
        (later / hour.name).rename(hour)
        measured = run(journal, out, place, url, workers)
    return measured


def of_the_last_hour(read: Mapping[str, int], at_start: int, journal: Path, out: Path) -> dict[str, float]:
    """Return what the rollup of a run that got an hour of a date reads, as a ratio to the records of the date.

    A worker of Python may start as late as in the rollup: so what the start reads is taken off both jobs together.
    """
    date = max((journal / "segments").iterdir())
    both = read["ingest"] + read["rollup"] - at_start - size(max(date.iterdir()))
    return {"rollup of the last date": both / size(out / "bronze_records" / date.name)}


def tasks(events: Path) -> Tasks:
    """Read Spark's log of events."""
    spans = []
    for file in events.iterdir():
        with file.open() as lines:
            for line in lines:
                if '"SparkListenerTaskEnd"' in line:
                    info = json.loads(line)["Task Info"]
                    spans.append((info["Launch Time"] / 1000, info["Finish Time"] / 1000))
    busy, end = 0.0, 0.0
    for start, finish in sorted(spans):
        busy += max(0.0, finish - max(start, end))
        end = max(end, finish)
    lengths = [finish - start for start, finish in spans]
    return Tasks(len(spans), sum(lengths), max(lengths, default=0.0), busy)


def size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# reporting


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f}"


def report(title: str, records: int, segments: int, bronze: int, measured: Run) -> None:
    """Print one run."""
    print(
        f"\n{title}: {records:,} records, {_mebibytes(segments)} MiB of segments, {_mebibytes(bronze)} MiB of bronze\n"
    )
    print(
        table(
            ["job", "seconds", "MiB read", "of these by Java", "largest worker of Python so far, MiB"],
            [
                [job.name, f"{job.seconds:.1f}", _mebibytes(job.read), _mebibytes(job.java), _mebibytes(job.python)]
                for job in measured.jobs
            ],
        ),
        end="\n\n",
    )
    of = measured.tasks
    print(
        table(
            ["figure", "value"],
            [
                ["whole process, seconds", f"{measured.seconds:.1f}"],
                ["tasks", f"{of.count:,}"],
                ["task-seconds", f"{of.seconds:.1f}"],
                ["longest task, seconds", f"{of.longest:.1f}"],
                ["no task runs, seconds", f"{measured.serial:.1f}"],
                ["memory of the largest worker of Python, MiB", _mebibytes(measured.python)],
            ],
        )
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description="The jobs on a standalone cluster with worker processes.")
    arguments.add_argument("--records", type=int, default=RECORDS, help=f"of the farm ({RECORDS}; full: {FULL})")
    arguments.add_argument("--days", type=int, default=DAYS, help=f"over which they are spread ({DAYS})")
    arguments.add_argument(
        "--instances", type=int, default=INSTANCES, help=f"of the one service ({INSTANCES}; 0: none)"
    )
    arguments.add_argument("--workers", type=int, default=2, help="worker processes with one core each (2)")
    arguments.add_argument("--hourly", action="store_true", help="the last date of the farm comes hour by hour")
    arguments.add_argument("--json", help="write all results to this file")
    arguments.add_argument("--keep", type=Path, help="work in this folder, and leave it there")
    options = arguments.parse_args()
    about = {"date": time.strftime("%Y-%m-%d %H:%M"), **describe(), "workers": str(options.workers)}
    for key, value in about.items():
        print(f"{key}: {value}")
    results: dict[str, object] = {}
    met = True
    with ExitStack() as stack:
        if options.keep is None:
            place = Path(stack.enter_context(TemporaryDirectory(prefix="spark-bench-")))
        else:
            place = options.keep.absolute()
            place.mkdir(parents=True, exist_ok=True)
        url, workers = stack.enter_context(cluster(place, options.workers))
        farm = ("farm", options.records, options.days, 10, 10.0, 60.0)
        # One day, a beat a minute: as many instances as a service may have, and few records of each.
        one = ("one service", options.instances * 1_728, 1, 1, 60.0, 300.0)
        wanted = [("start", FIRST, 1, 1, 10.0, 60.0), farm, *([one] if options.instances else [])]
        read_at_start = 0
        for name, count, days, *shape in wanted:
            print(f"{name} ...", file=sys.stderr, flush=True)
            journal, out = place / f"journal-{name.split()[0]}", place / f"plan-{name.split()[0]}"
            records = generate(journal, count, days, place / "log", *shape)
            if options.hourly and name == "farm":
                measured = hour_by_hour(journal, out, place, url, workers)
            else:
                measured = run(journal, out, place, url, workers)
            segments, bronze = size(journal / "segments"), size(out / "bronze_records")
            report(name, records, segments, bronze, measured)
            read = {job.name: job.read for job in measured.jobs}
            if name == "start":
                read_at_start = read["ingest"] - segments
            if name == "farm":
                if options.hourly:
                    ratios = of_the_last_hour(read, read_at_start, journal, out)
                else:
                    ratios = {
                        "ingest, without what the start reads": (read["ingest"] - read_at_start) / segments,
                        "rollup": read["rollup"] / bronze,
                    }
                met = all(ratio <= AMPLIFICATION for ratio in ratios.values())
                rows = [
                    [f"{job}: read / there", f"{ratio:.2f}", "met" if ratio <= AMPLIFICATION else "MISSED"]
                    for job, ratio in ratios.items()
                ]
                print("\n" + table(["figure", "value", f"goal: <= {AMPLIFICATION:g}"], rows))
            results[name] = attrs.asdict(measured) | {"records": records, "segments": segments, "bronze": bronze}
    about["load average at the end"] = load_average()
    print(f"\nload average at the end: {about['load average at the end']}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, **results}, file, indent=1)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
