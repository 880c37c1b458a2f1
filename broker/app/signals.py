"""Signals of the process: SIGHUP reloads the configuration, SIGUSR1 opens the log file again, and SIGTERM, SIGINT and
SIGQUIT stop the daemon.

Rules:
- No signal that tools of operators send ends the process out of order: those whose default action is to terminate it
  are logged instead.
- Signals that arrive before the service starts are blocked from the choice of the command on, and handled at the start:
  blocked ones stay pending, even if the process executes itself again (`broker.app.heap`). SIGTERM keeps its default
  action until then, since nothing has begun.
- The terminal stops no broker in the background: its output is written even with ``stty tostop``, and SIGTSTP stops it
  only in the foreground, by Control-Z.
- The reactor handles the first SIGTERM or SIGINT: it stops the services, and then the process ends by that signal.
- A later one is ignored: the stop is bounded in time. Only SIGKILL is quicker.
- Outside the main thread no handler is installed: the program around the daemon keeps its own signals.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from twisted.logger import Logger

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
    """Let the process end with the status 1 after an orderly stop: twistd has no way to set its exit status."""
    # Handlers run in the reverse order: this one is the last of those that matter.
    atexit.register(_fail)


def _fail() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
