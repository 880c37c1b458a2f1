"""Interfaces of silent peers, between the wires and the rule of `broker.core.silence`: entries with a lease.

An entry has a *pace*, the seconds between two signs of life of a living peer, and a *patience*, the seconds of silence
at which its lease ends. What lies between is divided: from `OVERDUE` of it on the peer is counted as silent, from
`DOUBTFUL` of it on it is doubtful.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

OVERDUE = 0.4
"""Share of the time between pace and patience after which a peer is counted as silent. Peers that give three signs of
life in a lease are so after 60 % of it: those that were cut off together have been silent for two thirds of theirs when
the first lease ends."""

DOUBTFUL = 0.6
"""The same share after which a peer is doubtful: after 73 % of such a lease, and two missed signs of life. One lost
datagram is no reason."""


class Silent(Protocol):
    """Entry of a peer with a lease. It is hashable by its identity."""

    def __hash__(self) -> int: ...

    @property
    def heard(self) -> float:
        """Lifetime of the last sign of life."""

    @property
    def pace(self) -> float:
        """Seconds within which a living peer gives its next sign of life."""

    @property
    def patience(self) -> float:
        """Length of the lease in seconds."""

    @property
    def providers(self) -> Iterable[int]:
        """The ids of the peer in the registry; none for a peer that offers nothing."""

    def confirm(self) -> None:
        """Process a check that succeeded, as a sign of life."""

    def discard(self) -> None:
        """End the entry: nothing accepts connections at any of its services."""


def silent_for(entry: Silent, share: float) -> float:
    """Return the seconds of silence at which that share of the time between pace and patience has passed."""
    return entry.pace + share * (entry.patience - entry.pace)


class Silence(Protocol):
    """The rule, for wires."""

    @property
    def suspects(self) -> Collection[Silent]:
        """The doubtful peers, and those whose doubt a connection has ended. Wires look here before they call `heard`,
        since most of the time there is none."""

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        """Count the entries with a lease that the function returns."""

    def review(self, entry: Silent, now: float, slack: float) -> float | None:
        """Decide about an entry by its silence, less a slack of the leases. Returns the lifetime of the next decision,
        None if the entry is to end."""

    def missed(self, entry: Silent, reason: str) -> None:
        """Make an entry without a lease doubtful: the wire knows that it has missed a sign of life."""

    def doubtful(self, entry: Silent) -> bool:
        """Return True if an entry is doubtful."""

    def heard(self, entry: Silent) -> None:
        """Process a sign of life. No-op for an entry that is not doubtful."""

    def ended(self, entry: Silent) -> None:
        """Process the end of an entry. No-op for one that is not doubtful."""

    def orphaned(self, provider: int, session: object) -> bool:
        """Decide about a provider whose connection has ended. Returns True if it stays registered without one, and
        leaves the registry later; False if the caller removes it. Its ``session`` is referenced for as long, so that
        its wire can review it when rights change."""


class EndAtOnce:
    """No doubt: each peer ends with its lease."""

    suspects: Collection[Silent] = ()

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        """Count nothing."""

    def review(self, entry: Silent, now: float, slack: float) -> float | None:
        """Let the entry end with its lease."""
        due = entry.heard + entry.patience + slack
        return due if now < due else None

    def missed(self, entry: Silent, reason: str) -> None:
        """Do nothing."""

    def doubtful(self, entry: Silent) -> bool:
        """Doubt nothing."""
        return False

    def heard(self, entry: Silent) -> None:
        """Do nothing."""

    def ended(self, entry: Silent) -> None:
        """Do nothing."""

    def orphaned(self, provider: int, session: object) -> bool:
        """Let the caller remove the provider."""
        return False
