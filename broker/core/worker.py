"""Threads for blocking functions (`broker.blocking`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

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
        self.run: Callable[..., Deferred[Any]] = partial(deferToThreadPool, reactor, self._pool)
        """Calls a function with arguments in a thread, and returns a Deferred of its result."""

    def stop(self) -> None:
        """Wait for the calls that were made, and end the threads. Idempotent."""
        if self._patience is None:
            self._pool.stop()
        else:
            ending = Thread(target=self._pool.stop, daemon=True)
            ending.start()
            ending.join(self._patience)
