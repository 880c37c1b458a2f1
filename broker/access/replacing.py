"""Replacement of a users file: one writer at a time, atomic, with the owner and the mode of the file before."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from broker import small_file
from broker.access.guarded_reading import FORBIDDEN, MAX_FILE

MODE = 0o600
"""Mode of a new file: readers of the file can guess passwords."""


class EditFailed(Exception):
    """A change of the file that failed. Its arguments are sentences with the reasons."""


@contextlib.contextmanager
def alone(path: str) -> Iterator[str]:
    """Lock the file against concurrent changes. Yields the path with symbolic links resolved, so that links stay.

    Raises `EditFailed` for an error of the system, also one of the body.
    """
    real = os.path.realpath(path)
    directory = os.path.dirname(real)
    try:
        # The file itself cannot be locked: it is replaced by another.
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield real
            os.fsync(lock)
        finally:
            os.close(lock)
    except OSError as error:
        raise EditFailed(f"{path} cannot be written: {error.strerror or error}") from None


def replace(path: str, text: str) -> None:
    """Replace the file atomically, with its owner and mode. Raises OSError, or `EditFailed`."""
    data = text.encode()
    if len(data) > MAX_FILE:
        raise EditFailed(f"{path} would become larger than {MAX_FILE} bytes")
    with small_file.written(path) as file:
        file.write(data)
        descriptor = file.fileno()
        os.fchmod(descriptor, MODE)
        with contextlib.suppress(FileNotFoundError):
            old, new = os.stat(path), os.fstat(descriptor)
            if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
                os.fchown(descriptor, old.st_uid, old.st_gid)
            # The broker may read the file by its group.
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & ~FORBIDDEN)
