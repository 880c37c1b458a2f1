"""Retention: deleted and kept segments."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import attrs
import pytest

from broker.export.segments import JournalLimits, Segments
from tests.export.journals import HOUR, NOON, FailingDisk, lines, lines_in, number, opened, seal_all, sealed_in


def fill(segments: Segments, hours: int) -> None:
    for hour in range(hours):
        segments.append(lines(hour + 1, 1, NOON + hour * HOUR), hour + 1, NOON)
        segments.seal()


def test_segments_over_the_age_are_deleted_with_their_empty_directories(tmp_path):
    segments = opened(tmp_path, keep_seconds=HOUR, keep_bytes=None)
    fill(segments, 14)
    segments.retain(NOON + 13 * HOUR)

    assert [number(path) for path in sealed_in(tmp_path)] == [13, 14]
    assert segments.deleted == 12
    assert [path.name for path in (tmp_path / "segments").iterdir()] == ["date=2023-11-15"]


def test_the_age_of_a_segment_is_that_of_the_last_record_that_it_may_have(tmp_path):
    segments = opened(tmp_path, keep_seconds=24 * HOUR, keep_bytes=None)
    segments.limits = attrs.evolve(segments.limits, segment_seconds=24 * HOUR)
    segments.append(lines(1, 1, NOON), 1, NOON)
    segments.append(lines(2, 1, NOON + 24 * HOUR - 1), 2, NOON + 24 * HOUR - 1)
    assert segments.due(NOON + 24 * HOUR)
    segments.seal()
    for hour, there in ((24, 1), (47, 1), (49, 0)):
        segments.retain(NOON + hour * HOUR + 60)
        assert len(sealed_in(tmp_path)) == there


def test_the_oldest_segments_over_the_size_are_deleted(tmp_path):
    segments = opened(tmp_path, keep_seconds=None)
    fill(segments, 5)
    size = sealed_in(tmp_path)[0].stat().st_size
    segments.limits = JournalLimits(keep_seconds=None, keep_bytes=2 * size + size // 2)
    segments.retain(NOON)

    assert [number(path) for path in sealed_in(tmp_path)] == [4, 5]


def test_of_one_hour_the_first_that_were_written_are_deleted(tmp_path):
    segments = opened(tmp_path, keep_seconds=None)
    for seq in range(1, 13):
        segments.append(lines(seq, 1), seq, NOON)
        segments.seal()
        os.utime(max(sealed_in(tmp_path), key=number), (NOON + seq, NOON + seq))
    size = sealed_in(tmp_path)[0].stat().st_size
    segments.limits = JournalLimits(keep_seconds=None, keep_bytes=3 * size + size // 2)
    segments.retain(NOON)

    assert [number(path) for path in sealed_in(tmp_path)] == [10, 11, 12]


def of_one_hour(directory: Path, count: int) -> tuple[Segments, list[int]]:
    """Return the segments of one hour, of different sizes, and the sizes."""
    segments = opened(directory, keep_seconds=None, keep_bytes=None)
    sizes = []
    for seq in range(1, count + 1):
        segments.append(lines(1, 100 * seq), seq, NOON)
        segments.seal()
        newest = max(sealed_in(directory), key=number)
        os.utime(newest, (NOON + seq, NOON + seq))
        sizes.append(newest.stat().st_size)
    return segments, sizes


@pytest.mark.parametrize(("less", "left"), [(0, [2, 3, 4]), (1, [3, 4])])
def test_of_one_hour_no_more_is_deleted_than_is_over_the_size(tmp_path, less, left):
    segments, sizes = of_one_hour(tmp_path, 4)
    segments.limits = JournalLimits(keep_seconds=None, keep_bytes=sum(sizes[1:]) - less)
    segments.retain(NOON)

    assert [number(path) for path in sealed_in(tmp_path)] == left


@pytest.mark.parametrize("keep_bytes", [None, 10**9])
def test_of_an_hour_over_the_age_all_is_deleted_whatever_room_there_is(tmp_path, keep_bytes):
    segments, _ = of_one_hour(tmp_path, 3)
    segments.limits = JournalLimits(keep_seconds=HOUR, keep_bytes=keep_bytes)
    segments.retain(NOON + HOUR)
    assert len(sealed_in(tmp_path)) == 3
    segments.retain(NOON + HOUR + 1)
    assert sealed_in(tmp_path) == []


@pytest.mark.long
def test_a_long_look_is_done_in_pieces_with_lines_appended_between_them(tmp_path):
    hours = tmp_path / "segments"
    for day in range(1, 30):
        for hour in range(24):
            path = hours / f"date=2023-10-{day:02d}" / f"hour={hour:02d}" / "b-old-1.jsonl.gz"
            path.parent.mkdir(parents=True)
            path.write_bytes(gzip.compress(b""))
    segments = opened(tmp_path, keep_seconds=20 * 24 * HOUR)
    pieces = 0
    while segments.retaining or not pieces:
        segments.retain_piece(NOON)
        pieces += 1
        segments.append(lines(pieces, 1), pieces, NOON)
    segments.seal()

    assert pieces > 5
    assert min(path.parent.parent.name for path in hours.rglob("*.gz")) == "date=2023-10-25"
    assert segments.deleted == 24 * 24 + 12
    assert lines_in(tmp_path)[-pieces:] == lines(1, pieces)


def test_without_limits_nothing_is_deleted(tmp_path):
    segments = opened(tmp_path, keep_seconds=None, keep_bytes=None)
    fill(segments, 3)
    segments.retain(NOON + 1e9)

    assert len(sealed_in(tmp_path)) == 3


def test_what_cannot_be_deleted_keeps_nothing_else_from_it(tmp_path):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk, keep_seconds=HOUR)
    fill(segments, 4)
    disk.keeps = {"b-boot-2.jsonl.gz"}
    with pytest.raises(OSError, match=r"b-boot-2\.jsonl\.gz"):
        segments.retain(NOON + 10 * HOUR)
    assert [number(path) for path in sealed_in(tmp_path)] == [2]
    assert segments.deleted == 3
    disk.keeps = set()
    segments.retain(NOON + 10 * HOUR)

    assert sealed_in(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "date=2023-11-14/hour=12/notes.gz",
        "date=2023-11-14/hour=12/b-boot-1.jsonl",
        "date=2023-11-14/hour=12/.b-boot-1.jsonl.gz",
        "date=2023-11-14/hour=12/_b-boot-1.jsonl.gz",
        "date=2023-11-14/hour=12/b-boot-1.jsonl.gz.part",
        "date=2023-11-14/hour=12/b-boot-9.jsonl.gz/inside",
        "date=2023-11-14/hour=12/deeper/b-boot-1.jsonl.gz",
        "date=2023-11-14/hour=24/b-boot-1.jsonl.gz",
        "date=2023-11-14/hour=7/b-boot-1.jsonl.gz",
        "date=2023-11-14/b-boot-1.jsonl.gz",
        "date=2023-11-31/hour=12/b-boot-1.jsonl.gz",
        "date=2023-11/hour=12/b-boot-1.jsonl.gz",
        "old/hour=12/b-boot-1.jsonl.gz",
        "../b-boot-1.jsonl.gz",
    ],
)
def test_what_is_not_a_segment_in_its_place_is_never_deleted(tmp_path, name):
    segments = opened(tmp_path, keep_seconds=0.0, keep_bytes=0)
    fill(segments, 1)
    [ours] = sealed_in(tmp_path)
    other = tmp_path / "segments" / name
    other.parent.mkdir(exist_ok=True, parents=True)
    other.write_text("mine")
    segments.retain(NOON + 1e9)

    assert other.read_text() == "mine"
    assert not ours.exists()


def test_nothing_behind_a_link_is_deleted(tmp_path):
    segments = opened(tmp_path / "journal", keep_seconds=0.0, keep_bytes=0)
    fill(segments, 2)
    first, second = sealed_in(tmp_path / "journal")
    archive = tmp_path / "archive"
    (archive / "day" / "hour=12").mkdir(parents=True)
    (archive / "day" / "hour=12" / "b-x-1.jsonl.gz").write_text("mine")
    (archive / "b-x-2.jsonl.gz").write_text("mine")
    (tmp_path / "journal/segments/date=2023-11-13").symlink_to(archive / "day")
    (first.parent.parent / "hour=11").symlink_to(archive / "day" / "hour=12")
    (first.parent / "b-x-2.jsonl.gz").symlink_to(archive / "b-x-2.jsonl.gz")
    segments.retain(NOON + 1e9)

    assert not first.exists()
    assert not second.exists()
    assert len([path for path in archive.rglob("*") if path.is_file()]) == 2
    assert len([path for path in (tmp_path / "journal").rglob("*") if path.is_symlink()]) == 3


# unfinished files


def test_what_a_kill_left_unfinished_is_deleted_and_what_is_not_ours_is_not(tmp_path):
    hour = tmp_path / "segments/date=2023-11-14/hour=11"
    hour.mkdir(parents=True)
    others = [hour / "x.tmp", hour / "_SUCCESS", hour / ".b-old-1.jsonl.gz", hour.parent / ".b-old-1.jsonl.gz.tmp"]
    for path in others:
        path.write_text("mine")
    unfinished = hour / ".b-old-1.jsonl.gz.tmp"
    unfinished.write_bytes(b"half")
    opened(tmp_path, keep_seconds=None).retain(NOON)

    assert not unfinished.exists()
    assert all(path.read_text() == "mine" for path in others)


def test_what_is_being_sealed_is_not_deleted(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 60_000), 60_000, NOON)
    segments.rotate()
    segments.seal_piece()
    [unfinished] = tmp_path.rglob("*.tmp")
    segments.retain(NOON)
    assert unfinished.exists()
    seal_all(segments)

    assert len(lines_in(tmp_path)) == 60_000


def test_an_unfinished_file_that_cannot_be_deleted_keeps_nothing_else_from_it(tmp_path):
    hour = tmp_path / "segments/date=2023-11-14/hour=11"
    hour.mkdir(parents=True)
    for name in (".b-old-1.jsonl.gz.tmp", ".b-old-2.jsonl.gz.tmp", "b-old-3.jsonl.gz"):
        (hour / name).write_bytes(b"half")
    disk = FailingDisk()
    disk.keeps = {".b-old-1.jsonl.gz.tmp"}
    segments = opened(tmp_path, "new", disk, keep_bytes=0)
    with pytest.raises(OSError, match=r"\.b-old-1\.jsonl\.gz\.tmp"):
        segments.retain(NOON)

    assert [path.name for path in hour.iterdir()] == [".b-old-1.jsonl.gz.tmp"]
