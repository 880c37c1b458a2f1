"""Waits: standing queries for services of a name, which end with the first one or go on as monitors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from zope.interface import implementer

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IWait
from broker.core.model import Service

MAX_WAITS = 50_000
"""Waits in all: 5 for each of 10,000 providers (real servers have 1 to 3); about 80 MB when full."""


@implementer(IWait)
class Wait:
    """One find that waits or monitors."""

    __slots__ = ("_offered", "_timer", "_waits", "name")

    def __init__(self, waits: Waits, name: str, offered: Callable[[Service], None]) -> None:
        self.name = name
        self._waits = waits
        self._offered: Callable[[Service], None] | None = offered
        self._timer: IDelayedCall | None = None

    def hear(self, service: Service) -> None:
        """A service of that name was offered."""
        if self._offered is not None:
            self._offered(service)

    def end_after(self, seconds: float, clock: IReactorTime, ended: Callable[[], None]) -> None:
        """End it, and call ``ended``, in so many seconds."""

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
    """All waits, by the name they wait for, in the order in which they came."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._by_name: dict[str, dict[Wait, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> Wait:
        """A new wait; see `IRegistry.monitor`."""
        if self._count >= MAX_WAITS:
            raise Refusal(Reason.LIMIT, f"the broker holds {MAX_WAITS} waiting finds, and takes no more")
        wait = Wait(self, name, offered)
        self._by_name.setdefault(name, {})[wait] = None
        self._count += 1
        if seconds is not None:
            wait.end_after(seconds, self._clock, ended)
        return wait

    def remove(self, wait: Wait) -> None:
        """A wait has ended."""
        same_name = self._by_name[wait.name]
        del same_name[wait]
        self._count -= 1
        if not same_name:
            del self._by_name[wait.name]

    def of(self, name: str) -> Sequence[Wait]:
        """The waits for that name now."""
        waits = self._by_name.get(name)
        return () if waits is None else tuple(waits)
