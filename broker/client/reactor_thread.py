"""A reactor of a client's own, in a thread, for programs that have none.

It is not the one that `twisted.internet.reactor` is: that one belongs to the program. Its thread is there from `start`
to `stop`, and does not keep the process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.pollreactor import PollReactor
from twisted.python.failure import Failure

from broker.client.errors import Closed

CANCEL_TIMEOUT = 1.0
"""Seconds for what took too long to end: it is only told to, and most things do at once."""


class ReactorThread:
    """A reactor in a thread."""

    def __init__(self) -> None:
        self.reactor: Any = PollReactor()
        self._thread = threading.Thread(target=self._run, name="mtl", daemon=True)
        self._lock = threading.Lock()
        self._running = False
        self._waiting: set[Future[Any]] = set()

    def start(self) -> None:
        """Begin."""
        ready = threading.Event()
        self.reactor.callWhenRunning(ready.set)
        self._thread.start()
        ready.wait()
        self._running = True

    def stop(self) -> None:
        """End. Who waits for something hears `Closed`. Not to be called in the thread."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            self.reactor.callFromThread(self.reactor.stop)
        self._thread.join()
        # A reactor is made for the life of a process, and does not close its own descriptors.
        waker, self.reactor.waker = self.reactor.waker, None
        waker.connectionLost(None)
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_exception(Closed("the client is closed"))

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have a function called in the thread. Nothing happens after the end."""
        with self._lock:
            if self._running:
                self.reactor.callFromThread(function, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Call a function in the thread, and wait for its result, or that of its Deferred or coroutine.

        Raises what it raises, TimeoutError if that takes longer than ``timeout`` seconds, and `Closed` after the end.
        """
        done: Future[Any] = Future()
        running: list[Deferred[Any]] = []

        def begin() -> None:
            result = maybeDeferred(_result, function, arguments, named)
            running.append(result)
            result.addCallbacks(done.set_result, failed)

        def failed(failure: Failure) -> None:
            done.set_exception(failure.value)

        with self._lock:
            if not self._running:
                raise Closed("the client is closed")
            self._waiting.add(done)
            self.reactor.callFromThread(begin)
        try:
            try:
                return done.result(timeout)
            except TimeoutError:
                if done.done():
                    raise  # of the function itself
            self.soon(lambda: running[0].cancel())
            try:
                return done.result(CANCEL_TIMEOUT)  # it may have come in the last moment
            except (CancelledError, Closed, TimeoutError):
                raise TimeoutError(f"it took more than {timeout} s") from None
        finally:
            with self._lock:
                self._waiting.discard(done)

    def _run(self) -> None:
        self.reactor.run(installSignalHandlers=False)


def _result(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    result = function(*arguments, **named)
    return Deferred.fromCoroutine(result) if isinstance(result, Coroutine) else result
