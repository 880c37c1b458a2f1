"""Erlang's delay formula (Erlang C): the number of providers with which most requests do not wait.

Requests come at random, each takes a provider for a while, and one that finds all providers busy waits. The offered
traffic ``a`` is arrivals a second times seconds of service, in erlangs: the mean number of providers that are busy.

Rules:
- B(0) = 1 and B(k) = aB(k-1) / (k + aB(k-1)) is the share that would be turned away: it stays between 0 and 1, and
  needs no factorial, so it is exact enough for any number of providers.
- C(k) = B / (1 - (a/k)(1 - B)) is the share that waits. With no more providers than erlangs, all wait in the end.
"""

from __future__ import annotations

WAIT_SHARE = 0.05
"""The share of requests that may wait. If one in twenty waits, waiting is rare enough not to shape the day of a
user, and the providers beyond that bring little."""

MOST_ERLANGS = 100_000.0
"""More than this is a mistake of units, not a farm; the search takes as many steps as there are erlangs."""

STEPS = 40
"""Halvings of an interval of at most `MOST_ERLANGS`: what is left of it is below a millionth."""


def waiting(providers: int, erlangs: float) -> float:
    """Return the share of requests that wait."""
    if not 0.0 <= erlangs <= MOST_ERLANGS:
        raise ValueError(f"offered traffic of {erlangs} erlangs is not between 0 and {MOST_ERLANGS:.0f}")
    if providers < 0:
        raise ValueError(f"there cannot be {providers} providers")
    if erlangs == 0.0:
        return 0.0
    if providers <= erlangs:
        return 1.0
    blocked = 1.0
    for k in range(1, providers + 1):
        blocked = erlangs * blocked / (k + erlangs * blocked)
    return blocked / (1.0 - erlangs / providers * (1.0 - blocked))


def providers_for(erlangs: float, wait_share: float = WAIT_SHARE) -> int:
    """Return the smallest number of providers with which no more than ``wait_share`` of the requests wait."""
    if not 0.0 <= erlangs <= MOST_ERLANGS:
        raise ValueError(f"offered traffic of {erlangs} erlangs is not between 0 and {MOST_ERLANGS:.0f}")
    if not 0.0 < wait_share < 1.0:
        raise ValueError(f"a share of {wait_share} that may wait is not between 0 and 1")
    if erlangs == 0.0:
        return 0
    blocked, k = 1.0, 0
    while True:
        k += 1
        blocked = erlangs * blocked / (k + erlangs * blocked)
        if k > erlangs and blocked / (1.0 - erlangs / k * (1.0 - blocked)) <= wait_share:
            return k


def most_traffic(providers: int, wait_share: float = WAIT_SHARE) -> float:
    """Return the highest offered traffic of which no more than ``wait_share`` waits for so many providers."""
    low, high = 0.0, min(float(providers), MOST_ERLANGS)
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if waiting(providers, middle) <= wait_share else (low, middle)
    return low
