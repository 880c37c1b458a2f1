"""The start of the process, before the imports of the broker: held signals, and the heap.

Signals of the process: SIGHUP reloads the configuration, SIGUSR1 opens the log file again, and SIGTERM, SIGINT and
SIGQUIT stop the daemon.

Rules:
- No signal that tools of operators send ends the process out of order: those whose default action is to terminate it
  are logged instead.
- Signals that arrive before the service starts are blocked from the choice of the command on, and handled at the start:
  blocked ones stay pending, even if the process executes itself again (`use_system_heap`). SIGTERM keeps its default
  action until then, since nothing has begun.
- The terminal stops no broker in the background: its output is written even with ``stty tostop``, and SIGTSTP stops it
  only in the foreground, by Control-Z.
- The reactor handles the first SIGTERM or SIGINT: it stops the services, and then the process ends by that signal.
- A later one is ignored: the stop is bounded in time. Only SIGKILL is quicker.
- Outside the main thread no handler is installed: the program around the daemon keeps its own signals.

The heap of the process: memory that was freed is given back to the system.

CPython's own allocator of small objects gives back arenas of 1 MiB, and only those in which nothing is left: after a
burst of small objects, 50 kB of counters, time stamps and table entries between them kept 25 arenas. So
`use_system_heap` restarts the interpreter with the allocator of the C library for all objects.

glibc keeps freed memory for later allocations, unless it is at the end of a heap. After a burst of large and small
objects hundreds of megabytes stay resident so, in which nothing is left. `HeapTrim` gives whole free pages back at
intervals; their addresses stay, so that a later allocation costs a page fault.

Without glibc (musl, macOS) there is nothing to do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

if TYPE_CHECKING:  # the broker is imported after the restart of the interpreter
    from broker.core.turns import Turns

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)

STRAY = (signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR)
"""Signals that end a process by default, and have no meaning for the broker. A process monitor or a rotation of logs
may send them."""

OF_TERMINALS = (signal.SIGTTOU, signal.SIGTTIN)
"""Signals by which a terminal stops a process in the background that writes to it or reads. They are ignored, since a
write is not repeated in vain then. Programs that the broker launches get the default action: Twisted sees to that."""

HELD = (signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP, *STRAY)

log = Logger()


def hold_signals() -> None:
    """Hold the signals of `HELD` until `handle_signals`, and ignore those of `OF_TERMINALS`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    with contextlib.suppress(ValueError):
        for number in OF_TERMINALS:
            signal.signal(number, signal.SIG_IGN)


def handle_signals(reactor: Any, reload: Callable[[], object], reopen: Callable[[], object]) -> None:
    """Call ``reload`` in the reactor at each SIGHUP, and ``reopen`` at each SIGUSR1, at once.

    Others get a handler unless they have one: those of `STRAY`, SIGTSTP, and those that stop the daemon. SIGTERM is
    handled by the reactor once that runs. Then signals that were held are handled.
    """

    def stray(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(log.info, "{name} has no effect", name=signal.Signals(number).name)

    def stop(number: int, frame: FrameType | None) -> None:
        reactor.callFromThread(reactor.stop)

    def stop_when_running(number: int, frame: FrameType | None) -> None:
        reactor.callWhenRunning(os.kill, os.getpid(), number)

    def suspend(number: int, frame: FrameType | None) -> None:
        if _in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            stray(number, frame)

    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {
        **dict.fromkeys(STRAY, stray),
        signal.SIGTSTP: suspend,
        signal.SIGQUIT: stop,
        signal.SIGTERM: stop_when_running,
    }
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(reload))
        signal.signal(signal.SIGUSR1, lambda *_: reopen())
        for number, handler in handlers.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _in_foreground() -> bool:
    """Return True if the process has its terminal in one of the standard streams, and belongs to its foreground."""
    for file in range(3):
        with contextlib.suppress(OSError):  # no terminal, or not that of the process
            return os.tcgetpgrp(file) == os.getpgrp()
    return False


