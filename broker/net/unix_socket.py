"""Stale Unix socket files: detection and removal before a bind.

A socket file outlives a killed process, and binding to its path then fails. Twisted removes it only if the dead process
had Twisted's own lock beside it (``PATH.lock``, a symbolic link to the process ID). Other programs leave none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from twisted.python.lockfile import FilesystemLock


def check_free(path: str) -> None:
    """Raise OSError if ``path`` exists, unless it is a socket file without a listening process."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # no file, or the bind reports the error
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # the accept queue is full: a process listens
    raise _in_use(path)


def clear(path: str) -> None:
    """Remove a stale socket file, so that ``path`` can be bound.

    Raises OSError for any other file, and if another process has the lock. The lock is held during the removal: a
    process about to bind the path has it, so that its new socket is not mistaken for a stale one.
    """
    check_free(path)
    lock = FilesystemLock(f"{path}.lock")
    if _is_ours(lock.name):
        os.unlink(lock.name)  # left by a dead process with the same ID, as in a restarted container
    if not lock.lock():
        raise _in_use(path)
    try:
        check_free(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    finally:
        lock.unlock()


def _is_ours(lock: str) -> bool:
    """Return True if a lock has the ID of this process."""
    try:
        return os.readlink(lock) == str(os.getpid())
    except OSError:
        return False


def _in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
