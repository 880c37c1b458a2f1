"""Table: the state of all keys of the farm in etcd, as far as it has been read. Pure; no I/O.

Rules:
- A value that is not one of the layout is counted, logged once, and left out.
- An entry of a member is *valid* only under the lease of the member's key: so what a dead lease left does not count.
  Without a lease, no member has written it.
- A beat is kept only beside its member, and a load counts only from the holder of its provider.
- The end of a member's lease deletes its key first, and then its entries, in one revision. So a deletion of a valid
  entry is an act of its holder.
- A lease that ended while this member was interrupted too, or soon after, or too early, or with the data of etcd, is
  *held*: its entries count until another value of their key, or until `drop_held`: that is due once their member has
  restored its registrations or has ended. The deletions by the end of the lease do not concern them.
- A key of the member under that lease proves that it has not ended: another program had deleted the key.
- All tables are bounded; what is over a limit is counted as well, and left out.

The file is longer than others: each change of a key updates all indexes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain

import attrs
from twisted.logger import Logger

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import KeyValue
from broker.cluster.layout import Foreign, Keys
from broker.core.cluster.cluster_interfaces import Key, Member, Registration
from broker.core.model import LoadDetails
from broker.core.turns import pieces

MAX_ENTRIES = 200_000
"""Limit of registrations of the farm, and of their standbys: as many as the registry takes services."""

MAX_MEMBERS = 256
"""Limit of members: the links are a full mesh, which ends at some tens."""

MAX_CLAIMS = 100_000
"""Limit of owners of durable queues, ten times the queues of a broker; some 40 MB."""

MAX_VALUE = 512_000
"""Limit of a value in bytes, twice that of what brokers write: a stranger's 1.5 MB, which etcd permits, would hold the
reactor for some milliseconds each."""

MAX_LOGGED = 100
"""Limit of the keys whose bad values are logged, so that a stranger who writes does not fill the log."""

LEASED = frozenset((b"b", b"s", b"t", b"l", b"beat"))
"""Kinds of keys that members put under their leases only."""


@attrs.frozen
class MemberEntry:
    """A member with the lease of its key; ``restored`` is that of `layout.MemberValue`."""

    member: Member
    lease: int
    restored: bool = False


@attrs.frozen
class Entry:
    """A registration as it is in etcd, or, without a lease, of the record."""

    registration: Registration
    lease: int
    modified: int

    @property
    def version(self) -> tuple[int, int]:
        """Another one for each value, also after a loss of etcd's data."""
        return self.modified, self.lease

    @property
    def broker(self) -> str:
        """The holder."""
        return self.registration.provider.broker

    @property
    def provider(self) -> int:
        """The id of the provider."""
        return self.registration.provider.id


@attrs.frozen
class LoadsEntry:
    """Loads of a member with the lease of their key."""

    loads: layout.Loads
    lease: int
    modified: int


