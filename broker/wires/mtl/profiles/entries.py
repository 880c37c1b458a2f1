"""Entries of the profile "registry": their catalogue, the changes that wait for a reader, and those that one missed.

An *entry* stands for a provider, name and protocol, or for the load of a provider. The registry may have several
services of the same provider, name and protocol; the entry is the last one offered. The catalogue applies the changes
of the registry in their order, so a name is found without a search through all services. It takes some 200 bytes for
a service with a name of its own, and 600 for another one.

Rules of pending changes of one resource for one reader:
- The reader is sent all entries, the *snapshot*; then a mark of its end; then the changes.
- An entry that changes before it is sent in the snapshot is sent in its new state, or left out if it was removed.
- Changes are coalesced: at most one event waits for each entry, the newest. It keeps the place of the former one, so
  that an entry which changes all the time is sent nevertheless, and delays no other.
- The removal of an entry is sent only if the reader was sent the entry. It takes the place of any waiting event.
- Events are sent in order: none overtakes a waiting one.
- The unsent entries of the snapshot are held, eight bytes each, and one event for each entry that has changed since.
  Once everything is sent, nothing is held.

Rules of resumption, by which a reader gets the changes that it missed instead of a snapshot:
- The reader gives the epoch and the revision up to which it has a resource, as a field table in the body of its
  Summon. Any other body, such as an empty one, requests a snapshot.
- Changes of the same entry are merged into one event, which shows the entry as it is now. Entries that came and went
  meanwhile are left out.
- A hidden service is one that is not there. If it was hidden before and withdrawn since, its reader gets a "down" that
  it does not need.
- An entry was known to the reader if it was there at its revision. That number of services is the present one, minus
  those offered since, plus those withdrawn since: so nothing of the past must be kept but the changes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import attrs

from broker.access.rights import EVERY_ENTRY, RegistryReading
from broker.core.errors import Reason, Refusal
from broker.core.model import BROKER, Change, Kind, Load, Service
from broker.core.service_filter import ServiceFilter, read_filter
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.codec.field_table import IllFormed

EntryKey = tuple[int, str, str]


def key_of(service: Service) -> EntryKey:
    """Return the key of the entry of a service."""
    return service.provider, service.name, service.protocol


class EntryChange(NamedTuple):
    """Effect of a change on an entry: what it was ``before`` (None: it is new), and is ``now`` (None: it was removed).

    Both are the same object if the change is invisible.
    """

    before: Service | None
    now: Service | None


_Providers = dict[int, dict[str, tuple[Service, ...]]]
"""Services of a name, by provider and protocol."""


class Catalogue:
    """The entries."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._names: dict[str, Service | _Providers] = {}
        """The only service of each name, as in most cases, or all."""
        self._offered: dict[int, dict[str, None]] = {}
        """The names of the services of each provider."""
        for service in services:
            self.offered(service)

    # changes

    def offered(self, service: Service) -> EntryChange:
        """Apply the offer of a service."""
        provider, name, protocol = key_of(service)
        self._offered.setdefault(provider, {})[name] = None
        if name not in self._names:
            self._names[name] = service
            return EntryChange(None, service)
        self._names[name] = providers = self._of(name)
        protocols = providers.setdefault(provider, {})
        same = protocols.get(protocol, ())
        protocols[protocol] = (*same, service)
        return EntryChange(same[-1] if same else None, service)

    def withdrawn(self, service: Service) -> EntryChange:
        """Apply the withdrawal of a service."""
        provider, name, protocol = key_of(service)
        if self._names.get(name) is service:
            del self._names[name]
            self._forget(provider, name)
            return EntryChange(service, None)
        same = self._find((provider, name, protocol))
        if not same:
            return EntryChange(None, None)
        left = tuple(each for each in same if each is not service)
        self._names[name] = providers = self._of(name)
        protocols = providers[provider]
        if left:
            protocols[protocol] = left
            return EntryChange(same[-1], left[-1])
        del protocols[protocol]
        if not protocols:
            del providers[provider]
            self._forget(provider, name)
            if not providers:
                del self._names[name]
        return EntryChange(same[-1], None)

    def amended(self, service: Service) -> EntryChange:
        """Apply an amendment: it replaces the first service of its name, protocol and provider."""
        provider, name, protocol = key_of(service)
        same = self._find((provider, name, protocol))
        if not same:
            return EntryChange(None, None)
        changed = (service, *same[1:])
        known = self._names[name]
        if isinstance(known, Service):
            self._names[name] = service
        else:
            known[provider][protocol] = changed
        return EntryChange(same[-1], changed[-1])

    def _forget(self, provider: int, name: str) -> None:
        """A provider offers no service of that name any more."""
        names = self._offered[provider]
        del names[name]
        if not names:
            del self._offered[provider]

    def _of(self, name: str) -> _Providers:
        known = self._names.get(name)
        if known is None:
            return {}
        return {known.provider: {known.protocol: (known,)}} if isinstance(known, Service) else known

    def _find(self, key: EntryKey) -> tuple[Service, ...]:
        provider, name, protocol = key
        return self._of(name).get(provider, {}).get(protocol, ())

    # queries

    def entries(self, name: str | None = None) -> Iterator[Service]:
        """Return all entries, or those of a name."""
        for each in self._names if name is None else (name,):
            for protocols in self._of(each).values():
                for same in protocols.values():
                    yield same[-1]

    def entry(self, key: EntryKey) -> Service | None:
        """Return an entry, None where there is none."""
        same = self._find(key)
        return same[-1] if same else None

    def count(self, key: EntryKey) -> int:
        """Return the number of services that an entry stands for."""
        return len(self._find(key))

    def providers(self, name: str) -> Iterable[int]:
        """Return the providers of a service of that name."""
        return self._of(name).keys()

    def names(self, provider: int) -> Collection[str]:
        """Return the names of the services that a provider offers."""
        return self._offered.get(provider, {}).keys()

    def offered_by(self, provider: int, name: str) -> int:
        """Return the number of services of that name that a provider offers, in all protocols."""
        return sum(map(len, self._of(name).get(provider, {}).values()))

    def offers(self, provider: int, name: str) -> bool:
        """Return True if that provider offers a service of that name."""
        return provider in self._of(name)


