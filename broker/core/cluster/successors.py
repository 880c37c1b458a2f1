"""Own providers of a member with their successors at other members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Successors:
    """The successor of each superseded provider. Bounded by the own providers."""

    def __init__(self) -> None:
        self._successors: dict[int, int] = {}
        self._followed: dict[int, dict[int, None]] = {}
        """The superseded providers of each successor."""

    def of(self, successor: int) -> Sequence[int]:
        """Return the own providers that a successor supersedes."""
        return tuple(self._followed.get(successor, ()))

    def follow(self, own: Iterable[int], successor: int) -> None:
        """Set the successor of own providers."""
        for each in own:
            self.unfollow(each)
            self._successors[each] = successor
            self._followed.setdefault(successor, {})[each] = None

    def unfollow(self, own: int) -> None:
        """An own provider has no successor any more. No-op without one."""
        successor = self._successors.pop(own, None)
        if successor is not None:
            followed = self._followed[successor]
            del followed[own]
            if not followed:
                del self._followed[successor]
