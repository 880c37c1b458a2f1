"""Segments as files: which there are, and whether one can be read at all."""

import gzip
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import pytest

from spark.capacity.ingest.journal_folders import JournalError, folders_of
from spark.capacity.ingest.segments import Found, Reach, Segment, batches, damage_of, find_segments, reach
from tests.spark.journal import TODAY, lines, record, segment


def test_a_folder_without_segments_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no folder named segments"):
        find_segments([tmp_path], TODAY)


def test_only_folders_with_another_state_or_a_doubt_are_listed(tmp_path: Path) -> None:
    first = segment(tmp_path, "b-one-1", lines(record(1)))
    second = segment(tmp_path, "b-one-2", lines(record(2)), day="2026-03-03")
    found = find_segments([tmp_path], TODAY)
    assert [one.name for one in found.segments] == [first, second]
    places = [first.rpartition("/")[0], second.rpartition("/")[0]]
    assert list(found.folders) == places
    assert find_segments([tmp_path], TODAY, found.folders) == Found([], [], {})
    assert [one.name for one in find_segments([tmp_path], TODAY, found.folders, places[1:]).segments] == [second]
    third = segment(tmp_path, "b-one-3", lines(record(3)))
    assert [one.name for one in find_segments([tmp_path], TODAY, found.folders).segments] == [first, third]


def test_what_is_deleted_while_it_is_listed_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, kept = (segment(tmp_path, f"b-one-{number}", lines(record(number))) for number in (1, 2))
    other = segment(tmp_path, "b-one-3", lines(record(3)), day="2026-03-01")
    folder = tmp_path / "segments"
    scandir = os.scandir

    def scan(path: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        found = list(scandir(path))
        # As the broker's retention does it.
        (folder / gone).unlink(missing_ok=True)
        (folder / other).unlink(missing_ok=True)
        with suppress(OSError):
            (folder / other).parent.rmdir()
        return nullcontext(iter(found))

    opened = folders_of(tmp_path, {}, TODAY, alone=True)
    monkeypatch.setattr(os, "scandir", scan)
    names = {hour.name: opened.entries(hour.name) for hour in opened.hours(())}
    assert {f"{hour}/{entry.name}" for hour, entries in names.items() for entry in entries} - {other} == {kept}
    assert find_segments([tmp_path], TODAY).segments[0].name == kept


def test_the_journals_of_several_brokers_are_one_with_each_segment_once(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    first = segment(left, "b-one-1", lines(record(1)))
    whole = segment(left, "b-one-2", lines(record(2)))
    segment(right, "b-one-2", lines(record(2)), cut=5)
    other = segment(right, "c-one-1", lines(record(1)))
    found = find_segments([right, left], TODAY)
    assert [one.name for one in found.segments] == [first, whole, other]
    assert [Path(one.path).is_relative_to(left) for one in found.segments] == [True, True, False]
    assert find_segments([right, left], TODAY, found.folders) == Found([], [], {})
    new = segment(right, "c-one-2", lines(record(2)))
    again = find_segments([right, left], TODAY, found.folders)
    assert [one.name for one in again.segments] == [first, whole, other, new]


def test_batches_keep_the_order_and_have_about_the_size() -> None:
    segments = [Segment(str(number), 10) for number in range(7)]
    assert [[int(one.name) for one in batch] for batch in batches(segments, 25)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batches([], 25)) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"broker":{},"boot":"one","seq":5}',
        b'{"broker":"b","boot":[1],"seq":5}',
        b'{"broker":1,"boot":"one","seq":5}',
        b'{"broker":"b","boot":null,"seq":5}',
        b'{"broker":"\\ud800","boot":"one","seq":5}',
        b'{"broker":"b","boot":"one","seq":9007199254740992}',
        b'{"broker":"b","boot":"one","seq":1000000000000000000000000}',
        b'{"broker":"b","boot":"one","seq":true}',
        b'{"broker":"b","boot":"one"}',
        b"[5]",
    ],
)
def test_damaged_lines_tell_nothing_of_the_reach(tmp_path: Path, line: bytes) -> None:
    text = lines(record(1), record(2)) + line + b"\n"
    path = tmp_path / "segments" / segment(tmp_path, "b-one-1", text, cut=1)
    assert reach(str(path)) == Reach("b", "one", 2)
    (tmp_path / "alone.gz").write_bytes(gzip.compress(line + b"\n")[:-1])
    assert reach(str(tmp_path / "alone.gz")) is None


def test_a_very_deep_line_is_damage_or_read(tmp_path: Path) -> None:
    deep = b'{"broker":"b","boot":"one","seq":5,"x":' + b"[" * 9_000 + b"]" * 9_000 + b"}\n"
    path = tmp_path / "segments" / segment(tmp_path, "b-one-1", lines(record(1), record(2)) + deep, cut=1)
    # From Python 3.14 on, the depth that can be read depends on the size of the stack.
    assert reach(str(path)) in (Reach("b", "one", 2), Reach("b", "one", 5))


def test_it_is_told_why_a_file_cannot_be_decompressed(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"no gzip at all, but long enough")
    assert "cannot be read" in str(damage_of(str(tmp_path / "plain")))
    whole = lines(record(1))
    assert damage_of(str(tmp_path / "segments" / segment(tmp_path, "b-one-1", whole, cut=1))) == "the file is cut off"
    assert damage_of(str(tmp_path / "segments" / segment(tmp_path, "b-one-2", whole))) is None
    (tmp_path / "empty").touch()
    assert damage_of(str(tmp_path / "empty")) == "the file is cut off"
