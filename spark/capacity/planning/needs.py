"""Needs: the providers that a load of a service needs. Every need of a plan is made here: of now, of each hour, of the
horizon.

Rules:
- Nothing is claimed about capacity where nothing says when a provider is full: no `full_load`, no number.
- Providers for a load = load / (`full_load` * target utilisation), rounded up, and never less than one.
- Where providers report requests and their latency, or requests in flight, Erlang's formula says how many providers,
  each of which handles one request at a time, keep all but `WAIT_SHARE` of them from waiting; the larger number is
  taken. The traffic of a load is that of the last full hour, in proportion to the load. If more requests are in service
  than there are providers, they handle several at a time, and the formula says nothing.
- Spare providers come on top: `SPARE`, or `SPARE_SHARE` of those needed if that is more.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from typing import Any

import attrs

from spark.capacity.planning import erlang
from spark.capacity.planning.erlang import MOST_ERLANGS, WAIT_SHARE

SPARE = 2
"""One may be down and another be restarted at the same time, and demand is still met."""

SPARE_SHARE = 0.05
"""Of a large farm more than two are down at a time."""


@attrs.frozen
class Needs:
    """The needs of a service.

    ``per_provider`` is the load that a provider should carry, None without a full load. With a load of ``mean`` so many
    requests were in service, ``erlangs``: None where providers do not report them, or handle several at a time.
    """

    per_provider: float | None
    erlangs: float | None = None
    mean: float | None = None

    def busy(self, load: float) -> int | None:
        """Return the providers that a load keeps busy; None where nothing is known."""
        waits = None if self.erlangs is None else erlang.providers_for(self._traffic(self.erlangs, load))
        known = [number for number in (self._for_load(load), waits) if number is not None]
        return max(1, *known) if known else None

    def of(self, load: float) -> int | None:
        """Return the providers that must be there for a load, spares included; None where nothing is known."""
        busy = self.busy(load)
        return None if busy is None else with_spare(busy)

    def exceed(self, load: float, providers: int) -> bool:
        """Return True if a load needs more than so many providers; False where nothing is known."""
        needed = self.of(load)
        return needed is not None and needed > providers

    def carried(self, providers: int) -> float | None:
        """Return the highest load for which so many providers are enough, spares included; 0 if they are all spares."""
        busy = next((busy for busy in range(providers - SPARE, 0, -1) if with_spare(busy) <= providers), 0)
        limits = [busy * self.per_provider] if self.per_provider else []
        # Without a load in proportion to which the traffic grows, no load is the limit.
        if self.erlangs and self.mean:
            limits.append(erlang.most_traffic(busy) / self.erlangs * self.mean)
        return min(limits, default=None)

    def rule(self, load: float, target: float) -> str:
        """Name the rule that decides on the need of a load."""
        busy, by_load = self.busy(load), self._for_load(load)
        if busy is None:
            return "none"
        waits = by_load is None or busy > by_load
        spare = f" + {SPARE_SHARE:.0%} spare" if ceil(busy * SPARE_SHARE) > SPARE else f" + {SPARE} spare"
        return (f"at most {WAIT_SHARE:.0%} wait" if waits else f"peak bound at {target:.0%} load") + spare

    def _for_load(self, load: float) -> int | None:
        return max(1, ceil(load / self.per_provider)) if self.per_provider else None

    def _traffic(self, erlangs: float, load: float) -> float:
        return min(MOST_ERLANGS, erlangs * max(0.0, load) / self.mean) if self.mean else erlangs


def service_needs(
    full_load: float | None, target: float | None, erlangs: float | None, providers: float | None, mean: float | None
) -> Needs:
    """Return the needs of a service whose ``providers`` had so many requests in service, with a load of ``mean``."""
    return Needs(
        full_load * target if full_load and target else None,
        None if erlangs is None or several(erlangs, providers or 0.0) else erlangs,
        mean,
    )


def needs_of(row: Mapping[str, Any]) -> Needs:
    """Return the needs of a service, from its row of gold_plan."""
    names = ("full_load", "target_utilisation", "erlangs", "providers_now", "demand_mean")
    return service_needs(*(_finite(row.get(name)) for name in names))


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(value)


def several(erlangs: float, providers: float) -> bool:
    """Return True if so many providers with so many requests in service must handle several at a time."""
    return 0 < providers < erlangs


def with_spare(busy: int) -> int:
    """Return the providers that must be there for so many to be busy."""
    return busy + max(SPARE, ceil(busy * SPARE_SHARE))
