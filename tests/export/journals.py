"""Fixtures for the journal's tests: writing a journal, a failing disk, and reading a journal back."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

from broker.export.journal_disk import Disk
from broker.export.journal_records import Record, common, encode
from broker.export.segments import JournalLimits, Segments

HOUR = 3600.0

NOON = 1_700_000_000.0 // 86_400 * 86_400 + 12 * HOUR
"""2023-11-14 at 12 o'clock, in seconds of the epoch."""

_made: list[Segments] = []
"""Journals of the current test."""


def made(segments: Segments) -> Segments:
    """Return the segments, which are closed after the test (conftest.py)."""
    _made.append(segments)
    return segments


def close_all() -> None:
    """Close all journals that are made so far."""
    while _made:
        _made.pop().close()


def lines(first: int, count: int, ts: float = NOON) -> list[bytes]:
    """Return that many lines, numbered from ``first``."""
    record = Record(int(ts * 1e6), "hb", "dbp", service="s")
    return [encode(record, common("b", "boot"), seq) for seq in range(first, first + count)]


def opened(directory: Path, boot: str = "boot", disk: Disk | None = None, **limits: Any) -> Segments:
    """Return the segments of one start of a broker in that directory."""
    segments = made(Segments(str(directory), "b", boot, JournalLimits(**limits), disk))
    segments.open()
    return segments


def seal_all(segments: Segments) -> None:
    while segments.waiting:
        segments.seal_piece()


def left(directory: Path, *contents: bytes) -> list[Path]:
    """Create open segments of an earlier start: files with these contents."""
    opened(directory, "old").close()
    paths = []
    for n, content in enumerate(contents, 1):
        paths.append(directory / "open" / f"b-old-{n}.jsonl")
        paths[-1].write_bytes(content)
    return paths


class FailingDisk(Disk):
    """Real disk with ``room`` bytes left, on which chosen operations fail."""

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self.fails_to: set[str] = set()
        self.keeps: set[str] = set()
        """Names of files that cannot be removed."""

    def write(self, file: int, data: bytes | memoryview) -> int:
        if self.room is not None:
            data = data[: self.room]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(data)
        return super().write(file, data)

    def sync(self, file: int) -> None:
        self._check("sync")
        super().sync(file)

    def truncate(self, file: int, size: int) -> None:
        self._check("truncate")
        super().truncate(file, size)

    def rename(self, source: str, target: str) -> None:
        self._check("rename")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        if os.path.basename(path) in self.keeps:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        super().remove(path)

    def _check(self, call: str) -> None:
        if call in self.fails_to:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class WatchedDisk(Disk):
    """Real disk that records the calls, and their files: their order decides what a power failure leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[tuple[str, int]] = []
        """Names of calls, with the inodes of their files."""

    def sync(self, file: int) -> None:
        self.did.append(("sync", os.fstat(file).st_ino))
        super().sync(file)

    def rename(self, source: str, target: str) -> None:
        self.did.append(("rename", os.stat(source).st_ino))
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.did.append(("remove", os.stat(path).st_ino))
        super().remove(path)


def sealed_in(directory: Path) -> list[Path]:
    """Return the sealed segments by their numbers."""
    return sorted(
        directory.glob("segments/date=*/hour=*/[!.]*.jsonl.gz"), key=lambda p: (p.name.rsplit("-", 1)[0], number(p))
    )


def number(path: Path) -> int:
    return int(path.name.split(".jsonl")[0].rsplit("-", 1)[1])


def lines_in(directory: Path) -> list[bytes]:
    """Return all lines, sealed ones first."""
    lines = []
    for path in sealed_in(directory):
        lines += gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    for path in sorted((directory / "open").glob("*.jsonl"), key=number):
        lines += path.read_bytes().splitlines(keepends=True)
    return lines


def records_in(directory: Path) -> list[dict[str, Any]]:
    """Return all records; fails for an incomplete line."""
    return [json.loads(line) for line in lines_in(directory) if line.endswith(b"\n") or torn(line)]


def torn(line: bytes) -> bool:
    raise AssertionError(f"a torn line: {line!r}")


def check_losses(records: list[dict[str, Any]]) -> int:
    """Assert that numbers rise by one, except before a ``drop``, which has the size of the gap. Returns the losses."""
    last = lost = 0
    for record in records:
        gap = record["seq"] - last - 1
        assert gap == record.get("dropped", 0), record
        assert (record["event"] == "drop") == (gap > 0), record
        last, lost = record["seq"], lost + gap
    return lost
