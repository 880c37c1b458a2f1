"""Runs whose journal and out directory are in an object store: what they publish, and what is left of one killed."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.command import main, need_one_machine, work_through
from spark.capacity.pipeline import Settings
from spark.capacity.progress import Progress
from spark.capacity.tables.object_store import ObjectFolder, Place, file_system, listing, opened
from spark.capacity.tables.schema import BRONZE_PAIRS, FOLDERS, GOLD_PLAN, LEDGER, TABLES
from spark.capacity.tables.snapshots import last, open_table
from spark.capacity.tables.store import OutError, Tables
from spark.capacity.tables.working_copy import LAKE, fill
from tests.spark.buckets import send_folder
from tests.spark.generator import END, Service, generate
from tests.spark.test_kill import PATIENCE, ROOT, kill, until

SERVICES = (Service("chat", providers=3, report=300.0),)


def run(spark: SparkSession, journal: Place, out: Place, work: Path | None = None) -> str:
    said = io.StringIO()
    settings = Settings((journal,), out, END.replace(tzinfo=UTC), END, horizon=24)
    work_through(spark, settings, work, Progress(said, terminal=False))
    return said.getvalue()


def rows_of(lake: Place) -> dict[str, list[str]]:
    """Read all tables of the last snapshot."""
    told = last(lake)
    assert told is not None
    found = {}
    for name, version in told.versions.items():
        table = open_table(lake / name, version)
        assert table is not None
        found[name] = sorted(map(str, table.to_pyarrow_table().to_pylist()))
    return found


def test_tables_and_report_in_a_bucket_are_those_of_a_folder(
    spark_and_store: SparkSession, bucket: ObjectFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    generate(journal, 3, 0.3, SERVICES)
    send_folder(journal, bucket / "journal")
    stored = bucket / "out"
    run(spark_and_store, journal, out)
    said = run(spark_and_store, bucket / "journal", stored)
    assert f"have a new version in {stored}/lake\n" in said

    mine, its = rows_of(out / LAKE), rows_of(stored / LAKE)
    assert its.keys() == mine.keys()
    # Times of change, and states of folders, are the store's own.
    for name in its.keys() - {LEDGER.name, FOLDERS.name}:
        assert its[name] == mine[name], name
    report = sorted(one.name for one in listing(stored) if not one.name.startswith(f"{LAKE}/"))
    assert report == [
        "gold_plan.csv",
        "gold_provider_day.csv",
        "plan.json",
        "plan_policy.toml",
        "plan_schedule.csv",
        "report.html",
    ]
    for name in report:
        with opened(str(stored / name)) as file:
            text = file.read().decode()
        if name == "plan.json":
            told, wanted = json.loads(text), json.loads((out / name).read_text())
            assert told["inputs"].pop("journal") == str(bucket / "journal")
            assert wanted["inputs"].pop("journal") == str(journal)
            assert told == wanted
        else:
            assert text == (out / name).read_text(), name
    page = file_system().open_input_file((stored / "report.html").path).metadata()
    assert page["Content-Type"] == b"text/html; charset=utf-8"

    # The next run fetches what the first one published, and finds nothing new.
    said = run(spark_and_store, bucket / "journal", stored)
    assert f"  fetch    the tables of {stored}\n" in said
    assert " 0 new segments" in said
    assert "rollup   0 dates" in said

    capsys.readouterr()
    question = ["what-if", "--growth", "3", "--without", "host=10.0.0.10", "--out"]
    assert main([*question, str(out)]) == 0
    answer = capsys.readouterr().out
    assert main([*question, str(stored)]) == 0
    assert capsys.readouterr().out == answer
    assert "chat" in answer


def test_what_cannot_be_done_is_one_sentence(
    bucket: ObjectFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "segments").mkdir()

    def said(*arguments: str) -> str:
        assert main(arguments) == 1
        return capsys.readouterr().err

    out = ("--journal", str(tmp_path), "--out")
    assert said("run", *out, "s3://no-such-bucket/out") == "capacity: there is no bucket named no-such-bucket\n"
    told = said("run", "--journal", "s3://no-such-bucket/journal", "--out", str(tmp_path / "out"))
    assert told == "capacity: there is no bucket named no-such-bucket\n"
    told = said("run", *out, str(tmp_path / "out"), "--work", str(tmp_path / "work"))
    assert told == "capacity: --work is for an --out in an object store\n"
    assert said("what-if", "--out", str(bucket)) == f"capacity: {bucket} has no plan yet: run the jobs first\n"


def test_a_cluster_needs_a_folder_that_all_see() -> None:
    out = ObjectFolder("bucket", "out")
    need_one_machine(out, "local[2]")
    with pytest.raises(OutError, match="s3://bucket/out needs --work on a cluster"):
        need_one_machine(out, "spark://host:7077")


def started(arguments: Sequence[object]) -> subprocess.Popen[bytes]:
    options = ["--master", "local[2]", "--horizon", "24", "--now", END.isoformat()]
    return subprocess.Popen(
        [sys.executable, "-m", "spark.capacity", "run", *map(str, arguments), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def commits(lake: ObjectFolder) -> int:
    """Count the commits of all tables."""
    return sum(one.name.endswith(".json") for one in listing(lake))


@pytest.mark.long
def test_a_run_that_is_killed_leaves_the_snapshot_and_the_next_makes_up_for_it(
    bucket: ObjectFolder, tmp_path: Path
) -> None:
    journal, stored, lake = tmp_path / "journal", bucket / "out", bucket / "out" / LAKE
    generate(journal, 3, 0.6, SERVICES)
    segments = sorted((journal / "segments").glob("*/*/*.jsonl.gz"))
    later = [path.rename(tmp_path / f"{number}") and path for number, path in enumerate(segments[len(segments) // 2 :])]
    send_folder(journal, bucket / "journal")
    work = tmp_path / "work"
    arguments = ("--journal", bucket / "journal", "--out", stored, "--work", work)
    assert started(arguments).wait(PATIENCE) == 0
    before, snapshot = rows_of(lake), last(lake)

    for number, path in enumerate(later):
        (tmp_path / f"{number}").rename(path)
    send_folder(journal, bucket / "journal")

    first = commits(lake)
    process = started(arguments)
    until(process, lambda: commits(lake) > first + 1)
    kill(process)
    # Some tables have newer versions; the snapshot has those that belong together. On a busy machine the run may have
    # ended before it is killed.
    assert rows_of(lake) == before or last(lake) != snapshot
    assert started(arguments).wait(PATIENCE) == 0

    whole = tmp_path / "whole"
    assert started(("--journal", journal, "--out", whole)).wait(PATIENCE) == 0
    mine, its = rows_of(whole / LAKE), rows_of(lake)
    # Two runs have divided the records into other files than one.
    for name in its.keys() - {LEDGER.name, FOLDERS.name, BRONZE_PAIRS.name}:
        assert its[name] == mine[name], name
    assert its[GOLD_PLAN.name] != before[GOLD_PLAN.name]
    told = last(lake)
    assert told is not None
    filled = Tables(None, tmp_path / "filled")
    filled.lock()
    fill(filled, stored, told)
    assert {table.name for table in TABLES if filled.path(table).is_dir()} == set(told.versions)