@attrs.define
class Touched:
    """Keys that changes have touched, in their order: registrations with the revision of the last change."""

    registrations: dict[Key, int] = attrs.field(factory=dict)
    members: dict[str, None] = attrs.field(factory=dict)
    loads: dict[tuple[str, int], None] = attrs.field(factory=dict)
    claims: dict[tuple[str, str], None] = attrs.field(factory=dict)
    beats: dict[str, layout.BeatValue] = attrs.field(factory=dict)
    leases: dict[str, int] = attrs.field(factory=dict)
    """Members under another lease, or none, with the revision: what they had counts no more, and is to be touched. As a
    rule etcd deletes it in the same revision; it may be tens of thousands of keys."""
    meta: bool = False
    due: bool = False
    """True if held leases are to be dropped now."""


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
        self.entries: dict[Key, Entry] = {}
        self.standbys: dict[Key, dict[str, Entry]] = {}
        """Superseded registrations by member."""
        self.unusable: dict[Key, int] = {}
        """Revisions of the keys of registrations whose values were left out."""
        self.beats: dict[str, layout.BeatValue] = {}
        self.claims: dict[tuple[str, str], tuple[str, int]] = {}
        """Owners of durable queues, with the leases of the keys."""
        self._loads: dict[tuple[str, int], LoadsEntry] = {}
        self._load_of: dict[tuple[str, int], int] = {}
        """Number of the loads of a member that have a provider."""
        self._of: dict[str, dict[Key, None]] = {}
        """Keys at which a member has an entry or a standby."""
        self._end_revision = 0
        """Revision of the last end of a lease that is held."""
        self.held: dict[tuple[str, int], bool] = {}
        """Members with their leases that are held, 0 for the record; True if they are to be dropped now. Such a member
        stays until it has another lease."""

    # reading

    def has_epoch(self, epoch: str) -> bool:
        """Return True if these are data of that epoch: neither other data, nor of another layout, nor without
        ``meta``."""
        try:
            return self.meta is not None and layout.epoch_of(self.meta.value) == epoch
        except Foreign:
            return False

    def is_valid(self, entry: Entry) -> bool:
        """Return True if an entry counts."""
        member = self.members.get(entry.broker)
        return (member is not None and member.lease == entry.lease) or self.is_held(entry)

    def is_held(self, entry: Entry) -> bool:
        """Return True if an entry counts, although etcd does not have it."""
        return (entry.broker, entry.lease) in self.held

    def has_key(self, name: str) -> bool:
        """Return True if a member has its key in etcd."""
        member = self.members.get(name)
        return member is not None and (name, member.lease) not in self.held

    def valid(self, key: Key) -> Entry | None:
        """Return the entry of a registration if it counts."""
        entry = self.entries.get(key)
        return entry if entry is not None and self.is_valid(entry) else None

    def other(self, key: Key, but: str) -> Entry | None:
        """Return the entry of a registration if it counts and is that of another member than ``but``."""
        entry = self.valid(key)
        return None if entry is None or entry.broker == but else entry

    def standby(self, key: Key, but: str) -> Entry | None:
        """Return the valid standby of the first member by name, apart from one member."""
        standbys = self.standbys.get(key)
        for name in sorted(standbys) if standbys else ():
            if name != but and standbys is not None and self.is_valid(standbys[name]):
                return standbys[name]
        return None

    def modified(self, key: Key) -> int:
        """Return the revision of what is at the key of a registration, 0 if there is nothing."""
        entry = self.entries.get(key)
        return self.unusable.get(key, 0) if entry is None or self.is_held(entry) else entry.modified

    def obstacle(self, key: Key) -> int:
        """Return the revision of what is at the key of a registration and does not count, 0 if there is nothing."""
        entry = self.entries.get(key)
        return 0 if entry is not None and self.is_valid(entry) else self.modified(key)

    def of(self, name: str) -> dict[Key, None]:
        """Return the keys at which a member has an entry or a standby, in a new dict."""
        return dict(self._of.get(name, {}))

    def load(self, broker: str, provider: int) -> tuple[float, LoadDetails | None]:
        """Return the load of a provider of a member, 0.0 if it is unknown."""
        number = self._load_of.get((broker, provider))
        if number is None:
            return 0.0, None
        member, entry = self.members.get(broker), self._loads[broker, number]
        valid = member is not None and member.lease == entry.lease
        return entry.loads[provider] if valid else (0.0, None)

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
            self.delete(kv.key, kv.mod_revision, touched)
            self._note_unusable(rest, kv.mod_revision)

    def delete(
        self, key: bytes, revision: int, touched: Touched, hold: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Take over the deletion of a key. ``hold`` returns whether the lease of a member that ends is held."""
        rest = key[len(self._keys.prefix) :]
        kind, _, tail = rest.partition(b"/")
        try:
            if kind == b"s":
                self._delete_entry(layout.registration_of(tail), revision, touched)
            elif kind == b"t":
                registration, name = layout.standby_of(tail)
                standby = self.standbys.get(registration, {}).get(name)
                if standby is None or not self._keeps(standby, revision):
                    self._set_standby(registration, name, None, revision, touched)
            elif kind == b"l":
                self._set_loads(layout.loads_of(tail), None, touched)
            elif kind == b"beat":
                self.beats.pop(layout.name_of(tail), None)
            elif kind == b"b":
                self._end_member(layout.name_of(tail), revision, touched, hold)
            elif kind == b"q":
                queue = layout.claim_of(tail)
                self.claims.pop(queue, None)
                touched.claims[queue] = None
            elif rest == b"meta":
                self.meta = None
                touched.meta = True
        except Foreign:
            pass  # a foreign key was not taken over either

    def hold(self, before: Table, own: str, ended: bool, recorded: Mapping[Key, Entry]) -> Iterator[None]:
        """Hold, in steps, what the table before held, and with ``ended`` the leases of members that have another one
        now, or none; not those of ``own``, of members that have restored their registrations, and those that were to be
        dropped. Of ``recorded``, the entries of the record, those are held at whose key there is none, and whose
        members may still restore them."""
        leases = [each for each, due in before.held.items() if not due]
        if ended:
            leases += ((name, member.lease) for name, member in before.members.items())
        touched = Touched()
        for name, lease in dict.fromkeys(leases):
            member, known = self.members.get(name), before.members.get(name)
            if name == own or (member is not None and (member.restored or member.lease == lease)):
                continue
            self.held[name, lease] = False
            if member is None and known is not None and known.lease == lease:
                self.members[name] = known
            for keys in pieces(before.of(name)):
                for key in keys:
                    entry, standby = before.entries.get(key), before.standbys.get(key, {}).get(name)
                    if entry is not None and (entry.broker, entry.lease) == (name, lease) and key not in self.entries:
                        self._set_entry(key, entry, 0, touched)
                    if standby is not None and standby.lease == lease and name not in self.standbys.get(key, ()):
                        self._set_standby(key, name, standby, 0, touched)
                yield
        for keys in pieces(recorded):
            for key in keys:
                entry = recorded[key]
                member = self.members.get(entry.broker)
                ready = member is not None and member.restored and (entry.broker, member.lease) not in self.held
                if key not in self.entries and not ready and entry.broker != own:
                    self.held[entry.broker, entry.lease] = False
                    self._set_entry(key, entry, 0, touched)
            yield

    def drop_held(self, name: str, undue: Callable[[], bool], revision: Callable[[], int]) -> Iterator[Touched]:
        """Remove what is held of a member, in steps: what is due, and the rest while ``undue`` returns True. Yields
        what was removed."""
        for each, lease in list(self.held):
            for keys in chain(pieces(self.of(name)), ((),)) if each == name else ():
                touched = Touched()
                if (name, lease) not in self.held or not (self.held[name, lease] or undue()):
                    break
                self._drop_keys(keys, name, lease, revision(), touched)
                if not keys:
                    del self.held[name, lease]
                    member = self.members.get(name)
                    if member is not None and member.lease == lease:
                        self._set_member(name, None, revision(), touched)
                yield touched

    def discard(self, key: Key) -> None:
        """Forget the entry at a key, in a table that is used no more."""
        self._unindex(key, self.entries.pop(key).broker)

    # internal

    def _drop_keys(self, keys: Iterable[Key], name: str, lease: int, revision: int, touched: Touched) -> None:
        """Remove what a lease of a member has at these keys."""
        for key in keys:
            entry, standby = self.entries.get(key), self.standbys.get(key, {}).get(name)
            if entry is not None and (entry.broker, entry.lease) == (name, lease):
                self._set_entry(key, None, revision, touched)
            if standby is not None and standby.lease == lease:
                self._set_standby(key, name, None, revision, touched)

    def _put(self, rest: bytes, kv: KeyValue, touched: Touched) -> None:
        kind, _, tail = rest.partition(b"/")
        if len(kv.value) > MAX_VALUE and kind != b"meta":
            raise Foreign(f"it has {len(kv.value)} bytes, more than {MAX_VALUE}")
        if kv.lease == 0 and kind in LEASED:
            raise Foreign("it has no lease")
        if kind == b"s":
            key = layout.registration_of(tail)
            if key not in self.entries and len(self.entries) >= MAX_ENTRIES:
                raise Foreign(f"there are more than {MAX_ENTRIES} registrations")
            self._set_entry(key, self._entry(key, kv), kv.mod_revision, touched)
        elif kind == b"t":
            key, name = layout.standby_of(tail)
            if key not in self.standbys and len(self.standbys) >= MAX_ENTRIES:
                raise Foreign(f"there are more than {MAX_ENTRIES} standbys")
            entry = self._entry(key, kv)
            if entry.broker != name:
                raise Foreign("the value is that of another member")
            self._set_standby(key, name, entry, kv.mod_revision, touched)
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
            self._set_member(name, MemberEntry(*_member(name, kv)), kv.mod_revision, touched)
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

    def _entry(self, key: Key, kv: KeyValue) -> Entry:
        entry = Entry(layout.registration(key, kv.value), kv.lease, kv.mod_revision)
        self.highest = max(self.highest, entry.provider)
        return entry

    def _note_unusable(self, rest: bytes, revision: int) -> None:
        if rest.startswith(b"s/") and len(self.unusable) < MAX_ENTRIES:
            # Otherwise no registration has that key.
            with suppress(Foreign):
                self.unusable[layout.registration_of(rest[2:])] = revision

    def _put_loads(self, where: tuple[str, int], kv: KeyValue, touched: Touched) -> None:
        try:
            loads = layout.loads(kv.value)
        except Foreign:
            # The providers of a deleted value go, too; those of this one stay, with loads that are unknown now.
            before = self._loads.get(where)
            if before is not None:
                touched.loads.update(dict.fromkeys((where[0], id) for id in before.loads))
            raise
        self._set_loads(where, LoadsEntry(loads, kv.lease, kv.mod_revision), touched)

    def _set_entry(self, key: Key, entry: Entry | None, revision: int, touched: Touched) -> None:
        touched.registrations[key] = revision
        self.unusable.pop(key, None)
        before = self.entries.pop(key, None)
        if entry is not None:
            self.entries[key] = entry
            self._of.setdefault(entry.broker, {})[key] = None
        if before is not None and (entry is None or entry.broker != before.broker):
            self._unindex(key, before.broker)

    def _set_standby(self, key: Key, name: str, entry: Entry | None, revision: int, touched: Touched) -> None:
        # What is at the key itself is the same as before.
        touched.registrations.setdefault(key, 0)
        if entry is not None:
            self.standbys.setdefault(key, {})[name] = entry
            self._of.setdefault(name, {})[key] = None
            return
        of = self.standbys.get(key)
        if of is not None and of.pop(name, None) is not None:
            if not of:
                del self.standbys[key]
            self._unindex(key, name)

    def _delete_entry(self, key: Key, revision: int, touched: Touched) -> None:
        entry = self.entries.get(key)
        if entry is not None and self._keeps(entry, revision):
            self.unusable.pop(key, None)
        else:
            self._set_entry(key, None, revision, touched)

    def _keeps(self, entry: Entry, revision: int) -> bool:
        """Return True if the end of a lease that is held deleted an entry."""
        return revision <= self._end_revision and self.is_held(entry)

    def _unindex(self, key: Key, name: str) -> None:
        """Forget that a member has a key, unless it has it otherwise."""
        entry = self.entries.get(key)
        if (entry is None or entry.broker != name) and name not in self.standbys.get(key, ()):
            of = self._of.get(name)
            if of is not None:
                of.pop(key, None)
                if not of:
                    del self._of[name]

    def _set_member(self, name: str, entry: MemberEntry | None, revision: int, touched: Touched) -> None:
        before = self.members.pop(name, None)
        if entry is not None:
            self.members[name] = entry
            self.held.pop((name, entry.lease), None)
        else:
            self.beats.pop(name, None)
        touched.members[name] = None
        if (before and before.lease) != (entry and entry.lease):
            touched.leases[name] = revision
            for queue, (owner, _) in self.claims.items():
                if owner == name:
                    touched.claims[queue] = None
        ended = entry is None and before is not None and (name, before.lease) not in self.held
        if ended or (entry is not None and entry.restored):
            # It has ended, or has written all that it has.
            for each in [each for each in self.held if each[0] == name]:
                self.held[each] = touched.due = True

    def _end_member(self, name: str, revision: int, touched: Touched, hold: Callable[[str], bool]) -> None:
        """The key of a member is gone."""
        member = self.members.get(name)
        if not hold(name) or member is None:
            self._set_member(name, None, revision, touched)
        else:
            self.held[name, member.lease], self._end_revision = False, revision

    def _set_loads(self, where: tuple[str, int], entry: LoadsEntry | None, touched: Touched) -> None:
        before = self._loads.pop(where, None)
        if before is not None:
            for id in before.loads:
                if self._load_of.get((where[0], id)) == where[1]:
                    del self._load_of[where[0], id]
        if entry is not None:
            if len(self._loads) >= MAX_ENTRIES:
                raise Foreign(f"there are more than {MAX_ENTRIES} values of loads")
            self._loads[where] = entry
            for id, load in entry.loads.items():
                self._load_of[where[0], id] = where[1]
                if before is None or before.lease != entry.lease or before.loads.get(id) != load:
                    touched.loads[where[0], id] = None


def _member(name: str, kv: KeyValue) -> tuple[Member, int, bool]:
    member, restored = layout.member(name, kv.value)
    return member, kv.lease, restored
