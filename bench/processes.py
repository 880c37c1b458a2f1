"""Parts of a benchmark that run in processes of their own: none of them outlives the benchmark."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from bench.servers import die_with_parent

NICENESS = 10
"""Of hostile processes: what is asked is how the broker divides its time, not how the kernel does."""

_fork = get_context("fork")


def own_reactor() -> Any:
    """The reactor of this process: it is not imported before the process is forked."""
    from twisted.internet import reactor

    return reactor


class InProcess:
    """A function that runs in a process of its own."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, niceness: int = 0) -> None:
        self._answer, there = _fork.Pipe(False)
        self._process = _fork.Process(target=_run, args=(there, niceness, function, arguments), daemon=True)
        self._process.start()
        there.close()

    def result(self, within: float) -> Any:
        """The returned value. Raises `TimeoutError`, or `EOFError` if it failed."""
        if not self._answer.poll(within):
            raise TimeoutError(f"a part of the benchmark did not end within {within:g} s")
        return self._answer.recv()

    def done(self, within: float) -> bool:
        """True if it has ended, after so many seconds at most."""
        return self._answer.poll(within)

    def stop(self) -> None:
        """End it, in whatever state it is."""
        self._process.kill()
        self._process.join()


def _run(there: Connection, niceness: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    if niceness:
        # A benchmark may run in a real-time class (`chrt`) on a busy machine; niceness has no effect there.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(niceness)
    there.send(function(*arguments))
