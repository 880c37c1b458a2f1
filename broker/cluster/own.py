"""Own providers: keeps their keys in etcd in step with the registry.

Rules:
- Each change of an own provider marks it; its whole value is built when it is written. Changes of health checks mark
  it only if other services fail than before, or for other reasons (`reasons`).
- `moves` has the providers that an own one replaces, `succession` those that replace an own one.
- An own provider *replaces* another member's if it offers services at all of its places (wire, name, protocol and
  host:port): it has moved. One transaction deletes the old key and puts the new one, which names its predecessors. From
  the offer on, the registry here returns the new one only.
- Of two members that wrote a provider at one place without knowledge of each other, the one of the later key replaces.
- An own provider that another member's replaces is *superseded*: its session stays, and its key is written again as a
  *standby*, which counts everywhere as soon as the successor is gone. If the session changes a service, it replaces the
  successor. That applies also to a service that was offered before the successor was known, and that the successor
  lacks. So a server that registers at two members on purpose does not flap, and is not missing between them.
- Providers from before a restart (*remembered* ones) keep their keys for the grace period. A provider that comes back
  replaces its own: also by a label that exactly one of the wire's remembered providers has, as in
  `broker.core.registered_services`. Live providers are not recognised by labels: two servers may share one.
- While this member drains, a provider whose session ends without a withdrawal is *departed* (`departed`): its key is
  kept in step as if the session lived, for the TTL or until a successor replaces it. It ends with the lease, too.
- If the keys of this member were lost with its lease, and another member has a provider at all places of an own one,
  then the provider has moved while this member was out of touch: the own one is superseded, too. That applies only if
  the key of the other is later than the lost one: an own provider that was never written replaces the other.
- An own key that vanishes without a successor is written again, and an own key without a provider is deleted.
- Once this member stops, what it has not yet written replaces nothing that was unknown before: it gives way.
- A value of more than `PART` bytes is written in parts; the head, which is written last, names their generation.

The file is longer than others: each step in the life of an own key changes the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.interfaces import IReactorTime

from broker.cluster import layout
from broker.cluster.departed import Departed
from broker.cluster.etcd.etcd_interface import Compare, Delete, KeyValue, Put
from broker.cluster.key_table import Entry, places
from broker.cluster.layout import Keys
from broker.cluster.mirror import Shared
from broker.cluster.moves import Moves, deletion
from broker.cluster.publisher import Publisher, Unit
from broker.cluster.reasons import OwnReasons
from broker.cluster.succession import Succession, places_of
from broker.core.model import BROKER, Change, FailingService, Kind, Provider

PART = 256_000
"""Limit of one value in bytes: a transaction has room for several, and a resynchronisation reads them in pages."""

KINDS = tuple(kind for kind in Kind if kind not in (Kind.LOAD, Kind.HIDDEN, Kind.SHOWN))
"""Kinds of changes that change the value of a provider. Each member hides services by itself."""


class OwnProviders:
    """Own providers of the member ``name`` in ``registry``.

    ``departed`` has those whose sessions have ended in a drain. ``lease`` returns the present lease; ``live`` whether
    an own provider of an id is registered; ``mirrored`` whether the registry has it from the mirror; ``draining``
    whether this member drains. ``show`` applies the state of a provider to the registry at once. ``interval`` are the
    least seconds between two writes for another reason of a service that fails already.
    """

    def __init__(
        self,
        shared: Shared,
        registry: Any,
        publisher: Publisher,
        keys: Keys,
        name: str,
        lease: Callable[[], int],
        live: Callable[[int], bool],
        mirrored: Callable[[int], bool],
        departed: Departed,
        draining: Callable[[], bool],
        show: Callable[[int], None],
        clock: IReactorTime,
        interval: float,
    ) -> None:
        self._shared = shared
        self._registry = registry
        self._publisher = publisher
        self._keys = keys
        self._name = name
        self._lease = lease
        self._live = live
        self._mirrored = mirrored
        self._departed = departed
        self._draining = draining
        self._show = show
        self._written: dict[int, int] = {}
        """Own providers whose keys may be in etcd, with the revision of the last write that was confirmed, 0 before."""
        self._generations: dict[int, int] = {}
        """Last generation of the parts of large providers."""
        self._succession = Succession(shared, name, self._provider, self._mark)
        self._moves = Moves(shared, keys, name, live)
        self._failing: dict[int, Sequence[FailingService]] = {}
        """Services of own providers that failed at the last write, if any."""
        self._unseen: tuple[int, ...] = ()
        """Entries that differ in a new table, until `reconcile`."""
        self._stopped = False
        self.repairs = 0
        """Own keys that were written again after they had vanished."""
        self._watch = registry.watch(self._changed, KINDS)
        registry.departing.append(self._departing)
        registry.unannounced.append(self._mark)
        self._reasons = OwnReasons(registry, clock, interval, self._restated)

    # for the other parts

    def successor(self, id: int) -> int | None:
        """Return the provider that supersedes an own one; None without."""
        return self._succession.superseded.get(id)

    def is_ended(self, id: int) -> bool:
        """Return whether an own provider has ended whose key is to be deleted."""
        entry = self._shared.table.entries.get(id)
        if entry is None or entry.broker != self._name or self._live(id):
            return False
        return id not in self._departed and id not in self._moves.remembered

    def remember(self) -> None:
        """Keep the own keys of the table that have no provider: they are from before a restart."""
        for id in self._shared.table.of(self._name):
            if not self._live(id):
                self._moves.remembered[id] = None

    def forget(self) -> None:
        """Delete the keys of the providers that have not come back."""
        remembered, self._moves.remembered = self._moves.remembered, {}
        for id in remembered:
            if not self._live(id):
                self._mark(id)

    def reconcile(self, lost: bool, replaced: bool) -> Sequence[int]:
        """Mark every own provider that the table does not have as it was written; all of them if the keys are
        ``lost``. ``replaced`` means that etcd counts its revisions from the start again. Returns the superseded ones.
        """
        table = self._shared.table
        if replaced:
            self._written = {id: min(revision, 1) for id, revision in self._written.items()}
        self._moves.read()
        for id in self._departed.ids():
            if lost or table.successor(id) is not None:
                self._end(id)
                self._show(id)
            elif (entry := table.valid(id)) is None or self._written.get(id) != entry.modified:
                self._mark(id)
        for id in self._registry.ids():
            if self._live(id):
                if lost:
                    self._outlive(id)
                self._succession.look(id)
                entry = table.valid(id)
                if lost or entry is None or entry.broker != self._name or self._written.get(id) != entry.modified:
                    self._mark(id)
        for id in self._succession.superseded:
            if lost or not self._stands_by(id):
                self._mark(id)
        for id in table.of(self._name):
            if not self._live(id) and id not in self._moves.remembered and id not in self._departed:
                self._mark(id)
        unseen, self._unseen = self._unseen, ()
        for id in unseen:
            entry = table.valid(id)
            if self._live(id):
                if self._match(id):
                    self._mark(id)
            elif entry is not None and entry.broker != self._name:
                self._challenge(id, entry)
        return tuple(self._succession.superseded)

    def reread(self, ids: Sequence[int]) -> None:
        """Take note of the entries that differ in a new table. `reconcile` follows."""
        self._unseen = (*self._unseen, *ids)

    def touched(self, ids: Sequence[int]) -> Sequence[int]:
        """Take note of changes of the table. Returns the own providers whose successors, which do not name them, have
        changed."""
        table = self._shared.table
        outlived = self._succession.outlived_by(ids)
        for id in dict.fromkeys((*outlived, *ids)):
            entry = table.entries.get(id)
            self._moves.touched(id)
            if id in self._departed:
                vanished = entry is None and id in self._written and self._name in table.members
                if vanished or table.successor(id) is not None or self._overtaken(id):
                    if entry is None:
                        self._written.pop(id, None)
                    self._end(id)
            elif self._live(id):
                self._succession.look(id)
                if id in self._succession.superseded:
                    if not self._stands_by(id):
                        self._mark(id)
                elif entry is None or entry.broker != self._name or entry.lease != self._lease():
                    # With the key of this member itself, the lease has ended: that is for the membership.
                    if id in self._written and self._name in table.members:
                        self.repairs += 1
                        self._mark(id)
                elif self._match(id):
                    self._mark(id)
            elif entry is not None and entry.broker == self._name:
                if id not in self._moves.remembered and id not in self._written:
                    self._written[id] = 0
                    self._mark(id)
            else:
                self._moves.remembered.pop(id, None)
                if entry is not None and entry.value is not None:
                    self._challenge(id, entry)
        return outlived

    def ended(self, id: int) -> None:
        """Delete the key of a departed provider whose time has passed."""
        self._mark(id)
        if self._shared.table.valid(id) is None:
            self._show(id)

    def stop(self) -> None:
        """Watch the registry no more: its sessions end. No-op after the first call."""
        self._stopped = True
        self._watch.cancel()
        self._departed.stop()
        self._reasons.stop()
        for hooks, hook in ((self._registry.departing, self._departing), (self._registry.unannounced, self._mark)):
            if hook in hooks:
                hooks.remove(hook)

    # internal

    def _changed(self, change: Change) -> None:
        id = change.provider
        if id == BROKER or self._mirrored(id):
            return
        if id in self._departed:
            if change.kind is Kind.LEFT:
                self._show(id)
            return
        if change.kind is Kind.CHECKED and not self._fails_otherwise(id):
            return
        if change.kind in (Kind.OFFERED, Kind.AMENDED):
            self._succession.changed(id, change.revision)
            self._match(id)
        elif change.kind is Kind.LEFT:
            self._moves.left(id)
            self._show_standbys(id)
        self._mark(id)

    def _show_standbys(self, id: int) -> None:
        """Show the standbys behind an own provider that has left here at once; elsewhere its key tells."""
        entry = self._shared.table.valid(id)
        if entry is not None and entry.value is not None and self.is_ended(id):
            for old in entry.value.replaces:
                if (standby := self._shared.table.valid(old)) is not None and standby.is_standby:
                    self._show(old)

    def _fails_otherwise(self, id: int) -> bool:
        """Return whether other services of an own provider fail than at its last write, or for other reasons."""
        return tuple(self._registry.failing(id)) != tuple(self._failing.get(id, ()))

    def _restated(self, id: int) -> None:
        if self._live(id) and self._fails_otherwise(id):
            self._mark(id)

    def _departing(self, provider: Provider, why: str) -> None:
        """Keep a provider whose session ends because of the drain. Marks that are waiting are written all the same."""
        if why == "left" and provider.services and self._draining() and provider.id not in self._succession.superseded:
            self._departed.add(provider)

    def _end(self, id: int) -> None:
        self._departed.discard(id)
        self._succession.end(id)
        self._mark(id)

    def _provider(self, id: int) -> Provider | None:
        """Return an own provider, live or departed."""
        departed = self._departed.get(id)
        if departed is not None:
            return departed
        provider: Provider | None = self._registry.provider(id)
        return provider

    def _stands_by(self, id: int) -> bool:
        """Return whether the key of a superseded provider is as it must be: a standby if the successor names it, and
        none if it does not, since then nothing would hide it."""
        entry = self._shared.table.valid(id)
        if not self._shared.table.replacing(id):
            return entry is None
        return entry is not None and entry.broker == self._name and entry.is_standby

    def _mark(self, id: int) -> None:
        self._publisher.mark(id, lambda: self._build(id))

    def _outlive(self, id: int) -> None:
        """Find the provider of another member at all places of an own one, whose key is lost."""
        provider = self._registry.provider(id)
        table = self._shared.table
        written = self._written.get(id, 0)
        if not written or provider is None or not provider.services or table.valid(id) is not None:
            return
        found = [
            other
            for other, entry in self._elsewhere(provider)
            if not self._moves.replaces(id, other) and not entry.held and entry.created > written
        ]
        if found:
            self._succession.outlive(id, max(found))

    def _challenge(self, id: int, entry: Entry) -> None:
        """Let own providers at the places of another member's replace it, if their keys are later."""
        table = self._shared.table
        assert entry.value is not None
        for place in places(entry.value):
            for own in table.at(place):
                if table.entries[own].broker != self._name:
                    continue
                if own in self._departed:
                    if self._overtaken(own):
                        self._end(own)
                elif self._live(own) and self._match(own):
                    self._mark(own)

    def _overtaken(self, id: int) -> bool:
        """Return whether another member has a provider at all places of a departed one.

        If it has not replaced that, both were written without knowledge of each other, and the session of the departed
        one is the earlier."""
        provider = self._departed.get(id)
        return provider is not None and any(self._elsewhere(provider))

    def _elsewhere(self, provider: Provider) -> Iterator[tuple[int, Entry]]:
        """Yield the valid providers of other members, apart from standbys, that have services at all places of a
        provider."""
        mine, table = set(places_of(provider)), self._shared.table
        for other in table.at(next(iter(mine))) if mine else ():
            entry = table.entries[other]
            value = None if entry.broker == self._name or entry.is_standby else entry.value
            if value is not None and mine <= set(places(value)):
                yield other, entry

    def _match(self, id: int) -> bool:
        """Find the providers that an own one replaces. Returns whether there are any that were unknown, or whether the
        own one gives way to another one."""
        provider = None if id in self._succession.superseded else self._provider(id)
        if provider is None:
            return False
        return self._gives_way(id, provider) if self._stopped else self._moves.match(id, provider)

    def _gives_way(self, id: int, provider: Provider) -> bool:
        """Return whether another member has a provider at all places of an own one whose session this stop has ended.

        It is the later one, also if its key is the earlier: a transaction of this member may have been late."""
        return any(not self._moves.replaces(id, other) for other, _ in self._elsewhere(provider))

    def _build(self, id: int) -> Sequence[Unit]:
        """Return the operations that bring the keys of an own provider in step."""
        if id in self._departed and self._shared.table.valid(id) is None and self._overtaken(id):
            self._departed.discard(id)
            self._show(id)
        table = self._shared.table
        standby = id in self._succession.superseded
        provider = None
        if self._live(id) or id in self._departed:
            # The mirror hides and shows a superseded provider later.
            provider = self._provider(id) or self._registry.superseded(id)
        if provider is not None and self._stopped and self._gives_way(id, provider):
            return self._removal(id, True)
        if provider is None or (standby and not table.replacing(id)):
            return self._removal(id, not self._live(id))
        if not standby:
            if table.valid(id) is None:
                self._match(id)
            hidden_by = [each for each in table.obstacles(id) if not self._moves.replaces(id, each)]
            if hidden_by:
                return [self._fresh_start(id, hidden_by)]
        failing = self._registry.failing(id)
        value = layout.provider_value(provider, self._name, self._moves.replaced(id), failing, standby)
        self._failing.pop(id, None)
        if failing:
            self._failing[id] = failing
        compare, deletes = ([], []) if standby else self._moves.operations(id)
        lease = self._lease()
        key = self._keys.provider(id)
        self._written.setdefault(id, 0)
        before = self._generations.get(id)
        done = self._done_with(id, () if standby else self._moves.pending(id))
        if len(value) <= PART:
            if before is not None:
                deletes.append(Delete(key + b"/", key + b"0"))
                del self._generations[id]
            return [Unit((*deletes, Put(key, value, lease)), tuple(compare), done, self._lost_to(id))]
        generation = self._generations[id] = (before or 0) + 1
        parts = layout.parts(value, PART)
        units = [
            Unit((Put(self._keys.part(id, generation, number), part, lease),)) for number, part in enumerate(parts)
        ]
        head = Put(key, layout.head_value(self._name, generation, len(parts)), lease)
        units.append(Unit((*deletes, head), tuple(compare), done, self._lost_to(id)))
        if before is not None:
            # All parts of earlier generations, which are not read any more.
            units.append(Unit((Delete(key + b"/", key + b"/%06d." % generation),)))
        return units

    def _fresh_start(self, id: int, hidden_by: Sequence[int]) -> Unit:
        """Return the deletion of the standby of a session that counts again: only a key that is created again is later
        than those of its successors. These are found meanwhile."""
        table = self._shared.table
        keys = [(self._keys.provider(each), table.entries[each].modified) for each in hidden_by]
        # The deletion that the watch will show is not one by another program.
        self._written.pop(id, None)
        parted = self._generations.pop(id, None) is not None
        return Unit(
            (deletion(self._keys.provider(id), parted),),
            tuple(Compare("MOD", key, modified) for key, modified in keys),
            lambda revision: self._mark(id),
            lambda found: self._mark(id),
        )

    def _removal(self, id: int, gone: bool) -> Sequence[Unit]:
        known = id in self._written or id in self._shared.table.of(self._name)
        parted = self._generations.pop(id, None) is not None
        entry = self._shared.table.entries.get(id)
        if gone:
            self._succession.forget(id)
            self._moves.forget(id)
            self._failing.pop(id, None)
        elif entry is None:
            return []
        if not known or (entry is not None and entry.broker != self._name):
            self._written.pop(id, None)
            return []
        parted = parted or (entry is not None and entry.head is not None)

        def done(revision: int) -> None:
            if not self._live(id):
                self._written.pop(id, None)

        return [Unit((deletion(self._keys.provider(id), parted),), (), done)]

    def _done_with(self, id: int, replaced: Sequence[int]) -> Callable[[int], None]:
        change = self._succession.unsent(id)

        def done(revision: int) -> None:
            self._written[id] = revision
            self._succession.written(id, change)
            self._moves.done(id, replaced)

        return done

    def _lost_to(self, id: int) -> Callable[[dict[bytes, KeyValue | None]], None]:
        def lost(found: dict[bytes, KeyValue | None]) -> None:
            self._moves.lost(id, found)

        return lost
