"""Small files, which are read and replaced as a whole: those that operators name, and soft state of the broker."""

from __future__ import annotations

import os

from broker.blocking import blocking


@blocking
def read(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most ``most`` bytes.

    Raises `ValueError`, whose text continues a sentence that begins with the path; for a file that the system cannot
    read, an OSError is its cause.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError("cannot be read: a zero byte in its name") from error
    if len(data) > most:
        raise ValueError(f"is larger than {most} bytes")
    return data


@blocking
def replace(path: str, data: bytes) -> None:
    """Replace a file with soft state, or create it, with the mode 0600. Raises OSError.

    It is not synchronized with the disk: after a power failure, the reader must do without it.
    """
    temporary = f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.replace(temporary, path)
