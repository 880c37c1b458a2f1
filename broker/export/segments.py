"""Files of the metrics journal: the open one, and those that earlier starts left.

Sealing and deletion are in `broker.export.sealed_segments`, the lock is in `broker.export.journal_disk`.

All functions block on the disk, and are for one worker thread at a time.

Rules:
- Lines are appended to one open file. They are *good* when they are in it completely, and *acknowledged* when they are
  on the disk (`Segments.sync`). ``last_seq`` and ``lines`` refer to good ones, ``acknowledged`` to acknowledged ones.
- After a failed append, the good lines are those before it; after a failed sync, the acknowledged ones, as the state of
  the others is unknown. Data behind the good lines is truncated before any further write: a file never has an
  incomplete line in its middle, nor one that was reported as lost.
- If the open file is removed, with or without the directories, a sync detects it. All of its lines are lost then,
  acknowledged or not; the next append creates what is missing.
- An open file that is large or old enough is rotated: synced completely, never written again, and queued for sealing.
- Existing files with foreign names are left alone. Only files of this broker, by their names, are touched.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
from collections import deque
from collections.abc import Sequence

import attrs

from broker.blocking import blocking
from broker.export.journal_disk import Disk, Lock, about, entries, is_at
from broker.export.journal_records import BROKER_NAME
from broker.export.sealed_segments import Retention, Sealing

QUEUE = 200_000
"""Default capacity of the queue, in records: some 60 MB, and 200 seconds of 1,000 a second on a disk that hangs. The
thread may hold as many again."""

CHUNK = 128 * 1024
"""Bytes of a file that are searched at once for the end of its last complete line."""

OWN_DIRECTORIES = ("open", "segments")
"""Directories of a journal: that of the open file, and that of sealed segments."""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl")


@attrs.frozen
class JournalLimits:
    """Limits of a journal, which the keys of ``[journal]`` set (`broker.config.journal_settings`).

    ``segment_bytes`` and ``segment_seconds``: size and age at which a file is rotated. None: without a limit.
    """

    queue: int = QUEUE
    segment_bytes: float = math.inf
    segment_seconds: float = math.inf
    keep_seconds: float | None = None
    keep_bytes: int | None = None


class Segments:
    """Files in ``directory`` of this start, ``boot``, of the broker of that name.

    All methods raise OSError with the path in question, and can be retried after that.
    """

    def __init__(self, directory: str, broker: str, boot: str, limits: JournalLimits, disk: Disk | None = None) -> None:
        for name in (broker, boot):
            if not BROKER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be part of a file name: letters, digits, dots, dashes and _ only")
        self.directory = directory
        self._open_directory, self._sealed_directory = (os.path.join(directory, name) for name in OWN_DIRECTORIES)
        self._stem = f"{broker}-{boot}"
        self.broker = broker
        self.boot = boot
        self.limits = limits
        self._disk = Disk() if disk is None else disk
        self._lock = Lock(directory, self._disk)
        self._sealing = Sealing(self._sealed_directory, self._disk)
        self._retention = Retention(self._sealed_directory, self._disk)

        self._file: int | None = None
        self._path = ""
        self._number = 0
        self._opened = 0.0
        self._good = 0
        """Bytes of good lines in the open file."""
        self._torn = False
        """True if there may be data behind them, to be truncated."""
        self._named = True
        """True if the open file's name is on the disk."""
        self._before = (0, 0)
        """``last_seq`` and ``lines`` when the open file was created."""
        self._synced = (0, 0, 0)
        """Size of the open file, ``last_seq`` and ``lines`` at the last sync."""
        self._to_seal: deque[str] = deque()

        self.last_seq = 0
        """Number of the last good record."""
        self.lines = 0
        """Good records, in all files of this start."""
        self.acknowledged = 0
        """Records that are on the disk."""
        self.recovered = 0
        """Files of earlier starts that were found and queued for sealing."""
        self.torn = 0
        """Those of them with a torn last line."""

    # start and end

    def open(self) -> None:
        """Take the lock, and create missing directories.

        Raises `JournalInUse` if another broker has the lock; after any error nothing is held.
        """
        self._disk.hold_spares()
        try:
            self._lock.take()
            for directory in (self._open_directory, self._sealed_directory):
                self._disk.make_directory(directory)
        except BaseException:
            self._lock.release()
            self._disk.drop_spares()
            raise

    @blocking
    def recover(self) -> None:
        """Recover open files of earlier starts: cut torn lines, and queue the files for sealing.

        A file that cannot be recovered stays as it is, for the next start; after the others, the first error is raised.
        """
        self._disk.hold_spares()
        self._lock.take()  # `open` may have failed to take it on a full disk
        failed: OSError | None = None
        for entry in entries(self._open_directory):
            if not _SEGMENT.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            if entry.path == self._path or entry.path in self._to_seal:
                continue
            try:
                if self._cut(entry.path):
                    self._to_seal.append(entry.path)
                    self.recovered += 1
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Release all resources; unsealed files are left to the next start. Idempotent."""
        self._sealing.abandon()
        self._drop_file()
        self._lock.release()
        self._disk.drop_spares()

    # the open file

    def append(self, lines: Sequence[bytes], last_seq: int, now: float) -> None:
        """Append whole lines, the last of which is record number ``last_seq``: all are good then, or none."""
        self._repair()
        file = self._file
        if file is None:
            file = self._create(now)
        data = b"".join(lines)
        # Set before the write, cleared after it: an error in between leaves a tail to truncate.
        self._torn = True
        self._disk.write_all(file, self._path, data)
        self._torn = False
        self._good += len(data)
        self.last_seq = last_seq
        self.lines += len(lines)

    def sync(self) -> None:
        """Sync all good lines to the disk."""
        self._repair()
        if self._file is None or self._synced[0] == self._good:
            return
        self._look()
        try:
            with about(self._path):
                self._disk.sync(self._file)
            if not self._named:
                self._disk.sync_directory(self._open_directory)
                self._named = True
        except OSError:
            self._good, self.last_seq, self.lines = self._synced
            self._torn = True
            raise
        self._synced = (self._good, self.last_seq, self.lines)
        self.acknowledged = self.lines

    @property
    def unsynced(self) -> bool:
        """True if there are good lines that are not acknowledged."""
        return self._file is not None and self._synced[0] != self._good

    def due(self, now: float) -> bool:
        """Return True if to rotate the open file: it is large or old, or the clock was set back since its creation."""
        if self._file is None or not self._good:
            return False
        age = now - self._opened
        return self._good >= self.limits.segment_bytes or not 0 <= age < self.limits.segment_seconds

    def rotate(self) -> None:
        """Sync the open file and queue it for sealing; the next append creates another one."""
        self.sync()
        if self._file is None:
            return
        self._look()
        if self._good:
            self._to_seal.append(self._path)
        else:  # all of its lines were lost
            self._disk.remove(self._path)
        self._drop_file()

    def _create(self, now: float) -> int:
        self._lock.take()
        self._disk.make_directory(self._open_directory)
        file = None
        while file is None:
            self._number += 1
            path = os.path.join(self._open_directory, f"{self._stem}-{self._number}.jsonl")
            with contextlib.suppress(FileExistsError):  # a foreign file: take the next number
                file = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
        self._file, self._path, self._opened = file, path, now
        self._good = 0
        self._named = False
        self._before = (self.last_seq, self.lines)
        self._synced = (0, self.last_seq, self.lines)
        return file

    def _look(self) -> None:
        """Detect a removal of the open file, or of the lock."""
        assert self._file is not None
        if not is_at(self._file, self._path):
            path = self._path
            self.last_seq, self.lines = self._before
            self.acknowledged = self.lines
            self._drop_file()
            raise FileNotFoundError(errno.ENOENT, "the open file was removed, with all its content", path)
        self._lock.take()

    def _repair(self) -> None:
        """Truncate the data behind the good lines."""
        if self._torn and self._file is not None:
            with about(self._path):
                self._disk.truncate(self._file, self._good)
        self._torn = False

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # sync has settled already whether its lines are on the disk
                self._disk.close(self._file)
        self._file, self._path, self._good, self._torn = None, "", 0, False

    def _cut(self, path: str) -> bool:
        """Cut a torn last line off a file of an earlier start, and all behind a hole. Returns True if anything is left;
        otherwise it is removed."""
        file = self._disk.open(path, os.O_RDWR)
        try:
            with about(path):
                size = os.fstat(file).st_size
                whole = _end_of_lines(file, _begin_of_hole(file, size))
                if whole < size:
                    self._disk.truncate(file, whole)
                    self.torn += 1
                self._disk.sync(file)
        finally:
            self._disk.close(file)
        if not whole:
            self._disk.remove(path)
        return whole > 0

    # sealed files

    @property
    def waiting(self) -> int:
        """Number of files that wait for sealing."""
        return len(self._to_seal)

    @property
    def sealed(self) -> int:
        """Number of files that were sealed."""
        return self._sealing.sealed

    @property
    def deleted(self) -> int:
        """Number of sealed segments that were deleted."""
        return self._retention.deleted

    def seal(self) -> None:
        """Rotate, and seal all waiting files."""
        self.rotate()
        while self.waiting:
            self.seal_piece()

    @blocking
    def seal_piece(self) -> None:
        """Seal the next piece of the oldest waiting file.

        After an error the file goes to the end of the queue, unless it was removed.
        """
        if not self._to_seal:
            return
        path = self._to_seal[0]
        try:
            if self._sealing.piece(path):
                self._to_seal.popleft()
        except OSError:
            self._to_seal.popleft()
            if os.path.lexists(path):
                self._to_seal.append(path)
            raise

    @property
    def retaining(self) -> bool:
        """True while a sweep of retention has begun and not ended."""
        return self._retention.sweeping

    def retain(self, now: float) -> None:
        """Delete the oldest sealed segments, and unfinished files."""
        self.retain_piece(now)
        while self.retaining:
            self.retain_piece(now)

    def retain_piece(self, now: float) -> None:
        """Do the next piece of `retain`; see `Retention.sweep_piece`."""
        limits, keep = self.limits, self.limits.keep_seconds
        if keep is not None and limits.segment_seconds < math.inf:
            # Directories have the hour of a first record; the last one of a segment may be that much later.
            keep += limits.segment_seconds
        self._retention.sweep_piece(now, keep, limits.keep_bytes, self._sealing.unfinished)


def _begin_of_hole(file: int, size: int) -> int:
    """Return the number of bytes before the first zero, which no line has.

    After a power loss, zeros stand for data that were appended and not synced, if later data reached the disk before
    them. No line behind them is acknowledged.
    """
    for begin in range(0, size, CHUNK):
        found = os.pread(file, min(CHUNK, size - begin), begin).find(b"\0")
        if found >= 0:
            return begin + found
    return size


def _end_of_lines(file: int, size: int) -> int:
    """Return the number of bytes that are complete lines, of the first ``size`` bytes of a file."""
    end = size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = os.pread(file, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0
