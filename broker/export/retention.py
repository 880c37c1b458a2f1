"""Retention: deletion of old sealed segments of a journal.

Rules:
- Only what has the name of a segment is deleted, or of one that is not finished: files, in the directory of an hour;
  nothing behind links.
- The oldest go first: those of the earliest hour, and of one hour those that were written first.
- There may be a great many. So a sweep is done a piece at a time, it never has all of them in its hands, and it rests.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import attrs

from broker.export.disk import Disk, entries
from broker.export.rest import rest

SWEPT = 500
"""Files and directories that a sweep looks at in one piece: some 20 ms in which nothing is appended."""

LOOKS = 10
"""After how many of them it rests: some 0.3 ms."""

DELETION = 10
"""Cost of the deletion of one segment, in looks."""

_SEALED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl\.gz")
_UNFINISHED = re.compile(r"\..+\.jsonl\.gz\.tmp")
_DAY = re.compile(r"date=([0-9]{4}-[0-9]{2}-[0-9]{2})")
_HOUR = re.compile(r"hour=([01][0-9]|2[0-3])")


class Retention:
    """Sweeps of the sealed segments in ``directory``."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._sweep: Iterator[int] | None = None
        self._being_sealed: str | None = None
        self.deleted = 0

    @property
    def sweeping(self) -> bool:
        """A sweep has begun, and is not at its end."""
        return self._sweep is not None

    def sweep_piece(
        self, now: float, keep_seconds: float | None, keep_bytes: int | None, being_sealed: str | None
    ) -> None:
        """Do the next piece of a sweep: it deletes what a kill or an error left unfinished; then the oldest segments,
        those over the age, and those over the room that all may take. None: without a limit.

        Time and limits are those of its beginning. What cannot be deleted keeps nothing else from it; at the end, the
        first error is raised. ``being_sealed`` is the one file that is unfinished because somebody works on it.
        """
        if self._sweep is None:
            self._sweep = self._sweep_all(now, keep_seconds, keep_bytes)
        self._being_sealed = being_sealed
        steps = 0
        try:
            for step in self._sweep:
                for _ in range((steps + step) // LOOKS - steps // LOOKS):
                    rest()
                steps += step
                if steps >= SWEPT:
                    return
        except OSError:
            self._sweep = None
            raise
        self._sweep = None

    def _sweep_all(self, now: float, keep_seconds: float | None, keep_bytes: int | None) -> Iterator[int]:
        failed: OSError | None = None
        room = 0
        for hour in self._hours():
            yield 1
            for entry in entries(hour.path):
                yield 1
                if _UNFINISHED.fullmatch(entry.name) and entry.path != self._being_sealed:
                    error = self._remove(entry.path)
                    failed = failed or error
                elif segment := _segment(entry):
                    room += segment.size
        for hour in self._hours():
            old = keep_seconds is not None and now - hour.begins > keep_seconds
            if not old and (keep_bytes is None or room <= keep_bytes):
                break
            found = []
            for entry in entries(hour.path):
                yield 1
                if segment := _segment(entry):
                    found.append(segment)
            for segment in sorted(found):
                if not old and (keep_bytes is None or room <= keep_bytes):
                    break
                yield DELETION
                error = self._remove(segment.path)
                if error is None:
                    self.deleted += 1
                    room -= segment.size
                failed = failed or error
            with contextlib.suppress(OSError):  # not empty yet
                os.rmdir(hour.path)
                os.rmdir(os.path.dirname(hour.path))
        if failed is not None:
            raise failed

    def _remove(self, path: str) -> OSError | None:
        """Delete a file, if it is still there. Returns what went wrong."""
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            return error
        return None

    def _hours(self) -> Iterator[_Hour]:
        """The directories of an hour, the oldest first."""
        for day in entries(self._directory):
            named = _DAY.fullmatch(day.name)
            if named is None or not day.is_dir(follow_symlinks=False):
                continue
            try:
                midnight = datetime.fromisoformat(named[1]).replace(tzinfo=UTC).timestamp()
            except ValueError:
                continue
            for entry in entries(day.path):
                numbered = _HOUR.fullmatch(entry.name)
                if numbered is not None and entry.is_dir(follow_symlinks=False):
                    yield _Hour(entry.path, midnight + 3600.0 * int(numbered[1]))


@attrs.frozen
class _Hour:
    """A directory of sealed segments, and when its hour begins."""

    path: str
    begins: float


@attrs.frozen(order=True)
class _Segment:
    """A sealed segment, and when it was written. They are in order of that."""

    written: int
    path: str
    size: int


def _segment(entry: os.DirEntry[str]) -> _Segment | None:
    """The segment of that name; None, if it is none, or gone."""
    if not _SEALED.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _Segment(status.st_mtime_ns, entry.path, status.st_size)
