"""Needs: the providers that a load of a service needs. Every need of a plan is made here: of now, of each hour, of the
horizon.

Rules:
- Nothing is claimed about capacity where nothing says when a provider is full: no `full_load`, no number. Nor is
  anything of a load that is not known.
- A load *keeps busy* load / `full_load` providers, rounded up. With fewer they are overloaded.
- The policy wants more: load / (`full_load` * target utilisation), rounded up, and its spares on top; those that are
  kept busy, and `n_plus` that may fail; and no fewer than its least.
- Where providers report requests and their latency, or requests in flight, Erlang's formula says how many providers,
  each of which handles one request at a time, keep all but `WAIT_SHARE` of them from waiting; the larger number is
  taken. The traffic of a load is that of the last full hour, in proportion to the load. If more requests are in service
  than there are providers, they handle several at a time, and the formula says nothing.

Erlang's delay formula (Erlang C) gives the number of providers with which most requests do not wait. Requests come at
random, each takes a provider for a while, and one that finds all providers busy waits. The offered traffic ``a`` is
arrivals a second times seconds of service, in erlangs: the mean number of providers that are busy.

- B(0) = 1 and B(k) = aB(k-1) / (k + aB(k-1)) is the share that would be turned away: it stays between 0 and 1, and
  needs no factorial, so it is exact enough for any number of providers.
- C(k) = B / (1 - (a/k)(1 - B)) is the share that waits. With no more providers than erlangs, all wait in the end.

A service has one of seven states in the plan, the worst first. A measured one comes before one by the bound.

| state | meaning |
|---|---|
| overloaded | the highest load of the last full hour keeps more providers busy than there are |
| no N+1 | with as many fewer providers as may fail, the highest load of the last day would overload the others |
| below policy | the bound of the horizon needs more providers than there are |
| can free | the bound of the horizon needs fewer: the rest may go |
| enough | there are as many as the bound needs |
| too little history | of less than `FEWEST` hours, or no bound, nothing is claimed about the horizon |
| unknown | nothing says when a provider is full |
"""

from collections.abc import Iterator
from enum import StrEnum
from itertools import count, islice
from math import ceil, inf

import attrs

from spark.capacity.planning.policy import DEFAULT, MOST_PROVIDERS, Policy
from spark.capacity.tables.row_values import Row, number_of

WAIT_SHARE = 0.05
"""The share of requests that may wait. If one in twenty waits, waiting is rare enough not to shape the day of a
user, and the providers beyond that bring little."""

MOST_ERLANGS = 100_000.0
"""More than this is a mistake of units, not a farm; the search takes as many steps as there are erlangs."""

STEPS = 40
"""Halvings of an interval of at most `MOST_ERLANGS`: what is left of it is below a millionth."""


def _waiting(erlangs: float) -> Iterator[float]:
    """Yield the share of requests that wait with one provider, with two, and so on."""
    blocked = 1.0
    for k in count(1):
        blocked = erlangs * blocked / (k + erlangs * blocked)
        yield 1.0 if k <= erlangs else blocked / (1.0 - erlangs / k * (1.0 - blocked))


def waiting(providers: int, erlangs: float) -> float:
    """Return the share of requests that wait."""
    if providers == 0:
        return 1.0 if erlangs else 0.0
    return next(islice(_waiting(erlangs), providers - 1, None))


def providers_for(erlangs: float) -> int:
    """Return the smallest number of providers with which no more than `WAIT_SHARE` of the requests wait."""
    needed = next(k for k, share in enumerate(_waiting(erlangs), 1) if share <= WAIT_SHARE)
    return needed if erlangs else 0


def most_traffic(providers: int) -> float:
    """Return the highest offered traffic of which at most `WAIT_SHARE` has to wait, with that number of providers."""
    low, high = 0.0, min(float(providers), MOST_ERLANGS)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if waiting(providers, middle) <= WAIT_SHARE else (low, middle)
    return low


ROUNDING = 1e-9
"""Part of a provider that is no provider: 0.8 * 50 * 3 is a little more than 120."""


