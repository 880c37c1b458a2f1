"""The files of the journal: what is in them after each thing that can go wrong."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from broker.export.records import Record, common, encode
from broker.export.segments import JournalInUse, Limits, Segments
from tests.export.journals import FailingDisk, lines_in, number, sealed_in

PROJECT = Path(__file__).parents[2]

HOUR = 3600.0
NOON = 1_700_000_000.0 // 86_400 * 86_400 + 12 * HOUR
"""2023-11-14 at 12 o'clock."""


def lines(first: int, count: int, ts: float = NOON) -> list[bytes]:
    record = Record(int(ts * 1e6), "hb", "dbp", service="s")
    return [encode(record, common("b", "boot"), seq) for seq in range(first, first + count)]


def opened(directory: Path, boot: str = "boot", disk: FailingDisk | None = None, **limits) -> Segments:
    segments = Segments(str(directory), "b", boot, Limits(**limits), disk)
    segments.open()
    return segments


def seal_all(segments: Segments) -> None:
    while segments.waiting:
        segments.seal_piece()


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


def test_files_are_for_the_broker_and_its_group(tmp_path):
    segments = opened(tmp_path / "journal")
    segments.append(lines(1, 1), 1, NOON)
    segments.seal()
    segments.append(lines(2, 1), 2, NOON)

    for path in [tmp_path / "journal", *(tmp_path / "journal").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & ~(0o750 if path.is_dir() else 0o640) == 0, path


def test_segments_are_numbered_from_one_and_empty_ones_are_not_made(tmp_path):
    segments = opened(tmp_path)
    segments.seal()
    for seq in (1, 2, 3):
        segments.append(lines(seq, 1), seq, NOON)
        segments.seal()
        segments.seal()

    assert [number(path) for path in sealed_in(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("later", "due"), [(0.0, False), (HOUR - 1, False), (HOUR, True), (-1.0, True), (10 * HOUR, True)]
)
def test_a_file_is_due_when_it_is_old_or_the_clock_was_set_back(tmp_path, later, due):
    segments = opened(tmp_path)
    assert not segments.due(NOON)
    segments.append(lines(1, 1), 1, NOON)

    assert segments.due(NOON + later) is due


def test_a_file_is_due_when_it_is_large(tmp_path):
    segments = opened(tmp_path, segment_bytes=2 * len(lines(1, 1)[0]))
    segments.append(lines(1, 1), 1, NOON)
    assert not segments.due(NOON)
    segments.append(lines(2, 1), 2, NOON)

    assert segments.due(NOON)


def test_a_file_cut_at_any_byte_is_recovered_up_to_its_last_whole_line(tmp_path):
    written = lines(1, 3)
    whole = b"".join(written)
    for cut in range(len(whole) + 1):
        directory = tmp_path / str(cut)
        opened(directory, "old").close()
        (directory / "open" / "b-old-1.jsonl").write_bytes(whole[:cut])
        segments = opened(directory, "new")
        segments.recover()
        seal_all(segments)

        expected = whole[: whole.rfind(b"\n", 0, cut) + 1]
        assert b"".join(lines_in(directory)) == expected
        assert len(sealed_in(directory)) == (1 if expected else 0)
        assert list((directory / "open").iterdir()) == []
        segments.close()


def test_a_long_tail_without_a_newline_is_cut(tmp_path):
    opened(tmp_path, "old").close()
    (tmp_path / "open" / "b-old-1.jsonl").write_bytes(lines(1, 1)[0] + b"\0" * 1_000_000)
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(1, 1)


def test_unfinished_files_are_deleted_and_those_of_others_are_not(tmp_path):
    hour = tmp_path / "segments/date=2023-11-14/hour=11"
    hour.mkdir(parents=True)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "b-dir-1.jsonl").mkdir()
    others = [tmp_path / "open" / "notes.txt", tmp_path / "open" / ".b-x-1.jsonl", hour / "x.tmp", hour / "_SUCCESS"]
    for path in others:
        path.write_text("mine")
    unfinished = hour / ".b-old-1.jsonl.gz.tmp"
    unfinished.write_bytes(b"half")

    opened(tmp_path).recover()

    assert not unfinished.exists()
    assert all(path.read_text() == "mine" for path in others)


def test_a_file_that_cannot_be_recovered_keeps_no_other_from_it(tmp_path):
    opened(tmp_path, "old").close()
    for name in ("b-old-1", "b-old-2"):
        (tmp_path / "open" / f"{name}.jsonl").write_bytes(lines(1, 1)[0] + b"torn")
    disk = FailingDisk()
    segments = opened(tmp_path, "new", disk)
    disk.fails_to = {"truncate"}
    with pytest.raises(OSError, match=r"b-old-1\.jsonl"):
        segments.recover()
    assert segments.waiting == 0
    disk.fails_to = set()
    segments.recover()
    segments.recover()

    assert segments.waiting == 2


def test_a_kill_between_the_renaming_and_the_unlinking_leaves_one_segment(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 5), 5, NOON)
    segments.sync()
    content = (tmp_path / "open" / "b-boot-1.jsonl").read_bytes()
    segments.seal()
    segments.close()
    [path] = sealed_in(tmp_path)
    before = path.read_bytes()
    (tmp_path / "open" / "b-boot-1.jsonl").write_bytes(content)

    again = opened(tmp_path, "new")
    again.recover()
    seal_all(again)

    assert sealed_in(tmp_path) == [path]
    assert path.read_bytes() == before


