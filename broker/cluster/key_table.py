"""Table: the state of all keys of the farm in etcd, as far as it has been read. Pure; no I/O.

Rules:
- A value that is not one of the layout is counted, logged once, and left out.
- An entry of a member is *valid* only under the lease of the member's key: so what a dead lease left does not count.
  Without a lease, no member has written it.
- A beat is kept only beside its member, and a load counts only from the holder of its provider.
- A provider in parts is valid when the head and all parts of its generation are there.
- A provider that a valid one names in ``replaces`` has that one as its *successor*, unless it was written again after
  it. A *standby* has each provider that names it as its successor, but of other standbys only the later ones. So no two
  providers hide one another.
- All tables are bounded; what is over a limit is counted as well, and left out.

The file is longer than others: each change of a key updates all indexes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
from twisted.logger import Logger

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import KeyValue
from broker.cluster.layout import Foreign, HeadValue, Keys, ProviderValue
from broker.core.cluster.cluster_interfaces import Member
from broker.core.model import LoadDetails

MAX_PROVIDERS = 200_000
"""Limit of providers of the farm: as many as the registry takes services."""

MAX_MEMBERS = 256
"""Limit of members: the links are a full mesh, which ends at some tens."""

MAX_CLAIMS = 100_000
"""Limit of owners of durable queues, ten times the queues of a broker; some 40 MB."""

MAX_PARTS = 512
"""Limit of the parts of providers that wait for their head, some 128 MB."""

MAX_VALUE = 512_000
"""Limit of a value in bytes, twice that of what brokers write: a stranger's 1.5 MB, which etcd permits, would hold the
reactor for some milliseconds each."""

MAX_LOGGED = 100
"""Limit of the keys whose bad values are logged, so that a stranger who writes does not fill the log."""

LEASED = frozenset((b"b", b"p", b"l", b"beat"))
"""Kinds of keys that members put under their leases only."""

K = TypeVar("K")

Place = tuple[str, str, str, str]
"""Wire, name, protocol and host:port of a service: its identity at another broker."""


@attrs.frozen
class MemberEntry:
    """A member with the lease of its key. ``held`` marks one from data of etcd that were lost."""

    member: Member
    lease: int
    held: bool = False


@attrs.frozen
class Entry:
    """A provider as it is in etcd. ``value`` is None while parts are missing; ``held`` marks one from data of etcd that
    were lost."""

    value: ProviderValue | None
    broker: str
    lease: int
    created: int
    modified: int
    head: HeadValue | None = None
    held: bool = False

    @property
    def is_standby(self) -> bool:
        """True if it counts only without a successor."""
        return self.value is not None and self.value.standby


@attrs.frozen
class LoadsEntry:
    """Loads of a member with the lease of their key."""

    loads: layout.Loads
    lease: int
    modified: int


@attrs.define
class Touched:
    """Keys that changes have touched, in their order."""

    providers: dict[int, None] = attrs.field(factory=dict)
    members: dict[str, None] = attrs.field(factory=dict)
    loads: dict[int, None] = attrs.field(factory=dict)
    claims: dict[tuple[str, str], None] = attrs.field(factory=dict)
    beats: dict[str, layout.BeatValue] = attrs.field(factory=dict)
    meta: bool = False


class Bad:
    """Count of values that were left out, and log of them."""

    log = Logger()

    def __init__(self) -> None:
        self.count = 0
        self._logged: dict[bytes, None] = {}

    def add(self, key: bytes, why: str) -> None:
        """Count a value; log it the first time."""
        self.count += 1
        if key not in self._logged and len(self._logged) < MAX_LOGGED:
            self._logged[key] = None
            self.log.warn("cluster: the value of {key} in etcd is left out: {why}", key=repr(key)[1:], why=why[:300])


class Table:
    """State of the keys of a farm. ``bad`` counts what is left out, across tables."""

    def __init__(self, keys: Keys, bad: Bad) -> None:
        self._keys = keys
        self._bad = bad
        self.meta: KeyValue | None = None
        self.ids = 0
        """The first provider id that belongs to no block, as far as was read."""
        self.highest = 0
        """The highest provider id that was read."""
        self.members: dict[str, MemberEntry] = {}
        self.entries: dict[int, Entry] = {}
        self.beats: dict[str, layout.BeatValue] = {}
        self.claims: dict[tuple[str, str], tuple[str, int]] = {}
        """Owners of durable queues, with the leases of the keys."""
        self._loads: dict[tuple[str, int], LoadsEntry] = {}
        self._load_of: dict[tuple[str, int], int] = {}
        """Number of the loads of a member that have a provider."""
        self._of: dict[str, dict[int, None]] = {}
        """Ids of providers by member."""
        self._parts: dict[int, dict[tuple[int, int], bytes]] = {}
        self._part_count = 0
        self._places: dict[Place, dict[int, None]] = {}
        self._successors: dict[int, dict[int, None]] = {}

    # reading

    def has_epoch(self, epoch: str) -> bool:
        """Return whether these are data of that epoch: neither other data, nor of another layout, nor without
        ``meta``."""
        try:
            return self.meta is not None and layout.epoch_of(self.meta.value) == epoch
        except Foreign:
            return False

    def valid(self, id: int) -> Entry | None:
        """Return the entry of a provider if it counts."""
        entry = self.entries.get(id)
        if entry is None or entry.value is None:
            return None
        if entry.held:
            return entry
        member = self.members.get(entry.broker)
        return entry if member is not None and member.lease == entry.lease else None

    def successor(self, id: int, ended: Callable[[int], bool] = lambda id: False) -> int | None:
        """Return the valid provider that replaces this one and has not ``ended``; of several one that is no standby."""
        own = self.valid(id)
        found = [
            (not self.entries[each].is_standby, each)
            for each in self.replacing(id)
            if _follows(own, self.entries[each]) and not ended(each)
        ]
        return max(found)[1] if found else None

    def replacing(self, id: int) -> tuple[int, ...]:
        """Return the valid providers that name this one, whether they are its successors or not."""
        return tuple(each for each in self._successors.get(id, ()) if each != id and self.valid(each) is not None)

    def obstacles(self, id: int) -> list[int]:
        """Return the valid providers that would hide a standby even if its key were written without that mark."""
        own = self.valid(id)
        if own is None or not own.is_standby:
            return []
        return [
            each
            for each in self._successors.get(id, ())
            if each != id and (entry := self.valid(each)) is not None and not entry.is_standby and _is_later(own, entry)
        ]

    def at(self, place: Place) -> Iterator[int]:
        """Yield the ids of the valid providers with a service at a place."""
        for id in tuple(self._places.get(place, ())):
            if self.valid(id) is not None:
                yield id

    def of(self, name: str) -> tuple[int, ...]:
        """Return the ids of all entries of a member."""
        return tuple(self._of.get(name, ()))

    def load(self, id: int) -> tuple[float, LoadDetails | None]:
        """Return the load of a provider, 0.0 if it is unknown."""
        provider = self.entries.get(id)
        number = None if provider is None else self._load_of.get((provider.broker, id))
        if provider is None or number is None:
            return 0.0, None
        member, entry = self.members.get(provider.broker), self._loads[provider.broker, number]
        return entry.loads[id] if member is not None and member.lease == entry.lease else (0.0, None)

    def loads(self) -> Iterator[tuple[tuple[str, int], LoadsEntry]]:
        """Yield all values of loads by member and number."""
        yield from self._loads.items()

    def owner(self, space: str, name: str) -> str | None:
        """Return the owner of a durable queue. A lasting claim has no lease."""
        found = self.claims.get((space, name))
        if found is None or found[1] == 0:
            return found and found[0]
        member = self.members.get(found[0])
        return found[0] if member is not None and member.lease == found[1] else None

    # changing

    def put(self, kv: KeyValue, touched: Touched) -> None:
        """Take over the value of a key."""
        rest = kv.key[len(self._keys.prefix) :]
        try:
            self._put(rest, kv, touched)
        except Foreign as error:
            self._bad.add(kv.key, str(error))
            self.delete(kv.key, touched)

    def delete(self, key: bytes, touched: Touched) -> None:
        """Take over the deletion of a key."""
        rest = key[len(self._keys.prefix) :]
        kind, _, tail = rest.partition(b"/")
        try:
            if kind == b"p":
                id, part = layout.provider_of(tail)
                if part is not None:
                    self._remove_part(id, part)
                    return
                self.remove(id, touched)
            elif kind == b"l":
                self._set_loads(layout.loads_of(tail), None, touched)
            elif kind == b"beat":
                self.beats.pop(layout.name_of(tail), None)
            elif kind == b"b":
                self._set_member(layout.name_of(tail), None, touched)
            elif kind == b"q":
                queue = layout.claim_of(tail)
                self.claims.pop(queue, None)
                touched.claims[queue] = None
            elif rest == b"meta":
                self.meta = None
                touched.meta = True
        except Foreign:
            pass  # a foreign key was not taken over either

    def remove(self, id: int, touched: Touched) -> None:
        """Remove a provider."""
        entry = self.entries.pop(id, None)
        if entry is not None:
            self._unindex(id, entry, touched)
            touched.providers[id] = None

    def hold(self, before: Table, own: str, lost: bool) -> None:
        """Add the other members and their providers of the table before if its data are ``lost``, otherwise those that
        it held already. They stay until their keys are put again, or `drop_held`. ``own`` is this member."""
        touched = Touched()
        for name, member in before.members.items():
            if name not in self.members and name != own and (lost or member.held):
                self.members[name] = attrs.evolve(member, held=True)
        for id, entry in before.entries.items():
            if not (lost or entry.held) or id in self.entries or entry.broker == own:
                continue
            if before.valid(id) is not None:
                self._index(id, attrs.evolve(entry, held=True, head=None), touched)

    def drop_held(self) -> Touched:
        """Remove what was held. Returns it."""
        touched = Touched()
        for id in [id for id, entry in self.entries.items() if entry.held]:
            self.remove(id, touched)
        for name in [name for name, member in self.members.items() if member.held]:
            self._set_member(name, None, touched)
        return touched

    # internal

    def _put(self, rest: bytes, kv: KeyValue, touched: Touched) -> None:
        kind, _, tail = rest.partition(b"/")
        if len(kv.value) > MAX_VALUE and kind != b"meta":
            raise Foreign(f"it has {len(kv.value)} bytes, more than {MAX_VALUE}")
        if kv.lease == 0 and kind in LEASED:
            raise Foreign("it has no lease")
        if kind == b"p":
            self._put_provider(tail, kv, touched)
        elif kind == b"l":
            self._put_loads(layout.loads_of(tail), kv, touched)
        elif kind == b"beat":
            name, beat = layout.name_of(tail), layout.decode(kv.value, layout.BeatValue)
            touched.beats[name] = beat
            if name in self.members:
                self.beats[name] = beat
        elif kind == b"b":
            name = layout.name_of(tail)
            if name not in self.members and len(self.members) >= MAX_MEMBERS:
                raise Foreign(f"there are more than {MAX_MEMBERS} members")
            self._set_member(name, MemberEntry(layout.member(name, kv.value), kv.lease), touched)
        elif kind == b"q":
            queue = layout.claim_of(tail)
            if queue not in self.claims and len(self.claims) >= MAX_CLAIMS:
                raise Foreign(f"there are more than {MAX_CLAIMS} owners of queues")
            self.claims[queue] = (layout.decode(kv.value, layout.ClaimValue).owner, kv.lease)
            touched.claims[queue] = None
        elif rest == b"ids":
            self.ids = max(self.ids, layout.decode(kv.value, layout.IdsValue).next)
        elif rest == b"meta":
            self.meta = kv
            touched.meta = True
        else:
            raise Foreign("the layout has no such key")

    def _put_provider(self, tail: bytes, kv: KeyValue, touched: Touched) -> None:
        id, part = layout.provider_of(tail)
        if part is not None:
            self._put_part(id, part, kv, touched)
            return
        if id not in self.entries and len(self.entries) >= MAX_PROVIDERS:
            raise Foreign(f"there are more than {MAX_PROVIDERS} providers")
        value = layout.head_or_provider(kv.value)
        head = None
        whole: ProviderValue | None
        if isinstance(value, HeadValue):
            head, whole = value, self._assemble(id, value)
        else:
            whole = value
        before = self.entries.pop(id, None)
        if before is not None:
            self._unindex(id, before, touched)
        entry = Entry(whole, value.broker, kv.lease, kv.create_revision, kv.mod_revision, head)
        self._index(id, entry, touched)
        self.highest = max(self.highest, id)

    def _put_loads(self, where: tuple[str, int], kv: KeyValue, touched: Touched) -> None:
        try:
            loads = layout.loads(kv.value)
        except Foreign:
            # The providers of a deleted value go, too; those of this one stay, with loads that are unknown now.
            before = self._loads.get(where)
            if before is not None:
                touched.loads.update(dict.fromkeys(before.loads))
            raise
        self._set_loads(where, LoadsEntry(loads, kv.lease, kv.mod_revision), touched)

    def _put_part(self, id: int, part: tuple[int, int], kv: KeyValue, touched: Touched) -> None:
        of = self._parts.setdefault(id, {})
        if part not in of:
            if self._part_count >= MAX_PARTS:
                raise Foreign(f"there are more than {MAX_PARTS} parts of providers")
            self._part_count += 1
        of[part] = kv.value
        entry = self.entries.get(id)
        if entry is not None and entry.head is not None and entry.value is None:
            whole = self._assemble(id, entry.head)
            if whole is not None:
                self._unindex(id, entry, touched)
                self._index(id, attrs.evolve(entry, value=whole), touched)

    def _assemble(self, id: int, head: HeadValue) -> ProviderValue | None:
        of = self._parts.get(id, {})
        found = [of.get((head.generation, number)) for number in range(head.parts)]
        texts = [text for text in found if text is not None]
        if len(texts) < head.parts:
            return None
        value = layout.assembled(b"".join(texts))
        if value.broker != head.broker:
            raise Foreign("the parts are of another member")
        # The texts are needed no more, the keys of the parts may stay.
        for number in range(head.parts):
            self._remove_part(id, (head.generation, number))
        return value

    def _remove_part(self, id: int, part: tuple[int, int]) -> None:
        of = self._parts.get(id)
        if of is not None and of.pop(part, None) is not None:
            self._part_count -= 1
            if not of:
                del self._parts[id]

    def _index(self, id: int, entry: Entry, touched: Touched) -> None:
        self.entries[id] = entry
        self._of.setdefault(entry.broker, {})[id] = None
        touched.providers[id] = None
        if entry.value is None:
            return
        for place in places(entry.value):
            self._places.setdefault(place, {})[id] = None
        for old in entry.value.replaces:
            self._successors.setdefault(old, {})[id] = None
            touched.providers[old] = None

    def _unindex(self, id: int, entry: Entry, touched: Touched) -> None:
        _drop(self._of, entry.broker, id)
        if entry.value is None:
            return
        for place in places(entry.value):
            _drop(self._places, place, id)
        for old in entry.value.replaces:
            _drop(self._successors, old, id)
            touched.providers[old] = None

    def _set_member(self, name: str, entry: MemberEntry | None, touched: Touched) -> None:
        before = self.members.pop(name, None)
        if entry is not None:
            self.members[name] = entry
        else:
            self.beats.pop(name, None)
        touched.members[name] = None
        if (before and before.lease) != (entry and entry.lease):
            for id in self._of.get(name, ()):
                touched.providers[id] = None
                value = self.entries[id].value
                if value is not None:
                    touched.providers.update(dict.fromkeys(value.replaces))
            for queue, (owner, _) in self.claims.items():
                if owner == name:
                    touched.claims[queue] = None

    def _set_loads(self, where: tuple[str, int], entry: LoadsEntry | None, touched: Touched) -> None:
        before = self._loads.pop(where, None)
        if before is not None:
            for id in before.loads:
                if self._load_of.get((where[0], id)) == where[1]:
                    del self._load_of[where[0], id]
        if entry is not None:
            if len(self._loads) >= MAX_PROVIDERS:
                raise Foreign(f"there are more than {MAX_PROVIDERS} values of loads")
            self._loads[where] = entry
            for id, load in entry.loads.items():
                self._load_of[where[0], id] = where[1]
                if before is None or before.loads.get(id) != load:
                    touched.loads[id] = None


def places(value: ProviderValue) -> Iterator[Place]:
    """Yield the places of the services of a provider."""
    for service in value.services:
        yield value.wire, service.name, service.protocol, service.hostport


def _follows(own: Entry | None, other: Entry) -> bool:
    """Return whether a valid provider that names another one, whose valid entry is ``own``, is its successor."""
    if own is None:
        return True
    if own.is_standby != other.is_standby:
        return own.is_standby
    return _is_later(own, other)


def _is_later(own: Entry, other: Entry) -> bool:
    """Return whether the other of two providers replaced the own one after its key was created."""
    return own.broker == other.broker or own.created <= other.created


def _drop(table: dict[K, dict[int, None]], key: K, id: int) -> None:
    of = table.get(key)
    if of is not None:
        of.pop(id, None)
        if not of:
            del table[key]
