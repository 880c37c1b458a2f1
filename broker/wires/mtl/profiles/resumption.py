"""Resumption of a reader of the profile "registry": the changes that it missed, instead of a snapshot.

Rules:
- The reader gives the epoch and the revision up to which it knows a resource, as a field table in the body of its
  Summon. A body that is no such table asks for a snapshot, as does an empty one.
- Changes of the same entry are merged into one event, which shows the entry as it is now. Entries that came and went
  meanwhile are left out.
- A hidden service is one that is not there. If it was hidden before and withdrawn since, its reader gets a "down" that
  it does not need.
- An entry was known to the reader if it was there at its revision. That number of services is the present one, minus
  those offered since, plus those withdrawn since: so nothing of the past must be kept but the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from broker.access.registry_reading import EVERY_ENTRY, RegistryReading
from broker.core.model import BROKER, Change, Kind, Load, Service
from broker.wires.mtl.codec import table
from broker.wires.mtl.codec.faults import IllFormed
from broker.wires.mtl.profiles.catalogue import Catalogue, key_of
from broker.wires.mtl.profiles.pending_changes import EntryEvent

MAX_POSITION = 256
"""Bytes of a body that is looked at: a table of two integers has 35."""

OF_SERVICES = (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED, Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN)
OF_LOADS = (Kind.JOINED, Kind.LEFT, Kind.LOAD)
OF_LOADS_OF_SERVICE = (Kind.OFFERED, Kind.WITHDRAWN, Kind.HIDDEN, Kind.SHOWN, Kind.LOAD)
"""The kinds of changes that make events of a resource."""

_STEP = {
    Kind.OFFERED: 1,
    Kind.WITHDRAWN: -1,
    Kind.HIDDEN: -1,
    Kind.SHOWN: 1,
    Kind.JOINED: 1,
    Kind.LEFT: -1,
}
"""The number of services, or of providers, that a change adds."""


def position(body: bytes) -> tuple[int, int] | None:
    """Return the epoch and the revision in the body of a Summon, None where it does not give them."""
    if not body or len(body) > MAX_POSITION:
        return None
    try:
        members = table.decode(bytes(body))
    except IllFormed:
        return None
    epoch, revision = members.get("epoch"), members.get("revision")
    # A Boolean is an int for Python.
    return (epoch, revision) if type(epoch) is int and type(revision) is int else None


def services_since(
    changes: Iterable[Change], name: str | None, board: Catalogue, reading: RegistryReading = EVERY_ENTRY
) -> list[EntryEvent[Any]]:
    """Return the events of all services that ``reading`` shows, or of those of a name."""
    merged = _Merged()
    for change in changes:
        service = change.subject
        assert isinstance(service, Service)
        if (name is None or service.name == name) and reading.shows(service.name):
            merged.add(key_of(service), change, service)
    return merged.events(board.count, board.entry, ("up", "update"))  # type: ignore[arg-type]


def loads_since(
    changes: Iterable[Change], name: str | None, board: Catalogue, load: Callable[[int], Load | None]
) -> list[EntryEvent[Any]]:
    """Return the events of all loads, or of those of the providers of a service."""
    merged = _Merged()
    for change in changes:
        provider, subject = change.provider, change.subject
        if provider == BROKER or (isinstance(subject, Service) and subject.name != name):
            continue
        merged.add(provider, change, Load(provider, "", 0.0))

    def count(key: Hashable) -> int:
        assert isinstance(key, int)
        return int(load(key) is not None) if name is None else board.offered_by(key, name)

    return merged.events(count, load, ("load", "load"))  # type: ignore[arg-type]


class _Merged:
    """The changes of each entry: the last one, and by how many services or providers it grew."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Change, Any, int]] = {}

    def add(self, key: Hashable, change: Change, subject: Service | Load) -> None:
        """Add a change of an entry. ``subject`` is shown if the entry is gone now."""
        grown = _STEP.get(change.kind, 0) + (self._entries.pop(key)[2] if key in self._entries else 0)
        self._entries[key] = (change, subject, grown)  # at the end: in the order of revisions

    def events(
        self, count: Callable[[Hashable], int], entry: Callable[[Hashable], Any], names: Sequence[str]
    ) -> list[EntryEvent[Any]]:
        """Return one event for each entry. ``names`` are those of an event of a new entry and of a known one."""
        events: list[EntryEvent[Any]] = []
        for key, (change, subject, grown) in self._entries.items():
            now = count(key)
            known = now - grown > 0
            if now:
                new, changed = names
                events.append(EntryEvent(key, changed if known else new, change.revision, entry(key), new=not known))
            elif known:
                events.append(EntryEvent(key, "down", change.revision, subject, gone=True))
        return events
