"""Reasons of failing services: a later reason of a service that fails already reaches the other members, too.

Rules:
- A reason, or a policy, that changes while the state stays the same is no `Change` of the registry: a check may have
  another reason each time.
- A provider is marked for it at most once in `interval` seconds, and only if its reasons are not written yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime


class OwnReasons:
    """Reasons of the failing services of own providers in ``registry``. ``due`` is called with a provider whose reasons
    may have to be written; ``interval`` is in seconds."""

    def __init__(self, registry: Any, clock: IReactorTime, interval: float, due: Callable[[int], None]) -> None:
        self._registry = registry
        self._clock = clock
        self._interval = interval
        self._due = due
        self._changed: dict[int, None] = {}
        """Bounded by the own providers within an interval."""
        self._timer: IDelayedCall | None = None
        registry.restated.append(self._restated)

    def stop(self) -> None:
        """Follow the registry no more. No-op after the first call."""
        if self._restated in self._registry.restated:
            self._registry.restated.remove(self._restated)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _restated(self, id: int) -> None:
        self._changed[id] = None
        if self._timer is None:
            self._timer = self._clock.callLater(self._interval, self._write)

    def _write(self) -> None:
        self._timer = None
        changed, self._changed = self._changed, {}
        for id in changed:
            self._due(id)
