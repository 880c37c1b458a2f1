"""The dates of a journal in a bucket that a run lists, by the requests that the store gets."""

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.ingest.intake import ingest
from spark.capacity.ingest.journal_folders import RECENT, known_folders
from spark.capacity.ingest.segments import Found, find_segments
from spark.capacity.tables.object_store import ObjectFolder, Place, file_system, send
from spark.capacity.tables.store import Tables
from tests.spark.buckets import Store, send_folder
from tests.spark.journal import TODAY, lines, record, segment

pytestmark = pytest.mark.long

DAY = timedelta(days=1)

OLD = [date(2026, 2, day) for day in range(1, 11)]

LATE = [TODAY - DAY * ago for ago in range(RECENT.days, -1, -1)]
"""The dates that each run lists."""


def put(journal: ObjectFolder, day: date, name: str = "b-one-1") -> str:
    """Put a file with the name of a segment into a bucket."""
    made = f"date={day}/hour=10/{name}.jsonl.gz"
    send(Path(__file__), journal / "segments", made)
    return made


def folders(days: Collection[date]) -> list[str]:
    return [f"date={day}" for day in days]


@pytest.fixture
def journal(bucket: ObjectFolder) -> ObjectFolder:
    """A journal with a segment on each of these dates."""
    for day in OLD + LATE:
        put(bucket, day)
    return bucket


class Runs:
    """One run after the other, each of which finds the segments of those before it in the ledger."""

    def __init__(self, store: Store, *journals: Place) -> None:
        self._store = store
        self._journals = journals
        self._known: dict[str, int] = {}
        self.asked: list[str] = []
        """The folders whose names the last run asked for, below `segments`: first that of the dates."""

    def run(self, today: date = TODAY, doubted: Collection[str] = ()) -> Found:
        with self._store.listings() as asked:
            found = find_segments(self._journals, today, self._known, doubted)
        self.asked = [prefix.partition("segments/")[2].rstrip("/") for prefix in asked]
        self._known |= found.folders
        return found


def test_old_dates_are_listed_once_a_day_and_those_of_the_last_days_by_each_run(
    store: Store, journal: ObjectFolder
) -> None:
    runs = Runs(store, journal)
    assert len(runs.run().segments) == len(OLD + LATE)
    assert runs.asked == ["", ""]
    assert len(runs.run().segments) == len(LATE)
    assert runs.asked == ["", *folders(LATE)]
    # A clock that was set back makes another date as well.
    for today in (TODAY + DAY, TODAY):
        assert len(runs.run(today).segments) == len(OLD + LATE)
        assert runs.asked == ["", ""]
    runs.run()
    assert runs.asked == ["", *folders(LATE)]


def test_a_late_segment_is_found_at_once_on_a_new_or_recent_date_and_on_an_old_one_the_day_after(
    store: Store, journal: ObjectFolder
) -> None:
    runs = Runs(store, journal)
    runs.run()
    recent, new, old = put(journal, LATE[0], "b-one-2"), put(journal, date(2025, 1, 1)), put(journal, OLD[0], "b-one-2")
    found = {one.name for one in runs.run().segments}
    assert {recent, new} <= found
    assert old not in found
    assert runs.asked == ["", "date=2025-01-01", *folders(LATE)]
    assert {recent, new, old} <= {one.name for one in runs.run(TODAY + DAY).segments}


def test_a_date_with_a_doubted_segment_is_listed_by_each_run(store: Store, journal: ObjectFolder) -> None:
    runs = Runs(store, journal)
    runs.run()
    # The segments of another one were deleted, and it is not asked for.
    assert len(runs.run(doubted=[f"date={OLD[3]}/hour=10", "date=2025-01-01/hour=10"]).segments) == 1 + len(LATE)
    assert runs.asked == ["", *folders([OLD[3], *LATE])]


def test_names_that_are_no_dates_are_listed_once_a_day(store: Store, journal: ObjectFolder) -> None:
    for name in ("date=today", "zzz"):
        send(Path(__file__), journal / "segments", f"{name}/hour=10/file")
    runs = Runs(store, journal)
    assert sorted(runs.run().strange) == ["date=today/hour=10/file", "zzz/hour=10/file"]
    assert runs.run().strange == []
    assert runs.asked == ["", *folders(LATE)]


def test_a_journal_whose_segments_were_all_deleted_is_one_still(store: Store, journal: ObjectFolder) -> None:
    runs = Runs(store, journal)
    runs.run()
    file_system().delete_dir((journal / "segments").path)
    assert runs.run() == Found([], [], {})
    assert runs.asked == ["", ""]


def test_a_date_with_news_in_one_journal_is_listed_in_all_so_that_the_largest_copy_is_taken(
    store: Store, journal: ObjectFolder, tmp_path: Path
) -> None:
    runs = Runs(store, tmp_path, journal)
    segment(tmp_path, "b-one-2", lines(record(1)), day=str(LATE[0]))
    runs.run()
    name = segment(tmp_path, "b-one-1", b"", day=str(OLD[0]))
    [mine] = [one for one in runs.run().segments if one.name == name]
    assert mine.root == f"{journal}/segments"
    assert runs.asked == ["", *folders([OLD[0], *LATE])]
    assert name not in [one.name for one in runs.run().segments]


def test_a_date_that_is_new_in_one_bucket_is_listed_in_the_others(store: Store, journal: ObjectFolder) -> None:
    other = journal / "other"
    put(other, OLD[1])
    runs = Runs(store, journal, other)
    runs.run()
    put(other, OLD[0], "c-one-1")
    # The other one's newest date is an old one.
    assert [one.name[5:15] for one in runs.run().segments] == [str(day) for day in (OLD[0], OLD[0], OLD[1], *LATE)]


def test_each_run_lists_the_last_dates_of_an_old_journal(store: Store, bucket: ObjectFolder) -> None:
    for day in OLD:
        put(bucket, day)
    put(bucket, TODAY + 400 * DAY)
    runs = Runs(store, bucket)
    runs.run()
    late = put(bucket, OLD[-1], "b-one-2")
    assert late in {one.name for one in runs.run().segments}
    assert runs.asked == ["", *folders([*OLD[-1 - RECENT.days :], TODAY + 400 * DAY])]


def test_states_are_noted_when_the_segments_are_in_the_ledger(
    spark_and_store: SparkSession, bucket: ObjectFolder, tmp_path: Path
) -> None:
    made = segment(tmp_path / "journal", "b-one-1", lines(record(1)))
    send_folder(tmp_path / "journal", bucket)
    tables = Tables(spark_and_store, tmp_path / "out")
    tables.open()
    started = datetime.combine(TODAY, time(12), UTC)
    # In the way of the run, behind the listing.
    (tables.out / ".staging").touch()
    with pytest.raises(NotADirectoryError):
        ingest(tables, [bucket], run="r1", started=started)
    assert known_folders(tables) == {}
    (tables.out / ".staging").unlink()
    assert ingest(tables, [bucket], run="r2", started=started).segments == 1
    [key] = known_folders(tables)
    assert key == f"{bucket}/segments/{made.partition('/')[0]}"
    tables.close()
