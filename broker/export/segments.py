"""The files of the metrics journal: the one that is written, and what earlier starts left.

How they are sealed is in `sealing`, how they are deleted in `retention`.

Everything here blocks on the disk, and is for one worker thread at a time.

Rules:
- Lines are appended to one open file. They are *good* when they are in it whole, and *acknowledged* when they are on
  the disk (`Segments.sync`). ``last_seq`` and ``lines`` tell of good ones, ``acknowledged`` of acknowledged ones.
- After an append that failed, the good lines are those before it; after a sync that failed, the acknowledged ones, as
  nobody knows what became of the others. What lies behind them is cut off before anything else is written: a file never
  has a line in its middle that is not whole, nor one that was said to be lost.
- If somebody removes the open file, with or without the directories, a sync notices. All of its lines are lost then,
  acknowledged or not; and the next ones find what is missing made again.
- An open file that is large or old enough is rotated: on the disk whole, and never written again. It is to be sealed.
- A name that is taken is left alone. Only files that are ours by their name are touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import deque
from collections.abc import Sequence

import attrs

from broker.export.disk import Disk, about, entries, is_at
from broker.export.lock import Lock
from broker.export.records import BROKER_NAME
from broker.export.retention import Retention
from broker.export.sealing import Sealing

SEGMENT_BYTES = 64 * 1024 * 1024
"""The size at which a file is rotated: some 300,000 records. A reader of many small files is far slower."""

SEGMENT_SECONDS = 3600.0
"""The age at which a file is rotated: the oldest record that a reader of sealed files lacks is not much older."""

KEEP_SECONDS = 35 * 86_400.0
"""Seconds for which sealed segments are kept: a month, and some days to notice and repeat a failed job."""

KEEP_BYTES = 4 * 1024 * 1024 * 1024
"""Bytes that sealed segments may take: some 180 million records, a month of 2,000 heartbeats in 30 seconds."""

QUEUE = 200_000
"""Records that may wait for the thread: some 60 MB, and 200 seconds of 1,000 a second while the disk does not answer.
As many again may be in the thread's hands."""

CHUNK = 128 * 1024
"""Bytes of a file that are searched at once for the end of its last whole line."""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl")


@attrs.frozen
class JournalLimits:
    """Limits of a journal. None: without a limit."""

    queue: int = QUEUE
    segment_bytes: int = SEGMENT_BYTES
    segment_seconds: float = SEGMENT_SECONDS
    keep_seconds: float | None = KEEP_SECONDS
    keep_bytes: int | None = KEEP_BYTES


