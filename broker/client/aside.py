"""Calls that block, each in a thread of its own beside an event loop.

Pools of threads have two faults here: the program may hold all of their threads, so that the client could not
authenticate, and the interpreter waits for them at its end, for as long as a look-up of a name takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred


def aside(soon: Callable[..., object], function: Callable[..., Any], *arguments: Any) -> Deferred[Any]:
    """Call a function in a daemon thread, from the thread of the event loop. Fires with its result in that of the loop.

    ``soon`` schedules a call in the loop from any thread. It is a no-op after the end of the loop.
    """
    done: Deferred[Any] = Deferred()

    def finish(report: Callable[[Any], object], result: Any) -> None:
        if not done.called:
            report(result)

    def work() -> None:
        try:
            result = function(*arguments)
        except Exception as error:
            soon(finish, done.errback, error)
        else:
            soon(finish, done.callback, result)

    threading.Thread(target=work, daemon=True).start()
    return done
