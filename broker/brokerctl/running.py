"""One reactor for one command: it runs a coroutine to its end, and stops at a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.pollreactor import PollReactor
from twisted.python.failure import Failure as TwistedFailure

from broker.brokerctl.failures import Interrupted
from broker.brokerctl.http.resolver import DaemonResolver

Result = TypeVar("Result")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(main: Callable[[Any], Coroutine[Deferred[Any], Any, Result]]) -> Result:
    """Return the result of ``main(reactor)``, or raise its exception.

    A signal cancels the coroutine, and raises `Interrupted` once it has cleaned up. The reactor is a new one each time,
    and is not installed as the global one.
    """
    reactor = PollReactor()
    reactor.installNameResolver(DaemonResolver(reactor))
    received: list[int] = []
    outcome: list[Any] = []
    running: Deferred[Any]

    def begin() -> None:
        nonlocal running
        running = Deferred.fromCoroutine(main(reactor))
        running.addBoth(finish)

    def finish(result: Any) -> None:
        outcome.append(result)
        # A turn later: connections that were aborted in this one are closed in the next.
        reactor.callLater(0, reactor.stop)

    def on_signal(number: int, frame: object) -> None:
        received.append(number)
        reactor.callFromThread(lambda: running.cancel())

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    reactor.callWhenRunning(begin)
    try:
        reactor.run(installSignalHandlers=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # Its two descriptors would stay open.
        reactor.waker.connectionLost(None)
    [result] = outcome
    if isinstance(result, TwistedFailure):
        if received:
            raise Interrupted(received[0])
        result.raiseException()
    return result  # type: ignore[no-any-return]


def sleep(reactor: Any, seconds: float) -> Awaitable[None]:
    """Return a Deferred that fires after a time."""
    delayed: Deferred[None] = Deferred(lambda _: call.cancel())
    call = reactor.callLater(seconds, delayed.callback, None)
    return delayed
