"""Retention: deletion of old sealed segments of a journal.

Rules:
- Only regular files with the name of a segment, or of an unfinished one, are deleted, and only in the directory of an
  hour. Links are not followed.
- The oldest are deleted first: by hour, and within an hour by the time of writing.
- There may be a great many. So a sweep is done in pieces, never has all entries in memory, and pauses.

System calls of the journal, in one class that tests replace by a failing disk.

All of them block, and raise OSError with the path in question.

Connections may use up all file descriptors of the process. So the journal holds `SPARES` of its own. If the system has
none for a file, one of these is closed just before the file is opened; and the descriptor of a closed file becomes a
spare one in a single step (dup2), so that no connection gets it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import attrs

from broker.blocking import blocking
from broker.export.journal_feed import pause

SPARES = 8
"""Number of descriptors in reserve. The journal has four files open at once, the lock included; and a connection that
is accepted between the two steps may take one."""


class Disk:
    """File operations with reserved descriptors. The short methods are plain system calls, which tests override; the
    others are built on them."""

    def __init__(self) -> None:
        self._spares: list[int] = []
        self._null: int | None = None
        """Descriptor of the null device, of which the spare ones are copies. None while none are held."""

    @blocking
    def hold_spares(self) -> None:
        """Reserve descriptors, as many as the system has. Idempotent."""
        with contextlib.suppress(OSError):
            if self._null is None:
                self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            while len(self._spares) < SPARES:
                self._spares.append(os.dup(self._null))

    def drop_spares(self) -> None:
        """Release the reserved descriptors."""
        for file in [*self._spares, *([] if self._null is None else [self._null])]:
            os.close(file)
        self._spares, self._null = [], None

    @blocking
    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        """Open a file, with a reserved descriptor if there is no other."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._spares:
                    raise
            os.close(self._spares.pop())

    def close(self, file: int) -> None:
        """Close a file, and keep its descriptor if the reserve is not full."""
        if self._null is None or len(self._spares) >= SPARES:
            os.close(file)
        else:
            # dup2 replaces the file in one step; between a close and a dup a connection could take the descriptor.
            os.dup2(self._null, file, inheritable=False)
            self._spares.append(file)

    def write(self, file: int, data: bytes | memoryview) -> int:
        return os.write(file, data)

    @blocking
    def sync(self, file: int) -> None:
        os.fsync(file)

    @blocking
    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    @blocking
    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    @blocking
    def remove(self, path: str) -> None:
        os.unlink(path)

    def write_all(self, file: int, path: str, data: bytes) -> None:
        """Write all data to an open file."""
        left = memoryview(data)
        with about(path):
            while left:
                left = left[self.write(file, left) :]

    def sync_directory(self, path: str) -> None:
        """Sync a directory, so that the names in it are on the disk."""
        file = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with about(path):
                self.sync(file)
        finally:
            self.close(file)

    @blocking
    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, and sync their names. No-op if it exists."""
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            return
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if not parent:
                raise
            self.make_directory(parent)
            os.mkdir(path, 0o750)
        self.sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Add the path to errors of calls on an open file, which lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@blocking
def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory in the order of their names; none if it is gone or not a directory."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


@blocking
def is_at(file: int, path: str) -> bool:
    """Return whether an open file is still the one at that path: it may have been removed or replaced."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False


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
