"""The output of commands into standard streams in any state: closed, on a full disk, or a pipe without a reader."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def show(program: str, text: str) -> int:
    """Print a text that is all the output of a program. Returns the exit code.

    It is 1 if the text cannot be written: a sentence on standard error says why, unless the reader of a pipe has gone.
    A closed standard output is no failure.
    """
    unwritten: OSError | None
    try:
        print(text)
        unwritten = stream_failure("stdout")
    except OSError as error:
        unwritten = error
    if unwritten is None:
        return 0
    if not isinstance(unwritten, BrokenPipeError):
        with suppress(OSError):
            print(f"{program}: {output_sentence(unwritten)}", file=sys.stderr)
    discard_failing()
    return 1


def output_sentence(error: OSError) -> str:
    """Return an error of the output as a sentence."""
    return f"the output cannot be written: {(error.strerror or str(error)).lower()}"


def stream_failure(name: str) -> OSError | None:
    """Return the reason why the rest of a stream cannot be written; None if it is, or the stream is closed."""
    stream = getattr(sys, name)
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        return error
    return None


def discard_failing() -> None:
    """Discard what standard output and standard error cannot write, so that nothing fails at exit."""
    for name in ("stdout", "stderr"):
        if stream_failure(name) is not None:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())
