"""For the tests of the journal: reading one back, a disk that fails, and a thread whose progress the test decides."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, execute

from broker.export.segments import Disk


def immediately(function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """A thread that is done at once."""
    return execute(function, *arguments)


class Thread:
    """A worker thread: what it was given runs when `work` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Deferred[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        self.jobs.append((result, function, arguments))
        return result

    def work(self) -> None:
        """Do the oldest job."""
        result, function, arguments = self.jobs.pop(0)
        execute(function, *arguments).chainDeferred(result)

    def work_all(self) -> None:
        while self.jobs:
            self.work()


class FailingDisk(Disk):
    """A real disk that has ``room`` bytes left, and fails to sync or to truncate while told so."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.fails_to: set[str] = set()

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

    def _check(self, call: str) -> None:
        if call in self.fails_to:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def sealed_in(directory: Path) -> list[Path]:
    """The sealed segments, by their numbers."""
    return sorted(
        directory.glob("segments/date=*/hour=*/[!.]*.jsonl.gz"), key=lambda p: (p.name.rsplit("-", 1)[0], number(p))
    )


def number(path: Path) -> int:
    return int(path.name.split(".jsonl")[0].rsplit("-", 1)[1])


def lines_in(directory: Path) -> list[bytes]:
    """All lines, sealed ones first."""
    lines = []
    for path in sealed_in(directory):
        lines += gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    for path in sorted((directory / "open").glob("*.jsonl"), key=number):
        lines += path.read_bytes().splitlines(keepends=True)
    return lines


def records_in(directory: Path) -> list[dict[str, Any]]:
    """All records; fails for a line that is not whole."""
    return [json.loads(line) for line in lines_in(directory) if line.endswith(b"\n") or torn(line)]


def torn(line: bytes) -> bool:
    raise AssertionError(f"a torn line: {line!r}")


def check_losses(records: list[dict[str, Any]]) -> int:
    """Numbers rise by one, but before a ``drop``, which says by how many more. Returns how many were lost."""
    last = lost = 0
    for record in records:
        gap = record["seq"] - last - 1
        assert gap == record.get("dropped", 0), record
        assert (record["event"] == "drop") == (gap > 0), record
        last, lost = record["seq"], lost + gap
    return lost
