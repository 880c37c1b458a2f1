"""Moves: which providers an own one replaces. One transaction deletes their keys, and puts the key that names them.

Rules:
- An own provider replaces others that have services at no other places than its own.
- Of two members that wrote a provider at one place without knowledge of each other, the one of the later key replaces.
- A provider from before a restart (*remembered*) is also known by its label, if exactly one of the wire's has it, and
  the own one has replaced none. Its predecessors are not named then: they are at other places.
- A transaction compares the revisions of the keys that it deletes. If a comparison does not hold, the answer has the
  present revision, or tells that the key is gone: the table may learn that later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.cluster.etcd.etcd_interface import Compare, Delete, KeyValue, Operation
from broker.cluster.key_table import places
from broker.cluster.layout import MAX_REPLACED, Keys
from broker.cluster.mirror import Shared
from broker.cluster.succession import places_of
from broker.core.model import ANONYMOUS, Provider


class Moves:
    """Moves to the own providers of the member ``name``. ``live`` returns whether an own one is registered."""

    def __init__(self, shared: Shared, keys: Keys, name: str, live: Callable[[int], bool]) -> None:
        self._shared = shared
        self._keys = keys
        self._name = name
        self._live = live
        self._heirs: dict[int, int] = {}
        """Providers that are about to be replaced, with the own ones that replace them."""
        self._moves: dict[int, dict[int, None]] = {}
        """The same by the own provider."""
        self._replaces: dict[int, list[int]] = {}
        """Predecessors that were or are to be replaced, the newest first."""
        self._modified: dict[int, int] = {}
        """Revisions of keys that are newer than those in the table."""
        self._vanished: dict[int, None] = {}
        """Keys that are gone, although the table still has them."""
        self.remembered: dict[int, None] = {}
        """Own providers from before a restart whose keys stay for the grace period."""

    def read(self) -> None:
        """There is a new table, which has all that transactions have told."""
        self._vanished.clear()
        self._modified.clear()

    def touched(self, id: int) -> None:
        """The table has a newer state of a key."""
        self._vanished.pop(id, None)
        self._modified.pop(id, None)

    def match(self, id: int, provider: Provider) -> bool:
        """Find the providers that an own one replaces. Returns whether there are any that were unknown."""
        table = self._shared.table
        mine = table.valid(id)
        found: dict[int, None] = {}
        mine_at = places_of(provider)
        for place in mine_at:
            for old in table.at(place):
                entry = table.entries[old]
                if (
                    old == id
                    or old in self._heirs
                    or old in self._vanished
                    or (entry.broker == self._name and self._live(old))
                ):
                    continue
                if mine is not None and mine.broker == self._name and mine.created < entry.created:
                    continue
                if (
                    old not in found
                    and entry.value is not None
                    and all(each in mine_at for each in places(entry.value))
                ):
                    found[old] = None
        for old in found:
            value = table.entries[old].value
            self._replace(id, old, [] if value is None else value.replaces)
        if self.remembered and id not in self._replaces:
            # Those that this one has replaced stay behind it only if they are at its places.
            for old in self._by_label(provider):
                self._replace(id, old, [])
                return True
        return bool(found)

    def replaced(self, id: int) -> list[int]:
        """Return the predecessors of an own provider, as its value names them."""
        return self._replaces.get(id, [])

    def replaces(self, id: int, old: int) -> bool:
        """Return whether an own provider is about to replace another one."""
        return old in self._moves.get(id, ())

    def operations(self, id: int) -> tuple[list[Compare], list[Operation]]:
        """Return the conditions and the deletions of the predecessors of an own provider."""
        compare: list[Compare] = []
        deletes: list[Operation] = []
        entries = self._shared.table.entries
        moves = self._moves.get(id, {})
        for old in list(moves):
            entry = entries.get(old)
            if entry is None:
                del moves[old]
                self._heirs.pop(old, None)
            else:
                key = self._keys.provider(old)
                compare.append(Compare("MOD", key, max(entry.modified, self._modified.get(old, 0))))
                deletes.append(deletion(key, entry.head is not None))
        return compare, deletes

    def pending(self, id: int) -> tuple[int, ...]:
        """Return the providers that the next transaction of an own one replaces."""
        return tuple(self._moves.get(id, ()))

    def done(self, id: int, replaced: Iterable[int]) -> None:
        """A transaction of an own provider has replaced these. Others may have been found since it was sent."""
        moves = self._moves.get(id, {})
        for old in replaced:
            if old in moves:
                del moves[old]
                self._heirs.pop(old, None)
                self.remembered.pop(old, None)

    def lost(self, id: int, found: dict[bytes, KeyValue | None]) -> None:
        """A condition of the transaction of an own provider did not hold; ``found`` has the present keys."""
        moves = self._moves.get(id, {})
        for old in list(moves):
            kv = found.get(self._keys.provider(old))
            if kv is None:
                del moves[old]
                self._heirs.pop(old, None)
                self._vanished[old] = None
            else:
                self._modified[old] = kv.mod_revision

    def left(self, id: int) -> None:
        """An own provider has left: it replaces nothing any more."""
        for old in self._moves.pop(id, ()):
            self._heirs.pop(old, None)

    def forget(self, id: int) -> None:
        """An own provider is gone, with its key."""
        self._replaces.pop(id, None)
        self.left(id)

    def _replace(self, id: int, old: int, before: Sequence[int]) -> None:
        self._heirs[old] = id
        self._moves.setdefault(id, {})[old] = None
        kept = self._replaces.get(id, [])
        self._replaces[id] = list(dict.fromkeys((old, *before, *kept)))[:MAX_REPLACED]

    def _by_label(self, provider: Provider) -> list[int]:
        """Return the remembered provider with the label and a service of a provider, if it is the only one."""
        entries = self._shared.table.entries
        same = [
            (id, value)
            for id in self.remembered
            if id in entries
            and (value := entries[id].value) is not None
            and (value.wire, value.label) == (provider.wire, provider.label)
        ]
        if len(same) != 1 or same[0][0] in self._heirs or provider.label in ("", ANONYMOUS, provider.wire):
            return []
        offered = {(each.name, each.protocol) for each in provider.services}
        return [id for id, value in same if any((each.name, each.protocol) in offered for each in value.services)]


def deletion(key: bytes, parted: bool) -> Delete:
    """Return the deletion of a provider's key, and of its parts: "0" follows "/"."""
    return Delete(key, key + b"0") if parted else Delete(key)
