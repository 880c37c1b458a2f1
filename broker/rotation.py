"""Rotation of files that are written at their end: those of the log and of the audit log."""

from __future__ import annotations

import contextlib
import os

from broker.blocking import blocking


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
