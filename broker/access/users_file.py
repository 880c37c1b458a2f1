"""Users file: reading with checks of its owner and mode, and replacement by one writer.

Reading of files with users: checks of mode, owner and size, and stamps that detect changes.

A file is unusable if others than its owner may write it, if others than its owner and group may read it and it has
credentials, or if it belongs to another user than root and the one that reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from broker import small_file
from broker.blocking import blocking

MAX_FILE = 4 * 1024 * 1024
"""Bytes of the file: some 25,000 users. It is read as a whole, so a device or a wrong file must not fill the memory."""

FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO
"""Mode bits that must not be set: readers of the file could guess passwords, and impersonate the broker."""

WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""Those of them that a file without any credential must not have either."""

CREDENTIALS = (b"passwords", b"tokens", b"hash")
"""Keys of the file whose values let a reader guess a password or a token."""

Stamp = tuple[int, int, int, int]
"""Times of modification and change, size, and inode."""

UNKNOWN: Stamp = (0, 0, 0, 0)
"""The stamp of a file that changed while it was read, or cannot be read."""


class BadUsers(ValueError):
    """A users file that cannot be used. The arguments are sentences with the reasons, and show no secret."""

    def __str__(self) -> str:
        return "; ".join(str(sentence) for sentence in self.args)


def read(path: str) -> str:
    """Return the text of a file. Raises `BadUsers`."""
    return read_stamped(path)[0]


@blocking
def read_stamped(path: str) -> tuple[str, Stamp]:
    """Return the text of a file, and its stamp: `UNKNOWN` if it changed meanwhile. Raises `BadUsers`."""
    try:
        with small_file.opened(path) as file:
            before = os.fstat(file.fileno())
            data = file.read(MAX_FILE + 1)
            _check(path, before, data)
            after = _stamp_of(os.fstat(file.fileno()))
    except OSError as error:
        raise unreadable(path, error) from None
    except BadUsers:
        raise
    except ValueError as error:
        raise BadUsers(f"{path} {error}") from None
    if len(data) > MAX_FILE:
        raise BadUsers(f"{path} is larger than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig"), after if after == _stamp_of(before) else UNKNOWN
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadUsers(f"{path} is not UTF-8: line {line} has the byte 0x{data[error.start]:02x}") from None


@blocking
def stamp(path: str) -> Stamp:
    """Return the stamp of a file. Raises OSError."""
    return _stamp_of(os.stat(path))


def unreadable(path: str, error: OSError) -> BadUsers:
    """Return the error for a file that the system cannot read."""
    return BadUsers(f"{path} cannot be read: {error.strerror or error}")


def _check(path: str, status: os.stat_result, data: bytes) -> None:
    if status.st_mode & (FORBIDDEN if any(key in data for key in CREDENTIALS) else WRITABLE):
        mode = stat.S_IMODE(status.st_mode)
        raise BadUsers(f"{path} has the mode {mode:04o}: only its owner may write it, and only its group may read it")
    reader = os.geteuid()
    # Root reads the files of all users, such as that of the broker's own user.
    if reader and status.st_uid not in (0, reader):
        raise BadUsers(f"{path} belongs to the user {status.st_uid}: it must belong to root or to the user {reader}")


def _stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


# Replacement of a users file: one writer at a time, atomic, with the owner and the mode of the file before.

MODE = 0o600
"""Mode of a new file: readers of the file can guess passwords."""


class EditFailed(Exception):
    """A change of the file that failed. Its arguments are sentences with the reasons."""


@contextlib.contextmanager
def locked(path: str) -> Iterator[str]:
    """Lock the file against concurrent changes. Yields the path with symbolic links resolved, so that the links are
    preserved.

    Raises `EditFailed` for any OSError, including one raised inside the ``with`` block.
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
