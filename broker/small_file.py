"""Small files, which are read and replaced as a whole: those of operators and users, and soft state of the broker.

Only regular files are read. A pipe or a device may block its reader, and its content is gone at the next reading,
by a reload or the renewal of a certificate. That holds for ``/dev/stdin`` too: a file that the shell redirects is a
regular one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, TypeVar

from broker.blocking import blocking

_Made = TypeVar("_Made")


@blocking
def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError, and `ValueError` for another kind of file, with a text that continues a sentence.
    """
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except IsADirectoryError:
        raise ValueError("is no regular file") from None
    except ValueError as error:
        raise ValueError("cannot be read: a zero byte in its name") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is no regular file")
    return file


@blocking
def _without_waiting(path: str, flags: int) -> int:
    # Without O_NONBLOCK, to open a pipe waits for its writer; without O_NOCTTY, the process may get a terminal.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


@blocking
def read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most ``most`` bytes.

    Raises `ValueError`, whose text continues a sentence that begins with the path; for a file that the system cannot
    read, an OSError is its cause.
    """
    try:
        with opened(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    if len(data) > most:
        raise ValueError(f"is larger than {most} bytes")
    return data


@contextlib.contextmanager
@blocking
def written(path: str | os.PathLike[str], create: bool = False) -> Iterator[BinaryIO]:
    """Yield a file with the mode 0600 that is at the path after the block: whole, and on the disk.

    It replaces one that is there; with ``create``, FileExistsError is raised then. Nothing is left of it after an
    exception. Raises OSError.
    """
    import tempfile  # most commands write no file

    directory, name = os.path.split(path)
    # A hidden name, since readers of directories skip hidden files.
    make = partial(tempfile.mkstemp, prefix=f".{name}.", dir=directory or ".")
    with temporary(make, _remove) as (descriptor, made):
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        if create:
            os.link(made, path)
        else:
            os.replace(made, path)


@blocking
def _remove(made: tuple[int, str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(made[1])


@contextlib.contextmanager
def temporary(make: Callable[[], _Made], remove: Callable[[_Made], object]) -> Iterator[_Made]:
    """Yield the file or directory that ``make`` creates, and remove it afterwards.

    Signals are held back while it is created, so that an exception of a handler does not leave it behind.
    """
    made = None
    try:
        held_back = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            made = make()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
        yield made
    finally:
        if made is not None:
            remove(made)


@blocking
def replace(path: str, data: bytes) -> None:
    """Replace a file with soft state, or create it, with the mode 0600. Raises OSError.

    It is not synchronized with the disk: after a power failure, the reader must do without it. The name of the new file
    is fixed, so that kills leave one at most: there is one writer.
    """
    temporary = f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(temporary, path)


# Rotation of files that are written at their end: those of the log and of the audit log.


@blocking
def rotate(path: str, kept: int) -> None:
    """Rename a file to ``PATH.1``, that one to ``PATH.2`` and so on; the last of ``kept`` is replaced. Raises OSError.

    With a ``kept`` of 0 the file is removed.
    """
    for number in range(kept, 0, -1):
        source = path if number == 1 else f"{path}.{number - 1}"
        with contextlib.suppress(FileNotFoundError):
            os.replace(source, f"{path}.{number}")
    if not kept:
        os.unlink(path)
