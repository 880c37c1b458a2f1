"""The calls of the system by which the journal writes, in one place: tests have a disk that fails.

All of them block, and raise OSError with the path that it is about.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


class Disk:
    """A disk. The short ones are the system's; the rest is made of them."""

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
        file = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with about(path):
                self.sync(file)
        finally:
            os.close(file)

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
    """What is in a directory, by its names in order; nothing, if it is none, or gone."""
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_at(file: int, path: str) -> bool:
    """Whether an open file is the one at that path: it may have been removed, or replaced."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
