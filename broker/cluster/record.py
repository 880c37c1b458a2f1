"""Record of the other members' registrations, for a start while etcd is away.

Rules:
- What the registry finds of the other members, standbys among it, is recorded within `INTERVAL` seconds, as far as it
  has changed. Pieces of a larger change follow each other.
- Until the keys have been read in a run, the recorded registrations are served as restored ones, as are those that this
  broker remembers of its own: their peers may have gone to another broker, which it would learn from the keys alone. A
  broker without a record is not ready until then: behind a load balancer it would answer that nothing is there.
- If etcd was away at the start, the recorded registrations are held from then on: after an outage their brokers may
  need longer to come back than this one, and peers may have found them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from twisted.internet.defer import succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.cluster import layout
from broker.cluster.key_table import Entry
from broker.cluster.layout import Foreign
from broker.cluster.mirror import Shared
from broker.cluster.settings import ClusterMemory
from broker.core.cluster.cluster_interfaces import Key, Registration
from broker.core.disk import RETRY
from broker.core.turns import Turns

INTERVAL = 0.5
"""Seconds from a change to its write, and between two writes: what changes more often is written once. A broker that is
killed within this time does not have the change in its record."""

PIECE = 200
"""Registrations in one write at most."""

STEP = 20
"""Registrations whose values are made in one step, less than a millisecond."""


class Record:
    """Record of the registrations in the table of the member ``name``, kept by ``memory``. ``registry`` serves them as
    restored ones. ``age`` is that of the record in seconds at the start, None without one."""

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        clock: IReactorTime,
        turns: Turns,
        name: str,
        memory: ClusterMemory,
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._clock = clock
        self._turns = turns
        self._name = name
        self._memory = memory
        self._dirty: dict[Key, None] = {}
        """Bounded by the tables of keys, before and after a resynchronisation."""
        self._timer: IDelayedCall | None = None
        self._writing = False
        self._failures = 0
        """Consecutive writes that failed."""
        self._stopped = False
        self.serving = True
        """True until the keys have been read in this run."""
        self.holding = False
        """True if etcd was away at the start, until the keys have been read."""
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
        registry.serve_recorded(None if recorded is None else [registration for _, registration in self._found])

    def held(self) -> Mapping[Key, Entry]:
        """Return the recorded registrations as entries that are held; none unless etcd was away at the start."""
        return {key: Entry(each, 0, 0) for key, each in self._found} if self.holding else {}

    def read(self) -> None:
        """Record that all keys have been read, and are in the registry."""
        if self.serving:
            self.serving = self.holding = False
            self._found = []
            self._registry.serve_read()
        self.note(())

    def note(self, keys: Iterable[Key]) -> None:
        """Record the present state of these registrations, soon after the keys have been read."""
        self._dirty.update(dict.fromkeys(keys))
        if not self._writing:
            self._schedule(INTERVAL)

    def stop(self) -> None:
        """Write no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # internal

    def _schedule(self, seconds: float) -> None:
        if self._timer is None and not self.serving and not self._stopped:
            self._timer = self._clock.callLater(seconds, self._write)

    def _write(self) -> None:
        self._timer = None
        keys: list[Key] = []
        values: dict[str, str | None] = {}
        with self._turns:
            while self._dirty and len(keys) < PIECE:
                for key in list(islice(self._dirty, STEP)):
                    del self._dirty[key]
                    keys.append(key)
                    values[layout.registration_name(key)] = self._value(key)
                if self._turns.over():
                    break
        more = bool(self._dirty)
        self._writing = True
        done = self._memory.save_record(values)
        (done or succeed(None)).addCallbacks(lambda _: self._written(more), lambda _: self._failed(keys))

    def _written(self, more: bool) -> None:
        self._writing = False
        self._failures = 0
        if self._dirty:
            self._schedule(0.0 if more else INTERVAL)

    def _failed(self, keys: Iterable[Key]) -> None:
        # The memory has logged why.
        self._writing = False
        self._failures += 1
        self._dirty.update(dict.fromkeys(keys))
        self._schedule(RETRY.after(self._failures))  # however much is still to be written

    def _value(self, key: Key) -> str | None:
        """Return what is found of another member at a key."""
        entry = self._shared.table.other(key, self._name)
        if entry is None and self._registry.own(key) is None:
            # Also behind our value: it may be that of a session that has ended, or of the run before.
            entry = self._shared.table.standby(key, self._name)
        if entry is None:
            return None
        return layout.registration_value(entry.registration, entry.broker).decode()
