"""The standard streams in any state: closed, on a full disk, or with an encoding of few characters."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from broker.brokerctl.failures import Exit, Failure

ERRORS = "escapes of JSON"
"""Name of the handling of characters that an encoding lacks: they are written as in JSON, ``\\u00e9``."""


def prepare() -> None:
    """Make the standard streams usable. One that is closed is replaced: its descriptor must not become a socket's."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ERRORS)


def arguments(given: Sequence[str]) -> list[str]:
    """Return arguments as UTF-8, whatever the locale. Raises `Failure` for others."""
    try:
        return [os.fsencode(each).decode() for each in given]
    except UnicodeError:
        raise Failure("an argument is not UTF-8", Exit.USAGE) from None


def discard(*names: str) -> None:
    """Discard what these streams have not written, so that nothing fails at exit."""
    for name in names:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())


def failing(name: str) -> OSError | None:
    """Return the reason why the rest of a stream cannot be written; None if it is."""
    try:
        getattr(sys, name).flush()
    except OSError as error:
        return error
    return None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)), error.end


codecs.register_error(ERRORS, _escaped)
