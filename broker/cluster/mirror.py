"""Mirror: brings the registry to the table of etcd's keys, as background work (`broker.core.turns`).

Rules:
- Behind each own registration the registry has what another member has at its key: the valid entry, otherwise a
  departed registration of this member, otherwise a standby. What is found of these is the registry's view.
- A key is applied in one step, so that no find has both registrations of a move, or none of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from broker.cluster.key_table import Table
from broker.core.cluster.cluster_interfaces import Key, Registration
from broker.core.model import LoadDetails
from broker.core.turns import Turns

STEP = 16
"""Registrations in one step: about a millisecond."""

LOAD_STEP = 256
"""Loads in one step: those of one key."""


@attrs.define
class Shared:
    """State that the parts of a member share: the table of etcd's keys, which a resynchronisation replaces."""

    table: Table


class Own(Protocol):
    """The own registrations, as the mirror needs them."""

    def departed(self, key: Key) -> Registration | None:
        """Return a departed registration, None if there is none at a key."""

    def is_superseded(self, key: Key) -> bool:
        """Return True if an own registration does not count."""


class Mirror:
    """Mirror of the registrations of other members than ``name`` in ``registry``, an `IMirror`. ``own`` returns the own
    ones."""

    log = Logger()

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        clock: IReactorTime,
        turns: Turns,
        name: str,
        own: Callable[[], Own],
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._clock = clock
        self._turns = turns
        self._name = name
        self._own = own
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._dirty: OrderedDict[Key, None] = OrderedDict()
        self._dirty_loads: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._turn: IDelayedCall | None = None
        self._done: list[Callable[[], None]] = []
        self.stopped = False

    def apply(self, keys: Iterable[Key], loads: Iterable[tuple[str, int]] = ()) -> None:
        """Apply the present state of these registrations and loads, at once as far as the turn has time."""
        self._dirty.update(dict.fromkeys(keys))
        self._dirty_loads.update(dict.fromkeys(loads))
        if self._turn is None:
            self._slice()

    def apply_soon(self, keys: Iterable[Key]) -> None:
        """Apply the present state of these registrations in the next turn of the reactor."""
        self._dirty.update(dict.fromkeys(keys))
        if self._turn is None and not self.stopped:
            self._turn = self._clock.callLater(0, self._slice)

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
        with self._turns:
            while self._dirty or self._dirty_loads:
                if self._dirty:
                    self._step()
                else:
                    self._load_step()
                if (self._dirty or self._dirty_loads) and self._turns.over():
                    self._turn = self._clock.callLater(0, self._slice)
                    return
        done, self._done = self._done, []
        for each in done:
            each()

    def _step(self) -> None:
        present: list[Registration] = []
        gone: list[tuple[Key, str]] = []
        superseded: list[Key] = []
        counting: list[Key] = []
        own = self._own()
        for _ in range(min(STEP, len(self._dirty))):
            key, _ = self._dirty.popitem(last=False)
            found = self._other(key, own)
            if found is not None:
                present.append(found)
            else:
                gone.append((key, self._why(key)))
            (superseded if own.is_superseded(key) else counting).append(key)
        try:
            self._registry.mirror(present, gone, superseded, counting)
        except Exception:
            self.log.failure("cluster: the registry refused changes of other members")

    def _other(self, key: Key, own: Own) -> Registration | None:
        """Return what is found at a key unless an own registration counts."""
        table = self._shared.table
        entry = table.other(key, self._name)
        if entry is None:
            departed = own.departed(key)
            if departed is not None:
                return departed
            entry = table.standby(key, self._name)
        if entry is None:
            return None
        provider = entry.registration.provider
        load, details = table.load(provider.broker, provider.id)
        if load or details:
            provider = attrs.evolve(provider, load=load, details=details)
            return attrs.evolve(entry.registration, provider=provider)
        return entry.registration

    def _load_step(self) -> None:
        table = self._shared.table
        loads: list[tuple[str, int, float, LoadDetails | None]] = []
        while self._dirty_loads and len(loads) < LOAD_STEP:
            (broker, id), _ = self._dirty_loads.popitem(last=False)
            loads.append((broker, id, *table.load(broker, id)))
        if loads:
            try:
                self._registry.mirror_loads(loads)
            except Exception:
                self.log.failure("cluster: the registry refused loads of other members")

    def _why(self, key: Key) -> str:
        """Return the reason for which a registration is gone: with its holder it has expired."""
        holder = self._registry.mirrored_at(key)
        return "left" if holder is None or self._shared.table.has_key(holder) else "expired"