V = TypeVar("V")


@attrs.define(eq=False)
class EntryEvent(Generic[V]):
    """Event of an entry. ``name`` is its kind, as the profile defines it.

    ``subject`` is the present entry; with ``gone``, the last one. ``new`` is True if there was none before.
    ``encoded``, and the ``epoch`` in it, are for the sender: the same event goes to many readers.
    """

    key: Hashable
    name: str
    revision: int
    subject: V
    new: bool = False
    gone: bool = False
    encoded: tuple[bytes, bytes] | None = None
    epoch: int = 0

    def called(self, name: str) -> EntryEvent[V]:
        """Return the event as another kind."""
        return (
            self if name == self.name else EntryEvent(self.key, name, self.revision, self.subject, self.new, self.gone)
        )


class PendingChanges(Generic[V]):
    """Unsent events of one resource for one reader. It is hashable.

    - ``entries``: the present entries. ``shown`` makes an event of each.
    - ``send`` sends an event, or the end of the snapshot for None. It returns False without room; then nothing is sent
      until `serve`. Its second argument is True if everything up to the revision of the event is sent with it, so that
      the reader may resume there.
    - ``missed``: events of a reader that resumes, sent after the end of its empty snapshot.
    """

    __slots__ = ("_send", "_shown", "_snapshot", "_waiting", "blocked")

    def __init__(
        self,
        entries: Iterable[V],
        shown: Callable[[V], EntryEvent[V]],
        send: Callable[[EntryEvent[V] | None, bool], bool],
        missed: Iterable[EntryEvent[V]] = (),
    ) -> None:
        self._snapshot: deque[V] | None = deque(entries)
        """None once its end is sent."""
        self._shown = shown
        self._send = send
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._waiting: OrderedDict[Hashable, tuple[EntryEvent[V], bool]] = OrderedDict(
            (event.key, (event, event.new)) for event in missed
        )
        """Events by entry, each with True if the reader was not sent the entry."""
        self.blocked = False
        """True if the next event found no room."""

    def __len__(self) -> int:
        """Return the approximate number of unsent events."""
        snapshot = self._snapshot
        return len(self._waiting) + (0 if snapshot is None else len(snapshot) + 1)

    def tell(self, event: EntryEvent[V]) -> None:
        """Send the event of an entry, or coalesce it with the waiting one."""
        if self._snapshot is None and not self._waiting:
            if self._send(event, True):
                return
            self.blocked = True
            self._waiting[event.key] = (event, event.new)
            return
        before = self._waiting.get(event.key)
        if before is None:
            self._waiting[event.key] = (event, event.new)
        elif not before[1]:
            self._waiting[event.key] = (event, False)
        elif event.gone:
            del self._waiting[event.key]
        else:
            # The reader never saw the entry, so its first event keeps the kind of the one that was not sent.
            self._waiting[event.key] = (event.called(before[0].name), True)

    def serve(self, most: int) -> int:
        """Send up to ``most`` waiting events while there is room. Returns the number sent."""
        self.blocked = False
        sent = 0
        while sent < most and (self._waiting or self._snapshot is not None):
            if not (self._serve_snapshot() if self._snapshot is not None else self._serve_change()):
                self.blocked = True
                break
            sent += 1
        return sent

    def _serve_snapshot(self) -> bool:
        """Send the next entry of the snapshot, or its end. Returns False without room."""
        snapshot = self._snapshot
        assert snapshot is not None
        while snapshot:
            event = self._shown(snapshot[0])
            changed = self._waiting.get(event.key)
            if changed is not None:
                if changed[0].gone:
                    del self._waiting[event.key]
                    snapshot.popleft()
                    continue
                event = changed[0].called(event.name)
            if not self._send(event, False):
                return False
            snapshot.popleft()
            self._waiting.pop(event.key, None)
            return True
        if not self._send(None, True):
            return False
        self._snapshot = None
        return True

    def _serve_change(self) -> bool:
        key, (event, _) = next(iter(self._waiting.items()))
        # An event keeps the place of an older one, so that one behind it may have a lower revision.
        if not self._send(event, len(self._waiting) == 1):
            return False
        del self._waiting[key]
        return True


