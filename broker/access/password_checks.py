"""Password checks in threads, of all listeners together.

A check takes some 30 ms of a thread. Rules:
- A bounded number runs at once, and a bounded number waits.
- Addresses take turns. In a full queue, an address with fewer waiting checks displaces the last one of the address with
  most: guesses from a few addresses neither delay the logins of others for long nor refuse them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal

CHECKS = 2
"""Password checks that run at once: more would take processors from the rest of the broker."""

MAX_WAITING = 100
"""Password checks that may wait: they take some 1.5 s, and clients wait little longer for an answer."""


@attrs.define(eq=False)
class _WaitingCheck:
    """A password check that has not begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    address: str
    done: Deferred[Any]


class PasswordChecks:
    """Password checks in threads: `CHECKS` at once, and a queue of `MAX_WAITING` further ones.

    ``in_thread`` calls a function with arguments in a thread, and returns a Deferred of its result.
    """

    def __init__(self, in_thread: Callable[..., Deferred[Any]]) -> None:
        self._in_thread = in_thread
        self._running = 0
        self._waiting: OrderedDict[str, deque[_WaitingCheck]] = OrderedDict()
        """Waiting checks by address, the next one first."""
        self._count = 0
        """Number of all waiting checks."""

    def run(self, function: Callable[..., Any], *arguments: Any, address: str = "") -> Deferred[Any]:
        """Return a Deferred of the result, which may be cancelled.

        Raises `Refusal` LIMIT if the queue is full. The Deferred fails with it if the check is displaced.
        """
        if self._running >= CHECKS and self._count >= MAX_WAITING:
            self._displace(address)
        check = _WaitingCheck(function, arguments, address, Deferred(lambda _: self._remove(check)))
        self._waiting.setdefault(address, deque()).append(check)
        self._count += 1
        self._next()
        return check.done

    def _displace(self, address: str) -> None:
        """Make room for a check of an address. Raises `Refusal` if it has its share."""
        most = max(self._waiting.values(), key=len)
        refusal = Refusal(Reason.LIMIT, "too many passwords are being checked")
        if len(self._waiting.get(address, ())) + 1 >= len(most):
            raise refusal
        last = most[-1]
        self._remove(last)
        last.done.errback(refusal)

    def _remove(self, check: _WaitingCheck) -> None:
        """Remove a check from the queue. No-op for one that has begun."""
        same = self._waiting.get(check.address)
        if same is not None and check in same:
            same.remove(check)
            self._count -= 1
            if not same:
                del self._waiting[check.address]

    def _next(self) -> None:
        while self._waiting and self._running < CHECKS:
            address, same = self._waiting.popitem(last=False)
            check = same.popleft()
            self._count -= 1
            if same:
                self._waiting[address] = same
            self._begin(check)

    def _begin(self, check: _WaitingCheck) -> None:
        self._running += 1

        def ended(result: Any) -> None:
            # A thread cannot be stopped: a cancelled check, too, frees its place only when it ends.
            self._running -= 1
            self._next()
            if check.done.called:
                return
            if isinstance(result, Failure):
                check.done.errback(result)
            else:
                check.done.callback(result)

        maybeDeferred(self._in_thread, check.function, *check.arguments).addBoth(ended)
