"""A run without news ends at once and without Spark; any news, and any other input of the plan, makes it a run.

Java is not to be found here: a command that ends with a sentence on Java would have been a run.
"""

import gzip
import io
from datetime import datetime, timedelta
from pathlib import Path
from shutil import copy, copytree, rmtree

import pytest
from pyspark.sql import SparkSession

from spark.capacity.command import last_plan, main, work_through
from spark.capacity.pipeline import Settings
from spark.capacity.progress import Progress
from spark.capacity.tables.object_store import ObjectFolder, Place
from spark.capacity.tables.schema import BRONZE_RECORDS, FOLDERS
from spark.capacity.tables.store import State, Tables
from tests.spark.buckets import Store, send_folder
from tests.spark.journal import START, lines, record, segment

STARTED = START + timedelta(days=1)


def run(spark: SparkSession, journal: Place, out: Place, work: Path | None = None, horizon: int = 24) -> None:
    settings = Settings((journal,), out, STARTED, horizon=horizon)
    work_through(spark, settings, work, Progress(io.StringIO(), terminal=False))


def loads(boot: str) -> bytes:
    """Make the text of a segment: a load each ten minutes, for two hours."""
    began = record(0)["ts"]
    known = {"boot": boot, "load": 2.0, "full_load": 5.0}
    return lines(*(record(seq, "load", ts=began + seq * 600_000_000, **known) for seq in range(1, 13)))


