"""The heap of the process: memory that was freed is given back to the system.

glibc keeps freed memory for later allocations, unless it is at the end of a heap. After a burst of large and small
objects hundreds of megabytes stay resident so, in which nothing is left. `HeapTrim` gives whole free pages back at
intervals; their addresses stay, so that a later allocation costs a page fault.

Without glibc (musl, macOS) there is nothing to do.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

INTERVAL = 5.0
"""Seconds between two trims, within which memory is given back."""

LARGEST_SHARE, LONGEST_INTERVAL = 0.002, 10.0
"""Share of the time that trims may take: the interval grows with their duration, up to that many seconds. A trim takes
some 0.1 ms with a heap of ten megabytes, and tens of milliseconds after a burst of hundreds: it looks at all free
blocks."""

ARENAS = 2
"""Heaps of the allocator: one for the reactor's thread, one for all others. By default each of them may get its own,
and keeps what is freed there."""

_M_ARENA_MAX = -8
"""The option of mallopt(3)."""


def _functions() -> tuple[Callable[[int], int], Callable[[int, int], int]] | None:
    """Return malloc_trim and mallopt; None without glibc."""
    try:
        libc = ctypes.PyDLL(None)  # with the GIL: a trim is short, and another thread would wait for the heap anyway
        return libc.malloc_trim, libc.mallopt
    except (OSError, AttributeError):
        return None


class HeapTrim:
    """Trims of the heap, on ``clock``. ``seconds`` returns a monotonic time for their duration."""

    def __init__(self, clock: IReactorTime, seconds: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = seconds
        self._functions = _functions()
        self._call: IDelayedCall | None = None
        self.trims = 0
        self.longest = 0.0
        """Seconds of the longest trim."""

    def start(self) -> None:
        """Trim until `stop`."""
        if self._functions is not None:
            self._functions[1](_M_ARENA_MAX, ARENAS)
            self._call = self._clock.callLater(INTERVAL, self._trim)

    def stop(self) -> None:
        """End the trims. No-op if there are none."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _trim(self) -> None:
        assert self._functions is not None
        start = self._seconds()
        self._functions[0](0)
        took = self._seconds() - start
        self.trims += 1
        self.longest = max(self.longest, took)
        pause = min(max(INTERVAL, took / LARGEST_SHARE), LONGEST_INTERVAL)
        self._call = self._clock.callLater(pause, self._trim)