def test_a_file_whose_first_line_has_no_time_is_sealed_by_when_it_was_written(tmp_path):
    opened(tmp_path, "old").close()
    for n, line in enumerate((b"garbage\n", b'{"ts":"x"}\n', b'{"ts":99999999999999999999}\n', b'{"ts":1e300}\n'), 1):
        path = tmp_path / "open" / f"b-old-{n}.jsonl"
        path.write_bytes(line)
        os.utime(path, (NOON, NOON))
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert [path.parent.name for path in sealed_in(tmp_path)] == ["hour=12"] * 4


# a disk that fails


def test_an_append_that_fails_in_the_middle_leaves_the_lines_before_it(tmp_path):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk)
    segments.append(lines(1, 2), 2, NOON)
    disk.room = len(lines(3, 1)[0]) + 10
    with pytest.raises(OSError, match=r"b-boot-1\.jsonl"):
        segments.append(lines(3, 2), 4, NOON)
    assert (segments.last_seq, segments.lines) == (2, 2)
    disk.room = None
    segments.append(lines(5, 1), 5, NOON)
    segments.seal()

    assert lines_in(tmp_path) == lines(1, 2) + lines(5, 1)


def test_nothing_is_appended_while_a_torn_end_cannot_be_cut_off(tmp_path):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk)
    segments.append(lines(1, 1), 1, NOON)
    disk.room = 10
    with pytest.raises(OSError, match="No space"):
        segments.append(lines(2, 1), 2, NOON)
    disk.room, disk.fails_to = None, {"truncate"}
    for call in (lambda: segments.append(lines(3, 1), 3, NOON), segments.sync, segments.rotate):
        with pytest.raises(OSError, match=r"b-boot-1\.jsonl"):
            call()
    disk.fails_to = set()
    segments.append(lines(4, 1), 4, NOON)

    assert lines_in(tmp_path) == lines(1, 1) + lines(4, 1)


def test_after_a_sync_that_failed_only_what_was_on_the_disk_is_good(tmp_path):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk)
    segments.append(lines(1, 2), 2, NOON)
    segments.sync()
    segments.append(lines(3, 2), 4, NOON)
    disk.fails_to = {"sync"}
    with pytest.raises(OSError, match=r"b-boot-1\.jsonl"):
        segments.sync()
    assert (segments.last_seq, segments.lines, segments.acknowledged) == (2, 2, 2)
    disk.fails_to = set()
    segments.append(lines(5, 1), 5, NOON)
    segments.seal()

    assert lines_in(tmp_path) == lines(1, 2) + lines(5, 1)


def test_a_file_that_lost_all_its_lines_is_not_sealed(tmp_path):
    disk = FailingDisk()
    segments = opened(tmp_path, disk=disk)
    disk.room = 5
    with pytest.raises(OSError, match="No space"):
        segments.append(lines(1, 1), 1, NOON)
    disk.room = None
    segments.seal()

    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"] == []


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


