"""Simulated time: one timeline for all, and a clock of its own for each broker.

A broker's clock has an arbitrary beginning, creeps forward a little with each reading, as that of a busy process does,
and can be paused and ended: calls of a paused broker are made late, those of an ended one never.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer


class Timeline:
    """All calls of the future, in the order of their times, and of their making at the same time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Call]] = []
        self._made = 0

    def clock(self, beginning: float = 0.0, creep: Callable[[], float] | None = None) -> SimulatedClock:
        """Return another clock, which shows ``beginning`` now. ``creep`` gives the seconds by which a reading
        advances it."""
        return SimulatedClock(self, beginning - self.now, creep)

    def run(self, until: float, after: Callable[[], object] = lambda: None) -> None:
        """Make all calls up to a time. ``after`` is called after each."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            time, _, call = pop(heap)
            if call.state != "waiting":
                continue
            if call.time > time:
                self.put(call)
                continue
            self.now = time
            clock = call.clock
            # This is the innermost loop of a history: the usual case has no call of the clock.
            if clock.paused or clock.ended:
                clock.due(call)
            else:
                call.state = "called"
                call.function(*call.args, **call.kw)
            after()
        self.now = until

    def put(self, call: Call) -> None:
        """Add a call."""
        self._made += 1
        heapq.heappush(self._heap, (call.time, self._made, call))


@implementer(IReactorTime)
class SimulatedClock:
    """Clock of one broker; `IReactorTime`."""

    def __init__(self, timeline: Timeline, offset: float, creep: Callable[[], float] | None) -> None:
        self._timeline = timeline
        self.offset = offset
        self._creep = creep
        self.paused = False
        self.paused_at = 0.0
        """Time of the timeline at which the last pause began."""
        self.ended = False
        self._late: list[Call] = []

    def seconds(self) -> float:
        if self._creep is not None:
            self.offset += self._creep()
        return self._timeline.now + self.offset

    def callLater(self, delay: float, callable: Callable[..., object], *args: Any, **kw: Any) -> IDelayedCall:
        assert delay >= 0, delay
        timeline = self._timeline
        call = Call(self, timeline.now + delay, callable, args, kw)
        timeline.put(call)
        return call  # type: ignore[return-value]

    def getDelayedCalls(self) -> list[IDelayedCall]:
        raise NotImplementedError

    def pause(self) -> None:
        """Make no calls."""
        self.paused, self.paused_at = True, self._timeline.now

    def resume(self) -> None:
        """Make the calls that are late, in their order, and go on."""
        self.paused = False
        late, self._late = self._late, []
        for call in late:
            call.time = self._timeline.now
            self._timeline.put(call)

    def end(self) -> None:
        """Make no calls any more."""
        self.ended = True
        self._late = []

    def due(self, call: Call) -> None:
        """The time of a call has come, while the clock is paused or has ended."""
        if self.ended:
            call.state = "cancelled"
        else:
            self._late.append(call)


@implementer(IDelayedCall)
class Call:
    """One call of the future; `IDelayedCall`."""

    __slots__ = ("args", "clock", "function", "kw", "state", "time")

    def __init__(
        self,
        clock: SimulatedClock,
        time: float,
        function: Callable[..., object],
        args: tuple[Any, ...],
        kw: dict[str, Any],
    ) -> None:
        self.clock = clock
        self.time = time
        self.function = function
        self.args = args
        self.kw = kw
        self.state = "waiting"

    def getTime(self) -> float:
        return self.time + self.clock.offset

    def active(self) -> bool:
        return self.state == "waiting"

    def cancel(self) -> None:
        self._check()
        self.state = "cancelled"

    def reset(self, secondsFromNow: float) -> None:
        self._check()
        before, self.time = self.time, self.clock._timeline.now + secondsFromNow
        if self.time < before:
            earlier = Call(self.clock, self.time, self._fire, (), {})
            self.clock._timeline.put(earlier)

    def delay(self, secondsLater: float) -> None:
        self._check()
        self.time += secondsLater

    def _fire(self) -> None:
        if self.state == "waiting" and self.time <= self.clock._timeline.now:
            self.state = "called"
            self.function(*self.args, **self.kw)

    def _check(self) -> None:
        if self.state == "called":
            raise AlreadyCalled
        if self.state == "cancelled":
            raise AlreadyCancelled
