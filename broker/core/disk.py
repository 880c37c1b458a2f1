"""Disk of the state directory: space, a reserve for a full disk, and failures with their back-off.

Disk space of the state directory: detection of a full disk, and a reserve for that case.

Rules:
- The disk is *full* if a write fails for lack of space (ENOSPC), quota (EDQUOT) or file size (EFBIG). A broker with a
  full disk starts and runs without storing anything, and tries again. Any other error of the state directory at the
  start ends the start: wrong permissions, damage or a missing directory need an operator.
- The reserve is a file that occupies space and has no content. On a full disk it is removed for a write that frees room
  or needs little, and never for one that would fill the disk again: taking messages out of a full database needs room
  too. It is restored when there is twice as much room.

Disk failures of the stores and the journal: back-off before the next attempt, and log lines.

Rules:
- The back-off doubles with each consecutive failure.
- The log has one line when failures begin and one when they end. A nearly full disk fails and succeeds by turns, so
  there is at most one such pair of lines in `QUIET_SECONDS`. Failures that last longer than that are logged even so.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.backoff import Backoff
from broker.blocking import blocking

RESERVE = "reserve"
"""Name of the file in the state directory."""

RESERVE_BYTES = 16 * 1024 * 1024
"""Space that SQLite needs to free space: it first checkpoints the write-ahead log, which has up to 4 MiB (its automatic
checkpoint) plus one transaction (`broker.core.queues.sqlite_store.COMMIT_BYTES`); then the transaction is retried."""

PROBE_BYTES = 64 * 1024
"""Size of a trial write, in bytes, for errors of SQLite that are ambiguous. SQLite needs at least 32 KiB to open."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_UNCLEAR = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
"""Ambiguous codes of SQLite: a full disk, or many other causes."""


def is_full(error: BaseException | None, directory: str) -> bool:
    """Return True if an error of SQLite or the system means that the disk of this directory is full."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; errors that Python itself raises have none
    return code == sqlite3.SQLITE_FULL or (code in _UNCLEAR and _no_room(directory))


def _no_room(directory: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            left = PROBE_BYTES
            while left > 0:
                left -= file.write(bytes(left))
    except OSError as error:
        return error.errno in _FULL
    return False


class DiskReserve:
    """Reserve of the state directory ``directory``. All stores in it share one: it is one file."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, RESERVE)

    @blocking
    def take(self) -> bool:
        """Create the file, if there is twice as much room. Returns True if it exists with as much free room besides."""
        free = self._free()
        if self._is_there():
            return free >= RESERVE_BYTES
        if free < 2 * RESERVE_BYTES:
            return False
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE_BYTES)
            finally:
                os.close(file)
        except OSError:
            self.release()
            return False
        return True

    def spares(self) -> bool:
        """Return True if the disk may be filled further: the reserve exists, or there is at least room for it."""
        return self._is_there() or self._free() >= RESERVE_BYTES

    @blocking
    def release(self) -> bool:
        """Remove the file. Returns True if it existed, so that there is room now."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True

    @blocking
    def _is_there(self) -> bool:
        try:
            return os.stat(self._path).st_size >= RESERVE_BYTES
        except OSError:
            return False

    @blocking
    def _free(self) -> int:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize


RETRY_SECONDS = 1.0
"""Back-off after the first failure, in seconds. It doubles with each further one."""

RETRY_SECONDS_MOST = 30.0
"""Longest back-off, in seconds. A disk may be full for hours; writing resumes soon after there is room."""

RETRY = Backoff(RETRY_SECONDS, RETRY_SECONDS_MOST)
"""Back-off of all writes to the disk."""

QUIET_SECONDS = 60.0
"""Seconds after the end of failures in which new ones are not logged."""


class DiskErrors:
    """Consecutive failures of one kind of work, on ``clock``.

    ``begins`` and ``ends`` are formats of log lines, with ``{why}`` and ``{most}``, and with ``{failures}``. Failures
    other than ``expected`` ones are defects, and are logged with their traceback.
    """

    def __init__(self, log: Logger, clock: IReactorTime, expected: type[BaseException], begins: str, ends: str) -> None:
        self._log = log
        self._clock = clock
        self._expected = expected
        self._begins = begins
        self._ends = ends
        self._logged = False
        self._ended: float | None = None
        self.failures = 0
        """Consecutive failures up to now."""
        self.errors = 0
        """Failures in all."""
        self.why = ""
        """Text of the last failure; empty while there are none."""

    @property
    def wait(self) -> float:
        """Seconds before the next attempt, after a failure."""
        return RETRY.after(self.failures)

    def add(self, failure: Failure) -> float:
        """Record a failure. Returns `wait`."""
        self.failures += 1
        self.errors += 1
        self.why = str(failure.value)
        if not self._logged and self._is_time():
            self._logged = True
            if failure.check(self._expected):
                self._log.error(self._begins, why=failure.value, most=RETRY_SECONDS_MOST)
            else:
                self._log.failure("a defect in a write to the disk", failure)
        return self.wait

    def over(self) -> None:
        """Record a success: the failures are over."""
        if self._logged:
            self._logged = False
            self._ended = self._clock.seconds()
            self._log.info(self._ends, failures=self.failures)
        self.failures = 0
        self.why = ""

    def _is_time(self) -> bool:
        # A negative time means that the clock was set back: then the quiet period is over.
        return self._ended is None or not 0 <= self._clock.seconds() - self._ended < QUIET_SECONDS
