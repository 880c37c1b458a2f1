"""The loads of the last hour by provider, one sample a minute.

Rules:
- A sample is taken as background work (`broker.core.turns`), so that 100,000 providers delay no peer. The samples of
  one minute may therefore differ in age by some turns.
- At most `PROVIDERS` have a history: those with the lowest ids, which have been there for the longest time.
- The history of a provider ends when it leaves. A restart begins with an empty history.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from math import isnan, nan

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.interfaces import IRegistry
from broker.core.turns import Turns, pieces

STEP = 60
"""Seconds between two samples: a sparkline of an hour has as many points as a small screen shows."""

SAMPLES = 60
"""Samples that are kept of each provider: an hour."""

PROVIDERS = 20_000
"""Providers with a history, at some 400 bytes each: 8 MB. The largest known farms have a thousand."""

PIECE = 200
"""Providers sampled in one step, in half a millisecond."""


class LoadHistory:
    """The loads of the last hour of the providers of ``registry``: at most ``most``, sampled on ``clock``."""

    log = Logger()

    def __init__(self, registry: IRegistry, clock: IReactorTime, turns: Turns, most: int = PROVIDERS) -> None:
        self._registry = registry
        self._clock = clock
        self._turns = turns
        self._most = most
        self._loads: dict[int, array[float]] = {}
        self._taken = 0
        """Number of the newest sample; sample ``n`` is in the place ``n % SAMPLES`` of each array."""
        self._call: IDelayedCall | None = None
        self._work: Deferred[None] | None = None
        """The sample that is being taken."""

    def start(self) -> None:
        """Begin to sample: at once, and then once in each `STEP`."""
        self._call = self._clock.callLater(0, self._sample)

    def stop(self) -> None:
        """Take no more samples."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None
        if self._work is not None:
            self._work.cancel()

    def __len__(self) -> int:
        return len(self._loads)

    def of(self, provider: int) -> list[float | None]:
        """Return the loads of a provider, the newest last: `SAMPLES` or fewer, None for a time without a sample."""
        loads = self._loads.get(provider)
        if loads is None:
            return []
        place = self._taken % SAMPLES
        ordered = loads[place + 1 :] + loads[: place + 1]
        first = next((n for n, load in enumerate(ordered) if not isnan(load)), SAMPLES)
        return [None if isnan(load) else round(load, 6) for load in ordered[first:]]

    def _sample(self) -> None:
        self._call = None
        begun = self._clock.seconds()
        self._taken += 1
        self._work = self._turns.run(self._steps())
        self._work.addCallback(self._rest, begun).addErrback(self._failed)

    def _steps(self) -> Iterator[None]:
        """Take a sample of each provider, and drop the histories of those that have left."""
        place = self._taken % SAMPLES
        seen = 0
        for some in pieces(self._registry.ids(), PIECE):
            for id in some:
                provider = self._registry.provider(id)
                if provider is None or seen >= self._most:
                    continue
                seen += 1
                loads = self._loads.get(id)
                if loads is None:
                    loads = self._loads[id] = array("f", [nan] * SAMPLES)
                loads[place] = provider.load
            if seen >= self._most:
                break
            yield
        for some in pieces(list(self._loads), PIECE):
            for id in some:
                if self._registry.wire_and_label(id) is None:
                    del self._loads[id]
            yield

    def _rest(self, _: None, begun: float) -> None:
        wait = begun + STEP - self._clock.seconds()
        self._call = self._clock.callLater(min(max(wait, 0.0), STEP), self._sample)

    def _failed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self.log.failure("the loads of providers could not be sampled", failure)
            self._rest(None, self._clock.seconds())
