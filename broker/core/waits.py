"""Waits: standing queries for services of a name, which end at the first match or go on as monitors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import Service

MAX_WAITS = 50_000
"""Limit of waits in all: 5 for each of 10,000 providers (real servers have 1 to 3). Full, they take 40 MB, and
twice that with deadlines."""


@implementer(IWait)
class Wait:
    """Standing query of one peer: a wait or a monitor."""

    __slots__ = ("_offered", "_timer", "_waits", "name", "number")

    def __init__(self, waits: Waits, name: str, number: int, offered: Callable[[Service], None]) -> None:
        self.name = name
        self.number = number
        self._waits = waits
        self._offered: Callable[[Service], None] | None = offered
        self._timer: IDelayedCall | None = None

    def hear(self, service: Service) -> None:
        """Deliver a service of that name. No-op once cancelled."""
        if self._offered is not None:
            self._offered(service)

    def end_after(self, seconds: float, clock: IReactorTime, ended: Callable[[], None]) -> None:
        """Set the deadline: cancel the wait after that many seconds, then call ``ended``."""

        def end() -> None:
            self.cancel()
            ended()

        self._timer = clock.callLater(seconds, end)

    def cancel(self) -> None:
        if self._offered is None:
            return
        self._offered = None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._waits.remove(self)


class Waits:
    """Table of all waits by name, in order of arrival."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._by_name: dict[str, dict[Wait, None]] = {}
        self._count = 0
        self.begun = 0
        """Number of waits that have ever begun. Each has the next number."""

    def __len__(self) -> int:
        return self._count

    def add(
        self, name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> Wait:
        """Add a wait; see `IRegistry.monitor`."""
        if self._count >= MAX_WAITS:
            raise Refusal(Reason.LIMIT, f"the broker holds {MAX_WAITS} waiting finds, and takes no more")
        self.begun += 1
        wait = Wait(self, name, self.begun, offered)
        self._by_name.setdefault(name, {})[wait] = None
        self._count += 1
        if seconds is not None:
            wait.end_after(seconds, self._clock, ended)
        return wait

    def remove(self, wait: Wait) -> None:
        """Remove a wait that has ended."""
        same_name = self._by_name[wait.name]
        del same_name[wait]
        self._count -= 1
        if not same_name:
            del self._by_name[wait.name]

    def of(self, name: str, after: int = 0) -> Sequence[Wait]:
        """Return the present waits for a name, by default all, else those that began after the wait with a number.

        A copy: a callback may cancel or add waits.
        """
        waits = self._by_name.get(name)
        if waits is None:
            return ()
        return tuple(wait for wait in waits if wait.number > after) if after else tuple(waits)
