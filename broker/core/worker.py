"""Threads for blocking functions (`broker.blocking`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

log = Logger()


def log_defect(what: str, stack: str) -> None:
    """Log that a function blocks the reactor's thread."""
    log.critical("a defect: {what} blocks the reactor's thread:\n{stack}", what=what, stack=stack)


class Worker:
    """Threads for blocking functions, each begun when a call finds none free. One thread keeps the order of calls.

    ``patience`` is the number of seconds for which `stop` waits: None for threads that write what must not be lost. All
    methods are to be called in the reactor's thread. `twisted.python.threadpool` would cost a small call four times as
    much: 23 µs.
    """

    def __init__(self, reactor: Any, name: str, threads: int = 1, patience: float | None = None) -> None:
        self._reactor = reactor
        self._name = name
        self._most = threads
        self._patience = patience
        self._calls: SimpleQueue[tuple[Deferred[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._open = 0
        """Number of calls without a result."""
        self._serves = False

    def start(self) -> None:
        """Begin with the calls that were made, and take others."""
        self._serves = True
        self._begin_threads()

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Deferred[Any]:
        """Call a function with arguments in a thread, and return a Deferred of its result."""
        result: Deferred[Any] = Deferred()
        self._open += 1
        self._calls.put((result, partial(function, *arguments, **keywords)))
        if len(self._threads) < self._most:
            self._begin_threads()
        return result

    def stop(self) -> None:
        """Wait for the calls that were made, and end the threads. Later calls have no result. Idempotent."""
        self._serves = False
        end = None if self._patience is None else time.monotonic() + self._patience
        threads, self._threads = self._threads, []
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _begin_threads(self) -> None:
        while self._serves and len(self._threads) < min(self._open, self._most):
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(Thread(target=self._work, name=name, daemon=self._patience is not None))
            self._threads[-1].start()

    def _work(self) -> None:
        while (taken := self._calls.get()) is not None:
            result, call = taken
            try:
                outcome = call()
            except BaseException:
                outcome = Failure()
            self._reactor.callFromThread(self._done, result, outcome)
            del taken, result, call, outcome  # nothing is kept while the thread waits

    def _done(self, result: Deferred[Any], outcome: Any) -> None:
        self._open -= 1
        result.callback(outcome)


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
