"""The disk of the journal, for its thread: system calls, the lock of the directory, and pauses between them.

All of it blocks, and raises OSError with the path in question.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from broker.blocking import blocking

SPARES = 8
"""Number of descriptors in reserve. The journal has four files open at once, the lock included; and a connection that
is accepted between the two steps may take one."""


class Disk:
    """File operations with reserved descriptors. The short methods are plain system calls, which tests override; the
    others are built on them.

    Connections may use up all file descriptors of the process. So the journal holds `SPARES` of its own. If the system
    has none for a file, one of these is closed just before the file is opened; and the descriptor of a closed file
    becomes a spare one in a single step (dup2), so that no connection gets it.
    """

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
    """Add the path to an error of a call on an open file, which does not have it."""
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
    """Return True if an open file is still the one at that path: it may have been removed or replaced."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False


LOCK_FILE = "lock"
"""Name of the file in the journal's directory."""


class JournalInUse(OSError):
    """Another broker writes to this journal."""


class Lock:
    """Lock of the journal in ``directory``: only one broker writes to it.

    It is an flock on `LOCK_FILE`, which the kernel releases when the process ends. After a removal of that file
    another broker could lock a new one while this broker holds the old: so the holder checks the file, and takes the
    lock again.
    """

    def __init__(self, directory: str, disk: Disk) -> None:
        self._directory = directory
        self._path = os.path.join(directory, LOCK_FILE)
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


PAUSE_SECONDS = 0.0002
"""Length of a pause in seconds: four times a wake-up on an idle core, and less than the work before it."""


@blocking
def pause() -> None:
    """Yield the interpreter lock. To be called after each fraction of a millisecond of work.

    A busy thread releases the lock in each system call. But most of these take some microseconds, and a waiting reactor
    takes longer to wake up: it finds the lock taken again, and keeps waiting, possibly for as long as there is work,
    tens of milliseconds. So after a little work the thread sleeps for longer than a wake-up takes.
    """
    time.sleep(PAUSE_SECONDS)
