"""The sealed segments of a journal: how a file becomes one, and when it is deleted.

Rules:
- A file is sealed a piece at a time, so that the lines of the present need not wait: compressed to a name that begins
  with ".", on the disk, renamed, and only then is the file itself gone. A kill at any moment leaves one of them whole.
- A sealed segment never changes. Where one has the name already, a kill came between the renaming and the end of the
  file: they have the same content, and the file goes. If they have not, both stay, and that is an error.
- Only what has the name of a segment is deleted: files, in the directory of an hour, and nothing behind links.
- The reactor waits for the interpreter while a single call has it. So nothing here is done for all segments at once,
  and where many short calls follow each other, the thread rests.
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

from broker.export.disk import Disk, about, entries
from broker.export.rest import rest

PIECE = 2 * 1024 * 1024
"""How much of a file is compressed at a time: some 50 ms in which nothing is appended."""

CHUNK = 128 * 1024
"""How much is given to zlib at once. It releases the interpreter meanwhile, so this bounds memory, not stalls."""

LEVEL = 6
"""Of compression. Level 9 takes three times as long for a few percent."""

FIRST_LINE = 64 * 1024
"""How much of a file is read to find the time of its first record; lines are some hundred bytes long."""

SWEPT = 500
"""How many files and directories a sweep looks at in one piece: some 20 ms in which nothing is appended."""

LOOKS = 10
"""After how many of them it rests: some 0.3 ms."""

DELETION = 10
"""How many of those looks the deletion of one segment takes as long as."""

CHECKED = 1024 * 1024
"""How much of a file is checked at once: some 0.5 ms in which the interpreter is free."""

TRAILER = 8
"""Bytes at the end of a gzip file: the checksum and the length of what is compressed in it."""

SUFFIX = ".gz"
"""What a segment's name has in addition when it is sealed."""

