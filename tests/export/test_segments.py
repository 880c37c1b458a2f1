"""Open file of a journal, and recovery at a start: their content after each possible failure.

The file is longer than others: it has all tests of `broker.export.segments`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.export.journal_disk import Disk, JournalInUse
from broker.export.segments import JournalLimits, Segments
from tests.export.journals import (
    HOUR,
    NOON,
    FailingDisk,
    WatchedDisk,
    left,
    lines,
    lines_in,
    number,
    opened,
    seal_all,
    sealed_in,
)
from tests.patience import PATIENCE

PROJECT = Path(__file__).parents[2]


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
    segments = opened(tmp_path, segment_seconds=HOUR)
    assert not segments.due(NOON)
    segments.append(lines(1, 1), 1, NOON)

    assert segments.due(NOON + later) is due


def test_a_file_is_due_when_it_is_large(tmp_path):
    segments = opened(tmp_path, segment_bytes=2 * len(lines(1, 1)[0]))
    segments.append(lines(1, 1), 1, NOON)
    assert not segments.due(NOON)
    segments.append(lines(2, 1), 2, NOON)

    assert segments.due(NOON)


class QuickDisk(Disk):
    """Disk without syncs, which makes the test fast; only a power failure would show the difference."""

    def sync(self, file: int) -> None:
        pass


@pytest.mark.long
def test_a_file_cut_at_any_byte_is_recovered_up_to_its_last_whole_line(tmp_path):
    written = lines(1, 3)
    whole = b"".join(written)
    for cut in range(len(whole) + 1):
        left(tmp_path, whole[:cut])
        segments = opened(tmp_path, "new", QuickDisk())
        segments.recover()
        seal_all(segments)

        expected = whole[: whole.rfind(b"\n", 0, cut) + 1]
        assert b"".join(lines_in(tmp_path)) == expected
        assert len(sealed_in(tmp_path)) == segments.recovered == (1 if expected else 0)
        assert segments.torn == (0 if cut == len(expected) else 1)
        assert list((tmp_path / "open").iterdir()) == []
        segments.close()
        for path in sealed_in(tmp_path):
            path.unlink()


def test_a_record_is_acknowledged_when_its_file_and_the_name_of_that_are_on_the_disk(tmp_path):
    disk = WatchedDisk()
    segments = opened(tmp_path, disk=disk)
    for seq in (1, 2):
        disk.did.clear()
        segments.append(lines(seq, 1), seq, NOON)
        assert segments.acknowledged == seq - 1
        segments.sync()
        assert segments.acknowledged == seq
        [path] = (tmp_path / "open").iterdir()
        name = [("sync", (tmp_path / "open").stat().st_ino)] if seq == 1 else []
        assert disk.did == [("sync", path.stat().st_ino), *name]


def test_a_long_tail_without_a_newline_is_cut(tmp_path):
    left(tmp_path, lines(1, 1)[0] + b"\0" * 1_000_000)
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert lines_in(tmp_path) == lines(1, 1)


@pytest.mark.parametrize("where", [0, 5, 200_000])
def test_after_a_hole_nothing_is_a_line(tmp_path, where):
    """A power loss may leave data behind others that were appended before them and did not reach the disk."""
    whole = b"".join(lines(1, 20_000))
    end = whole.rfind(b"\n", 0, where) + 1
    left(tmp_path, whole[:where] + bytes(512) + whole[where + 512 :])
    segments = opened(tmp_path, "new")
    segments.recover()
    seal_all(segments)

    assert b"".join(lines_in(tmp_path)) == whole[:end]
    assert segments.torn == 1


def test_a_file_that_cannot_be_recovered_keeps_no_other_from_it(tmp_path):
    left(tmp_path, lines(1, 1)[0] + b"torn", lines(2, 1)[0], lines(3, 1)[0] + b"torn")
    disk = FailingDisk()
    segments = opened(tmp_path, "new", disk)
    disk.fails_to = {"truncate"}
    with pytest.raises(OSError, match=r"b-old-1\.jsonl"):
        segments.recover()
    assert segments.waiting == segments.recovered == 1
    disk.fails_to = set()
    segments.recover()
    segments.recover()

    assert segments.waiting == segments.recovered == 3
    assert segments.torn == 2


def test_a_name_that_is_taken_is_left_alone(tmp_path):
    segments = opened(tmp_path)
    others = [tmp_path / "open" / f"b-boot-{n}.jsonl" for n in (1, 2)]
    for path in others:
        path.write_text("not ours\n")
    segments.append(lines(1, 2), 2, NOON)
    segments.seal()

    assert [path.name for path in sealed_in(tmp_path)] == ["b-boot-3.jsonl.gz"]
    assert [path.read_text() for path in others] == ["not ours\n"] * 2


def test_only_what_is_ours_by_its_name_is_recovered(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "b-dir-1.jsonl").mkdir()
    others = [tmp_path / "open" / name for name in ("notes.txt", ".b-x-1.jsonl", "b-x-1.jsonl.gz", "b-x.jsonl")]
    for path in others:
        path.write_text("mine")
    (tmp_path / "open" / "b-link-1.jsonl").symlink_to(others[0])
    segments = opened(tmp_path)
    segments.recover()

    assert segments.waiting == 0
    assert all(path.read_text() == "mine" for path in others)


# removed files


def test_the_lines_of_an_open_file_that_somebody_removed_are_lost_and_the_next_are_kept(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 2), 2, NOON)
    segments.seal()
    segments.append(lines(3, 2), 4, NOON)
    segments.sync()
    (tmp_path / "open" / "b-boot-2.jsonl").unlink()
    segments.append(lines(5, 1), 5, NOON)
    with pytest.raises(FileNotFoundError, match=r"b-boot-2\.jsonl"):
        segments.sync()
    assert (segments.last_seq, segments.lines, segments.acknowledged) == (2, 2, 2)
    segments.append(lines(6, 1), 6, NOON)
    segments.seal()

    assert lines_in(tmp_path) == lines(1, 2) + lines(6, 1)
    assert segments.acknowledged == 3


def test_an_open_file_that_somebody_replaced_is_lost_and_theirs_is_left_alone(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 2), 2, NOON)
    path = tmp_path / "open" / "b-boot-1.jsonl"
    path.unlink()
    path.write_text("not ours\n")
    with pytest.raises(FileNotFoundError):
        segments.rotate()
    segments.append(lines(3, 1), 3, NOON)
    segments.seal()

    assert path.read_text() == "not ours\n"
    assert [path.name for path in sealed_in(tmp_path)] == ["b-boot-2.jsonl.gz"]


def test_an_open_file_that_was_removed_after_its_last_sync_is_noticed_when_it_is_to_be_sealed(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 2), 2, NOON)
    segments.sync()
    (tmp_path / "open" / "b-boot-1.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"b-boot-1\.jsonl"):
        segments.rotate()

    assert (segments.waiting, segments.last_seq, segments.acknowledged) == (0, 0, 0)


def test_a_directory_that_somebody_removed_is_made_again_with_its_lock(tmp_path):
    directory = tmp_path / "journal"
    segments = opened(directory)
    segments.append(lines(1, 2), 2, NOON)
    shutil.rmtree(directory)
    with pytest.raises(FileNotFoundError):
        segments.sync()
    segments.append(lines(3, 1), 3, NOON)
    with pytest.raises(JournalInUse):
        opened(directory, "other")
    segments.seal()

    assert lines_in(directory) == lines(3, 1)


# failing disk


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


# exclusive use


def test_a_second_broker_is_told_who_has_the_journal(tmp_path):
    first = opened(tmp_path)
    with pytest.raises(JournalInUse, match=f"process {os.getpid()}"):
        opened(tmp_path, "other")
    first.close()
    opened(tmp_path, "other").close()


def test_a_lock_that_somebody_removed_is_taken_again(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    (tmp_path / "lock").unlink()
    segments.sync()

    with pytest.raises(JournalInUse):
        opened(tmp_path, "other")


def test_nothing_is_written_while_another_broker_has_taken_the_journal(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    segments.seal()
    (tmp_path / "lock").unlink()
    other = opened(tmp_path, "other")
    for _ in range(2):
        with pytest.raises(JournalInUse):
            segments.append(lines(2, 1), 2, NOON)
    other.close()
    segments.append(lines(3, 1), 3, NOON)
    segments.seal()

    assert lines_in(tmp_path) == lines(1, 1) + lines(3, 1)


def test_what_another_broker_made_of_the_open_file_is_its_own(tmp_path):
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    segments.sync()
    (tmp_path / "lock").unlink()
    other = opened(tmp_path, "other")
    other.recover()
    seal_all(other)
    segments.append(lines(2, 1), 2, NOON)
    with pytest.raises(FileNotFoundError):
        segments.sync()
    with pytest.raises(JournalInUse):
        segments.append(lines(3, 1), 3, NOON)

    assert lines_in(tmp_path) == lines(1, 1)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "_x", "a b", "x" * 65])
def test_names_that_make_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file name"):
        Segments(str(tmp_path), name, "boot", JournalLimits())


# kills


_APPENDER = textwrap.dedent("""
    import sys
    from broker.export.journal_records import Record, common, encode
    from broker.export.segments import JournalLimits, Segments

    segments = Segments(sys.argv[1], "b", "killed", JournalLimits(segment_bytes=20_000))
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
    from broker.export.journal_records import Record, common, encode
    from broker.export.segments import JournalLimits, Segments

    segments = Segments(sys.argv[1], "b", "limited", JournalLimits())
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
        [sys.executable, "-c", _LIMITED, str(tmp_path)], capture_output=True, text=True, cwd=PROJECT, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stderr
    refused = json.loads(ran.stdout)
    seqs = [json.loads(line)["seq"] for line in lines_in(tmp_path)]

    assert refused
    assert refused == list(range(refused[0], 40))
    assert seqs == [seq for seq in range(1, 51) if seq not in refused]


