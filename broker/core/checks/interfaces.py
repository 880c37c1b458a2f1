"""Interfaces of health checks: the subjects that are checked, and the transports that check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from broker.core.checks.progress import Outcome
from broker.core.checks.rules import CheckRule
from broker.core.model import Check, Policy


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

        ``answered`` is called at most once: with True at the answer; with False, if the wire knows that none comes
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