_SEALED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl\.gz")
_UNFINISHED = re.compile(r"\..+\.jsonl\.gz\.tmp")
_DAY = re.compile(r"date=([0-9]{4}-[0-9]{2}-[0-9]{2})")
_HOUR = re.compile(r"hour=([01][0-9]|2[0-3])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sealed:
    """The sealed segments in ``directory``. Everything raises OSError with the path, and can be tried again."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._sealing: _Sealing | None = None
        self._sweep: Iterator[int] | None = None
        self.sealed = 0
        self.deleted = 0

    def seal_piece(self, path: str) -> bool:
        """Do the next piece of the sealing of a file. Returns whether that was all: then the file is gone.

        After an error it begins from the start, and there is nothing of it that takes room. Until one file is sealed no
        other may be begun.
        """
        try:
            if self._sealing is None:
                target = self._target(path)
                if _is_sealed(path, target):
                    self._replace(path, target)
                    return True
                self._disk.make_directory(os.path.dirname(target))
                self._sealing = _Sealing(self._disk, path, target)
            if not self._sealing.piece():
                return False
            self._sealing.finish()
            target, self._sealing = self._sealing.target, None
            self._replace(path, target)
        except OSError:
            self.abandon()
            raise
        return True

    def _replace(self, path: str, target: str) -> None:
        """The sealed file is whole: the other one goes, once the name of this is on the disk."""
        self._disk.sync_directory(os.path.dirname(target))
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(path)
        self.sealed += 1
        self._disk.sync_directory(os.path.dirname(path))

    def abandon(self) -> None:
        """Leave nothing behind of what is not sealed yet."""
        if self._sealing is not None:
            self._sealing.abandon()
            self._sealing = None

    @property
    def sweeping(self) -> bool:
        """A sweep has begun, and is not at its end."""
        return self._sweep is not None

    def sweep_piece(self, now: float, keep_seconds: float | None, keep_bytes: int | None) -> None:
        """Do the next piece of a sweep: it deletes what a kill or an error left unfinished; then the oldest segments,
        those over the age, and those over the room that all may take. None: without a limit.

        Time and limits are those of its beginning. What cannot be deleted keeps nothing else from it; at the end, the
        first error is raised.
        """
        if self._sweep is None:
            self._sweep = self._sweep_all(now, keep_seconds, keep_bytes)
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
            seen = 1
            for entry in entries(hour.path):
                if _UNFINISHED.fullmatch(entry.name) and not self._is_being_sealed(entry.path):
                    error = self._remove(entry.path)
                    failed = failed or error
                seen += 1
            room += sum(size for _, _, size in hour.segments())
            yield seen
        for hour in self._hours():
            old = keep_seconds is not None and now - hour.begins > keep_seconds
            if not old and (keep_bytes is None or room <= keep_bytes):
                break
            for _, path, size in sorted(hour.segments()):
                if not old and (keep_bytes is None or room <= keep_bytes):
                    break
                error = self._remove(path)
                if error is None:
                    self.deleted += 1
                    room -= size
                failed = failed or error
                yield DELETION
            with contextlib.suppress(OSError):  # not empty yet
                os.rmdir(hour.path)
                os.rmdir(os.path.dirname(hour.path))
            yield 1
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

    def _is_being_sealed(self, path: str) -> bool:
        return self._sealing is not None and self._sealing.unfinished == path

    def _target(self, path: str) -> str:
        """Where a file goes when it is sealed."""
        moment = _first_moment(path)
        name = os.path.basename(path) + SUFFIX
        return os.path.join(self._directory, f"date={moment.date()}", f"hour={moment:%H}", name)

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

    def segments(self) -> Iterator[tuple[int, str, int]]:
        """When each was written, its path and its size."""
        for entry in entries(self.path):
            if _SEALED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime_ns, entry.path, status.st_size


class _Sealing:
    """The compression of one file, a piece at a time."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self._disk = disk
        self.target = target
        self.unfinished = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tmp")
        # zlib's own gzip header has no time and no name in it, so the same lines give the same bytes.
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._source_path = source
        self._source: int | None = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self._file: int | None = None
        try:
            self._file = os.open(self.unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        except OSError:
            self.abandon()
            raise

    def piece(self) -> bool:
        """Compress the next piece. Returns whether that was all."""
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
        """Give the file its name."""
        assert self._file is not None
        with about(self.unfinished):
            self._disk.sync(self._file)
        self._close()
        self._disk.rename(self.unfinished, self.target)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        with contextlib.suppress(OSError):
            self._disk.remove(self.unfinished)

    def _close(self) -> None:
        for file in (self._source, self._file):
            if file is not None:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._source = self._file = None


class _Stamped(msgspec.Struct):
    ts: int


def _first_moment(path: str) -> datetime:
    """When the first record of a file happened; where it does not say so, when the file was last written."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with about(path):
            line = os.read(file, FIRST_LINE).partition(b"\n")[0]
            written = os.fstat(file).st_mtime
    finally:
        os.close(file)
    try:
        return _EPOCH + timedelta(microseconds=msgspec.json.decode(line, type=_Stamped).ts)
    except (msgspec.DecodeError, OverflowError):
        return _EPOCH + timedelta(seconds=written)


def _is_sealed(path: str, target: str) -> bool:
    """Whether the file is sealed there already. Raises FileExistsError if that is another one."""
    try:
        file = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        with about(target):
            trailer = os.pread(file, TRAILER, max(0, os.fstat(file).st_size - TRAILER))
    finally:
        os.close(file)
    if trailer != _trailer(path):
        raise FileExistsError(errno.EEXIST, "another segment has this name", target)
    return True


def _trailer(path: str) -> bytes:
    """What a gzip file of that content ends with."""
    checksum = size = 0
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with about(path):
            while data := os.read(file, CHECKED):
                checksum = zlib.crc32(data, checksum)
                size += len(data)
    finally:
        os.close(file)
    return checksum.to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")
