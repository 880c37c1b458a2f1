"""The heap of the process: memory that was freed is given back to the system.

CPython's own allocator of small objects gives back arenas of 1 MiB, and only those in which nothing is left: after a
burst of small objects, 50 kB of counters, time stamps and table entries between them kept 25 arenas. So
`use_system_heap` restarts the interpreter with the allocator of the C library for all objects.

glibc keeps freed memory for later allocations, unless it is at the end of a heap. After a burst of large and small
objects hundreds of megabytes stay resident so, in which nothing is left. `HeapTrim` gives whole free pages back at
intervals; their addresses stay, so that a later allocation costs a page fault.

Without glibc (musl, macOS) there is nothing to do.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

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


BURST = 4 * 1024 * 1024
"""Bytes that peers held no longer, after which the free lists of the interpreter are cleared: up to 40,000 tuples of
that time keep the pages of 5 MiB in use. It takes one to six milliseconds."""

ALLOCATOR = "PYTHONMALLOC"
"""The variable of the environment with the allocator of the interpreter, which reads it at its start. A value that the
operator gives counts."""


def use_system_heap() -> None:
    """Restart this program with the allocator of the C library, as the same process; return if it has it, if another
    one was chosen, or if there is no glibc."""
    if not sys.getallocatedblocks():  # they are those of CPython's own allocator
        return
    if ALLOCATOR in os.environ or sys.flags.ignore_environment or not sys.executable or _functions() is None:
        return
    os.environ[ALLOCATOR] = "malloc"
    with suppress(OSError):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _clear_free_lists() -> None:
    """Free the tuples, lists, dicts and floats that the interpreter keeps for later.

    It does so in a full collection of garbage, which takes 200 ms with 50,000 waiting finds. Hence all objects are set
    aside before, but for the young ones, and no garbage is lost.
    """
    gc.collect(1)
    gc.freeze()
    gc.collect()
    gc.unfreeze()


class HeapTrim:
    """Trims of the heap, on ``clock``. ``fallen`` returns how many bytes less are in use than at the peak since its
    last call; ``seconds`` a monotonic time for the duration of trims."""

    def __init__(
        self, clock: IReactorTime, fallen: Callable[[], int], seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._clock = clock
        self._fallen = fallen
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
        if self._fallen() > BURST:
            _clear_free_lists()
        self._functions[0](0)
        took = self._seconds() - start
        self.trims += 1
        self.longest = max(self.longest, took)
        pause = min(max(INTERVAL, took / LARGEST_SHARE), LONGEST_INTERVAL)
        self._call = self._clock.callLater(pause, self._trim)
