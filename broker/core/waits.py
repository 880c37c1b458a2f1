"""Finds that wait for a service, or monitor it: who must hear when one of that name is offered."""

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
    """One find that waits or monitors. ``offered`` is None once it has ended."""

    __slots__ = ("name", "offered", "timer", "waits")

    def __init__(self, waits: Waits, name: str, offered: Callable[[Service], None]) -> None:
        self.waits = waits
        self.name = name
        self.offered: Callable[[Service], None] | None = offered
        self.timer: IDelayedCall | None = None

    def cancel(self) -> None:
        if self.offered is None:
            return
        self.offered = None
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        self.waits.remove(self)


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
            wait.timer = self._clock.callLater(seconds, _expire, wait, ended)
        return wait

    def remove(self, wait: Wait) -> None:
        """A wait has ended."""
        same_name = self._by_name[wait.name]
        del same_name[wait]
        self._count -= 1
        if not same_name:
            del self._by_name[wait.name]

    def of(self, name: str) -> Sequence[Wait]:
        """Who waits for that name now."""
        return tuple(self._by_name.get(name, ()))


def _expire(wait: Wait, ended: Callable[[], None]) -> None:
    wait.cancel()
    ended()
