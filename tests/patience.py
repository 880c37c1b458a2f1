"""The time for which tests wait for an event before they fail: one figure for all that wait in real time.

A test waits for the event itself and never sleeps for a fixed time. So the figure costs nothing where the event comes,
and may be generous: on a machine that has twenty times as much to do, each step takes twenty times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 120.0
"""Seconds after which an event that should have come has not: twenty times the few seconds that the slowest step, the
start of a daemon with all wires, takes on a machine with one other thing to do."""

LOOK_EVERY = 0.02
"""Seconds between two looks at what tells nobody when it changes."""


def until(look: Callable[[], Value], what: str = "a condition", seconds: float = PATIENCE) -> Value:
    """Return the first true value of ``look``, in which nothing tells of a change: of files, and of other processes.

    ``what`` names it in the failure after ``seconds``.
    """
    end = time.monotonic() + seconds
    while not (value := look()):
        assert time.monotonic() < end, f"waited in vain for {what}: it is still {value!r}"
        time.sleep(LOOK_EVERY)
    return value


def until_equal(ask: Callable[[], Value], wanted: Value) -> None:
    """Ask again until the answer is the wanted one."""
    end = time.monotonic() + PATIENCE
    while (answer := ask()) != wanted:
        assert time.monotonic() < end, f"waited in vain for {wanted!r}: it is still {answer!r}"
        time.sleep(LOOK_EVERY)


def written(file: Path) -> str:
    """Wait until another process has written to a file, and return its text: a file is there before its text is."""
    return until(lambda: file.read_text() if file.exists() else "")


def takes_less_than(seconds: float, attempt: Callable[[], float]) -> None:
    """Assert that ``attempt``, which returns how many seconds it took, takes less than ``seconds`` at least once.

    For what must be quick in itself: a busy machine delays some attempts, a defect all of them.
    """
    end = time.monotonic() + PATIENCE
    while (took := attempt()) >= seconds:
        assert time.monotonic() < end, f"it never took less than {seconds} s, and in the end {took} s"
