"""Mirror: applies the table of etcd's keys to the registry, in slices.

Rules:
- The registry shows the valid providers of other members, and the departed ones of this member; its live ones are
  registered there by its wires.
- Providers that changed are applied in the order of their changes. A provider and those that it replaces are applied in
  one step, so that no find has both or none of them.
- An own session may end before the watch brings its move here. The replaced provider, which finds have again, then
  stays until the own key is gone, for its holder to write it as a standby meanwhile.
- A slice ends after `SLICE` seconds; the next one follows in another turn of the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.cluster import layout
from broker.cluster.key_table import Entry, Table
from broker.core.model import LoadDetails, Owner, Provider

SLICE = 0.008
"""Seconds for which changes are applied in one turn of the reactor: peers do not notice less than 10 ms."""

STEP = 16
"""Services in one step, or one provider with more: about a millisecond, and so the error of `SLICE`."""

LOAD_STEP = 256
"""Loads in one step: those of one key."""


@attrs.define
class Shared:
    """State that the parts of a member share: the table of etcd's keys, which a resynchronisation replaces."""

    table: Table


class Mirror:
    """Mirror of the other members' providers in ``registry``.

    ``name`` is that of this member. ``successor`` returns the provider that supersedes an own one, ``departed`` the own
    one of an id whose session has ended in a drain; None without. ``ended`` returns whether an own one has ended whose
    key is still there: it hides no others.
    """

    log = Logger()

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        clock: IReactorTime,
        name: str,
        successor: Callable[[int], int | None],
        departed: Callable[[int], Provider | None],
        ended: Callable[[int], bool],
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._clock = clock
        self._name = name
        self._successor = successor
        self._departed = departed
        self._ended = ended
        self.shown: dict[int, str] = {}
        """Holders of the mirrored providers that the registry has, by id. At most as many as the table has, and as have
        departed."""
        self.services = 0
        """Number of the services of these providers."""
        self._counts: dict[int, int] = {}
        self._dirty: dict[int, None] = {}
        self._dirty_loads: dict[int, None] = {}
        self._turn: IDelayedCall | None = None
        self._done: list[Callable[[], None]] = []
        self.stopped = False

    def live(self, id: int) -> bool:
        """Return whether an own provider of that id is registered."""
        return id not in self.shown and self._registry.wire_and_label(id) is not None

    def apply(self, providers: Iterable[int], loads: Iterable[int] = ()) -> None:
        """Apply the present state of these providers and loads, at once as far as a slice reaches."""
        self._dirty.update(dict.fromkeys(providers))
        self._dirty_loads.update(dict.fromkeys(loads))
        if self._turn is None:
            self._slice()

    def show(self, id: int) -> None:
        """Apply the present state of one provider in this turn of the reactor, before any other change."""
        self._dirty.pop(id, None)
        self._bring({id: None})

    def when_applied(self, done: Callable[[], None]) -> None:
        """Call ``done`` once all changes are applied."""
        if self._turn is None:
            done()
        else:
            self._done.append(done)

    def stop(self) -> None:
        """Apply nothing any more."""
        self.stopped = True
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # internal

    def _slice(self) -> None:
        self._turn = None
        if self.stopped:
            return
        end = self._clock.seconds() + SLICE
        while self._dirty or self._dirty_loads:
            if self._dirty:
                self._step()
            else:
                self._load_step()
            if (self._dirty or self._dirty_loads) and self._clock.seconds() >= end:
                self._turn = self._clock.callLater(0, self._slice)
                return
        done, self._done = self._done, []
        for each in done:
            each()

    def _step(self) -> None:
        ids: dict[int, None] = {}
        count = 0
        while self._dirty and count < STEP:
            count += self._take(next(iter(self._dirty)), ids)
        self._bring(ids)

    def _bring(self, ids: Iterable[int]) -> None:
        """Bring these providers in the registry to their present state, in one step."""
        table = self._shared.table
        present: list[Provider] = []
        gone: list[tuple[int, str]] = []
        replaced: dict[int, int] = {}
        for id in ids:
            entry = table.valid(id)
            if self.live(id):
                successor = self._successor(id)
                if successor is not None:
                    replaced[id] = successor
            elif (left := self._departed(id)) is not None and table.successor(id, self._ended) is None:
                present.append(left)
            elif entry is not None and entry.broker != self._name and table.successor(id, self._ended) is None:
                present.append(self._provider(id, entry))
            elif id in self.shown and not self._is_bridged(id):
                gone.append((id, self._why(id)))
        for provider in present:
            self.shown[provider.id] = provider.broker
            self.services += len(provider.services) - self._counts.get(provider.id, 0)
            self._counts[provider.id] = len(provider.services)
        if not (present or gone or replaced):
            return
        try:
            self._registry.mirror(present, gone, replaced)
        except Exception:
            self.log.failure("cluster: the registry refused changes of other members")
        for id, _ in gone:
            self.shown.pop(id, None)
            self.services -= self._counts.pop(id, 0)

    def _is_bridged(self, id: int) -> bool:
        """Return whether the key of a shown provider is gone since an own one, which has ended, has replaced it."""
        table = self._shared.table
        if id in table.entries or self.shown[id] not in table.members:
            return False
        replacing = table.replacing(id)
        return bool(replacing) and all(self._ended(each) for each in replacing)

    def _take(self, id: int, ids: dict[int, None]) -> int:
        """Take a changed provider, with its changed predecessors and successors. Returns the number of services, at
        least one for each provider."""
        table = self._shared.table
        count = 0
        waiting = [id]
        while waiting:
            each = waiting.pop()
            if each not in self._dirty:
                continue
            del self._dirty[each]
            ids[each] = None
            count += self._counts.get(each, 0) + 1
            entry = table.valid(each)
            if entry is not None and entry.value is not None:
                count += len(entry.value.services)
                waiting += reversed(entry.value.replaces)
            successor = table.successor(each) or self._successor(each)
            if successor is not None:
                waiting.append(successor)
        return count

    def _load_step(self) -> None:
        table = self._shared.table
        loads: list[tuple[int, float, LoadDetails | None]] = []
        while self._dirty_loads and len(loads) < LOAD_STEP:
            id = next(iter(self._dirty_loads))
            del self._dirty_loads[id]
            if id in self.shown:
                loads.append((id, *table.load(id)))
        if loads:
            try:
                self._registry.mirror_loads(loads)
            except Exception:
                self.log.failure("cluster: the registry refused loads of other members")

    def _provider(self, id: int, entry: Entry) -> Provider:
        value = entry.value
        assert value is not None
        load, details = self._shared.table.load(id)
        now = self._clock.seconds()
        return Provider(
            id,
            value.label,
            value.wire,
            value.address,
            load,
            now,
            layout.services(id, value),
            now,
            details,
            entry.broker,
            layout.failing(value),
            Owner(value.owner, value.entry, value.proof),
        )

    def _why(self, id: int) -> str:
        """Return the reason for which a provider is gone: with its holder it has expired."""
        return "left" if self.shown[id] in self._shared.table.members else "expired"
