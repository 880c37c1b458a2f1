"""Room on the disk of the state directory: errors that say that there is none, and a reserve for that moment.

Rules:
- The disk is *full* if a write fails for want of space (ENOSPC), quota (EDQUOT) or file size (EFBIG). A broker whose
  disk is full starts and runs without storing anything, and tries again. Any other error of the state directory at the
  start ends the start: nobody but an operator can mend rights, damage, or a directory that is none.
- The reserve is a file that takes room and holds nothing. On a full disk it is removed for a write that makes room
  or needs little, and never for one that would fill the disk again: to take messages out of a
  full database needs room too. It is made again when there is twice as much room.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile

RESERVE = "reserve"
"""The file's name in the state directory."""

RESERVE_BYTES = 16 * 1024 * 1024
"""Room for what SQLite needs to make room: the write-ahead log is copied into the database first, and has up to 4 MiB
(its automatic checkpoint) and one transaction (`queue_recorder.COMMIT_BYTES`), which is then retried."""

PROBE_BYTES = 64 * 1024
"""Bytes that are written to see whether there is room, if SQLite does not say. It needs 32 KiB at least to open."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_UNCLEAR = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
"""Codes of SQLite for a disk without room, and for many other things."""


def is_full(error: BaseException | None, directory: str) -> bool:
    """Return whether an error of SQLite or the system means that the disk of this directory is full."""
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
    """The reserve of the state directory ``directory``. All who store something there share it: it is one file."""

    def __init__(self, directory: str, size: int = RESERVE_BYTES) -> None:
        self._directory = directory
        self._path = os.path.join(directory, RESERVE)
        self._size = size

    def take(self) -> bool:
        """Make the file, if there is twice as much room. Returns whether it is there, and as much room besides."""
        free = self._free()
        if self._is_there():
            return free >= self._size
        if free < 2 * self._size:
            return False
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, self._size)
            finally:
                os.close(file)
        except OSError:
            self.release()
            return False
        return True

    def spares(self) -> bool:
        """Return whether the disk may be filled further: the file is there, or at least room for it."""
        return self._is_there() or self._free() >= self._size

    def release(self) -> bool:
        """Remove the file. Returns whether it was there: there is room now."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True

    def _is_there(self) -> bool:
        try:
            return os.stat(self._path).st_size >= self._size
        except OSError:
            return False

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 0
        return disk.f_bavail * disk.f_frsize