def test_an_open_file_that_somebody_took_away_is_not_waited_for(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    segments.rotate()
    (tmp_path / "open" / "b-boot-1.jsonl").unlink()
    segments.seal_piece()

    assert segments.waiting == 0


# retention


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


def test_the_oldest_segments_over_the_size_are_deleted(tmp_path):
    segments = opened(tmp_path, keep_seconds=None)
    fill(segments, 5)
    size = sealed_in(tmp_path)[0].stat().st_size
    segments.limits = Limits(keep_seconds=None, keep_bytes=2 * size + size // 2)
    segments.retain(NOON)

    assert [number(path) for path in sealed_in(tmp_path)] == [4, 5]


def test_what_is_not_a_segment_is_never_deleted(tmp_path):
    segments = opened(tmp_path, keep_seconds=0.0, keep_bytes=0)
    fill(segments, 1)
    others = [sealed_in(tmp_path)[0].parent / "notes.gz", tmp_path / "segments/old/hour=11/b-x-1.jsonl.gz"]
    for path in others:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("mine")
    segments.retain(NOON + 100 * HOUR)

    assert sealed_in(tmp_path) == []
    assert all(path.exists() for path in others)


# one broker


def test_a_second_broker_is_told_who_has_the_journal(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(JournalInUse, match=f"process {os.getpid()}"):
        opened(tmp_path, "other")
    first.close()
    opened(tmp_path, "other").close()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "_x", "a b", "x" * 65])
def test_names_that_make_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file name"):
        Segments(str(tmp_path), name, "boot", Limits())


# killed


_APPENDER = textwrap.dedent("""
    import sys
    from broker.export.records import Record, common, encode
    from broker.export.segments import Limits, Segments

    segments = Segments(sys.argv[1], "b", "killed", Limits(segment_bytes=20_000))
    segments.open()
    begin = common("b", "killed")
    seq = 0
    while True:
        lines = [encode(Record(1_700_000_000_000_000, "hb", "dbp"), begin, seq + n) for n in range(1, 51)]
        seq += 50
        segments.append(lines, seq, 0.0)
        segments.sync()
        print(segments.acknowledged, flush=True)
        if segments.due(0.0):
            segments.rotate()
        if segments.waiting:
            segments.seal_piece()
""")


@pytest.mark.parametrize("after", [1, 7, 23, 60, 111])
def test_after_a_kill_all_that_was_acknowledged_is_there_exactly_once(tmp_path, after):
    appender = subprocess.Popen(
        [sys.executable, "-c", _APPENDER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert appender.stdout is not None
    for _ in range(after):
        acknowledged = int(appender.stdout.readline())
    appender.kill()
    for line in appender.stdout:
        acknowledged = int(line) if line.endswith("\n") else acknowledged
    appender.wait()
    appender.stdout.close()

    segments = opened(tmp_path, "next")
    segments.recover()
    seal_all(segments)
    seqs = [int(line.split(b'"seq":')[1].split(b",")[0]) for line in lines_in(tmp_path)]

    assert sorted(seqs) == list(range(1, len(seqs) + 1))
    assert len(seqs) >= acknowledged >= 50 * after
    assert list((tmp_path / "open").iterdir()) == []


_LIMITED = textwrap.dedent("""
    import resource, sys
    from broker.export.records import Record, common, encode
    from broker.export.segments import Limits, Segments

    segments = Segments(sys.argv[1], "b", "limited", Limits())
    segments.open()
    begin = common("b", "limited")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    refused = []
    for seq in range(1, 51):
        if seq == 40:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            segments.append([encode(Record(1_700_000_000_000_000, "hb", "dbp"), begin, seq)], seq, 0.0)
        except OSError as error:
            assert error.filename.endswith("b-limited-1.jsonl"), error
            refused.append(seq)
    segments.seal()
    segments.close()
    print(refused)
""")


def test_a_system_that_takes_no_more_bytes_leaves_whole_lines_only(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, cwd=PROJECT, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    refused = json.loads(ran.stdout)
    seqs = [json.loads(line)["seq"] for line in lines_in(tmp_path)]

    assert refused
    assert refused == list(range(refused[0], 40))
    assert seqs == [seq for seq in range(1, 51) if seq not in refused]