def stop_once(reactor: Any, begin: Callable[[], bool]) -> None:
    """Let the running reactor handle only the signal for which ``begin`` returns True: the stop begins."""
    for number in STOPPING:
        before = signal.getsignal(number)
        if not callable(before):
            continue  # nohup, for example, starts its program with SIGHUP ignored.

        def stop(number: int, frame: FrameType | None, before: Callable[[int, FrameType | None], Any] = before) -> None:
            if begin():
                before(number, frame)
            else:
                reactor.callFromThread(log.info, "{name}: the broker stops already", name=signal.Signals(number).name)

        with contextlib.suppress(ValueError):
            signal.signal(number, stop)


def fail_at_exit() -> None:
    """Let the process exit with status 1 after an orderly stop: twistd has no way to set its exit status."""
    # Handlers run in the reverse order: this one is the last of those that matter.
    atexit.register(_fail)


def _fail() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


INTERVAL = 5.0
"""Seconds between two trims, within which memory is given back."""

LARGEST_SHARE, LONGEST_INTERVAL = 0.002, 10.0
"""Share of the time that trims may take: the interval grows with their duration, up to that many seconds. A trim takes
some 0.1 ms with a heap of ten megabytes, and tens of milliseconds with a large one: it searches all free blocks."""

CHECK = 0.5
"""Seconds between two looks at what peers have released."""

BUSY, BUSY_WORK, BUSY_SHARE = 32 * 1024 * 1024, 0.1, 0.02
"""Bytes that peers have released since the last trim, and seconds of background work (`broker.core.turns`), from either
of which on the next one is due at the next look; and the share of the time that trims may take then. In a flood of
unfinished messages, the free blocks of 10 s took 170 MiB beside the 255 that were held, and a trim 36 ms; those of half
a second take a third, and a trim some 5 ms. While 50,000 services of another broker expired, it was 26 ms."""

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
    last call, ``released`` how many were released since the start. A trim is background work: ``turns`` returns the
    account of that, once the reactor runs. ``seconds`` is a monotonic time for the duration of trims."""

    def __init__(
        self,
        clock: IReactorTime,
        fallen: Callable[[], int],
        released: Callable[[], int],
        turns: Callable[[], Turns],
        seconds: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._fallen = fallen
        self._released = released
        self._turns = turns
        self._seconds = seconds
        self._functions = _functions()
        self._call: IDelayedCall | None = None
        self._trimmed_at = self._cleared_at = clock.seconds()
        self._released_before = 0
        self._worked_before = 0.0
        self._took = 0.0
        self.trims = 0
        self.longest = 0.0
        """Seconds of the longest trim."""

    def start(self) -> None:
        """Trim until `stop`."""
        if self._functions is not None:
            self._functions[1](_M_ARENA_MAX, ARENAS)
            self._call = self._clock.callLater(CHECK, self._check)

    def stop(self) -> None:
        """End the trims. No-op if there are none."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _check(self) -> None:
        worked = self._turns().worked - self._worked_before
        busy = self._released() - self._released_before >= BUSY or worked >= BUSY_WORK
        least, share = (CHECK, BUSY_SHARE) if busy else (INTERVAL, LARGEST_SHARE)
        if self._clock.seconds() - self._trimmed_at >= min(max(least, self._took / share), LONGEST_INTERVAL):
            with self._turns():
                self._trim()
            self._worked_before = self._turns().worked
        self._call = self._clock.callLater(CHECK, self._check)

    def _trim(self) -> None:
        assert self._functions is not None
        start, now = self._seconds(), self._clock.seconds()
        if now - self._cleared_at >= INTERVAL:
            self._cleared_at = now
            if self._fallen() > BURST:
                _clear_free_lists()
        self._functions[0](0)
        self._trimmed_at, self._released_before = now, self._released()
        self._took = self._seconds() - start
        self.trims += 1
        self.longest = max(self.longest, self._took)