def damaged(journal: Path) -> str:
    return segment(journal, "b-two-1", loads("two"), cut=9)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal, of which one segment is damaged, and the out directory of a run."""
    folder = tmp_path_factory.mktemp("made")
    segment(folder / "journal", "b-one-1", loads("one"))
    damaged(folder / "journal")
    run(spark, folder / "journal", folder / "out")
    return folder


class Command:
    """The command, after a run on a journal."""

    def __init__(self, journal: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.journal, self.out, self._capsys = journal, out, capsys

    def ends_early(self, *options: str, out: Place | None = None) -> bool:
        """Give the command; tell whether it ended without a run."""
        places = ("--journal", str(self.journal), "--out", str(out or self.out), "--horizon", "24")
        status = main(["run", *places, *options])
        told = self._capsys.readouterr()
        if status == 0:
            report = (out or self.out) / "report.html"
            plan = "nothing new since the plan of 2026-03-02 12:00 UTC"
            assert (told.out, told.err) == (f"  ingest   {plan}: {report} is up to date\n", "")
            return True
        assert told.err.startswith("capacity: Spark needs Java")
        return False


@pytest.fixture
def command(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    # The journal stays where it is: copies of segments have another time of change.
    return Command(made / "journal", copytree(made / "out", tmp_path / "out"), capsys)


def test_a_run_without_news_ends_at_once_and_changes_nothing(command: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in command.out.rglob("*")}
    assert command.ends_early()
    assert {path: path.stat().st_mtime_ns for path in command.out.rglob("*")} == before


@pytest.mark.parametrize(
    "options",
    [
        ("--horizon", "25"),
        ("--policy", "{journal}/../plan.toml"),
        ("--now", "2026-03-02T13:00"),
        ("--journal", "{journal}/../other"),
    ],
)
def test_another_input_of_the_plan_makes_it_a_run(command: Command, tmp_path: Path, options: tuple[str, str]) -> None:
    segment(command.journal.with_name("other"), "b-one-1", b"")
    command.journal.with_name("plan.toml").write_text("[[policy]]\ntarget = 0.7\n")
    assert not command.ends_early(*(option.format(journal=command.journal) for option in options))


def test_a_new_segment_is_news(command: Command) -> None:
    path = command.journal / "segments" / segment(command.journal, "b-one-2", lines(record(2, boot="new")))
    assert not command.ends_early()
    path.unlink()
    assert command.ends_early()


@pytest.mark.parametrize("name", ["report.html", "plan.json"])
def test_a_missing_file_of_the_report_makes_it_a_run(command: Command, name: str) -> None:
    (command.out / name).unlink()
    assert not command.ends_early()


def test_a_date_that_is_not_finished_makes_it_a_run_unless_it_is_left_out(command: Command) -> None:
    Tables(None, command.out).keep(State(set(), {"2026-03-02"}))
    assert not command.ends_early()
    assert not command.ends_early("--date-from", "2026-03-02")
    assert command.ends_early("--date-from", "2026-03-03")
    Tables(None, command.out).keep(State({"2026-03-02"}, set()))
    assert not command.ends_early("--date-from", "2026-03-03")


def test_after_a_run_that_was_cut_off_nothing_is_up_to_date(spark: SparkSession, command: Command) -> None:
    report = command.out / "report.html"
    report.unlink()
    report.mkdir()
    with pytest.raises(OSError, match=r"report\.html"):
        run(spark, command.journal, command.out)
    assert not command.ends_early()


def test_a_damaged_segment_is_news_when_its_bytes_are_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    segment(journal, "b-one-1", loads("one"))
    path = journal / "segments" / damaged(journal)
    run(spark, journal, out)
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
        command = Command(journal, out, capsys)
        assert command.ends_early()
        path.write_bytes(gzip.compress(loads("two")))
        assert not command.ends_early()
    run(spark, journal, out)
    assert Tables(spark, out).read(BRONZE_RECORDS).count() == 24
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert command.ends_early()


def test_a_record_of_the_future_is_news_when_its_time_has_come(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    segment(journal, "b-one-1", loads("one"))
    later = record(1, boot="two", ts=int((STARTED + timedelta(days=2)).timestamp()) * 1_000_000)
    segment(journal, "b-two-1", lines(later))
    run(spark, journal, out)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert last_plan(Settings((journal,), out, STARTED + timedelta(hours=23), horizon=24), None) is not None
    assert not Command(journal, out, capsys).ends_early()


def test_records_ahead_of_the_clock_make_another_plan_in_the_next_hour(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    began = int(STARTED.timestamp()) * 1_000_000
    ahead = (record(seq, "load", load=2.0, full_load=5.0, ts=began + seq * 600_000_000) for seq in range(1, 19))
    segment(journal, "b-one-1", lines(*ahead))
    run(spark, journal, out)

    def issued_at(minutes: int) -> datetime | None:
        return last_plan(Settings((journal,), out, STARTED + timedelta(minutes=minutes), horizon=24), None)

    assert [issued_at(minutes) for minutes in (0, 59, 60, 600)] == [STARTED, STARTED, None, None]


def test_a_bucket_is_up_to_date_for_the_folder_that_published_last(
    spark_and_store: SparkSession,
    made: Path,
    bucket: ObjectFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journal, work, other = made / "journal", tmp_path / "work", tmp_path / "other"
    run(spark_and_store, journal, bucket, work)
    command = Command(journal, made / "out", capsys)
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
        assert command.ends_early("--work", str(work), out=bucket)
        # Without a folder there is nothing to compare with.
        assert not command.ends_early(out=bucket)
    run(spark_and_store, journal, bucket, other, horizon=25)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert not command.ends_early("--work", str(work), out=bucket)


def test_a_bucket_without_news_is_listed_once_a_day(
    spark_and_store: SparkSession, bucket: ObjectFolder, store: Store, tmp_path: Path
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    first = journal / "segments" / segment(journal, "b-one-1", loads("one"))
    # The same on a newer date: the first one is no recent one of the journal then.
    newest = journal / "segments" / f"date={STARTED.date() + timedelta(days=7)}" / first.parent.name
    newest.mkdir(parents=True)
    copy(first, newest)
    send_folder(journal, bucket)
    run(spark_and_store, bucket, out)

    def ends_early(days: int) -> tuple[bool, bool]:
        """Tell whether a run some days later would find nothing new, and whether it lists all dates."""
        settings = Settings((bucket,), out, STARTED + timedelta(days=days), horizon=24)
        with store.listings() as asked:
            issued = last_plan(settings, None)
        return issued is not None, not any("date=" in prefix for prefix in asked)

    assert ends_early(9) == (True, True)
    assert ends_early(9) == (True, False)
    # Another run, which is at work, leaves its own states.
    tables = Tables(None, out)
    tables.lock()
    assert ends_early(10) == (True, True)
    assert ends_early(10) == (True, True)
    tables.close()
    assert ends_early(10) == (True, True)
    assert ends_early(10) == (True, False)

    segment(journal, "b-one-2", loads("two"))
    # To send the newest one again would be news.
    rmtree(newest.parent)
    send_folder(journal, bucket)
    assert ends_early(10) == (True, False)
    assert ends_early(11) == (False, True)
    assert ends_early(11) == (False, True)
    # Without the states everything is listed.
    rmtree(out / FOLDERS.name)
    assert ends_early(10) == (False, True)