MAX_SUMMON = 4_608
"""Maximum size of a body that is decoded, in bytes: a table of two integers, and a filter of the maximum length."""

OF_SERVICES = (Kind.OFFERED, Kind.WITHDRAWN, Kind.AMENDED, Kind.CHECKED, Kind.HIDDEN, Kind.SHOWN)
OF_LOADS = (Kind.JOINED, Kind.LEFT, Kind.RELABELLED, Kind.LOAD)
OF_LOADS_OF_SERVICE = (Kind.OFFERED, Kind.WITHDRAWN, Kind.HIDDEN, Kind.SHOWN, Kind.RELABELLED, Kind.LOAD)
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


def asked(body: bytes) -> tuple[tuple[int, int] | None, ServiceFilter | None]:
    """Return the epoch with the revision, and the filter, in the body of a Summon; None for one that it does not give.

    Raises `Refusal` for a filter that cannot be parsed.
    """
    if not body or len(body) > MAX_SUMMON:
        return None, None
    try:
        members = field_table.decode(bytes(body))
    except IllFormed:
        return None, None
    epoch, revision, text = members.get("epoch"), members.get("revision"), members.get("filter")
    if text is not None:
        if not isinstance(text, str):
            raise Refusal(Reason.PARAMETER, "a filter is a text")
        # The changes that it missed are not known by their former labels.
        return None, read_filter(text)
    # A Boolean is an int for Python.
    return ((epoch, revision) if type(epoch) is int and type(revision) is int else None), None


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
