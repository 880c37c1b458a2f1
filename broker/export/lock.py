"""Lock of a journal: only one broker writes to it.

It is an flock on the file ``lock``, which the kernel releases when the process ends. After a removal of that file
another broker could lock a new one while this broker holds the old: so the holder checks the file, and takes the lock
again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from broker.blocking import blocking
from broker.export.disk import Disk, is_at

NAME = "lock"
"""Name of the file in the journal's directory."""


class JournalInUse(OSError):
    """Another broker writes to this journal."""


class Lock:
    """Lock of the journal in ``directory``."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._path = os.path.join(directory, NAME)
        self._disk = disk
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """True if the lock is held on the file at its path, not on one that was removed or replaced."""
        return self._file is not None and is_at(self._file, self._path)

    @blocking
    def take(self) -> None:
        """Take the lock, unless it is held. Creates the directory if necessary.

        Raises `JournalInUse` if another broker has it; after any error nothing is held.
        """
        if self.held:
            return
        self.release()
        self._disk.make_directory(self._directory)
        file = self._disk.open(self._path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
            self._disk.close(file)
            text = f"another broker writes to this journal (process {holder}): give each its own directory"
            raise JournalInUse(errno.EAGAIN, text, self._directory) from None
        except BaseException:
            self._disk.close(file)
            raise
        self._file = file
        with contextlib.suppress(OSError):  # full disk: the lock holds even without a process id
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock. No-op if it is not held."""
        if self._file is not None:
            self._disk.close(self._file)
            self._file = None