class Segments:
    """The files in ``directory`` of this start, ``boot``, of the broker of that name.

    All methods raise OSError with the path that it is about, and can be tried again after that.
    """

    def __init__(self, directory: str, broker: str, boot: str, limits: JournalLimits, disk: Disk | None = None) -> None:
        for name in (broker, boot):
            if not BROKER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be part of a file name: letters, digits, dots, dashes and _ only")
        self.directory = directory
        self._open_directory = os.path.join(directory, "open")
        self._sealed_directory = os.path.join(directory, "segments")
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
        """Bytes of the open file that are good lines."""
        self._torn = False
        """There may be something behind them, to be cut off."""
        self._named = True
        """The open file's name is on the disk."""
        self._before = (0, 0)
        """``last_seq`` and ``lines`` when the open file was begun."""
        self._synced = (0, 0, 0)
        """Bytes of the open file, ``last_seq`` and ``lines`` when it was last on the disk."""
        self._to_seal: deque[str] = deque()

        self.last_seq = 0
        """The number of the last good record."""
        self.lines = 0
        """Good records, in all files of this start."""
        self.acknowledged = 0
        """Those that are on the disk."""
        self.recovered = 0
        """Files of earlier starts that were there to be sealed."""
        self.torn = 0
        """Those of them of which something was cut off."""

    # start and end

    def open(self) -> None:
        """Take the lock, and make the directories that are not there yet.

        Raises `JournalInUse` where another has it, and after any error holds nothing.
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

    def recover(self) -> None:
        """Clear up what earlier starts left open: cut torn lines, and have the rest sealed.

        A file that cannot be recovered stays as it is, for the next start; after the others, the first error is raised.
        """
        self._disk.hold_spares()
        self._lock.take()  # which a full disk may have kept `open` from
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
        """Release everything; what is not sealed is left to the next start. Harmless when not open."""
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
        self._torn = True
        self._disk.write_all(file, self._path, data)
        self._torn = False
        self._good += len(data)
        self.last_seq = last_seq
        self.lines += len(lines)

    def sync(self) -> None:
        """Have all good lines on the disk."""
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
        """There are good lines that are not acknowledged."""
        return self._file is not None and self._synced[0] != self._good

    def due(self, now: float) -> bool:
        """Return whether to rotate the open file: it is large or old, or the clock was set back since its start."""
        if self._file is None or not self._good:
            return False
        age = now - self._opened
        return self._good >= self.limits.segment_bytes or not 0 <= age < self.limits.segment_seconds

    def rotate(self) -> None:
        """Have all on the disk and begin another file with the next line; this one is to be sealed."""
        self.sync()
        if self._file is None:
            return
        self._look()
        if self._good:
            self._to_seal.append(self._path)
        else:  # all that was in it was lost
            self._disk.remove(self._path)
        self._drop_file()

    def _create(self, now: float) -> int:
        self._lock.take()
        self._disk.make_directory(self._open_directory)
        file = None
        while file is None:
            self._number += 1
            path = os.path.join(self._open_directory, f"{self._stem}-{self._number}.jsonl")
            with contextlib.suppress(FileExistsError):  # not ours: the next number, then
                file = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
        self._file, self._path, self._opened = file, path, now
        self._good = 0
        self._named = False
        self._before = (self.last_seq, self.lines)
        self._synced = (0, self.last_seq, self.lines)
        return file

    def _look(self) -> None:
        """Notice that somebody removed the open file, or the lock."""
        assert self._file is not None
        if not is_at(self._file, self._path):
            path = self._path
            self.last_seq, self.lines = self._before
            self.acknowledged = self.lines
            self._drop_file()
            raise FileNotFoundError(errno.ENOENT, "somebody removed the open file, and all that was in it", path)
        self._lock.take()

    def _repair(self) -> None:
        """Cut off what lies behind the good lines."""
        if self._torn and self._file is not None:
            with about(self._path):
                self._disk.truncate(self._file, self._good)
        self._torn = False

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # whether its lines are on the disk was settled by sync
                self._disk.close(self._file)
        self._file, self._path, self._good, self._torn = None, "", 0, False

    def _cut(self, path: str) -> bool:
        """Cut a torn last line off a file of an earlier start. Returns whether anything is left; else it is gone."""
        file = self._disk.open(path, os.O_RDWR)
        try:
            with about(path):
                size = os.fstat(file).st_size
                whole = _end_of_lines(file, size)
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
        """Files that are to be sealed."""
        return len(self._to_seal)

    @property
    def sealed(self) -> int:
        """Files that were sealed."""
        return self._sealing.sealed

    @property
    def deleted(self) -> int:
        """Sealed ones that were deleted."""
        return self._retention.deleted

    def seal(self) -> None:
        """Rotate, and seal all that waits for it."""
        self.rotate()
        while self.waiting:
            self.seal_piece()

    def seal_piece(self) -> None:
        """Do the next piece of the sealing of the oldest file that waits for it.

        After an error the file waits behind the others; but not if somebody took it away.
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
        """A look for what is to be deleted has begun, and is not at its end."""
        return self._retention.sweeping

    def retain(self, now: float) -> None:
        """Delete the oldest sealed segments, and what was left unfinished."""
        self.retain_piece(now)
        while self.retaining:
            self.retain_piece(now)

    def retain_piece(self, now: float) -> None:
        """Do the next piece of that; see `Retention.sweep_piece`."""
        limits = self.limits
        self._retention.sweep_piece(now, limits.keep_seconds, limits.keep_bytes, self._sealing.unfinished)


def _end_of_lines(file: int, size: int) -> int:
    """Return the number of bytes of a file that are whole lines."""
    end = size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = os.pread(file, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0
