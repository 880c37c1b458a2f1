"""Registry of a member of a cluster: own registrations, and those that other members hold.

Rules:
- A registration has a key (`broker.core.cluster.cluster_interfaces.key_of`), and each key is found once. What is found
  at a key is its *view*, a function of three tables: the own registration if it counts, otherwise that of another
  member, otherwise the own one. Of several own ones, the one of the latest act is meant.
- An own registration does not count while its key is *superseded*. An act of its session (an offer, or an amendment)
  ends that at once.
- Registrations of other members come by `IMirror`. Finds, listings and watches have them like own ones; watches with
  ``own`` do not. Only this module changes them: the methods for peers refuse their ids.
- A step is one change: all of it is in the tables before the first notification, additions before removals.
- A provider of another member is listed while one of its registrations is found; an own one while its session lives.
- Finds are ordered by provider id, and for one provider by the order of offering, so that all members answer alike.
- The holder checks the health of its services. A mirrored service that fails there is judged here by the same policy,
  among all services of its name and protocol, and with the panic threshold of this broker.
- All services together are bounded. Mirrored ones beyond the limit are left out, counted, and found as soon as there is
  room for them.

The file is longer than others: its methods change the tables of the registry that they extend.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

import attrs
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from broker.core.cluster.cluster_interfaces import IMirror, Key, OwnRegistrations, Registration, key_of
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry, StoredMemory
from broker.core.model import (
    BAD_STATES,
    BROKER,
    NOBODY,
    Change,
    Check,
    CheckState,
    FailingService,
    Kind,
    Load,
    LoadDetails,
    Owner,
    Policy,
    Provider,
    Rights,
    Service,
    is_amended,
)
from broker.core.registered_services import Restored, ServiceGroup
from broker.core.registry import UNCHECKED, ProviderEntry, Registry


@attrs.define(eq=False)
class Item:
    """A registration in the registry. ``failing`` is the report of its holder; ``judged`` is True while a report is in
    force for a mirrored service that is found."""

    key: Key
    provider: int
    service: Service
    order: int
    own: bool = True
    failing: FailingService | None = None
    judged: bool = False


@attrs.define(eq=False)
class Holding:
    """A provider with all its registrations in the order of their offers, found or not."""

    entry: ProviderEntry
    own: bool
    items: dict[int, Item] = attrs.field(factory=dict)
    """By their `id`."""


@attrs.define(eq=False)
class Step:
    """Changes that are made in one step, and announced at its end. ``why`` has the reasons for which registrations are
    gone."""

    changes: list[Change] = attrs.field(factory=list)
    offered: list[Service] = attrs.field(factory=list)
    loads: list[ProviderEntry] = attrs.field(factory=list)
    why: dict[Key, str] = attrs.field(factory=dict)


class OrderedGroup(ServiceGroup):
    """Services of one name and protocol, ordered by provider id, and then by the order of offering."""

    __slots__ = ("_sorted", "orders")

    def __init__(self) -> None:
        super().__init__()
        self._sorted = True
        self.orders: dict[int, int] = {}
        """Orders by the `id` of the service."""

    def all(self) -> tuple[Service, ...]:
        """Return all services in that order."""
        self._sort()
        return super().all()

    def gather(self) -> tuple[Service, ...]:
        """Return the services of a find, and cache them."""
        self._sort()
        return super().gather()

    def remove(self, service: Service) -> bool:
        """Remove a service. Returns True if none is left."""
        self.orders.pop(id(service), None)
        return super().remove(service)

    def replace(self, old: Service, new: Service) -> None:
        """Put ``new`` in the place of ``old``."""
        self.orders[id(new)] = self.orders.pop(id(old), 0)
        super().replace(old, new)

    def place(self, service: Service, order: int) -> None:
        """Give a service of the group its order among those of its provider."""
        self.orders[id(service)] = order
        self._changed()

    def _sort(self) -> None:
        # At a read and not at each change: a group of thousands is filled one by one.
        if not self._sorted:
            orders = self.orders
            found = sorted(self._services.items(), key=lambda each: (each[1].provider, orders.get(each[0], 0)))
            self._services = dict(found)
            self._sorted = True

    def _changed(self) -> None:
        self._sorted = False
        super()._changed()


@implementer(IRegistry, IMirror)
class ClusterRegistry(Registry):
    """`IRegistry` and `IMirror`. The arguments are those of `Registry`."""

    group = OrderedGroup

    def __init__(
        self,
        clock: IReactorTime,
        next_id: Callable[[], int],
        restored: Restored,
        memory: StoredMemory | None = None,
    ) -> None:
        super().__init__(clock, next_id, restored, memory)
        self._announce = self._announce_to_some
        self.own_registrations: OwnRegistrations | None = None
        restored.over = self._none_remembered
        self._holdings: dict[int, Holding] = {}
        """All providers but the broker itself, and those of other members of which nothing is found."""
        self._own: dict[Key, list[Item]] = {}
        """Own registrations, at each key in the order of the acts."""
        self._others: dict[Key, Item] = {}
        """Registrations of other members."""
        self._superseded: set[Key] = set()
        self._visible: dict[Key, Item] = {}
        """The registration that is found."""
        self._orders = 0
        self._leaving: set[int] = set()
        """Mirrored providers that go in the present step: their changes are still to be announced."""
        # Taken from the front: a plain dict skips all that was taken before, each time.
        self._waiting: OrderedDict[Key, None] = OrderedDict()
        """Keys of those that are left out now, the first one first."""

    @property
    def left_out(self) -> int:
        """See `IMirror`."""
        return len(self._waiting)

    # own providers

    def join(self, label: str, wire: str, address: str, owner: Owner = NOBODY, payer: str = "") -> int:
        id = super().join(label, wire, address, owner, payer)
        # Ids of other members may be higher.
        insort(self._ids, self._ids.pop())
        self._holdings[id] = Holding(self._members[id], True)
        return id

    def relabel(self, provider: int, label: str) -> None:
        self._refuse_foreign(provider)
        before = self._members[provider].label
        super().relabel(provider, label)
        entry = self._members.get(provider)
        if self.own_registrations is not None and entry is not None and entry.label != before:
            for item in self._latest(provider):
                self.own_registrations.refreshed(item.key)

    def leave(self, provider: int, why: str = "left") -> None:
        self._refuse_foreign(provider)
        holding = self._holdings.get(provider)
        if holding is None:
            return
        items = list(holding.items.values())
        kept = self._end(holding, items, why)
        self._forget(self._restored.withdrawn(provider))
        self._doubts.pop(provider, None)
        del self._holdings[provider]
        entry = self._drop(provider)
        if entry.payer is not None:
            entry.payer.end()
        changes = self._remove(provider, entry.services, why)
        changes.append(self._watches.record(Kind.LEFT, provider, entry.label, why))
        self._queue(changes)
        step = Step()
        for each in kept:
            self._put(each, step)
        self._show(dict.fromkeys(item.key for item in items), step)
        self._finish(step)

    def offer(self, services: Sequence[Service], rights: Rights, instead_of: int | None = None) -> None:
        if services:
            self._refuse_foreign(services[0].provider)
        super().offer(services, rights, instead_of)

    def withdraw(self, provider: int, names: Iterable[str]) -> None:
        self._refuse_foreign(provider)
        holding = self._holdings.get(provider)
        if holding is None:
            return
        unwanted = set(names)
        items = [item for item in holding.items.values() if item.service.name in unwanted]
        self._end(holding, items, "withdrawn")
        self._forget(self._restored.withdrawn(provider, unwanted))
        entry = holding.entry
        if entry.payer is not None:
            entry.payer.give(item.service for item in items)
        gone = [service for service in entry.services if service.name in unwanted]
        entry.services = [service for service in entry.services if service.name not in unwanted]
        self._queue(self._remove(provider, gone))
        step = Step()
        self._show(dict.fromkeys(item.key for item in items), step)
        self._finish(step)

    def amend(self, service: Service) -> None:
        self._refuse_foreign(service.provider)
        holding = self._holdings.get(service.provider)
        items = () if holding is None else holding.items.values()
        key = (service.name, service.protocol)
        item = next((each for each in items if (each.service.name, each.service.protocol) == key), None)
        if item is not None and self._visible.get(item.key) is not item:
            # An act: the session keeps the latest word on it.
            self._own[item.key].remove(item)
            self._own[item.key].append(item)
            self._superseded.discard(item.key)
            step = Step()
            self._show((item.key,), step)
            self._act((item.key,))
            self._finish(step)
        super().amend(service)

    def load(self, provider: int, load: float, details: LoadDetails | None = None) -> None:
        self._refuse_foreign(provider)
        super().load(provider, load, details)

    def beat(self, provider: int, sent: float | None = None) -> None:
        if not self._is_mirrored(provider):
            super().beat(provider, sent)

    def set_check(self, service: Service, check: Check | None, policy: Policy = Policy.SHOW) -> None:
        before = self._report_of(service)
        super().set_check(service, check, policy)
        self._note_report(service, before)

    def doubt(self, provider: int, reason: str | None) -> None:
        entry = self._members.get(provider)
        services = [] if entry is None else list(entry.services)
        before = [self._report_of(service) for service in services]
        super().doubt(provider, reason)
        for service, report in zip(services, before, strict=True):
            self._note_report(service, report)

    # listings, in the order of the ids

    def providers(self) -> Sequence[Provider]:
        return [member.value() for member in self._in_order() if member.id != BROKER]

    def loads(self) -> Sequence[Load]:
        return [Load(m.id, m.label, m.load, m.details) for m in self._in_order() if m.id != BROKER]

    def services(self, name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        if name is not None and protocol is not None:
            return super().services(name, protocol)
        return [s for member in self._in_order() for s in member.services if name is None or s.name == name]

    # the cluster

    def mirror(
        self,
        present: Sequence[Registration] = (),
        gone: Sequence[tuple[Key, str]] = (),
        superseded: Collection[Key] = (),
        counting: Collection[Key] = (),
    ) -> None:
        """See `IMirror`."""
        step = Step()
        keys: dict[Key, None] = dict.fromkeys(superseded)
        keys.update(dict.fromkeys(counting))
        for each in present:
            keys[each.key] = None
            self._put(each, step)
        for key, why in gone:
            keys[key] = None
            step.why[key] = why
            self._take(key)
        self._superseded.update(key for key in superseded if key in self._own)
        self._superseded.difference_update(counting)
        self._show(keys, step)
        self._finish(step)

    def mirror_loads(self, loads: Sequence[tuple[str, int, float, LoadDetails | None]]) -> None:
        """See `IMirror`."""
        step = Step()
        for broker, id, load, details in loads:
            holding = self._holdings.get(id)
            if holding is not None and not holding.own and holding.entry.broker == broker:
                self._set_load(holding.entry, load, details, step)
        self._finish(step)

    def end_remembered(self, wire: str, entry: str) -> bool:
        ended = self._restored.end(wire, entry)
        self._forget(ended)
        return bool(ended)

    def remembered(self) -> Sequence[Registration]:
        """See `IMirror`."""
        return [
            Registration(key_of(each.wire, service, each.owner), attrs.evolve(each, services=()), service, order)
            for each in self._restored.remembered()
            for order, service in enumerate(each.services, 1)
        ]

    def remember(self, registrations: Sequence[Registration]) -> None:
        """See `IMirror`."""
        has = self._restored.has
        unknown = [each for each in registrations if not has(each.key[0], each.service, each.provider.owner.entry)]
        for provider in _with_services(unknown):
            self._restored.remember(attrs.evolve(provider, broker=""))
        for member in self._members.values() if unknown else ():
            if member.broker:
                self._restored.share_label(member.id, member.label, member.wire)

    def serve_recorded(self, registrations: Sequence[Registration] | None) -> None:
        """See `IMirror`."""
        self._restored.record(None if registrations is None else _with_services(registrations))

    def serve_read(self) -> None:
        """See `IMirror`."""
        self._restored.read()

    def own(self, key: Key) -> Registration | None:
        """See `IMirror`."""
        items = self._own.get(key)
        return self._registration(items[-1]) if items else None

    def own_sizes(self) -> tuple[int, int]:
        """See `IMirror`."""
        own = [len(each.items) for each in self._holdings.values() if each.own]
        return len(own), sum(own)

    def mirrored_at(self, key: Key) -> str | None:
        """See `IMirror`."""
        item = self._others.get(key)
        return None if item is None else self._holdings[item.provider].entry.broker

    def mirrored(self, broker: str | None = None) -> Sequence[int]:
        """See `IMirror`."""
        return [
            id
            for id, each in self._holdings.items()
            if not each.own and id in self._members and (broker is None or each.entry.broker == broker)
        ]

    # inside: own registrations

    # Superseded ones are not found, and count for their provider nevertheless.

    def _number_of(self, member: ProviderEntry) -> int:
        return len(self._holdings[member.id].items)

    def _named(self, member: ProviderEntry, name: str) -> list[Service]:
        return [each.service for each in self._holdings[member.id].items.values() if each.service.name == name]

    def _add(self, member: ProviderEntry, services: Sequence[Service]) -> None:
        if member.id == BROKER:
            super()._add(member, services)
            return
        if not services:
            return
        holding = self._holdings[member.id]
        member.heard = self._clock.seconds()
        keys: dict[Key, None] = {}
        for service in services:
            self._orders += 1
            key = key_of(member.wire, service, member.owner)
            item = Item(key, member.id, service, self._orders)
            holding.items[id(item)] = item
            self._own.setdefault(key, []).append(item)
            self._superseded.discard(key)
            keys[key] = None
        step = Step()
        self._show(keys, step)
        self._act(keys)
        self._finish(step)

    def _exchange(self, old: Service, new: Service) -> Change:
        entry = self._members[new.provider]
        item = self._visible[key_of(entry.wire, old, entry.owner)]
        item.service = new
        self._act((item.key,))
        return super()._exchange(old, new)

    def _act(self, keys: Iterable[Key]) -> None:
        if self.own_registrations is not None:
            for key in keys:
                self.own_registrations.acted(key)

    def _end(self, holding: Holding, items: Sequence[Item], why: str) -> list[Registration]:
        """Remove own registrations from the tables of keys. Returns those that are found as if another broker held
        them."""
        kept = []
        for item in items:
            last = self._registration(item)
            del holding.items[id(item)]
            if self._visible.get(item.key) is item:
                del self._visible[item.key]
            same = self._own[item.key]
            same.remove(item)
            if same:
                if self.own_registrations is not None:
                    self.own_registrations.refreshed(item.key)
                continue
            del self._own[item.key]
            self._superseded.discard(item.key)
            if self.own_registrations is not None:
                stays = self.own_registrations.ended(last, why)
                if stays is not None:
                    kept.append(stays)
        return kept

    def _forget(self, restored: Iterable[tuple[Provider, Service]]) -> None:
        """Pass on the end of restored services of own providers, whose keys may still be there."""
        if self.own_registrations is not None:
            for provider, service in restored:
                if provider.broker:
                    continue  # the key is that of another broker, or was
                self.own_registrations.forgotten(key_of(provider.wire, service, provider.owner))

    def _none_remembered(self) -> None:
        if self.own_registrations is not None:
            self.own_registrations.none_remembered()

    def _latest(self, provider: int) -> list[Item]:
        """Return the registrations of an own provider that are the latest at their keys."""
        holding = self._holdings.get(provider)
        return [] if holding is None else [each for each in holding.items.values() if self._own[each.key][-1] is each]

    def _registration(self, item: Item) -> Registration:
        entry = self._holdings[item.provider].entry
        provider = Provider(
            entry.id, entry.label, entry.wire, entry.address, entry.load, entry.heard, (), entry.since, entry.details
        )
        found = self._visible.get(item.key) is item
        failing = self._report_of(item.service) if found else None
        return Registration(item.key, attrs.evolve(provider, owner=entry.owner), item.service, item.order, failing)

    def _report_of(self, service: Service) -> FailingService | None:
        """Return the report of a service that fails its check or is doubtful, None for any other."""
        check = self.check_of(service) if self._checks or self._doubts else None
        if check is None or check.state not in BAD_STATES:
            return None
        policy = self._index[service.name, service.protocol].judgement(service)
        return FailingService(check.reason, policy, check.state is CheckState.DOUBTFUL)

    def _note_report(self, service: Service, before: FailingService | None) -> None:
        """Pass on the change of a report on an own service."""
        after = self._report_of(service)
        holding = self._holdings.get(service.provider)
        if after == before or holding is None or not holding.own or self.own_registrations is None:
            return
        key = key_of(holding.entry.wire, service, holding.entry.owner)
        if before is None or after is None or before.doubtful is not after.doubtful:
            self.own_registrations.refreshed(key)
        else:
            self.own_registrations.restated(key)

    # inside: registrations of other members

    def _announce_to_some(self, change: Change) -> None:
        self._watches.announce(change, self._is_mirrored(change.provider) or change.provider in self._leaving)

    def _is_mirrored(self, provider: int) -> bool:
        holding = self._holdings.get(provider)
        return holding is not None and not holding.own

    def _refuse_foreign(self, provider: int) -> None:
        """Raise `Refusal` for a provider that another member holds."""
        if self._is_mirrored(provider):
            holder = self._holdings[provider].entry.broker
            raise Refusal(Reason.FORBIDDEN, f"provider {provider} is registered at the broker {holder!r}: ask there")

    def _in_order(self) -> Iterator[ProviderEntry]:
        members = self._members
        yield members[BROKER]
        for id in self._ids:
            member = members.get(id)
            if member is not None:
                yield member

    def _put(self, new: Registration, step: Step) -> None:
        """Add or change a registration of another member."""
        provider, key, service = new.provider, new.key, new.service
        holding = self._holdings.get(provider.id)
        if holding is None:
            entry = ProviderEntry(provider.id, provider.label, provider.wire, provider.address, 0.0, provider.broker)
            entry.load, entry.details = provider.load, provider.details
            holding = self._holdings[provider.id] = Holding(entry, False)
        elif holding.own:
            # An id that this broker issued is its own.
            self._take(key)
            return
        entry = holding.entry
        self.unnumbered += entry.broker != provider.broker
        if entry.label != provider.label and entry.id in self._members:
            step.changes.append(self._watches.record(Kind.RELABELLED, entry.id, provider.label))
        entry.label, entry.address, entry.broker = provider.label, provider.address, provider.broker
        entry.owner = provider.owner
        self._set_load(entry, provider.load, provider.details, step)
        old = self._others.get(key)
        if old is None or old.provider != provider.id or not is_amended(old.service, service):
            # Another object than the one that was passed: it may be registered already.
            item = Item(key, provider.id, attrs.evolve(service), new.order, False, new.failing)
            holding.items[id(item)] = item
            self._others[key] = item
            if old is not None:
                self._discard(old)
            return
        if old.service != service:
            before, after = old.service, attrs.evolve(service)
            if self._visible.get(key) is old:
                step.changes.append(super()._exchange(before, after))
                entry.services = [after if each is before else each for each in entry.services]
            old.service = after
        if old.order != new.order:
            # It was withdrawn, and offered again: what watchers would see is an end after the new beginning.
            old.order = new.order
            if self._visible.get(key) is old:
                self._set_order(old)
                self._arrange(holding)
                self.unnumbered += 1
        if old.failing != new.failing:
            old.failing = new.failing
            if self._visible.get(key) is old:
                self._take_report(old, step)

    def _take(self, key: Key) -> None:
        """Remove the registration of another member."""
        old = self._others.pop(key, None)
        if old is not None:
            self._discard(old)

    def _discard(self, item: Item) -> None:
        holding = self._holdings[item.provider]
        del holding.items[id(item)]
        if not holding.items and item.provider not in self._members:
            del self._holdings[item.provider]

    # inside: what is found

    def _view(self, key: Key) -> Item | None:
        own, other = self._own.get(key), self._others.get(key)
        if own and (other is None or key not in self._superseded):
            return own[-1]
        return other

    def _show(self, keys: Iterable[Key], step: Step) -> None:
        """Bring what is found at these keys to their views."""
        hidden: list[Item] = []
        shown: list[Item] = []
        for key in keys:
            self._waiting.pop(key, None)
            before, now = self._visible.get(key), self._view(key)
            if before is now:
                continue
            if before is not None:
                hidden.append(before)
                del self._visible[key]
            if now is not None:
                shown.append(now)
        room = self.most_services - self._service_count + len(hidden)
        for item in shown:
            if room <= 0 and not item.own:
                self._waiting[item.key] = None
                continue
            room -= 1
            self._enter_item(item, step)
        if hidden:
            self._hide(hidden, step)
        if self._waiting and self._service_count < self.most_services:
            self._show(list(islice(self._waiting, self.most_services - self._service_count)), step)

    def _limit_changed(self) -> None:
        """Find the services that were left out, as far as there is room now."""
        step = Step()
        self._show((), step)
        self._finish(step)

    def _enter_item(self, item: Item, step: Step) -> None:
        holding, service = self._holdings[item.provider], item.service
        entry = holding.entry
        if item.provider not in self._members:
            entry.since = entry.heard = self._clock.seconds()
            self._members[item.provider] = entry
            insort(self._ids, item.provider)
            step.changes.append(self._watches.record(Kind.JOINED, item.provider, entry.label))
            if entry.load or entry.details:
                step.loads.append(entry)
        self._visible[item.key] = item
        step.offered.append(service)
        last = entry.services[-1] if entry.services else None
        entry.services.append(service)
        step.changes += self._enter((service,))
        self._set_order(item)
        if last is not None and self._order_of(holding, last) > item.order:
            self._arrange(holding)
        if item.failing is not None:
            self._take_report(item, step)

    def _set_order(self, item: Item) -> None:
        group = self._index[item.service.name, item.service.protocol]
        assert isinstance(group, OrderedGroup)
        group.place(item.service, item.order)

    def _order_of(self, holding: Holding, service: Service) -> int:
        entry = holding.entry
        item = self._visible.get(key_of(entry.wire, service, entry.owner))
        return 0 if item is None else item.order

    def _arrange(self, holding: Holding) -> None:
        """Put the services of a provider into the order of their offers."""
        found = [each for each in holding.items.values() if self._visible.get(each.key) is each]
        holding.entry.services = [each.service for each in sorted(found, key=lambda each: each.order)]

    def _hide(self, items: Sequence[Item], step: Step) -> None:
        """Remove registrations that finds no longer return; those of other members may be gone altogether."""
        by_provider: dict[int, list[Item]] = {}
        for item in items:
            by_provider.setdefault(item.provider, []).append(item)
        for id_, some in by_provider.items():
            entry = self._members[id_]
            gone = {id(item.service) for item in some}
            entry.services = [service for service in entry.services if id(service) not in gone]
            whys = {step.why.get(item.key, "left") for item in some}
            for why in sorted(whys):
                services = [item.service for item in some if step.why.get(item.key, "left") == why]
                step.changes += self._remove(id_, services, why)
                lasting = tuple(service for service in services if service.lasting)
                if why == "expired" and lasting:
                    self._restored.remember(attrs.evolve(entry.value(), services=lasting))
            holding = self._holdings.get(id_)
            if entry.services or holding is None or holding.own:
                continue
            self._leaving.add(id_)
            self._drop(id_)
            if not holding.items:
                del self._holdings[id_]
            why = "expired" if "expired" in whys else "left"
            step.changes.append(self._watches.record(Kind.LEFT, id_, entry.label, why))

    def _set_load(self, entry: ProviderEntry, load: float, details: LoadDetails | None, step: Step) -> None:
        """Set the load of a mirrored provider, as a part of a step."""
        if entry.load != load or entry.details != details:
            entry.load, entry.details = load, details
            if entry.id in self._members:
                step.loads.append(entry)

    def _take_report(self, item: Item, step: Step) -> None:
        """Judge a mirrored service that is found by the report of its holder."""
        service, report = item.service, item.failing
        same = self._index[service.name, service.protocol]
        before, policy = self._checks.get(id(service), UNCHECKED)
        now = self._clock.seconds()
        if report is not None:
            state = CheckState.DOUBTFUL if report.doubtful else CheckState.FAILING
            since = before.since if before is not None and before.state is state else now
            check = Check(state, report.reason, since)
            if check != before or policy is not report.policy:
                step.changes += self._judge(same, service, check, report.policy)
        elif before is not None and before.state in BAD_STATES:
            # Not untested: receivers of the notification of the failure need that of its end.
            broker = self._holdings[item.provider].entry.broker
            check = Check(CheckState.PASSING, f"it does not fail any more at the broker {broker!r}", now)
            step.changes += self._judge(same, service, check, Policy.SHOW)

    def _finish(self, step: Step) -> None:
        """Announce the changes of a step, in their order."""
        offered: dict[int, list[Service]] = {}
        for service in step.offered:
            offered.setdefault(service.provider, []).append(service)
        for id_, services in offered.items():
            member = self._members.get(id_)
            if member is not None:
                about = member.id, member.label, member.wire, services, member.owner.entry
                self._forget(self._restored.returned(*about, elsewhere=bool(member.broker)))
        self._queue(sorted(step.changes, key=lambda each: each.revision))
        for entry in {id(each): each for each in step.loads}.values():
            if entry.id not in self._members:
                continue
            change = self._watches.record_load(entry.id, entry.label, entry.load, entry.details, mirrored=True)
            if change is not None:
                self._announce(change)
        self._leaving.clear()
        self._notifier.deliver()

    def _drop(self, provider: int) -> ProviderEntry:
        """Remove a provider from the table, and its id from the list, since the same id may come back."""
        del self._ids[bisect_left(self._ids, provider)]
        return self._members.pop(provider)


def _with_services(registrations: Iterable[Registration]) -> list[Provider]:
    """Return the providers of registrations with their services, in the order of the offers."""
    providers: dict[int, Provider] = {}
    services: dict[int, list[Service]] = {}
    for each in sorted(registrations, key=lambda each: each.order):
        providers[each.provider.id] = each.provider
        services.setdefault(each.provider.id, []).append(each.service)
    return [attrs.evolve(each, services=tuple(services[id])) for id, each in providers.items()]