@attrs.frozen
class Needs:
    """The needs of a service by its policy.

    ``full_load`` is the load at which a provider is full, None where that is not known. With a load of ``mean`` so many
    requests were in service, ``erlangs``: None where providers do not report them, or handle several at a time.
    """

    full_load: float | None
    policy: Policy = DEFAULT
    erlangs: float | None = None
    mean: float | None = None

    def busy(self, load: float | None) -> int | None:
        """Return the providers that a load keeps busy: with fewer they are overloaded. None where nothing is known."""
        if load is None:
            return None
        known = [number for number in (self._for_load(load, 1.0), self._not_stuck(load)) if number is not None]
        return max(known) if known else None

    def of(self, load: float | None) -> int | None:
        """Return the providers that the policy wants for a load; None where nothing is known."""
        wanted = self.wanted(load)
        if not wanted:
            return None
        most = MOST_PROVIDERS if self.policy.most is None else self.policy.most
        return min(max(wanted.values()), most)

    def exceed(self, load: float | None, providers: int) -> bool:
        """Return True if a load needs more than so many providers; False where nothing is known."""
        needed = self.of(load)
        return needed is not None and needed > providers

    def overloads(self, load: float | None, providers: int) -> bool:
        """Return True if a load keeps more than so many providers busy; False where nothing is known."""
        busy = self.busy(load)
        return busy is not None and busy > providers

    def carried(self, providers: int) -> float | None:
        """Return the highest load for which so many providers are enough, infinite if any is; None where nothing is
        known."""
        policy = self.policy
        if not self.wanted(0.0):
            return None
        if policy.most is not None and providers >= policy.most:
            return inf
        if providers < max(policy.least, 1):
            return 0.0
        apart, left = max(providers - policy.spares, 0), max(providers - policy.n_plus, 0)
        limits = [min(apart * self.full_load * policy.target, left * self.full_load)] if self.full_load else []
        # Without a load in proportion to which the traffic grows, no load is the limit.
        if self.erlangs and self.mean:
            # Less than `left` erlangs: with as many, requests pile up.
            traffic = min(most_traffic(apart), left * (1.0 - ROUNDING))
            limits.append(traffic / self.erlangs * self.mean)
        return min(limits, default=inf)

    def rule(self, load: float | None) -> str:
        """Name the rule that decides on the need of a load."""
        wanted, most = self.wanted(load), self.policy.most
        if not wanted:
            return "none"
        if most is not None and max(wanted.values()) > most:
            return f"at most {most}"
        return max(wanted, key=lambda name: wanted[name])

    def wanted(self, load: float | None) -> dict[str, int]:
        """Return the providers that each rule of the policy wants, by its name; the first of equal ones decides. Empty
        where nothing is known."""
        policy, busy = self.policy, self.busy(load)
        if load is None or busy is None:
            return {}
        spares = f" + {policy.spares} spare" if policy.spares else ""
        wanted = {}
        if (by_load := self._for_load(load, policy.target)) is not None:
            wanted[f"peak bound at {policy.target:.0%} load{spares}"] = by_load + policy.spares
        if self.erlangs is not None:
            waits = providers_for(self._traffic(self.erlangs, load))
            wanted[f"at most {WAIT_SHARE:.0%} wait{spares}"] = waits + policy.spares
        if policy.n_plus and busy:
            wanted[f"N+{policy.n_plus}"] = busy + policy.n_plus
        wanted[f"at least {max(policy.least, 1)}"] = max(policy.least, 1)
        return wanted

    def _for_load(self, load: float, target: float) -> int | None:
        # A report may be any finite number: the bound may be infinite, and a share of the full load zero.
        most = MOST_PROVIDERS
        return max(0, ceil(min(most, load / self.full_load / target) - ROUNDING)) if self.full_load else None

    def _not_stuck(self, load: float) -> int | None:
        """Return the providers with which requests do not pile up."""
        if self.erlangs is None:
            return None
        traffic = self._traffic(self.erlangs, load)
        return int(traffic) + 1 if traffic else 0

    def _traffic(self, erlangs: float, load: float) -> float:
        # Of no traffic an infinite load makes none either: their product would be NaN.
        return min(MOST_ERLANGS, erlangs * max(0.0, load) / self.mean) if self.mean and erlangs else erlangs


def service_needs(
    full_load: float | None, policy: Policy, erlangs: float | None, providers: float | None, mean: float | None
) -> Needs:
    """Return the needs of a service whose ``providers`` had so many requests in service, with a load of ``mean``."""
    handled = None if erlangs is None or several(erlangs, providers or 0.0) else erlangs
    return Needs(full_load or None, policy, handled, mean)


def needs_of(row: Row) -> Needs:
    """Return the needs of a service, from its row of gold_plan."""
    full_load, erlangs, providers, mean = (
        number_of(row, name) for name in ("full_load", "erlangs", "providers_now", "demand_mean")
    )
    return service_needs(full_load, policy_of(row), erlangs, providers, mean)


def policy_of(row: Row) -> Policy:
    """Return the policy of a service, from its row of gold_plan."""
    return Policy(row["policy"], **{name: row[column] for name, column in POLICY_COLUMNS.items()})


POLICY_COLUMNS = {
    "headroom": "headroom",
    "target": "target_utilisation",
    "spares": "spares",
    "n_plus": "n_plus",
    "least": "providers_least",
    "most": "providers_most",
    "cost": "cost",
}
"""Columns of gold_plan that hold the policy, by the member of `Policy`."""


def several(erlangs: float, providers: float) -> bool:
    """Return True if so many providers with so many requests in service must handle several at a time."""
    return 0 < providers < erlangs


FEWEST = 24
"""Hours with a known load: a shorter history has not seen a day's peak."""


class State(StrEnum):
    """The state of a service."""

    OVERLOADED = "overloaded"
    NO_SPARE = "no N+1"
    BELOW = "below policy"
    FREE = "can free"
    ENOUGH = "enough"
    TOO_LITTLE = "too little history"
    UNKNOWN = "unknown"

    @property
    def is_short(self) -> bool:
        """True if providers are missing, by what was measured or by the policy."""
        return self in (State.OVERLOADED, State.NO_SPARE, State.BELOW)

    @property
    def rank(self) -> int:
        """The place among all states, of which the worst is the first."""
        return list(State).index(self)


def state_of(
    needs: Needs, providers: int, now: float | None, day: float | None, bound: float | None, known_hours: int
) -> State:
    """Return the state of a service with so many providers.

    ``now`` and ``day`` are the highest load of the last full hour and of the last day, ``bound`` is that of the
    horizon, each None where it is not known, and of ``known_hours`` the load is known.
    """
    need, n_plus = needs.of(bound), needs.policy.n_plus
    if needs.busy(0.0) is None:
        return State.UNKNOWN
    if needs.overloads(now, providers):
        return State.OVERLOADED
    if n_plus and needs.overloads(day, providers - n_plus):
        return State.NO_SPARE
    if need is None or known_hours < FEWEST:
        return State.TOO_LITTLE
    if need > providers:
        return State.BELOW
    return State.FREE if need < providers else State.ENOUGH
