"""Ingest: every good record once, every bad line aside with its reason, and what was lost."""

import gzip
from collections.abc import Iterator
from datetime import UTC, date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame
from pyspark.sql import SparkSession

from spark.capacity.ingest import intake
from spark.capacity.ingest.intake import ingest
from spark.capacity.ingest.segments import Found, find_segments
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    LEDGER,
    LOSS,
    QUARANTINE,
    Table,
)
from spark.capacity.tables.store import Tables
from tests.spark.journal import START, lines, record, segment

STARTED = START + timedelta(days=3)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Iterator[Tables]:
    made = Tables(spark, tmp_path / "out")
    made.open()
    yield made
    made.close()


def numbers(tables: Tables) -> list[tuple[str, int]]:
    return sorted((row["boot"], row["seq"]) for row in tables.read(BRONZE_RECORDS).select("boot", "seq").collect())


def losses(tables: Tables) -> list[tuple[str, int, int, int, bool]]:
    return sorted(tuple(row)[1:] for row in tables.read(LOSS).collect())


def test_bad_lines_are_put_aside_with_their_reason_and_the_rest_goes_on(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    bad = [
        ("{torn", "no JSON object, or a member of a wrong type"),
        ("[1, 2]", "no JSON object, or a member of a wrong type"),
        (record(3, provider="one"), "no JSON object, or a member of a wrong type"),
        (record(4, "load", load=2).__repr__(), "no JSON object, or a member of a wrong type"),
        (record(5, v=3), "unknown version 3"),
        (record(6, event="dance"), "unknown event dance"),
        ({name: value for name, value in record(7).items() if name != "seq"}, "seq is missing"),
        ({name: value for name, value in record(7).items() if name != "boot"}, "boot is missing"),
        ({name: value for name, value in record(7).items() if name != "v"}, "v is missing"),
        (record(0), "seq is less than 1"),
        (record(9) | {"seq": 2**53}, "seq is more than 9007199254740991"),
        (record(9, ts=1_000_000), "a date before 2001"),
        (record(10, ts=int((STARTED + timedelta(days=2)).timestamp()) * 1_000_000), "a date in the future"),
        (record(11, ts=2**62), "a date in the future"),
        (record(12, "load", load=-1.0), "load is no measure"),
        (record(13, "load"), "load is missing"),
        ('{"v":1,"load":NaN}', "ts is missing"),
        (record(15, service=None), "service is missing"),
    ]
    load = record(2, "load", load=1, full_load=0, coalesced=70, colour="red", label=None)
    good = [record(1, "alive", why="start"), load]
    name = segment(journal, "b-one-1", lines(*good, *(line for line, _ in bad), "", record(19, sent_ts=2**62)))
    torn = segment(journal, "b-one-2", lines(record(20)) + b'{"v":1,"ts":17')
    cut = segment(journal, "b-one-3", lines(*(record(seq) for seq in range(21, 90))), cut=12)
    none = segment(journal, "b-one-4", b"", cut=19)
    empty = segment(journal, "b-one-5", b"")
    (journal / "segments" / "date=2026-03-02" / "hour=10" / "notes.txt").write_text("hello")
    (journal / "segments" / "date=2026-03-02" / "hour=10" / ".b-one-6.jsonl.gz").write_bytes(b"not there yet")

    told = ingest(tables, [journal], run="r", started=STARTED)

    assert numbers(tables) == [("one", 1), ("one", 2), ("one", 19), ("one", 20)]
    aside = {(row["segment"], row["line"]): row["reason"] for row in tables.read(QUARANTINE).collect()}
    assert aside == {
        **{(name, number): reason for number, (_, reason) in enumerate(bad, 3)},
        (torn, 2): "no JSON object, or a member of a wrong type",
        (cut, 0): "the file is cut off",
        (none, 0): "the file is cut off",
    }
    ledger = {row["segment"]: (row["records"], row["quarantined"]) for row in tables.read(LEDGER).collect()}
    assert ledger == {name: (3, len(bad)), torn: (1, 1), cut: (0, 1), none: (0, 1), empty: (0, 0)}
    assert losses(tables) == [("one", 3, 18, 16, False), ("one", 21, 89, 69, False)]
    assert told.unknown == {"colour": 1}
    assert told.strange == ["date=2026-03-02/hour=10/notes.txt"]
    assert told.dates == {date(2026, 3, 2)}
    rows = {row["seq"]: row for row in tables.read(BRONZE_RECORDS).collect()}
    assert rows[2]["instance"] == "10.0.0.1:25"
    assert rows[2]["full_load"] is None
    assert rows[2]["ts"].astimezone(UTC) == START + timedelta(seconds=2)
    assert rows[19]["sent_ts"] is None
    assert rows[1]["instance"] is None


def test_late_and_repeated_segments_leave_each_record_once_and_fill_the_gap(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    first = [record(seq) for seq in range(1, 11)]
    segment(journal, "b-one-1", lines(*first))
    segment(journal, "b-one-3", lines(record(21, "drop", dropped=4, why="queue"), record(22)))
    assert ingest(tables, [journal], run="r1", started=STARTED).lost == 10
    assert losses(tables) == [("one", 11, 16, 6, False), ("one", 17, 20, 4, True)]

    segment(journal, "b-one-2", lines(*(record(seq) for seq in range(11, 17))))
    segment(journal, "again-1", lines(*first, record(10)))
    assert ingest(tables, [journal], run="r2", started=STARTED).segments == 2
    assert numbers(tables) == [("one", seq) for seq in (*range(1, 17), 21, 22)]
    assert losses(tables) == [("one", 17, 20, 4, True)]

    before = sorted(path for path in tables.out.rglob("*.parquet"))
    assert ingest(tables, [journal], run="r3", started=STARTED).segments == 0
    assert sorted(path for path in tables.out.rglob("*.parquet")) == before

    segment(journal, "b-one-4", lines(record(24, "load", load=1.5, coalesced=77)))
    assert ingest(tables, [journal], run="r4", started=STARTED).unknown == {}
    assert losses(tables) == [("one", 17, 20, 4, True), ("one", 23, 23, 1, False)]


def test_records_of_the_future_are_read_when_their_time_has_come(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    far = record(4, ts=int((STARTED + timedelta(days=3_000)).timestamp()) * 1_000_000)
    name = segment(journal, "b-one-1", lines(*(record(seq) for seq in (1, 2, 3)), far))
    # The clock of the machine that runs the jobs is behind.
    told = ingest(tables, [journal], run="r1", started=START - timedelta(days=9))
    assert (told.records, told.reasons) == (0, {"a date in the future": 4})
    assert ingest(tables, [journal], run="r2", started=START - timedelta(days=8)).segments == 0
    told = ingest(tables, [journal], run="r3", started=STARTED)
    assert (told.segments, told.records, told.quarantined) == (1, 3, 1)
    assert numbers(tables) == [("one", 1), ("one", 2), ("one", 3)]
    assert [(row["segment"], row["line"]) for row in tables.read(QUARANTINE).collect()] == [(name, 4)]
    assert ingest(tables, [journal], run="r4", started=STARTED + timedelta(days=400)).segments == 0


def test_segments_that_are_deleted_before_they_are_read_are_left_out(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    bad = segment(journal, "b-one-1", lines(record(1), record(2), "{torn"))
    ingest(tables, [journal], run="r1", started=STARTED)
    gone, kept = (segment(journal, f"b-one-{number}", lines(record(number * 2))) for number in (2, 3))

    def find(*arguments: Any) -> Found:
        found = find_segments(*arguments)
        assert [one.name for one in found.segments] == [bad, gone, kept]
        for name in (bad, gone):
            (journal / "segments" / name).unlink()
        return found

    monkeypatch.setattr(intake, "find_segments", find)
    told = ingest(tables, [journal], run="r2", started=STARTED)
    assert (told.segments, told.records) == (1, 1)
    assert numbers(tables) == [("one", 1), ("one", 2), ("one", 6)]
    assert sorted(row["segment"] for row in tables.read(LEDGER).collect()) == [bad, kept]


def test_the_journals_of_a_farm_are_read_as_one(tables: Tables, tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    segment(left, "b-one-1", lines(record(1), record(2)))
    segment(right, "b-two-1", lines(record(1, boot="two"), "{torn", record(3, boot="two")))
    segment(right, "b-one-1", lines(record(1), record(2)))
    assert ingest(tables, [left, right], run="r1", started=STARTED).records == 4
    assert numbers(tables) == [("one", 1), ("one", 2), ("two", 1), ("two", 3)]
    assert ingest(tables, [left, right], run="r2", started=STARTED).segments == 0
    segment(right, "b-two-2", lines(record(4, boot="two")))
    assert ingest(tables, [left, right], run="r3", started=STARTED).segments == 1
    # One of them later, alone, is no other journal.
    assert ingest(tables, [left], run="r4", started=STARTED).segments == 0


def test_a_number_that_was_held_on_an_earlier_date_is_taken_out_there_or_here(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    day = 86_400_000_000
    segment(journal, "b-one-1", lines(*(record(seq) for seq in range(1, 4))))
    ingest(tables, [journal], run="r1", started=STARTED)
    segment(journal, "b-one-2", lines(*(record(seq, ts=record(seq)["ts"] + day) for seq in range(3, 6))))
    ingest(tables, [journal], run="r2", started=STARTED)
    assert numbers(tables) == [("one", seq) for seq in range(1, 6)]
    assert losses(tables) == []


@pytest.mark.parametrize("days", [-1, 1])
def test_a_date_whose_numbers_are_all_held_on_another_one_is_emptied(tables: Tables, tmp_path: Path, days: int) -> None:
    journal = tmp_path / "journal"
    moved = int((START + timedelta(days=days)).timestamp()) * 1_000_000
    segment(journal, "b-one-1", lines(*(record(seq) for seq in range(1, 6))))
    ingest(tables, [journal], run="r", started=STARTED)
    segment(journal, "b-one-2", lines(*(record(seq, ts=moved + seq) for seq in range(1, 6))))
    ingest(tables, [journal], run="s", started=STARTED)
    assert numbers(tables) == [("one", seq) for seq in range(1, 6)]


def damaged(text: bytes) -> bytes:
    """Spoil a byte in the middle of a packed segment, without another size."""
    packed = bytearray(gzip.compress(text))
    packed[len(packed) * 2 // 3] ^= 0xFF
    return bytes(packed)


def bring(path: Path, data: bytes) -> None:
    """Put a file in the place of another, as copies of a journal are brought."""
    path.with_name(".new").write_bytes(data)
    path.with_name(".new").rename(path)


def test_a_damaged_segment_that_comes_again_intact_with_the_same_size_is_read(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    text = lines(*(record(seq, note=str(seq * seq)) for seq in range(1, 200)))
    name = segment(journal, "b-one-1", text)
    path = journal / "segments" / name
    path.write_bytes(damaged(text))
    segment(journal, "b-two-1", lines(*(record(seq, boot="two") for seq in range(1, 4))))
    told = ingest(tables, [journal], run="r1", started=STARTED)
    assert (told.segments, told.damaged) == (2, 1)
    assert [(row["segment"], row["line"]) for row in tables.read(QUARANTINE).collect()] == [(name, 0)]
    # Of a boot of which nothing was read as many are lost as can be decompressed.
    [(boot, first, last, lost, known)] = losses(tables)
    assert (boot, first, known) == ("one", 1, False)
    assert 100 < last == lost == told.lost < 199

    # As it was: it is tried, and not read.
    told = ingest(tables, [journal], run="r2", started=STARTED)
    assert (told.segments, told.damaged, told.lost) == (0, 1, lost)

    size = path.stat().st_size
    path.write_bytes(gzip.compress(text))
    assert path.stat().st_size == size
    told = ingest(tables, [journal], run="r3", started=STARTED)
    assert (told.segments, told.damaged, told.lost) == (1, 0, 0)
    assert numbers(tables) == [*(("one", seq) for seq in range(1, 200)), *(("two", seq) for seq in range(1, 4))]
    assert tables.read(QUARANTINE).collect() == []


def test_another_intact_segment_of_the_same_name_and_size_is_read_and_a_copy_is_not(
    tables: Tables, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    path = journal / "segments" / segment(journal, "b-one-1", b"")
    path.write_bytes(gzip.compress(lines(record(1)), 0))
    ingest(tables, [journal], run="r1", started=STARTED)
    size = path.stat().st_size
    bring(path, path.read_bytes())
    assert ingest(tables, [journal], run="r2", started=STARTED).segments == 0
    bring(path, gzip.compress(lines(record(2)), 0))
    assert path.stat().st_size == size
    assert ingest(tables, [journal], run="r3", started=STARTED).segments == 1
    assert numbers(tables) == [("one", 1), ("one", 2)]


def test_the_lost_tail_of_a_boot_is_counted_as_far_as_it_shows(tables: Tables, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    segment(journal, "b-one-1", lines(record(1), record(2)) + b'{"v":1,"ts":17')
    segment(journal, "b-two-1", lines(record(1, boot="two"), record(2, boot="two"), "{torn", "{torn"))
    assert ingest(tables, [journal], run="r1", started=STARTED).lost == 3
    assert losses(tables) == [("one", 3, 3, 1, False), ("two", 3, 4, 2, False)]
    segment(journal, "b-one-2", lines(record(4)))
    assert ingest(tables, [journal], run="r2", started=STARTED).lost == 3


class PowerCut(Exception):
    pass


class Cut(Tables):
    """Tables of a run that ends in the middle."""

    def put(self, table: Table, rows: DataFrame) -> None:
        if table is LEDGER:
            raise PowerCut
        super().put(table, rows)


def test_a_run_that_was_cut_off_is_made_up_for_by_the_next(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    # Out of order, and across midnight.
    late = [record(seq, ts=record(seq)["ts"] + 50_400_000_000) for seq in (8, 6, 7)]
    segment(journal, "b-one-1", lines(*(record(seq) for seq in (1, 3, 2, 5)), *late))
    broken = Cut(spark, out)
    broken.open()
    with pytest.raises(PowerCut):
        ingest(broken, [journal], run="r1", started=STARTED)
    broken.close()
    assert (out / "bronze_records").is_dir()

    tables = Tables(spark, out)
    tables.open()
    told = ingest(tables, [journal], run="r2", started=STARTED)
    tables.close()
    assert numbers(tables) == [("one", seq) for seq in (1, 2, 3, 5, 6, 7, 8)]
    assert losses(tables) == [("one", 4, 4, 1, False)]
    assert told.dates == {date(2026, 3, 2), date(2026, 3, 3)}
