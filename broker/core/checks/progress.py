"""State machine of one check: from outcomes to the state of the service.

Rules:
- ``untested`` becomes ``passing`` at the first success, and ``failing`` after ``down`` failures in a row.
- ``passing`` becomes ``doubtful`` at the first failure, ``failing`` after ``down`` failures in a row, and ``passing``
  again at a success before that; ``failing`` becomes ``passing`` after ``up`` successes in a row.
- A ping counts as failed only if the peer has answered one before: a peer whose software does not know the ping would
  otherwise fail although it works. After `GIVE_UP` unanswered pings such a peer is sent no more: they would fill the
  buffers of one that never reads, until its connection is closed for that.
- If the host of the peer does not even acknowledge the ping, it counts as failed in any case: the host is not reached,
  whatever its software knows. The peer is doubtful at once then.
- An outcome that proves nothing (the check could not be made) changes nothing.

All values are immutable: a step returns the next one.
"""

from __future__ import annotations

import attrs

from broker.core.model import Check, CheckState

GIVE_UP = 10
"""Unanswered pings, with no answer ever, after which a peer is sent no more: five minutes at the default interval,
longer than any server takes to start."""


@attrs.frozen
class Outcome:
    """Outcome of one check: True for a success, False for a failure, None if the check could not be made. ``reason``
    explains it, without a period at the end. ``refused``: the host answered that nothing listens there.
    ``unreachable``: the host acknowledged nothing."""

    alive: bool | None
    reason: str
    refused: bool = False
    unreachable: bool = False


@attrs.frozen
class Progress:
    """State of one check.

    ``streak`` is the number of outcomes in a row that contradict the state, or for an untested service, of failures.
    ``proved`` is True after the first success. ``unproven`` is True for a ping: see the rules.
    """

    check: Check
    streak: int = 0
    proved: bool = False
    unproven: bool = False

    @classmethod
    def begin(cls, ping: bool, now: float) -> Progress:
        """Return the state before the first outcome."""
        return cls(Check(CheckState.UNTESTED, "not checked yet", now), unproven=ping)

    @property
    def doubtful(self) -> bool:
        """True if the next outcomes decide: the check is repeated soon."""
        return self.check.state is CheckState.DOUBTFUL

    @property
    def hopeless(self) -> bool:
        """True if further pings are of no use: see `GIVE_UP`."""
        return self.unproven and not self.proved and self.streak >= GIVE_UP

    def after(self, outcome: Outcome, up: int, down: int, now: float) -> Progress:
        """Return the state after an outcome at ``now``, in seconds of the clock."""
        if outcome.alive is None:
            return self if self.proved else self._with(self.check.state, outcome.reason, self.streak, now)
        if outcome.alive:
            return attrs.evolve(self._success(outcome.reason, up, now), proved=True)
        return self._failure(outcome, down, now)

    def _success(self, reason: str, up: int, now: float) -> Progress:
        if self.check.state is CheckState.FAILING:
            streak = self.streak + 1
            if streak < up:
                return attrs.evolve(self, streak=streak)
        return self._with(CheckState.PASSING, reason, 0, now)

    def _failure(self, outcome: Outcome, down: int, now: float) -> Progress:
        state, reason = self.check.state, outcome.reason
        unproven = self.unproven and not self.proved and not outcome.unreachable
        streak = self.streak + 1
        if unproven:
            return self._with(CheckState.UNTESTED, f"{reason}; it has not answered any yet", streak, now)
        if state is CheckState.FAILING:
            return self._with(state, reason, 0, now)
        if streak >= down:
            return self._with(CheckState.FAILING, reason, 0, now)
        if state is CheckState.UNTESTED and not outcome.unreachable:
            return self._with(state, reason, streak, now)
        return self._with(CheckState.DOUBTFUL, reason, streak, now)

    def _with(self, state: CheckState, reason: str, streak: int, now: float) -> Progress:
        since = self.check.since if state is self.check.state else now
        return attrs.evolve(self, check=Check(state, reason, since), streak=streak)
