"""Threads for blocking functions (`broker.blocking`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import Condition, Thread
from typing import Any

from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from broker.core.interfaces import InThread

log = Logger()


def log_defect(what: str, stack: str) -> None:
    """Log that a function blocks the reactor's thread."""
    log.critical("a defect: {what} blocks the reactor's thread:\n{stack}", what=what, stack=stack)


class Worker:
    """Threads for blocking functions, started by `start`. One thread keeps the order of calls.

    ``patience`` is the number of seconds for which `stop` waits: None for threads that write what must not be lost.
    """

    def __init__(self, reactor: Any, name: str, threads: int = 1, patience: float | None = None) -> None:
        self._pool = ThreadPool(minthreads=0, maxthreads=threads, name=name)
        self._patience = patience
        if patience is not None:
            self._pool.threadFactory = partial(Thread, daemon=True)  # type: ignore[assignment]
        self.start = self._pool.start
        self.run: InThread = partial(deferToThreadPool, reactor, self._pool)
        """Calls a function with arguments in a thread, and returns a Deferred of its result."""

    def stop(self) -> None:
        """Wait for the calls that were made, and end the threads. Idempotent."""
        if self._patience is None:
            self._pool.stop()
        else:
            ending = Thread(target=self._pool.stop, daemon=True)
            ending.start()
            ending.join(self._patience)


class TimedThread:
    """A thread that calls functions after times of its own clock, however late the reactor is, one at a time.

    It starts with the first call, and is a daemon: the process may end without `stop`.
    """

    def __init__(self, reactor: Any, name: str) -> None:
        self._reactor = reactor
        self._name = name
        self._changed = Condition()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        """Heap of the calls, by the time at which they are due, then in order."""
        self._numbers = count()
        self._thread: Thread | None = None
        self._stopping = False

    def now(self) -> float:
        """Return the time of the thread's clock."""
        return time.monotonic()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in the thread, after a time. Any thread may call this."""
        with self._changed:
            heappush(self._calls, (self.now() + seconds, next(self._numbers), function))
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def report(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the reactor's thread."""
        self._reactor.callFromThread(function, *arguments)

    def stop(self) -> None:
        """End the thread after the call under way, without those that are not due. Blocks."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            try:
                function()
            except Exception:
                log.failure("a defect in a function of the thread {name}", name=self._name)

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next call that is due; None at the end."""
        with self._changed:
            while not self._stopping:
                wait = self._calls[0][0] - self.now() if self._calls else None
                if wait is not None and wait <= 0:
                    return heappop(self._calls)[2]
                self._changed.wait(wait)
            return None
