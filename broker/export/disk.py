"""System calls of the journal, in one class that tests replace by a failing disk.

All of them block, and raise OSError with the path in question.

Connections may use up all file descriptors of the process. So the journal holds `SPARES` of its own. If the system has
none for a file, one of these is closed just before the file is opened; and the descriptor of a closed file becomes a
spare one in a single step (dup2), so that no connection gets it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from broker.blocking import blocking

SPARES = 8
"""Number of descriptors in reserve. The journal has four files open at once, the lock included; and a connection that
is accepted between the two steps may take one."""


class Disk:
    """File operations with reserved descriptors. The short methods are plain system calls, which tests override; the
    others are built on them."""

    def __init__(self) -> None:
        self._spares: list[int] = []
        self._null: int | None = None
        """Descriptor of the null device, of which the spare ones are copies. None while none are held."""

    @blocking
    def hold_spares(self) -> None:
        """Reserve descriptors, as many as the system has. Idempotent."""
        with contextlib.suppress(OSError):
            if self._null is None:
                self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            while len(self._spares) < SPARES:
                self._spares.append(os.dup(self._null))

    def drop_spares(self) -> None:
        """Release the reserved descriptors."""
        for file in [*self._spares, *([] if self._null is None else [self._null])]:
            os.close(file)
        self._spares, self._null = [], None

    @blocking
    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        """Open a file, with a reserved descriptor if there is no other."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._spares:
                    raise
            os.close(self._spares.pop())

    def close(self, file: int) -> None:
        """Close a file, and keep its descriptor if the reserve is not full."""
        if self._null is None or len(self._spares) >= SPARES:
            os.close(file)
        else:
            # dup2 replaces the file in one step; between a close and a dup a connection could take the descriptor.
            os.dup2(self._null, file, inheritable=False)
            self._spares.append(file)

    def write(self, file: int, data: bytes | memoryview) -> int:
        return os.write(file, data)

    @blocking
    def sync(self, file: int) -> None:
        os.fsync(file)

    @blocking
    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    @blocking
    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    @blocking
    def remove(self, path: str) -> None:
        os.unlink(path)

    def write_all(self, file: int, path: str, data: bytes) -> None:
        """Write all data to an open file."""
        left = memoryview(data)
        with about(path):
            while left:
                left = left[self.write(file, left) :]

    def sync_directory(self, path: str) -> None:
        """Sync a directory, so that the names in it are on the disk."""
        file = self.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with about(path):
                self.sync(file)
        finally:
            self.close(file)

    @blocking
    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, and sync their names. No-op if it exists."""
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
    """Add the path to errors of calls on an open file, which lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


@blocking
def entries(directory: str) -> list[os.DirEntry[str]]:
    """Return the entries of a directory in the order of their names; none if it is gone or not a directory."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


@blocking
def is_at(file: int, path: str) -> bool:
    """Return whether an open file is still the one at that path: it may have been removed or replaced."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
