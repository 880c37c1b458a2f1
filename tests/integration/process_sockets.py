"""The sockets of another process, duplicated into this one: their options are read as the kernel has them."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PIDFD_GETFD = 438
"""The number of the system call, which Python 3.11 has no function for; the same on every architecture."""


@contextmanager
def sockets_of(pid: int) -> Iterator[list[socket.socket]]:
    """Yield duplicates of all TCP sockets of a process. Skips the test where the kernel does not permit that."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    found: list[socket.socket] = []
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            copy = libc.syscall(PIDFD_GETFD, process, int(each.name), 0)
            if copy < 0:
                if ctypes.get_errno() in (1, 38):
                    pytest.skip("the kernel does not permit pidfd_getfd")
                continue  # closed in the meantime
            # The copy, since the number may be that of another file by now.
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            sock = socket.socket(fileno=copy)
            if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                found.append(sock)
            else:
                sock.close()
        yield found
    finally:
        os.close(process)
        for sock in found:
            sock.close()
