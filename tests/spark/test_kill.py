"""Runs that are killed in the middle, driver or worker, and tasks that run twice lose nothing and double nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    GOLD_PLAN,
    GOLD_PROVIDER_DAY,
    GOLD_SERVICE_1H,
    LOSS,
    SILVER_PROVIDER_5M,
    Table,
)
from spark.capacity.tables.store import State, Tables
from tests import patience
from tests.ports import free_port
from tests.spark.generator import END, Faults, Service, generate

ROOT = Path(__file__).parents[2]

MAIN = ROOT / "spark" / "capacity" / "__main__.py"

DEPLOY = "org.apache.spark.deploy"

SERVICES = (Service("chat", providers=3), Service("render", "dbp", providers=4, interval=20.0, report=120.0))

PATIENCE = 600.0
"""Seconds for a run, on a machine that does much else."""


AFTER_ITS_WRITE = """
import os, sys, time
if "pyspark.daemon" in sys.orig_argv:
    import pyarrow.parquet
    write = pyarrow.parquet.write_table
    def write_and_more(rows, where, *arguments, **options):
        write(rows, where, *arguments, **options)
        for folder in {folders!r}:
            if folder in str(where):
                try:
                    os.close(os.open({marks!r} + "/" + folder, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return
                {then}
    pyarrow.parquet.write_table = write_and_more
"""
"""A `sitecustomize` with which the first worker that has written a file below each of `FOLDERS` does something else
before it can say so."""

FOLDERS = (".attempted", ".healed", ".staging")
"""Folders to which tasks write."""

HOSTS = ("127.0.0.1", "127.0.0.2")
"""Spark runs no second copy of a task on the same host. It takes these two for two."""

SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.task.duration.threshold": "3s",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "600m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Settings with which a task of any stage has a second copy after three seconds."""


def start(
    journal: Path, out: Path, master: str = "local[2]", customized: Path | None = None
) -> subprocess.Popen[bytes]:
    arguments = ["run", "--journal", str(journal), "--out", str(out), "--master", master, "--horizon", "24"]
    path = [str(ROOT)] if customized is None else [str(customized), str(ROOT)]
    return subprocess.Popen(
        [sys.executable, "-m", "spark.capacity", *arguments, "--now", END.isoformat()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def customize(directory: Path, then: str) -> tuple[Path, Path]:
    """Write a `sitecustomize`. Returns its folder, and that of the marks of what it has done."""
    folder, marks = directory / "customized", directory / "marks"
    folder.mkdir()
    marks.mkdir()
    (folder / "sitecustomize.py").write_text(AFTER_ITS_WRITE.format(marks=str(marks), folders=FOLDERS, then=then))
    return folder, marks


@contextmanager
def cluster(directory: Path, customized: Path) -> Iterator[str]:
    """A master of Spark and a worker on each of `HOSTS`, as processes of their own. Returns the URL of the master."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    master = f"spark://{HOSTS[0]}:{port}"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(customized), str(ROOT))),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }
    with ExitStack() as stack:

        def launch(name: str, *arguments: str) -> None:
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            command = [str(spark_class), *arguments]
            run = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(kill, run)

        launch("master", f"{DEPLOY}.master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", "0")
        for host in HOSTS:
            worker = f"{DEPLOY}.worker.Worker --host {host} --webui-port 0 --cores 1 --memory 1g"
            launch(host, *worker.split(), "--work-dir", str(directory), master)
        logs = [directory / f"{host}.log" for host in HOSTS]
        patience.until(lambda: all(b"Successfully registered" in log.read_bytes() for log in logs), "the workers")
        yield master


def until(run: subprocess.Popen[bytes], holds: Callable[[], object]) -> None:
    """Wait for something that a run does on its way."""
    limit = time.monotonic() + PATIENCE
    while not holds():
        assert run.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.01)


def kill(run: subprocess.Popen[bytes]) -> None:
    """Kill the driver, Java and all workers at once."""
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


def workers(run: subprocess.Popen[bytes]) -> list[int]:
    """List the Python workers of a run: processes of its session that are pyspark's own."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            if entry.name.isdigit() and b"pyspark.daemon" in command and os.getsid(int(entry.name)) == run.pid:
                found.append(int(entry.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def finished(journal: Path, out: Path) -> None:
    assert start(journal, out).wait(PATIENCE) == 0


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="workers are found in /proc")
def test_runs_that_are_killed_in_the_middle_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    truth = generate(journal, 3, 1.2, SERVICES, faults=Faults(kills=1, drops=1, duplicates=1))
    out, whole = tmp_path / "out", tmp_path / "whole"
    finished(journal, whole)

    run = start(journal, out)
    until(run, lambda: list(out.glob(".staging/sorted/*/date=*/*.parquet")))
    kill(run)
    run = start(journal, out)
    until(run, lambda: list(out.glob("silver_provider_5m/date=*")))
    kill(run)
    # A worker alone: the run fails or goes on, as Spark decides, and the next one makes up for it.
    run = start(journal, out)
    until(run, lambda: workers(run))
    for worker in workers(run):
        os.kill(worker, signal.SIGKILL)
    run.wait(PATIENCE)
    finished(journal, out)

    mine, other = Tables(spark, out), Tables(spark, whole)
    assert mine.state() == State()
    records = mine.read(BRONZE_RECORDS)
    assert records.count() == truth.records
    assert records.select("broker", "boot", "seq").distinct().count() == truth.records
    assert_same(mine, other, LOSS, GOLD_SERVICE_1H, GOLD_PROVIDER_DAY, GOLD_PLAN)


def test_a_task_that_spark_runs_again_after_its_write_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    journal, out, whole = tmp_path / "journal", tmp_path / "out", tmp_path / "whole"
    # Segments that are there twice make ingest write their dates again.
    generate(journal, 1, 0.5, SERVICES, faults=Faults(duplicates=1))
    finished(journal, whole)
    customized, marks = customize(tmp_path, "os._exit(1)")
    assert start(journal, out, "local[2,4]", customized).wait(PATIENCE) == 0
    assert sorted(os.listdir(marks)) == sorted(FOLDERS), "not all workers have died"
    tables = BRONZE_RECORDS, SILVER_PROVIDER_5M, GOLD_SERVICE_1H, GOLD_PLAN
    assert_same(Tables(spark, out), Tables(spark, whole), *tables)


def test_a_task_of_which_spark_runs_a_second_copy_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    """First copies have written their files and go no further, so that the run ends by the second ones only."""
    journal, out, whole = tmp_path / "journal", tmp_path / "out", tmp_path / "whole"
    generate(journal, 1, 0.5, SERVICES, faults=Faults(duplicates=1))
    finished(journal, whole)
    customized, marks = customize(tmp_path, "time.sleep(10_000)")
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster", customized) as master:
        settings = [word for name, value in SPECULATIVE.items() for word in ("--conf", f"{name}={value}")]
        words = ["run", "--journal", str(journal), "--out", str(out), "--horizon", "24", "--now", END.isoformat()]
        ran = subprocess.run(
            [Path(sys.executable).parent / "spark-submit", "--master", master, *settings, MAIN, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    assert sorted(os.listdir(marks)) == sorted(FOLDERS), "not all workers have waited"
    tables = BRONZE_RECORDS, SILVER_PROVIDER_5M, GOLD_SERVICE_1H, GOLD_PLAN
    assert_same(Tables(spark, out), Tables(spark, whole), *tables)


def assert_same(mine: Tables, other: Tables, *tables: Table) -> None:
    for table in tables:
        rows, wanted = (sorted(map(str, each.read(table).collect())) for each in (mine, other))
        assert rows == wanted, table.name
