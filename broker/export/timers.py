"""Timers of the journal: one call for each function, which run on time although the clock was set back.

Timers of Twisted stand still while a clock that was set back catches up. `Timers.wake` sets them again.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@attrs.frozen
class _Timer:
    call: IDelayedCall
    seconds: float


class Timers:
    """Calls that are due later, at most one for each function."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._timers: dict[Callable[[], None], _Timer] | None = {}
        """None after `stop`."""

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function later. No-op if that call is due already, or after `stop`."""
        timers = self._timers
        if timers is None or function in timers:
            return

        def call() -> None:
            del timers[function]
            function()

        timers[function] = _Timer(self._clock.callLater(seconds, call), seconds)

    def wake(self) -> None:
        """Set each timer again that has longer to go than it was set for: the clock was set back meanwhile."""
        now = self._clock.seconds()
        for timer in (self._timers or {}).values():
            if timer.call.getTime() - now > timer.seconds:
                timer.call.reset(timer.seconds)

    def stop(self) -> None:
        """Cancel all calls, and take no more."""
        for timer in (self._timers or {}).values():
            timer.call.cancel()
        self._timers = None
