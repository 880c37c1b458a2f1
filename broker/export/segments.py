"""The files of the metrics journal. Everything here blocks on the disk, and is for one worker thread at a time.

Rules:
- One broker per journal: an exclusive lock on the file ``lock``, which the kernel releases when the process dies.
- Lines are appended to one open file. They are *good* when they are in it whole, and *acknowledged* when they are on
  the disk (`Segments.sync`). ``last_seq`` and ``lines`` tell of good ones, ``acknowledged`` of acknowledged ones.
- After an append that failed, the good lines are those before it; after a sync that failed, the acknowledged ones, as
  nobody knows what became of the others. What lies behind them is cut off before anything else is written: a file never
  has a line in its middle that is not whole, nor one that was said to be lost.
- An open file that is large or old enough is rotated: on the disk whole, and never written again. It is sealed a piece
  at a time, so that the lines of the present need not wait: compressed to a name that begins with ".", on the disk,
  renamed, and only then is the open file gone. A kill at any moment leaves the open file or the sealed one whole.
- Sealing the same file twice gives the same bytes under the same name.
- Only files that are ours by their name are touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import attrs
import msgspec

from broker.export.records import BROKER_NAME

SEGMENT_BYTES = 64 * 1024 * 1024
"""The size at which a file is rotated: some 300,000 records. A reader of many small files is far slower."""

SEGMENT_SECONDS = 3600.0
"""The age at which a file is rotated: the oldest record that a reader of sealed files lacks is not much older."""

KEEP_SECONDS = 35 * 86_400.0
"""How long sealed segments are kept: a month, and some days in which a job that failed is noticed and repeated."""

KEEP_BYTES = 4 * 1024 * 1024 * 1024
"""How much room sealed segments may take: some 180 million records, a month of 2,000 heartbeats in 30 seconds."""

QUEUE = 200_000
"""Records that may wait for the thread: some 60 MB, and 200 seconds of 1,000 a second while the disk does not answer.
As many again may be in the thread's hands."""

PIECE = 2 * 1024 * 1024
"""How much of a file is compressed at a time: some 50 ms in which nothing is appended."""

CHUNK = 128 * 1024
"""How much is given to zlib at once. It releases the interpreter meanwhile, so this bounds memory, not stalls."""

LEVEL = 6
"""Of compression. Level 9 takes three times as long for a few percent."""

FIRST_LINE = 64 * 1024
"""How much of a file is read to find the time of its first record; lines are some hundred bytes long."""

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl")
_SEALED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]+\.jsonl\.gz")
_UNFINISHED = re.compile(r"\..+\.jsonl\.gz\.tmp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JournalInUse(OSError):
    """Another broker writes to this journal."""


@attrs.frozen
class Limits:
    """What a journal may take. None: without a limit."""

    queue: int = QUEUE
    segment_bytes: int = SEGMENT_BYTES
    segment_seconds: float = SEGMENT_SECONDS
    keep_seconds: float | None = KEEP_SECONDS
    keep_bytes: int | None = KEEP_BYTES


class Disk:
    """The calls of the system by which the journal writes, in one place: tests have a disk that fails."""

    def write(self, file: int, data: bytes | memoryview) -> int:
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)


