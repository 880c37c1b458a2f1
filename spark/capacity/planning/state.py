"""The state of a service in the plan: one of seven, the worst first. What was measured comes before what is bound.

| state | meaning |
|---|---|
| overloaded | the highest load of the last full hour keeps more providers busy than there are |
| no N+1 | with as many fewer providers as may fail, the highest load of the last day would overload the others |
| below policy | the bound of the horizon needs more providers than there are |
| can free | the bound of the horizon needs fewer: the rest may go |
| enough | there are as many as the bound needs |
| too little history | of less than `FEWEST` hours nothing is claimed about the horizon |
| unknown | nothing says when a provider is full |
"""

from __future__ import annotations

from enum import StrEnum

from spark.capacity.planning.needs import Needs

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
    needs: Needs, providers: int, now: float | None, day: float | None, bound: float, known_hours: int
) -> State:
    """Return the state of a service with so many providers.

    ``now`` and ``day`` are the highest load of the last full hour and of the last day, ``bound`` is that of the
    horizon, and of ``known_hours`` the load is known.
    """
    need, n_plus = needs.of(bound), needs.policy.n_plus
    if need is None:
        return State.UNKNOWN
    if needs.overloads(now, providers):
        return State.OVERLOADED
    if n_plus and needs.overloads(day, providers - n_plus):
        return State.NO_SPARE
    if known_hours < FEWEST:
        return State.TOO_LITTLE
    if need > providers:
        return State.BELOW
    return State.FREE if need < providers else State.ENOUGH
