"""A private reactor in a thread, for programs without an event loop.

It is not the global `twisted.internet.reactor`, which remains free for the program. The thread runs from `start` to
`stop` as a daemon thread, so it does not keep the process alive.
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
"""Time that a cancelled call has to end after its timeout, in seconds; most end at once."""


class ReactorThread:
    """A reactor in a thread. ``limit`` is the time limit of `limited` calls without one of their own, in seconds."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self.reactor: Any = PollReactor()
        self._thread = threading.Thread(target=self._run, name="mtl", daemon=True)
        # Reentrant: a signal handler may call `soon` while it interrupts a call of the same thread.
        self._lock = threading.RLock()
        self._running = False
        self._waiting: set[Future[Any]] = set()

    def start(self) -> None:
        """Start the thread and wait until the reactor runs."""
        ready = threading.Event()
        self.reactor.callWhenRunning(ready.set)
        self._thread.start()
        ready.wait()
        self._running = True

    def stop(self) -> None:
        """Stop the reactor and join the thread. Pending calls raise `Closed`. Not for use in the thread itself."""
        with self._lock:
            if not self._running:
                return
            self._running = False
            self.reactor.callFromThread(self.reactor.stop)
        self._thread.join()
        # A reactor is designed to last as long as the process, and leaves its waker's descriptors open.
        waker, self.reactor.waker = self.reactor.waker, None
        waker.connectionLost(None)
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for each in waiting:
            if not each.done():
                each.set_exception(Closed("the client is closed"))

    def soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule a call in the thread. No-op after `stop`."""
        with self._lock:
            if self._running:
                self.reactor.callFromThread(function, *arguments)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """Call a function in the thread and return its result, or that of its Deferred or coroutine.

        Raises the function's exception, TimeoutError after ``timeout`` seconds, `Closed` after `stop`, and RuntimeError
        in the thread itself, where the call would wait for its own end.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback in the client's thread must not call a method that blocks")
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
                    raise  # raised by the function itself
            self.soon(lambda: running[0].cancel())
            try:
                return done.result(CANCEL_TIMEOUT)  # the result may arrive in the meantime
            except (CancelledError, Closed, TimeoutError):
                raise TimeoutError(f"the call took more than {timeout} s") from None
        finally:
            with self._lock:
                self._waiting.discard(done)

    def limited(self, function: Callable[..., Any], *arguments: Any, timeout: float | None = None, **named: Any) -> Any:
        """See `call`; without a ``timeout`` the limit of the thread applies."""
        return self.call(function, *arguments, timeout=self.limit if timeout is None else timeout, **named)

    def _run(self) -> None:
        self.reactor.run(installSignalHandlers=False)


def _result(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    result = function(*arguments, **named)
    return Deferred.fromCoroutine(result) if isinstance(result, Coroutine) else result
