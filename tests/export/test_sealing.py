"""Sealing: consistency of segments after each possible failure."""

from __future__ import annotations

import gzip
import os

import pytest

from tests.export.journals import NOON, FailingDisk, WatchedDisk, left, lines, lines_in, opened, seal_all, sealed_in


def test_a_segment_is_sealed_under_the_hour_of_its_first_record(tmp_path):
    segments = opened(tmp_path)
    written = lines(1, 3, NOON - 1) + lines(4, 3, NOON + 1)
    segments.append(written, 6, NOON)
    segments.seal()

    [path] = sealed_in(tmp_path)
    assert path == tmp_path / "segments/date=2023-11-14/hour=11/b-boot-1.jsonl.gz"
    assert gzip.decompress(path.read_bytes()) == b"".join(written)
    assert list((tmp_path / "open").iterdir()) == []
    assert (segments.sealed, segments.acknowledged, segments.last_seq) == (1, 6, 6)


@pytest.mark.parametrize("level", [6, 1])
def test_a_kill_between_the_renaming_and_the_unlinking_leaves_the_segment_as_it_is(tmp_path, level):
    [path] = left(tmp_path, b"".join(lines(1, 5)))
    sealed = tmp_path / "segments/date=2023-11-14/hour=12/b-old-1.jsonl.gz"
    sealed.parent.mkdir(parents=True)
    sealed.write_bytes(gzip.compress(path.read_bytes(), level, mtime=0))  # also where another zlib gives other bytes
    before = sealed.read_bytes()
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert sealed_in(tmp_path) == [sealed]
    assert sealed.read_bytes() == before
    assert not path.exists()
    assert segments.sealed == 1


@pytest.mark.parametrize(
    "other", [gzip.compress(b"".join(lines(6, 5)), mtime=0), gzip.compress(b"", mtime=0), b"", b"short"]
)
def test_another_segment_of_the_same_name_is_not_replaced(tmp_path, other):
    [path] = left(tmp_path, b"".join(lines(1, 5)))
    sealed = tmp_path / "segments/date=2023-11-14/hour=12/b-old-1.jsonl.gz"
    sealed.parent.mkdir(parents=True)
    sealed.write_bytes(other)
    segments = opened(tmp_path, "new")
    segments.recover()
    for _ in range(2):
        with pytest.raises(FileExistsError, match=r"another segment has this name.*b-old-1\.jsonl\.gz"):
            segments.seal_piece()
    assert sealed.read_bytes() == other
    assert path.read_bytes() == b"".join(lines(1, 5))
    sealed.unlink()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(1, 5)


def test_a_file_whose_first_line_has_no_time_is_sealed_by_when_it_was_written(tmp_path):
    for path in left(tmp_path, b"garbage\n", b'{"ts":"x"}\n', b'{"ts":99999999999999999999}\n', b'{"ts":1e300}\n'):
        os.utime(path, (NOON, NOON))
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert [path.parent.name for path in sealed_in(tmp_path)] == ["hour=12"] * 4


@pytest.mark.parametrize("trouble", ["room", "sync", "rename"])
def test_a_sealing_that_fails_gives_its_room_back_and_is_repeated(tmp_path, trouble):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk)
    segments.append(lines(1, 100), 100, NOON)
    segments.rotate()
    if trouble == "room":
        disk.room = 20
    else:
        disk.fails_to = {trouble}
    with pytest.raises(OSError, match=r"No space|Input/output"):
        segments.seal_piece()
    assert sealed_in(tmp_path) == []
    assert list(tmp_path.rglob("*.tmp")) == []
    disk.room, disk.fails_to = None, set()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(1, 100)
    assert len(sealed_in(tmp_path)) == 1


def test_a_segment_and_its_name_are_on_the_disk_before_the_file_that_it_was_goes(tmp_path):
    disk = WatchedDisk()
    segments = opened(tmp_path, disk=disk)
    segments.append(lines(1, 100), 100, NOON)
    segments.rotate()
    [left_open] = [path.stat().st_ino for path in (tmp_path / "open").iterdir()]
    seal_all(segments)

    [path] = sealed_in(tmp_path)
    sealed, hour, opens = (each.stat().st_ino for each in (path, path.parent, tmp_path / "open"))
    assert disk.did[-5:] == [
        ("sync", sealed), ("rename", sealed), ("sync", hour), ("remove", left_open), ("sync", opens),
    ]  # fmt: skip


def test_lines_can_be_appended_while_another_file_is_sealed(tmp_path):
    segments = opened(tmp_path)
    many = lines(1, 60_000)
    segments.append(many, 60_000, NOON)
    segments.rotate()
    pieces = 0
    while segments.waiting:
        segments.seal_piece()
        pieces += 1
        segments.append(lines(60_000 + pieces, 1), 60_000 + pieces, NOON)

    assert pieces > 1
    assert lines_in(tmp_path) == many + lines(60_001, pieces)


def test_a_file_that_somebody_took_away_is_an_error_and_not_waited_for(tmp_path):
    segments = opened(tmp_path)
    for seq in (1, 2):
        segments.append(lines(seq, 1), seq, NOON)
        segments.rotate()
    (tmp_path / "open" / "b-boot-1.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"b-boot-1\.jsonl"):
        segments.seal_piece()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(2, 1)


def test_directories_that_somebody_took_away_are_made_again(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    segments.rotate()
    (tmp_path / "segments").rmdir()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(1, 1)
