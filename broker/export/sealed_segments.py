"""Sealed segments of the journal: compression of finished files, and deletion of old ones.

Sealing: compression of a finished file of a journal into a segment that never changes.

Rules:
- A file is sealed in pieces, so that new lines need not wait. It is compressed to a name that begins with ".", synced
  to the disk, renamed, and only then is the original removed. A kill at any moment leaves one of them complete.
- A sealed segment never changes. If one has the name already, a kill came between the renaming and the removal of the
  original: they have the same content, and the original is removed. If the content differs, both stay, and that is an
  error.

Retention: deletion of old sealed segments of a journal.

Rules:
- Only regular files with the name of a segment, or of an unfinished one, are deleted, and only in the directory of an
  hour. Links are not followed.
- The oldest are deleted first: by hour, and within an hour by the time of writing.
- There may be a great many. So a sweep is done in pieces, never has all entries in memory, and pauses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import attrs
import msgspec

from broker.blocking import blocking
from broker.export.journal_disk import Disk, about, entries, pause

PIECE = 2 * 1024 * 1024
"""Bytes of a file that are compressed in one piece: some 50 ms in which nothing is appended."""

CHUNK = 128 * 1024
"""Bytes for one call of zlib. It releases the interpreter during the call, so this bounds memory, not stalls."""

LEVEL = 6
"""Compression level. Level 9 takes three times as long for a few percent."""

FIRST_LINE = 64 * 1024
"""Bytes of a file that are read to find the time of its first record; lines are some hundred bytes long."""

CHECKED = 1024 * 1024
"""Bytes of a file for one checksum call: some 0.5 ms in which the interpreter is free."""

TRAILER = 8
"""Bytes at the end of a gzip file: CRC and length of the uncompressed content (RFC 1952)."""

SUFFIX = ".gz"
"""Suffix of the name of a sealed segment."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sealing:
    """Sealing of files, one after the other, into ``directory``."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._compression: _Compression | None = None
        self.sealed = 0

    @property
    def unfinished(self) -> str | None:
        """Path of the unfinished output, None while nothing is being sealed."""
        return None if self._compression is None else self._compression.unfinished

    def piece(self, path: str) -> bool:
        """Seal the next piece of a file. Returns True when the file is sealed and removed.

        After an error the sealing starts over, and its output is removed. Files are sealed one at a time.
        """
        try:
            if self._compression is None:
                target = self._target(path)
                if _is_sealed(self._disk, path, target):
                    self._replace(path, target)
                    return True
                self._disk.make_directory(os.path.dirname(target))
                self._compression = _Compression(self._disk, path, target)
            if not self._compression.piece():
                return False
            self._compression.finish()
            target, self._compression = self._compression.target, None
            self._replace(path, target)
        except OSError:
            self.abandon()
            raise
        return True

    def _replace(self, path: str, target: str) -> None:
        """Remove the original, once the name of the sealed segment is on the disk."""
        self._disk.sync_directory(os.path.dirname(target))
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(path)
        self.sealed += 1
        self._disk.sync_directory(os.path.dirname(path))

    def abandon(self) -> None:
        """Remove the unfinished output."""
        if self._compression is not None:
            self._compression.abandon()
            self._compression = None

    def _target(self, path: str) -> str:
        """Return the path of the sealed segment of a file."""
        moment = _first_moment(self._disk, path)
        name = os.path.basename(path) + SUFFIX
        return os.path.join(self._directory, f"date={moment.date()}", f"hour={moment:%H}", name)


class _Compression:
    """Compression of one file, in pieces."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self._disk = disk
        self.target = target
        self.unfinished = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tmp")
        # zlib's own gzip header contains no time and no name, so the same lines give the same bytes.
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._source_path = source
        self._source: int | None = disk.open(source, os.O_RDONLY)
        self._file: int | None = None
        try:
            self._file = disk.open(self.unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        except OSError:
            self.abandon()
            raise

    def piece(self) -> bool:
        """Compress the next piece. Returns True if it was the last."""
        assert self._source is not None
        assert self._file is not None
        for _ in range(PIECE // CHUNK):
            with about(self._source_path):
                data = os.read(self._source, CHUNK)
            compressed = self._compressor.compress(data) if data else self._compressor.flush()
            self._disk.write_all(self._file, self.unfinished, compressed)
            if not data:
                return True
        return False

    def finish(self) -> None:
        """Sync the output, and rename it to its final name."""
        assert self._file is not None
        with about(self.unfinished):
            self._disk.sync(self._file)
        self._close()
        self._disk.rename(self.unfinished, self.target)

    def abandon(self) -> None:
        """Remove the output."""
        self._close()
        with contextlib.suppress(OSError):
            self._disk.remove(self.unfinished)

    def _close(self) -> None:
        for file in (self._source, self._file):
            if file is not None:
                with contextlib.suppress(OSError):
                    self._disk.close(file)
        self._source = self._file = None


class _Stamped(msgspec.Struct):
    ts: int


def _first_moment(disk: Disk, path: str) -> datetime:
    """Return the time of the first record of a file; without one, the file's modification time."""
    file = disk.open(path, os.O_RDONLY)
    try:
        with about(path):
            line = os.read(file, FIRST_LINE).partition(b"\n")[0]
            written = os.fstat(file).st_mtime
    finally:
        disk.close(file)
    try:
        return _EPOCH + timedelta(microseconds=msgspec.json.decode(line, type=_Stamped).ts)
    except (msgspec.DecodeError, OverflowError):
        return _EPOCH + timedelta(seconds=written)


def _is_sealed(disk: Disk, path: str, target: str) -> bool:
    """Return True if the file is sealed there already. Raises FileExistsError if the target has other content."""
    try:
        file = disk.open(target, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        with about(target):
            trailer = os.pread(file, TRAILER, max(0, os.fstat(file).st_size - TRAILER))
    finally:
        disk.close(file)
    # CRC and length identify the content without decompressing the segment.
    if trailer != _trailer(disk, path):
        raise FileExistsError(errno.EEXIST, "another segment has this name", target)
    return True


def _trailer(disk: Disk, path: str) -> bytes:
    """Return the gzip trailer that a file would have: CRC and length, little endian (RFC 1952)."""
    checksum = size = 0
    file = disk.open(path, os.O_RDONLY)
    try:
        with about(path):
            while data := os.read(file, CHECKED):
                checksum = zlib.crc32(data, checksum)
                size += len(data)
    finally:
        disk.close(file)
    return checksum.to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")


SWEPT = 500
"""Files and directories that one step of a sweep examines: some 20 ms in which nothing is appended."""

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
    """Directory of sealed segments, and the beginning of its hour in seconds since the epoch."""

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
