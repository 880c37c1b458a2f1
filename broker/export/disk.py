"""The calls of the system by which the journal writes, in one place: tests have a disk that fails.

All of them block, and raise OSError with the path that it is about.

Connections may take all file descriptors of the process. So the journal holds `SPARES` of its own. If the system has
none for a file, one of these is closed in the moment before the file is opened; and the descriptor of a file that is
closed becomes a spare one again in one step, so that no connection gets it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

SPARES = 8
"""Descriptors that are held. The journal has four files open at once, the lock among them; and a connection that comes
between the two steps may take one."""


class Disk:
    """A disk. The short ones are the system's; the rest is made of them."""

    def __init__(self) -> None:
        self._spares: list[int] = []
        self._null: int | None = None
        """A descriptor that leads nowhere, of which the spare ones are copies. None while none are held."""

    def hold_spares(self) -> None:
        """From now on hold spare descriptors, as many as the system has. Harmless when they are held."""
        with contextlib.suppress(OSError):
            if self._null is None:
                self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            while len(self._spares) < SPARES:
                self._spares.append(os.dup(self._null))

    def drop_spares(self) -> None:
        """Hold them no longer."""
        for file in [*self._spares, *([] if self._null is None else [self._null])]:
            os.close(file)
        self._spares, self._null = [], None

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        """Open a file, with a spare descriptor if there is no other."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._spares:
                    raise
            os.close(self._spares.pop())

    def close(self, file: int) -> None:
        """Close a file. Its descriptor is a spare one from now on, if there are too few."""
        if self._null is None or len(self._spares) >= SPARES:
            os.close(file)
        else:
            os.dup2(self._null, file, inheritable=False)
            self._spares.append(file)

    def write(self, file: int, data: bytes | memoryview) -> int:
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def write_all(self, file: int, path: str, data: bytes) -> None:
        """Write it all to an open file."""
        left = memoryview(data)
        with about(path):
            while left:
                left = left[self.write(file, left) :]

    def sync_directory(self, path: str) -> None:
        """Have the names in a directory on the disk."""
        file = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with about(path):
                self.sync(file)
        finally:
            self.close(file)

    def make_directory(self, path: str) -> None:
        """Make a directory that is not there, with those above it, and have their names on the disk."""
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            return
        except FileNotFoundError:
            parent = os.path.dirname(path)
            if not parent:
                raise
            self.make_directory(parent)
            os.mkdir(path, 0o750)
        self.sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Errors of calls on an open file do not say which: have them say it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory in the order of their names; none if it is no directory, or gone."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_at(file: int, path: str) -> bool:
    """Return whether an open file is the one at that path: it may have been removed, or replaced."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
