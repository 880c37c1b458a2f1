"""Record of the other members' registrations, for a start while etcd is away.

Rules:
- What the mirror has of the other members is recorded every `INTERVAL` seconds, as far as it has changed.
- Until the keys have been read in a run, the recorded registrations are served as restored ones. A broker without a
  record is not ready until then: behind a load balancer it would answer that nothing is there.
- If this broker has answered finds by its record, the recorded registrations are held from then on: after an outage
  their brokers may need longer to come back than this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster import layout
from broker.cluster.key_table import Entry
from broker.cluster.layout import Foreign
from broker.cluster.mirror import Shared
from broker.cluster.settings import ClusterMemory
from broker.core.cluster.cluster_interfaces import Key, Registration

INTERVAL = 2.0
"""Seconds between two writes of the record: what changes more often is written once."""

PIECE = 500
"""Registrations in one write, so that a first record of a large farm takes the reactor some milliseconds at a time."""


class Record:
    """Record of the registrations in the table of the member ``name``, kept by ``memory``. ``registry`` serves them as
    restored ones. ``age`` is that of the record in seconds at the start, None without one."""

    def __init__(self, shared: Shared, registry: Any, clock: IReactorTime, name: str, memory: ClusterMemory) -> None:
        self._shared = shared
        self._registry = registry
        self._clock = clock
        self._name = name
        self._memory = memory
        self._dirty: dict[Key, None] = {}
        """Bounded by the tables of keys, before and after a resynchronisation."""
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self.serving = True
        """True until the keys have been read in this run."""
        self.answering = False
        """True if peers of this run may have found recorded services."""
        recorded = memory.load_record()
        self.age = None if recorded is None else recorded[0]
        self._found: list[tuple[Key, Registration]] = []
        for text, value in () if recorded is None else recorded[1].items():
            try:
                key = layout.registration_of(text.encode())
                self._dirty[key] = None
                self._found.append((key, layout.registration(key, value.encode())))
            except Foreign:
                pass  # of another version of the program
        registry.serve_recorded([registration for _, registration in self._found])

    def held(self) -> Mapping[Key, Entry]:
        """Return the recorded registrations as entries that are held; none unless peers may have found them."""
        return {key: Entry(each, 0, 0, held=True) for key, each in self._found} if self.answering else {}

    def read(self) -> None:
        """The keys have been read, and the registry has them."""
        if self.serving:
            self.serving = self.answering = False
            self._found = []
            self._registry.serve_recorded(())
        self.note(())

    def note(self, keys: Iterable[Key]) -> None:
        """Record the present state of these registrations, soon after the keys have been read."""
        self._dirty.update(dict.fromkeys(keys))
        if self._timer is None and not self.serving and not self._stopped:
            self._timer = self._clock.callLater(INTERVAL, self._write)

    def stop(self) -> None:
        """Write no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _write(self) -> None:
        self._timer = None
        keys = [key for key, _ in zip(self._dirty, range(PIECE), strict=False)]
        changes: dict[str, str | None] = {}
        for key in keys:
            del self._dirty[key]
            entry = self._shared.table.valid(key)
            other = entry is not None and entry.broker != self._name
            value = layout.registration_value(entry.registration, entry.broker).decode() if other and entry else None
            changes[layout.registration_name(key)] = value
        done = self._memory.save_record(changes)
        if done is not None:
            # The memory has logged why.
            done.addErrback(lambda _: self.note(keys))
        if self._dirty:
            self.note(())
