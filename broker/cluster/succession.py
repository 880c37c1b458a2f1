"""Succession: which own providers have a successor at another member, and are superseded by it.

Rules:
- A successor names its predecessors. If the keys of this member were lost with its lease, a provider at all places of
  an own one is its successor, too, without naming it: the own one is *outlived*.
- An own provider that changes its services after that is *revived*: that successor does not count for it any more. This
  applies also to a change that was not yet written when the successor became known, and that the successor lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.cluster.key_table import Place, places
from broker.cluster.mirror import Shared
from broker.core.model import Provider


class Succession:
    """Succession of the own providers of the member ``name``. ``provider`` returns an own one, live or departed.
    ``mark`` is called with one that has no successor any more. All tables are bounded by the own providers."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        provider: Callable[[int], Provider | None],
        mark: Callable[[int], None],
    ) -> None:
        self._shared = shared
        self._name = name
        self._provider = provider
        self._mark = mark
        self.superseded: dict[int, int] = {}
        """Own providers with their successors at other members."""
        self._outlived: dict[int, int] = {}
        """Own providers with those that came to their places elsewhere while this member was out of touch."""
        self._revived: dict[int, int] = {}
        """Own providers that have changed since they were superseded, with the successors that do not count."""
        self._unsent: dict[int, int] = {}
        """Own providers that have changed their services since the last write, with the numbers of these changes."""

    def look(self, id: int) -> None:
        """Note whether an own provider has a successor."""
        table = self._shared.table
        successor = table.successor(id)
        if successor is None and self.superseded.get(id) in table.replacing(id):
            # A transaction from before was late: the key is later than that of the successor, the session is not.
            successor = self.superseded[id]
        if successor is None and id in self._outlived:
            successor = self._outlived[id]
            if table.valid(successor) is None:
                # The provider may have moved on to a third member.
                successor = table.successor(successor)
            if successor is None or table.entries[successor].broker == self._name:
                successor = None
                del self._outlived[id]
            else:
                self._outlived[id] = successor
        if successor is None or successor != self._revived.get(id):
            self._revived.pop(id, None)
        if successor is not None and id in self._unsent and not self._covered(id, successor):
            self._revived[id] = successor
        if successor is not None and id not in self._revived:
            self.superseded[id] = successor
        elif self.superseded.pop(id, None) is not None:
            self._mark(id)

    def outlive(self, id: int, successor: int) -> None:
        """An own provider, whose key is lost, has come to all its places elsewhere. `look` follows."""
        self._outlived[id] = successor

    def outlived_by(self, changed: Iterable[int]) -> list[int]:
        """Return the outlived providers whose successors are among these."""
        changed = set(changed)
        return [id for id, successor in self._outlived.items() if successor in changed]

    def changed(self, id: int, number: int) -> None:
        """An own provider has changed its services, by the change of that number."""
        successor = self.superseded.pop(id, None)
        if successor is not None:
            self._revived[id] = successor
        self._unsent[id] = number

    def unsent(self, id: int) -> int | None:
        """Return the number of the last change that is not written; None without one."""
        return self._unsent.get(id)

    def written(self, id: int, number: int | None) -> None:
        """The change of that number is written: a later one remains."""
        if self._unsent.get(id) == number:
            self._unsent.pop(id, None)

    def end(self, id: int) -> None:
        """A departed provider ends: its successor does not matter any more."""
        self.superseded.pop(id, None)

    def forget(self, id: int) -> None:
        """An own provider is gone."""
        for table in (self.superseded, self._outlived, self._revived, self._unsent):
            table.pop(id, None)

    def _covered(self, id: int, successor: int) -> bool:
        """Return whether the successor of an own provider has services at all of its places."""
        provider, entry = self._provider(id), self._shared.table.entries[successor]
        return provider is None or entry.value is None or set(places_of(provider)) <= set(places(entry.value))


def places_of(provider: Provider) -> dict[Place, None]:
    """Return the places of the services of a provider."""
    return {(provider.wire, each.name, each.protocol, each.hostport): None for each in provider.services}
