"""Departed providers: own ones whose sessions have ended because this broker drains.

Rules:
- A departed provider stays in etcd and in all registries until a successor replaces it, or until `seconds` have passed
  since the end of its session. So no find misses a service that is on its way to another broker.
- The registry here has it as it has the providers of other members, with the name of this member.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.model import Provider


class Departed:
    """Departed providers of the member ``name``. ``ended`` is called with the id of one whose time has passed."""

    def __init__(self, clock: IReactorTime, name: str, seconds: float, ended: Callable[[int], None]) -> None:
        self._clock = clock
        self._name = name
        self._seconds = seconds
        self._ended = ended
        self._providers: dict[int, tuple[float, Provider]] = {}
        """The providers with the ends of their times, the earliest first: at most as many as sessions had."""
        self._timer: IDelayedCall | None = None

    def add(self, provider: Provider) -> None:
        """Add a provider whose session ends now."""
        end = self._clock.seconds() + self._seconds
        self._providers[provider.id] = end, attrs.evolve(provider, broker=self._name)
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._due)

    def get(self, id: int) -> Provider | None:
        """Return a departed provider; None if there is none of that id."""
        found = self._providers.get(id)
        return found and found[1]

    def discard(self, id: int) -> None:
        """Remove a provider, without a call of ``ended``. No-op for others."""
        self._providers.pop(id, None)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def ids(self) -> tuple[int, ...]:
        """Return the ids of all."""
        return tuple(self._providers)

    def __contains__(self, id: int) -> bool:
        return id in self._providers

    def __len__(self) -> int:
        return len(self._providers)

    def _due(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        passed = [id for id, (end, _) in self._providers.items() if end <= now]
        for id in passed:
            del self._providers[id]
        if self._providers:
            first, _ = next(iter(self._providers.values()))
            self._timer = self._clock.callLater(first - now, self._due)
        for id in passed:
            self._ended(id)