class Segments:
    """The files in ``directory`` of this start, ``boot``, of the broker of that name.

    All methods raise OSError with the path that it is about, and can be tried again after that.
    """

    def __init__(self, directory: str, broker: str, boot: str, limits: Limits, disk: Disk | None = None) -> None:
        for name in (broker, boot):
            if not BROKER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be part of a file name: letters, digits, dots, dashes and _ only")
        self._directory = directory
        self._open_directory = os.path.join(directory, "open")
        self._sealed_directory = os.path.join(directory, "segments")
        self._stem = f"{broker}-{boot}"
        self.broker = broker
        self.boot = boot
        self.limits = limits
        self._disk = Disk() if disk is None else disk

        self._lock: int | None = None
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
        self._synced = (0, 0, 0)
        """Bytes of the open file, ``last_seq`` and ``lines`` when it was last on the disk."""
        self._to_seal: deque[str] = deque()
        self._sealing: _Sealing | None = None

        self.last_seq = 0
        """The number of the last good record."""
        self.lines = 0
        """Good records, in all files of this start."""
        self.acknowledged = 0
        """Those that are on the disk."""
        self.sealed = 0
        self.deleted = 0

    # start and end

    def open(self) -> None:
        """Make the directories that are not there yet, and take the lock.

        Raises `JournalInUse` where another has it, and after any error holds nothing.
        """
        os.makedirs(self._directory, mode=0o750, exist_ok=True)
        path = os.path.join(self._directory, "lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _about(path):
                os.ftruncate(lock, 0)
                os.write(lock, f"{os.getpid()}\n".encode())
            for directory in (self._open_directory, self._sealed_directory):
                self._make(directory)
        except BlockingIOError:
            holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            text = f"another broker writes to this journal (process {holder}): give each its own directory"
            raise JournalInUse(errno.EAGAIN, text, self._directory) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def recover(self) -> None:
        """Clear up what earlier starts left: delete unfinished files, cut torn lines, and have the rest sealed.

        A file that cannot be recovered stays as it is, for the next start; after the others, the first error is raised.
        """
        failed: OSError | None = None
        for directory in self._hours():
            for entry in _entries(directory.path):
                if _UNFINISHED.fullmatch(entry.name):
                    try:
                        os.unlink(entry.path)
                    except OSError as error:
                        failed = failed or error
        for entry in sorted(_entries(self._open_directory), key=lambda entry: entry.name):
            if not _SEGMENT.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            if entry.path == self._path or entry.path in self._to_seal:
                continue
            try:
                if self._cut(entry.path):
                    self._to_seal.append(entry.path)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Release everything; what is not sealed is left to the next start. Harmless when not open."""
        if self._sealing is not None:
            self._sealing.abandon()
            self._sealing = None
        self._drop_file()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # the open file

    def append(self, lines: Sequence[bytes], last_seq: int, now: float) -> None:
        """Append whole lines, the last of which is record number ``last_seq``: all are good then, or none."""
        self._repair()
        file = self._file
        if file is None:
            file = self._create(now)
        data = b"".join(lines)
        left = memoryview(data)
        self._torn = True
        with _about(self._path):
            while left:
                left = left[self._disk.write(file, left) :]
        self._torn = False
        self._good += len(data)
        self.last_seq = last_seq
        self.lines += len(lines)

    def sync(self) -> None:
        """Have all good lines on the disk."""
        self._repair()
        if self._file is None or self._synced[0] == self._good:
            return
        try:
            with _about(self._path):
                self._disk.sync(self._file)
            if not self._named:
                self._sync_directory(self._open_directory)
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
        """Whether the open file is to be rotated: it is large, or old, or the clock was set back since it was begun."""
        if self._file is None or not self._good:
            return False
        age = now - self._opened
        return self._good >= self.limits.segment_bytes or not 0 <= age < self.limits.segment_seconds

    def rotate(self) -> None:
        """Have all on the disk and begin another file with the next line; this one is to be sealed."""
        self.sync()
        if self._file is None:
            return
        if self._good:
            self._to_seal.append(self._path)
        else:  # all that was in it was lost
            os.unlink(self._path)
        self._drop_file()

    def _create(self, now: float) -> int:
        path = os.path.join(self._open_directory, f"{self._stem}-{self._number + 1}.jsonl")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._number += 1
        self._file, self._path, self._opened = file, path, now
        self._good = 0
        self._named = False
        self._synced = (0, self.last_seq, self.lines)
        return file

    def _repair(self) -> None:
        """Cut off what lies behind the good lines."""
        if self._torn and self._file is not None:
            with _about(self._path):
                self._disk.truncate(self._file, self._good)
        self._torn = False

    def _drop_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # whether its lines are on the disk was settled by sync
                os.close(self._file)
        self._file, self._path, self._good, self._torn = None, "", 0, False

    def _cut(self, path: str) -> bool:
        """Cut a torn last line off a file of an earlier start. Returns whether anything is left; else it is gone."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with _about(path):
                size = os.fstat(file).st_size
                whole = _end_of_lines(file, size)
                if whole < size:
                    self._disk.truncate(file, whole)
                self._disk.sync(file)
        finally:
            os.close(file)
        if not whole:
            os.unlink(path)
        return whole > 0

    # sealed files

    @property
    def waiting(self) -> int:
        """Files that are to be sealed."""
        return len(self._to_seal)

    def seal(self) -> None:
        """Rotate, and seal all that waits for it."""
        self.rotate()
        while self.waiting:
            self.seal_piece()

    def seal_piece(self) -> None:
        """Do the next piece of the sealing of the oldest file that waits for it.

        After an error, what there was of the sealed file is deleted, to give its room back, and the file waits behind
        the others.
        """
        if not self._to_seal:
            return
        path = self._to_seal[0]
        try:
            if self._sealing is None:
                try:
                    self._sealing = _Sealing(self._disk, path, self._target(path))
                except FileNotFoundError:
                    if os.path.exists(path):
                        raise
                    self._to_seal.popleft()  # somebody took it away
                    return
            if self._sealing.piece():
                self._sealing.finish()
                self._sync_directory(os.path.dirname(self._sealing.target))
                os.unlink(path)
                self._sync_directory(self._open_directory)
                self._sealing = None
                self._to_seal.popleft()
                self.sealed += 1
        except OSError:
            if self._sealing is not None:
                self._sealing.abandon()
                self._sealing = None
            self._to_seal.rotate(-1)
            raise

    def retain(self, now: float) -> None:
        """Delete the oldest sealed segments: those over the age, and over the room that all may take."""
        found = []
        for hour in self._hours():
            sealed = [entry for entry in _entries(hour.path) if _SEALED.fullmatch(entry.name)]
            found += [(hour.begins, entry.path, entry.stat(follow_symlinks=False).st_size) for entry in sealed]
        found.sort()
        room = sum(size for _, _, size in found)
        limits = self.limits
        for begins, path, size in found:
            old = limits.keep_seconds is not None and now - begins > limits.keep_seconds
            if not old and (limits.keep_bytes is None or room <= limits.keep_bytes):
                break
            os.unlink(path)
            self.deleted += 1
            room -= size
            with contextlib.suppress(OSError):  # not empty yet
                os.rmdir(os.path.dirname(path))
                os.rmdir(os.path.dirname(os.path.dirname(path)))

    def _target(self, path: str) -> str:
        """Where a file goes when it is sealed; its directory is made."""
        moment = _first_moment(path)
        day = os.path.join(self._sealed_directory, f"date={moment:%Y-%m-%d}")
        hour = os.path.join(day, f"hour={moment:%H}")
        self._make(day)
        self._make(hour)
        return os.path.join(hour, os.path.basename(path) + ".gz")

    def _hours(self) -> Iterator[_Hour]:
        """The directories of sealed segments."""
        for day in _entries(self._sealed_directory):
            for hour in _entries(day.path) if day.name.startswith("date=") else ():
                try:
                    moment = datetime.strptime(f"{day.name} {hour.name}", "date=%Y-%m-%d hour=%H")
                except ValueError:
                    continue
                yield _Hour(hour.path, moment.replace(tzinfo=UTC).timestamp())

    def _make(self, directory: str) -> None:
        try:
            os.mkdir(directory, 0o750)
        except FileExistsError:
            return
        self._sync_directory(os.path.dirname(directory))

    def _sync_directory(self, directory: str) -> None:
        file = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _about(directory):
                self._disk.sync(file)
        finally:
            os.close(file)


@attrs.frozen
class _Hour:
    path: str
    begins: float


class _Sealing:
    """The compression of one file, a piece at a time."""

    def __init__(self, disk: Disk, source: str, target: str) -> None:
        self.target = target
        self._disk = disk
        self._unfinished = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.tmp")
        # zlib's own gzip header has no time and no name in it, so the same lines give the same bytes.
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        self._source_path = source
        self._source: int | None = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self._file: int | None = None
        try:
            self._file = os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        except OSError:
            self.abandon()
            raise

    def piece(self) -> bool:
        """Compress the next piece. Returns whether that was all."""
        assert self._source is not None
        for _ in range(PIECE // CHUNK):
            with _about(self._source_path):
                data = os.read(self._source, CHUNK)
            self._write(self._compressor.compress(data) if data else self._compressor.flush())
            if not data:
                return True
        return False

    def finish(self) -> None:
        """Give the file its name."""
        assert self._file is not None
        with _about(self._unfinished):
            self._disk.sync(self._file)
        self._close()
        self._disk.rename(self._unfinished, self.target)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._unfinished)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        left = memoryview(data)
        with _about(self._unfinished):
            while left:
                left = left[self._disk.write(self._file, left) :]

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
        with _about(path):
            line = os.read(file, FIRST_LINE).partition(b"\n")[0]
            written = os.fstat(file).st_mtime
    finally:
        os.close(file)
    try:
        return _EPOCH + timedelta(microseconds=msgspec.json.decode(line, type=_Stamped).ts)
    except (msgspec.DecodeError, OverflowError):
        return _EPOCH + timedelta(seconds=written)


def _end_of_lines(file: int, size: int) -> int:
    """How much of a file is whole lines."""
    end = size
    while end > 0:
        begin = max(0, end - CHUNK)
        newline = os.pread(file, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing, if it is none, or gone."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextlib.contextmanager
def _about(path: str) -> Iterator[None]:
    """Errors of calls on an open file do not say which: have them say it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise
