"""Interfaces of silent peers, between the wires and the rule of `broker.core.silence`: entries with a lease."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol


class Silent(Protocol):
    """Entry of a peer with a lease. It is hashable by its identity."""

    def __hash__(self) -> int: ...

    @property
    def heard(self) -> float:
        """Lifetime of the last sign of life."""

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


class Silence(Protocol):
    """The rule, for wires."""

    @property
    def suspects(self) -> Collection[Silent]:
        """The doubtful peers. Wires look here before they call `heard`, since most of the time there is none."""

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        """Count the entries with a lease that the function returns."""

    def spare(self, entry: Silent, now: float) -> float | None:
        """Decide about an entry whose lease has ended. Returns the lifetime of the next decision if it is doubtful,
        None if it is to end."""

    def heard(self, entry: Silent) -> None:
        """Process a sign of life. No-op for an entry that is not doubtful."""

    def ended(self, entry: Silent) -> None:
        """Process the end of an entry. No-op for one that is not doubtful."""

    def orphaned(self, provider: int) -> bool:
        """Decide about a provider whose connection has ended. Returns True if it stays registered without one, and
        leaves the registry later; False if the caller removes it."""


class EndAtOnce:
    """No verification: each peer ends with its lease."""

    suspects: Collection[Silent] = ()

    def follow(self, entries: Callable[[], Iterable[Silent]]) -> None:
        """Count nothing."""

    def spare(self, entry: Silent, now: float) -> float | None:
        """End the entry."""
        return None

    def heard(self, entry: Silent) -> None:
        """Do nothing."""

    def ended(self, entry: Silent) -> None:
        """Do nothing."""

    def orphaned(self, provider: int) -> bool:
        """Let the caller remove the provider."""
        return False
