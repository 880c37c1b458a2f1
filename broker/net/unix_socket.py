"""The path of a unix socket before it is bound: what may be there, and what a killed process left.

A socket file stays when its process is killed, and binding to its path fails then. Twisted removes it only where the
dead process had a lock of Twisted's beside it (``PATH.lock``, a symbolic link to the number of the process). Other
programs leave none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat

from twisted.python.lockfile import FilesystemLock


def check_free(path: str) -> None:
    """Raise OSError if there is anything at ``path`` but a socket file that no process listens on."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return  # there is nothing, or binding will show what is wrong
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its queue is full
    raise _in_use(path)


def clear(path: str) -> None:
    """Remove a socket file that no process listens on, so that ``path`` can be bound.

    Raises OSError if there is anything else, or if another process has the lock. The lock is held meanwhile: a process
    that is about to bind the path has it, and its new socket is not taken for an old one.
    """
    check_free(path)
    lock = FilesystemLock(f"{path}.lock")
    if _is_ours(lock.name):
        os.unlink(lock.name)  # of a dead process with our number, as in a container that was started again
    if not lock.lock():
        raise _in_use(path)
    try:
        check_free(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    finally:
        lock.unlock()


def _is_ours(lock: str) -> bool:
    """Return True if a lock has the number of this process."""
    try:
        return os.readlink(lock) == str(os.getpid())
    except OSError:
        return False


def _in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)
