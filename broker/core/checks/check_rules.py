"""Rules of health checks, their targets, and the state that follows from an outcome.

State machine of one check: from outcomes to the state of the service.

Rules:
- ``untested`` becomes ``passing`` at the first success, and ``failing`` after ``down`` failures in a row.
- ``passing`` becomes ``doubtful`` at the first failure, ``failing`` after ``down`` failures in a row, and ``passing``
  again at a success before that; ``failing`` becomes ``passing`` after ``up`` successes in a row.
- A ping counts as failed only if the peer has answered one before: a peer whose software does not implement `ping`
  would otherwise fail although it works. After `GIVE_UP` unanswered pings such a peer is sent no more: they would fill
  the buffers of one that never reads, until its connection is closed for that.
- If the host of the peer does not even acknowledge the ping, it counts as failed in any case: the host is unreachable,
  whether or not its software implements `ping`. The peer becomes doubtful at once.
- An outcome that proves nothing (the check could not be made) changes nothing.

All values are immutable: a step returns the next one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Protocol

import attrs

from broker.core.model import Check, CheckState, Policy


class CheckKind(enum.StrEnum):
    """Kind of a check: the ping of the service's own wire, a TCP connection, or an HTTP request."""

    PING = "ping"
    TCP = "tcp"
    HTTP = "http"


ALL = "*"
"""The pattern of every name: that of the default rule."""


@attrs.frozen(cache_hash=True)
class CheckRule:
    """Rule for the services whose name matches one of the shell patterns ``services``.

    ``wires`` and ``protocols`` restrict it to services of these; empty ones do not. A check is made every ``interval``
    seconds, with a random deviation, and fails without an answer in ``timeout`` seconds. A service is failing after
    ``down`` failures in a row, and passing again after ``up`` successes in a row; ``policy`` is its place in finds
    while it is failing. ``path`` and ``statuses`` (least and most) belong to HTTP requests.
    """

    services: tuple[str, ...]
    kind: CheckKind
    wires: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    interval: float = 30.0
    timeout: float = 5.0
    up: int = 2
    down: int = 3
    policy: Policy = Policy.LAST
    path: str = "/"
    statuses: tuple[int, int] = (200, 399)

    def matches(self, name: str, protocol: str, wire: str) -> bool:
        """Return True if the rule is for a service of that name and protocol, registered on that wire."""
        return (
            (not self.wires or wire in self.wires)
            and (not self.protocols or protocol in self.protocols)
            and (ALL in self.services or any(fnmatchcase(name, pattern) for pattern in self.services))
        )


@attrs.frozen
class CheckSettings:
    """All rules, in their order: the first one that matches a service counts.

    ``concurrency`` is the number of connections for checks at one time; ``panic`` as in
    `broker.core.registered_services`.
    """

    rules: tuple[CheckRule, ...] = ()
    concurrency: int = 50
    panic: float = 0.5

    def rule_for(self, name: str, protocol: str, wire: str, pings: Callable[[str], bool]) -> CheckRule | None:
        """Return the rule of a service, None if it is not checked. ``pings`` is True for a wire with a ping: rules for
        pings do not count on others."""
        for rule in self.rules:
            if rule.matches(name, protocol, wire) and (rule.kind is not CheckKind.PING or pings(wire)):
                return rule
        return None


GIVE_UP = 10
"""Unanswered pings, with no answer ever, after which a peer is sent no more: five minutes at the default interval,
longer than any server takes to start."""


@attrs.frozen
class Outcome:
    """Outcome of one check: True for a success, False for a failure, None if the check could not be made. ``reason``
    explains it, without a period at the end. ``closed_port``: the host answered that nothing listens there.
    ``unreachable``: the host acknowledged nothing."""

    alive: bool | None
    reason: str
    closed_port: bool = False
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


# Interfaces of health checks: the subjects that are checked, and the transports that check them.


@attrs.frozen(cache_hash=True)
class Question:
    """One thing to check, by a rule. Questions that are equal are asked once, for all their subjects.

    A ping is for the peer ``number`` of ``wire``, in the numbers of that wire; its ``hostport`` is empty. A connection
    or request is to ``hostport``; its ``wire`` is empty and its ``number`` is 0. ``local`` is True if the peer that
    gave the hostport is on this machine.
    """

    rule: CheckRule
    wire: str = ""
    number: int = 0
    hostport: str = ""
    local: bool = False


@attrs.frozen
class TargetInfo:
    """One target for operators. ``subjects`` are their names, the first few; ``count`` is the number of them."""

    question: Question
    check: Check
    policy: Policy
    streak: int
    subjects: tuple[str, ...]
    count: int


class Subject(Protocol):
    """A service or server whose check is supervised."""

    def judged(self, check: Check | None, policy: Policy) -> None:
        """Take the state of the check after each change, and None at the end of the supervision."""

    def __str__(self) -> str:
        """Return a name for operators."""


class Pinger(Protocol):
    """The ping of a wire."""

    def ping(self, peer: int, seconds: float, answered: Callable[[bool | None], object]) -> bool:
        """Ping a peer, by its number. Returns False if that is impossible now; then ``answered`` is never called.

        ``answered`` is called at most once: with True at the answer; with False, if none can come
        within ``seconds``; with None if the ping could not be sent. It is not called within `ping`.

        Raises `Refusal` if the ping needs a connection of its own, to an address that is not permitted.
        """

    def unreachable(self, peer: int) -> bool:
        """Return True if the host of the peer has not acknowledged all output; False if that is unknown."""


class Asker(Protocol):
    """Makes checks."""

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None] | None:
        """Make one check, and call ``answered`` with its outcome, at most once, and not within this call.

        Returns a function that ends the check without an outcome; None if it is impossible now. The caller ends a check
        at its timeout.
        """

    def unreachable(self, question: Question) -> bool:
        """Return `Pinger.unreachable` of the peer that a ping was sent to."""

    def pings(self, wire: str) -> bool:
        """Return True if a wire has a ping."""
