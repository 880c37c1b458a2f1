"""Functions that may wait, and the check that the reactor calls none of them.

Rules:
- A function that may wait for a disk, for the resolution of names or for another process bears `blocking`, or is called
  by such functions only.
- While the reactor serves, it calls no such function in its own thread, but passes it to a `broker.core.worker.Worker`.
  A call in its thread is a defect, which is reported once for each function.
- `unavoidable` permits the exceptions, each with its reason: system calls that must be made in the reactor's thread.
- Before the reactor serves, and after it has ended, functions may block: no peer is connected.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from threading import get_ident
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

FRAMES = 12
"""Frames of the stack in the report of a defect: from the event of the reactor to the function."""


class _Serving:
    """The thread of the reactor while it serves, 0 otherwise."""

    thread = 0
    permitted = 0
    """Number of `unavoidable` blocks that are entered."""
    reported: frozenset[str] = frozenset()
    report: Callable[[str, str], object] = staticmethod(lambda what, stack: None)


def serve(report: Callable[[str, str], object]) -> None:
    """Begin to check calls of this thread, which is the reactor's.

    ``report`` is called with the name of a function that was called in it, and with the stack: once for each function.
    """
    _Serving.thread, _Serving.reported, _Serving.report = get_ident(), frozenset(), staticmethod(report)


def ended() -> None:
    """End the checks: the reactor has ended, or closes what is left."""
    _Serving.thread = 0


def must_not_block() -> bool:
    """Return True in the thread of a reactor that serves."""
    return _Serving.thread == get_ident() and not _Serving.permitted


def report(what: str) -> None:
    """Report that something blocks the reactor's thread."""
    if what not in _Serving.reported:
        _Serving.reported |= {what}
        _Serving.report(what, "".join(traceback.format_stack(limit=FRAMES)[:-1]))


def blocking(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that may wait. A call in the reactor's thread is reported."""

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if must_not_block():
            report(f"{function.__module__}.{function.__qualname__}")
        return function(*args, **kwargs)

    return checked


@contextlib.contextmanager
def unavoidable(reason: str) -> Iterator[None]:
    """Permit blocking calls in the reactor's thread. ``reason`` is the cause, as a sentence for readers."""
    if _Serving.thread != get_ident():
        yield
        return
    _Serving.permitted += 1
    try:
        yield
    finally:
        _Serving.permitted -= 1
