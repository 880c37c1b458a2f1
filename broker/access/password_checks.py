"""Password checks in threads, of all listeners together.

A check takes some 30 ms of a thread. Rules:
- A bounded number runs at once, and a bounded number waits.
- Addresses take turns (`PasswordChecks.run`, ``turn``). In a full queue, an address with fewer waiting checks displaces
  the last one of the address with most: guesses from a few addresses neither delay the logins of others for long nor
  refuse them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

import attrs
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal

CHECKS = 2
"""Password checks that run at once: more would take processors from the rest of the broker."""

MAX_WAITING = 100
"""Password checks that may wait: they take some 1.5 s, and clients wait little longer for an answer."""


Begin = Callable[[], Callable[[Any], Any]]
"""Begins a check, or raises `Refusal` if it may not begin. Returns a function for the result of the check, whose own
result is that of the caller. That function is called even if the check was cancelled meanwhile."""


def _at_once() -> Callable[[Any], Any]:
    return lambda result: result


@attrs.define(eq=False)
class _WaitingCheck:
    """A password check that has not begun."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    turn: Hashable
    begin: Begin
    done: Deferred[Any]


class PasswordChecks:
    """Password checks in threads: `CHECKS` at once, and a queue of `MAX_WAITING` further ones.

    ``in_thread`` calls a function with arguments in a thread, and returns a Deferred of its result.
    """

    def __init__(self, in_thread: Callable[..., Deferred[Any]]) -> None:
        self._in_thread = in_thread
        self._running = 0
        self._waiting: OrderedDict[Hashable, deque[_WaitingCheck]] = OrderedDict()
        """Waiting checks by turn, the next one first."""
        self._count = 0
        """Number of all waiting checks."""

    def run(
        self, function: Callable[..., Any], *arguments: Any, turn: Hashable = "", begin: Begin = _at_once
    ) -> Deferred[Any]:
        """Return a Deferred of the result, which may be cancelled.

        ``turn`` stands for the address of the peer: checks of different ones take turns. Raises `Refusal` LIMIT if the
        queue is full. The Deferred fails with it if the check is displaced, and with what ``begin`` raises.
        """
        if self._running >= CHECKS and self._count >= MAX_WAITING:
            self._displace(turn)
        check = _WaitingCheck(function, arguments, turn, begin, Deferred(lambda _: self._remove(check)))
        self._waiting.setdefault(turn, deque()).append(check)
        self._count += 1
        self._next()
        return check.done

    def _displace(self, turn: Hashable) -> None:
        """Make room for a check of an address. Raises `Refusal` if it has its share."""
        most = max(self._waiting.values(), key=len)
        refusal = Refusal(Reason.LIMIT, "too many passwords are being checked")
        if len(self._waiting.get(turn, ())) + 1 >= len(most):
            raise refusal
        last = most[-1]
        self._remove(last)
        last.done.errback(refusal)

    def _remove(self, check: _WaitingCheck) -> None:
        """Remove a check from the queue. No-op for one that has begun."""
        same = self._waiting.get(check.turn)
        if same is not None and check in same:
            same.remove(check)
            self._count -= 1
            if not same:
                del self._waiting[check.turn]

    def _next(self) -> None:
        while self._waiting and self._running < CHECKS:
            turn, same = self._waiting.popitem(last=False)
            check = same.popleft()
            self._count -= 1
            if same:
                self._waiting[turn] = same
            self._begin(check)

    def _begin(self, check: _WaitingCheck) -> None:
        try:
            settle = check.begin()
        except Refusal as refusal:
            check.done.errback(refusal)
            return
        self._running += 1

        def ended(result: Any) -> None:
            # A thread cannot be stopped: a cancelled check, too, frees its place only when it ends.
            self._running -= 1
            if not isinstance(result, Failure):
                result = settle(result)
            self._next()
            if check.done.called:
                return
            if isinstance(result, Failure):
                check.done.errback(result)
            else:
                check.done.callback(result)

        maybeDeferred(self._in_thread, check.function, *check.arguments).addBoth(ended)
