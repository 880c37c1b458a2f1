"""The lock of a journal: one broker writes to it.

It is a lock on the file ``lock``, which the kernel releases when the process dies. If somebody removes that file,
another broker could lock a new one, although we hold the old: so whoever holds it looks after it, and takes it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from broker.export.disk import Disk, is_at

NAME = "lock"
"""The file's name in the journal's directory."""


class JournalInUse(OSError):
    """Another broker writes to this journal."""


class Lock:
    """The lock of the journal in ``directory``."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._path = os.path.join(directory, NAME)
        self._disk = disk
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """We hold it, and it is where others look for it."""
        return self._file is not None and is_at(self._file, self._path)

    def take(self) -> None:
        """Take it, unless it is held; the directory is made if it is not there.

        Raises `JournalInUse` where another has it, and after any error holds nothing.
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
        with contextlib.suppress(OSError):  # a full disk: nobody will be told who has it
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let it go. Harmless when it is not held."""
        if self._file is not None:
            self._disk.close(self._file)
            self._file = None
