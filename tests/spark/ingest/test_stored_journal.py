"""A journal in an object store: the same segments, records and damages as in a folder."""

from datetime import UTC, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.capacity.ingest.intake import Ingested, ingest
from spark.capacity.ingest.journal_folders import JournalError, need_journal
from spark.capacity.ingest.record_reader import EARLIEST, micros, read, take
from spark.capacity.ingest.segments import Digested, damage_of, digest, find_segments, reach
from spark.capacity.tables.object_store import ObjectFolder, StoreError, opened, remove
from spark.capacity.tables.schema import BRONZE_RECORDS, LEDGER, LOSS, QUARANTINE
from spark.capacity.tables.store import Tables
from tests.spark.buckets import send_folder
from tests.spark.journal import START, TODAY, lines, record, segment

pytestmark = pytest.mark.long

STARTED = START + timedelta(days=3)


def everything(journal: Path) -> None:
    """Write segments that are whole, that have bad lines, and that cannot be decompressed; and names that are none."""
    segment(journal, "b-one-1", lines(*(record(number) for number in range(1, 50))))
    segment(journal, "b-one-2", lines(record(50), "{torn", record(52, colour="red")))
    segment(journal, "b-one-3", lines(*(record(number) for number in range(53, 90))), cut=9)
    segment(journal, "b-one-4", lines(record(90)), day="2026-03-03")
    hour = journal / "segments" / "date=2026-03-02" / "hour=10"
    (hour / "notes.txt").write_text("x")
    (hour / ".hidden").write_text("x")
    (hour / "folder").mkdir()
    (hour / "folder" / "file").write_text("x")
    (journal / "segments" / "date=2026-03-02" / "_later").mkdir()
    (journal / "segments" / "date=2026-03-02" / "_later" / "b-one-9.jsonl.gz").write_text("x")


def test_the_segments_of_a_bucket_are_those_of_the_folder(bucket: ObjectFolder, tmp_path: Path) -> None:
    everything(tmp_path)
    send_folder(tmp_path, bucket)
    here, there = find_segments([tmp_path], TODAY), find_segments([bucket], TODAY)
    assert [(one.name, one.size) for one in there.segments] == [(one.name, one.size) for one in here.segments]
    assert sorted(there.strange) == sorted(here.strange) != []
    assert all(one.path == f"{bucket}/segments/{one.name}" and one.changed for one in there.segments)
    for mine, its in zip(here.segments, there.segments, strict=True):
        assert [of(its.path) for of in (digest, damage_of, reach)] == [
            of(mine.path) for of in (digest, damage_of, reach)
        ]


def test_of_copies_in_a_folder_and_a_bucket_the_largest_is_taken(bucket: ObjectFolder, tmp_path: Path) -> None:
    name = segment(tmp_path / "left", "b-one-1", lines(record(1), record(2)))
    segment(tmp_path / "right", "b-one-1", lines(record(1)))
    other = segment(tmp_path / "right", "b-one-2", lines(record(3)))
    send_folder(tmp_path / "right", bucket)
    found = find_segments([bucket, tmp_path / "left"], TODAY)
    assert [one.name for one in found.segments] == [name, other]
    assert [one.path.startswith("s3://") for one in found.segments] == [False, True]


def test_what_is_no_journal_is_told(bucket: ObjectFolder) -> None:
    need_journal(bucket)
    with pytest.raises(JournalError, match=f"{bucket} is no journal"):
        find_segments([bucket], TODAY)
    with pytest.raises(StoreError, match="there is no bucket"):
        need_journal(ObjectFolder("no-such-bucket", "journal"))


def test_a_segment_that_the_store_does_not_give_is_no_damaged_one(bucket: ObjectFolder, tmp_path: Path) -> None:
    name = segment(tmp_path, "b-one-1", lines(record(1)))
    send_folder(tmp_path, bucket)
    [found] = find_segments([bucket], TODAY).segments
    earliest, latest = micros(EARLIEST), micros(STARTED)
    with opened(found.path) as file:
        assert read(Digested(file), "a segment", earliest, latest) is not None
    remove(bucket / "segments", [name])
    with pytest.raises(StoreError):
        take([(found.name, found.path)], str(tmp_path / "staging"), earliest, latest, "run")


def ingested(spark: SparkSession, journal: Path | ObjectFolder, out: Path, run: str) -> tuple[Ingested, Tables]:
    tables = Tables(spark, out)
    tables.open()
    told = ingest(tables, [journal], run=run, started=STARTED.astimezone(UTC))
    tables.close()
    return told, tables


def test_a_journal_in_a_bucket_gives_the_same_tables(
    spark_and_store: SparkSession, bucket: ObjectFolder, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    everything(journal)
    send_folder(journal, bucket)
    mine, here = ingested(spark_and_store, journal, tmp_path / "here", "r1")
    its, there = ingested(spark_and_store, bucket, tmp_path / "there", "r1")
    assert its == mine
    assert (its.segments, its.damaged, its.unknown) == (4, 1, {"colour": 1})
    for table in (BRONZE_RECORDS, QUARANTINE, LOSS):
        rows = [sorted(map(str, tables.read(table).collect())) for tables in (here, there)]
        assert rows[0] == rows[1] != []
    digests = [list(tables.rows(LEDGER)["digest"]) for tables in (here, there)]
    assert digests[0] == digests[1]
    assert not (there.out / ".staging").exists()

    again, _ = ingested(spark_and_store, bucket, tmp_path / "there", "r2")
    assert (again.segments, again.damaged) == (0, 1)
    # The damaged one comes intact.
    segment(journal, "b-one-3", lines(*(record(number) for number in range(53, 90))))
    send_folder(journal, bucket)
    healed, _ = ingested(spark_and_store, bucket, tmp_path / "there", "r3")
    assert (healed.segments, healed.records, healed.damaged) == (1, 37, 0)
