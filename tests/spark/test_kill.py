"""Runs that are killed in the middle, driver or worker, lose nothing and double nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
from tests.spark.generator import END, Faults, Service, generate

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]

SERVICES = (Service("chat", providers=3), Service("render", "dbp", providers=4, interval=20.0, report=120.0))

PATIENCE = 600.0
"""Seconds for a run, on a machine that does much else."""


DIES_AFTER_ITS_WRITE = """
import os, sys
if "pyspark.daemon" in sys.orig_argv:
    import pyarrow.parquet
    write = pyarrow.parquet.write_table
    def write_and_die(rows, where, *arguments, **options):
        write(rows, where, *arguments, **options)
        if {folder!r} in str(where):
            try:
                os.close(os.open({mark!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os._exit(1)
    pyarrow.parquet.write_table = write_and_die
"""
"""A `sitecustomize` with which the first worker that has written a file below a folder dies before it can say so."""


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


@pytest.mark.parametrize("folder", [".attempted", ".healed", ".staging"])
def test_a_task_that_spark_runs_again_after_its_write_counts_once(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    journal, out, whole = tmp_path / "journal", tmp_path / "out", tmp_path / "whole"
    # Segments that are there twice make ingest write their dates again.
    generate(journal, 1, 0.5, SERVICES, faults=Faults(duplicates=1))
    finished(journal, whole)
    customized, mark = tmp_path / "customized", tmp_path / "died"
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(DIES_AFTER_ITS_WRITE.format(mark=str(mark), folder=folder))
    assert start(journal, out, "local[2,4]", customized).wait(PATIENCE) == 0
    assert mark.exists(), "no worker has died"
    tables = BRONZE_RECORDS, SILVER_PROVIDER_5M, GOLD_SERVICE_1H, GOLD_PLAN
    assert_same(Tables(spark, out), Tables(spark, whole), *tables)


def assert_same(mine: Tables, other: Tables, *tables: Table) -> None:
    for table in tables:
        rows, wanted = (sorted(map(str, each.read(table).collect())) for each in (mine, other))
        assert rows == wanted, table.name