_FULL = textwrap.dedent("""
    import resource, sys
    from broker.export.segments import JournalLimits, Segments

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    segments = Segments(sys.argv[1], "b", "full", JournalLimits())
    segments.open()
    segments.recover()
    try:
        segments.append([b"1\\n"], 1, 0.0)
    except OSError as error:
        assert error.filename.endswith("b-full-1.jsonl"), error
        print(segments.lines)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    segments.append([b"2\\n"], 2, 0.0)
    segments.seal()
    print(segments.lines)
""")


def test_a_full_disk_keeps_no_broker_from_its_start(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)], capture_output=True, text=True, cwd=PROJECT, timeout=PATIENCE
    )

    assert (ran.stdout, ran.stderr) == ("0\n1\n", "")
    assert lines_in(tmp_path) == [b"2\n"]


# file descriptors


@contextmanager
def no_descriptors():
    """Use up all file descriptors of the process, as very many connections do."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, before[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_where_connections_have_all_descriptors_segments_are_still_begun_and_sealed(tmp_path):
    segments = opened(tmp_path)
    with no_descriptors():
        for seq in range(1, 21):
            segments.append(lines(seq, 1), seq, NOON)
            segments.seal()
    segments.close()
    assert lines_in(tmp_path) == lines(1, 20)


def test_a_journal_that_is_closed_holds_no_descriptor(tmp_path):
    before = os.listdir("/proc/self/fd")
    segments = opened(tmp_path)
    segments.append(lines(1, 1), 1, NOON)
    segments.seal()
    segments.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
