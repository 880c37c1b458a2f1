"""Parts of a benchmark that run in processes of their own: none of them outlives the benchmark."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from bench.common.servers import die_with_parent
from bench.common.traffic import STUCK, Stuck

NICENESS = 10
"""Of hostile processes: what is asked is how the broker divides its time, not how the kernel does."""

_fork = get_context("fork")


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


class Load(Protocol):
    """Traffic that is ready to run, again and again."""

    def run(self, seconds: float) -> Any: ...


class Remote:
    """A load in a process of its own: it is made there, and runs when it is told to.

    It is ready when this is made. Raises `Stuck` if it fails then or later, with what it failed of.
    """

    def __init__(self, prepare: Callable[..., Load], *arguments: Any) -> None:
        self._pipe, there = _fork.Pipe()
        self._process = _fork.Process(target=_serve, args=(there, prepare, arguments), daemon=True)
        self._process.start()
        there.close()
        try:
            self.result(0)
        except BaseException:
            self.stop()
            raise

    def start(self, seconds: float) -> None:
        """Let it run for so long."""
        self._pipe.send(seconds)

    def result(self, seconds: float) -> tuple[Any, float]:
        """The result of its last run, of so many seconds, and its CPU time."""
        if not self._pipe.poll(seconds + 4 * STUCK):
            raise Stuck("a load did not end")
        try:
            failure, result, cpu = self._pipe.recv()
        except EOFError:
            raise Stuck("the process of a load ended") from None
        if failure:
            raise Stuck(f"a load failed:\n{failure}")
        return result, cpu

    def run(self, seconds: float) -> tuple[Any, float]:
        """Let it run for so long, and wait."""
        self.start(seconds)
        return self.result(seconds)

    def stop(self) -> None:
        """End it, in whatever state it is."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(there: Connection, prepare: Callable[..., Load], arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    try:
        load = prepare(*arguments)
        there.send(("", None, 0.0))
        while True:
            seconds = there.recv()
            before = time.process_time()
            result = load.run(seconds)
            there.send(("", result, time.process_time() - before))
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        there.send((traceback.format_exc(), None, 0.0))
