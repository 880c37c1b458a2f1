"""Retention: deletion of old sealed segments of a journal.

Rules:
- Only regular files with the name of a segment, or of an unfinished one, are deleted, and only in the directory of an
  hour. Links are not followed.
- The oldest are deleted first: by hour, and within an hour by the time of writing.
- There may be a great many. So a sweep is done in pieces, never has all entries in memory, and pauses.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import attrs

from broker.blocking import blocking
from broker.export.journal_disk import Disk, entries, pause

SWEPT = 500
"""Files and directories examined in one piece of a sweep: some 20 ms in which nothing is appended."""

LOOKS = 10
"""Number of them between two pauses: some 0.3 ms."""

DELETION = 10
"""Cost of the deletion of one segment, in examined entries."""

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
        """True while a sweep has begun and not ended."""
        return self._sweep is not None

    def sweep_piece(
        self, now: float, keep_seconds: float | None, keep_bytes: int | None, being_sealed: str | None
    ) -> None:
        """Do the next piece of a sweep: delete unfinished files that a kill or an error left; then the oldest segments,
        those over the age ``keep_seconds``, and those over the total size ``keep_bytes``. None: without a limit.

        Time and limits are those of its beginning. An error does not stop the sweep; at the end, the first one is
        raised. ``being_sealed`` is the one unfinished file that is in use.
        """
        if self._sweep is None:
            self._sweep = self._sweep_all(now, keep_seconds, keep_bytes)
        self._being_sealed = being_sealed
        steps = 0
        try:
            for step in self._sweep:
                for _ in range((steps + step) // LOOKS - steps // LOOKS):
                    pause()
                steps += step
                if steps >= SWEPT:
                    return
        except OSError:
            self._sweep = None
            raise
        self._sweep = None

    @blocking
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
        """Delete a file, if it still exists. Returns the error, None on success."""
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            return error
        return None

    @blocking
    def _hours(self) -> Iterator[_Hour]:
        """Iterate over the directories of hours, the oldest first."""
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
    """Directory of sealed segments, and the beginning of its hour in seconds of the epoch."""

    path: str
    begins: float


@attrs.frozen(order=True)
class _Segment:
    """Sealed segment, ordered by its modification time in nanoseconds."""

    written: int
    path: str
    size: int


@blocking
def _segment(entry: os.DirEntry[str]) -> _Segment | None:
    """Return the segment of an entry; None if it is not one, or gone."""
    if not _SEALED.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _Segment(status.st_mtime_ns, entry.path, status.st_size)
