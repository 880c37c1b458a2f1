"""Registry of providers and services, shared by all wires.

Rules:
- Every change raises the revision by one and is kept for a while (`broker.core.watches`).
- A method completes all its changes and collects their listeners; then it notifies them: for each service first the
  waits in order of arrival, then the watchers (`broker.core.watches`).
- Waits, monitors and watches receive live registrations only. A find also returns restored services
  (`broker.core.registered_services`), except at endpoints that a live service of that name has.
- A find obeys the policy of failing health checks (`broker.core.registered_services`). Listings have all services.
- All tables are bounded. Requests over a bound are refused with a sentence; nothing is dropped silently.

The file is longer than others: it implements `IRegistry`, whose methods change the same tables.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from broker.core.errors import Reason, Refusal, Refusals, at_limit, no_right
from broker.core.hostports import check_hostport
from broker.core.interfaces import IRegistry, IWait, StoredMemory
from broker.core.memory_budget import MemoryBudget, ServicePayer
from broker.core.model import (
    AMENDABLE,
    BAD_STATES,
    BROKER,
    MAX_TEXT,
    NOBODY,
    Change,
    Check,
    CheckState,
    Kind,
    Load,
    LoadDetails,
    Owner,
    Policy,
    Provider,
    Rights,
    Service,
    check_labels,
    check_service_name,
    checked_load,
)
from broker.core.registered_services import PANIC, Restored, ServiceGroup
from broker.core.service_info import info_fault
from broker.core.watches import Notifier, Waits, Watches

ID_DIGITS = 16
"""Digits of the greatest id: ids are exact in JSON."""

UNCHECKED: tuple[Check | None, Policy] = (None, Policy.SHOW)
"""Result and policy of a service without a health check."""

SERVICES = 200_000
"""Limit of services in all, unless the configuration has another one: 20 for each of 10,000 providers, ten times the
largest known farms."""

FEW_IDS = 1_000
"""Ids of providers that have left which are kept for `IRegistry.ids`, beside as many as there are providers."""

MAX_EPOCH = 2**53 - 1
"""Highest epoch: the largest integer that every JSON reader represents exactly."""


class ProviderEntry:
    """Mutable entry of a provider."""

    __slots__ = (
        *("address", "broker", "details", "heard", "id", "label", "load", "owner", "payer", "services", "since"),
        *("rates", "reported", "wire"),
    )

    def __init__(
        self, id: int, label: str, wire: str, address: str, heard: float, broker: str = "", owner: Owner = NOBODY
    ) -> None:
        self.id = id
        self.broker = broker
        self.owner = owner
        self.label = label
        self.wire = wire
        self.address = address
        self.load = 0.0
        self.details: LoadDetails | None = None
        self.reported: float | None = None
        """Time of the last report with requests."""
        self.rates: tuple[float, float] | None = None
        """Requests and errors a second between the last two of these reports."""
        self.since = self.heard = heard
        self.services: list[Service] = []
        self.payer: ServicePayer | None = None
        """The memory of the services; None for those that are not counted."""

    def count(self, requests: int, errors: int, now: float) -> None:
        """Derive the rates from a report of the requests since the one before."""
        if self.reported is not None and now > self.reported:
            self.rates = requests / (now - self.reported), errors / (now - self.reported)
        self.reported = now

    def value(self) -> Provider:
        services = tuple(self.services)
        return Provider(
            self.id,
            self.label,
            self.wire,
            self.address,
            self.load,
            self.heard,
            services,
            self.since,
            self.details,
            self.broker,
            owner=self.owner,
        )


@implementer(IRegistry)
class Registry:
    """Implementation of `IRegistry` in memory.

    ``clock`` gives the time; ``next_id`` an id that was never used before; ``restored`` the services from before a
    restart; ``memory`` counts the services of strangers. `broker.core.cluster.cluster_registry` is the registry of a
    member of a cluster.
    """

    group = ServiceGroup
    """Class of the services of one name and protocol."""

    def __init__(
        self,
        clock: IReactorTime,
        next_id: Callable[[], int],
        restored: Restored,
        memory: StoredMemory | None = None,
    ) -> None:
        self._memory = memory or MemoryBudget()
        self.unnumbered = 0
        self.epoch = secrets.randbelow(MAX_EPOCH) + 1
        self._clock = clock
        self._next_id = next_id
        self._restored = restored
        self._waits = Waits(clock)
        self._notifier = Notifier()
        self._watches = Watches(self._notifier, clock)
        self._announce: Callable[[Change], None] = self._watches.announce
        self._members = {BROKER: ProviderEntry(BROKER, "elkobroker", "elkobroker", "", clock.seconds())}
        self._index: dict[tuple[str, str], ServiceGroup] = {}
        self._protocols: dict[str, tuple[str] | dict[str, None]] = {}
        """The protocols of each name in the index. Most names have one: a shared tuple, which takes no memory."""
        self._ids = array("q")
        """The ids of all providers but the broker itself, in order, and of some that have left: see `IRegistry.ids`."""
        self._service_count = 0
        self._checks: dict[int, tuple[Check, Policy]] = {}
        """Results of health checks, with the policies of their rules, by the `id` of a registered service."""
        self._doubts: dict[int, Check] = {}
        """Providers that have missed signs of life; see `doubt`."""
        self._panic = PANIC
        self._most_services = SERVICES
        self._judged: dict[ServiceGroup, None] = {}
        """Groups with a service whose failing check changes the order of finds."""

    @property
    def revision(self) -> int:
        return self._watches.revision

    @property
    def most_services(self) -> int:
        """Limit of services in all. Those that are registered stay if it falls below their number."""
        return self._most_services

    @most_services.setter
    def most_services(self, most: int) -> None:
        self._most_services = most
        self._limit_changed()

    # providers

    def join(self, label: str, wire: str, address: str, owner: Owner = NOBODY, payer: str = "") -> int:
        member = ProviderEntry(self._next_id(), label[:MAX_TEXT], wire, address, self._clock.seconds(), owner=owner)
        if payer:
            member.payer = ServicePayer(self._memory, payer)
        self._members[member.id] = member
        self._ids.append(member.id)
        self._notify([self._watches.record(Kind.JOINED, member.id, member.label)])
        return member.id

    def relabel(self, provider: int, label: str) -> None:
        member = self._members[provider]
        label = label[:MAX_TEXT]
        if member.label != label:
            member.label = label
            self._notify([self._watches.record(Kind.RELABELLED, provider, label)])

    def leave(self, provider: int, why: str = "left") -> None:
        member = self._members.pop(provider, None)
        if member is None:
            return
        if len(self._ids) > FEW_IDS + 2 * len(self._members):
            self._ids = array("q", sorted(id for id in self._members if id != BROKER))
        self._restored.withdrawn(provider)
        self._doubts.pop(provider, None)
        if member.payer is not None:
            member.payer.end()
        changes = self._remove(provider, member.services, why)
        changes.append(self._watches.record(Kind.LEFT, provider, member.label, why))
        self._notify(changes)

    def provider(self, provider: int) -> Provider | None:
        member = self._members.get(provider)
        return None if member is None else member.value()

    def remembered_owner(self, wire: str, entry: str) -> Owner:
        return self._restored.owner(wire, entry)

    def remembered_holder(self, wire: str, entry: str) -> str:
        return self._restored.holder(wire, entry)

    def end_remembered(self, wire: str, entry: str) -> bool:
        return bool(self._restored.end(wire, entry))

    def remembered_provider(self, provider: int) -> Provider | None:
        return self._restored.provider(provider)

    def wire_and_label(self, provider: int) -> tuple[str, str] | None:
        member = self._members.get(provider)
        return None if member is None else (member.wire, member.label)

    def load_of(self, provider: int) -> float | None:
        member = self._members.get(provider)
        return None if member is None else member.load

    def rates_of(self, provider: int) -> tuple[float, float] | None:
        member = self._members.get(provider)
        return None if member is None else member.rates

    def holder(self, provider: int) -> str | None:
        member = self._members.get(provider)
        return None if member is None else member.broker

    def ids(self) -> Sequence[int]:
        return self._ids[:]

    def providers(self) -> Sequence[Provider]:
        return [member.value() for member in self._members.values() if member.id != BROKER]

    def named(self, name: str) -> Sequence[int]:
        found = []
        for member in self._members.values():
            if member.label == name:
                found.append(member.id)
                continue
            for service in member.services:
                if service.hostport == name:
                    found.append(member.id)
                    break
        if len(name) <= ID_DIGITS and name.isdecimal():
            id = int(name)
            if str(id) == name and id in self._members and id not in found:
                found.append(id)
        return [id for id in found if id != BROKER]

    def sizes(self) -> dict[str, int]:
        """Return the numbers of ``providers``, ``services`` (the broker's own included) and ``waits``."""
        return {
            "providers": len(self._members) - 1,
            "services": self._service_count,
            "waits": len(self._waits),
        }

    # services

    def offer(self, services: Sequence[Service], rights: Rights, instead_of: int | None = None) -> None:
        if not services:
            return
        member = self._members[services[0].provider]
        room = rights.services - self._number_of(member)
        leaving = self._members.get(instead_of) if instead_of is not None else None
        others = self._service_count - (0 if leaving is None else len(leaving.services))
        payer = member.payer
        added: list[Service] = []
        refused: list[Refusal] = []
        for service in services:
            try:
                self.check(service, rights)
                if len(added) >= room:
                    text = f"a peer may offer {rights.services} services, and this is one more"
                    raise at_limit(text, rights.key)
                self._check_room(others + len(added))
                if payer is not None:
                    payer.take(service)
            except Refusal as refusal:
                # Without its traceback, whose frame has this list: the cycle would keep all services for long.
                refused.append(refusal.with_traceback(None))
            else:
                added.append(service)
        self._add(member, added)
        if refused:
            raise Refusals(refused)

    def check(self, service: Service, rights: Rights, instead_of: int | None = None, payer: str = "") -> None:
        name = service.name
        check_service_name("service", name)
        check_service_name("protocol", service.protocol)
        if not rights.permits(name):
            raise no_right("offer", name, "this peer")
        if not service.hostport:
            raise Refusal(Reason.PARAMETER, f"service {name!r} has an empty hostport: no peer could connect to it")
        _check_texts(service)
        former = None if instead_of is None else self._members.get(instead_of)
        if former is not None:
            self._check_room(self._service_count - sum(each.name == name for each in former.services))
            if payer:
                ServicePayer(self._memory, payer).check((), service)
            elif former.payer is not None and service.provider == instead_of:
                former.payer.check(self._named(former, name), service)

    def _number_of(self, member: ProviderEntry) -> int:
        """Return how many services a provider offers."""
        return len(member.services)

    def _named(self, member: ProviderEntry, name: str) -> list[Service]:
        """Return the services of that name that a provider offers."""
        return [each for each in member.services if each.name == name]

    def _check_room(self, count: int) -> None:
        """Raise `Refusal` LIMIT if the broker may have no service besides that many."""
        if count >= self.most_services:
            raise at_limit(f"the broker has {self.most_services} services, and accepts no more", "broker.services")

    def offer_own(self, services: Sequence[Service]) -> None:
        """Set the broker's own services. They may have any name, and no peer can withdraw them."""
        own = self._members[BROKER]
        gone = [service for service in own.services if service not in services]
        kept = [service for service in own.services if service in services]
        own.services = kept
        self._notify(self._remove(BROKER, gone))
        self._add(own, [service for service in services if service not in kept])

    def withdraw(self, provider: int, names: Iterable[str]) -> None:
        member = self._members.get(provider)
        if member is None or provider == BROKER:
            return
        unwanted = set(names)
        self._restored.withdrawn(provider, unwanted)
        gone = [service for service in member.services if service.name in unwanted]
        member.services = [service for service in member.services if service.name not in unwanted]
        if member.payer is not None:
            member.payer.give(gone)
        self._notify(self._remove(provider, gone))

    def amend(self, service: Service) -> None:
        member = self._members.get(service.provider)
        key = (service.name, service.protocol)
        own = [] if member is None else member.services
        place = next((n for n, s in enumerate(own) if (s.name, s.protocol) == key), None)
        if member is None or place is None:
            raise Refusal(Reason.PARAMETER, f"service {service.name!r} is not offered, and cannot be changed")
        old = own[place]
        # Never the object that was passed: it may be registered already, as another service of the same name.
        new = attrs.evolve(old, **{name: getattr(service, name) for name in AMENDABLE})
        if new != service:
            raise Refusal(Reason.PARAMETER, f"service {service.name!r} can change its {', '.join(AMENDABLE)} only")
        _check_texts(service)
        member.heard = self._clock.seconds()
        if new != old:
            if member.payer is not None:
                member.payer.exchange(old, new)
            own[place] = new
            self._notify([self._exchange(old, new)])

    def find(self, name: str, protocol: str, restored: bool = False) -> tuple[Service, ...]:
        same = self._index.get((name, protocol))
        remembered = self._restored.lookup(name, protocol) if restored and self._restored.some else ()
        if same is None:
            return remembered
        if remembered:
            return same.with_restored(remembered)
        found = same.found
        return same.gather() if found is None else found

    def services(self, name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        if name is not None and protocol is not None:
            same = self._index.get((name, protocol))
            return () if same is None else same.all()
        return [
            service
            for member in self._members.values()
            for service in member.services
            if name is None or service.name == name
        ]

    def services_named(self, name: str) -> Iterator[Service]:
        for protocol in self.protocols(name, restored=True):
            yield from self.services(name, protocol)
            if self._restored.some:
                yield from (each for each in self.find(name, protocol, restored=True) if each.restored)

    def services_of(self, provider: int) -> Sequence[Service]:
        member = self._members.get(provider)
        return () if member is None else tuple(member.services)

    def names(self, restored: bool = False) -> Sequence[str]:
        if not (restored and self._restored.some):
            return tuple(self._protocols)
        return tuple(dict.fromkeys((*self._protocols, *self._restored.names())))

    def protocols(self, name: str, restored: bool = False) -> Sequence[str]:
        live = self._protocols.get(name, ())
        if not (restored and self._restored.some):
            return tuple(live)
        return tuple(dict.fromkeys((*live, *self._restored.protocols(name))))

    # health checks

    def check_of(self, service: Service) -> Check | None:
        check, _ = self._checks.get(id(service), UNCHECKED)
        if self._doubts and (check is None or check.state is not CheckState.FAILING):
            return self._doubts.get(service.provider, check)
        return check

    def policy_of(self, service: Service) -> Policy:
        same = self._index.get((service.name, service.protocol))
        return Policy.SHOW if same is None else same.policy_of(service)

    def silent_providers(self) -> tuple[int, int]:
        silent = total = 0
        for member in self._members.values():
            if member.broker or member.id == BROKER or not member.services:
                continue
            total += 1
            check = self.check_of(member.services[0])
            silent += check is not None and check.state in BAD_STATES
        return silent, total

    def by_check(self, services: Sequence[Service]) -> Sequence[Service]:
        if not self._judged:
            return services
        places: dict[Policy, list[Service]] = {policy: [] for policy in Policy}
        for service in services:
            places[self.policy_of(service)].append(service)
        return places[Policy.SHOW] + places[Policy.LAST]

    def set_check(self, service: Service, check: Check | None, policy: Policy = Policy.SHOW) -> None:
        same = self._index.get((service.name, service.protocol))
        if same is None or service not in same:
            return
        if check is not None and check.state is CheckState.UNTESTED and id(service) not in self._checks:
            # The first outcome for a service proves nothing: no order changes, and there is no change to announce.
            # Each connection that offers a service has one.
            self._checks[id(service)] = check, policy
            return
        self._notify(self._judge(same, service, check, policy))

    def doubt(self, provider: int, reason: str | None) -> None:
        member = self._members.get(provider)
        if member is None or (reason is None and provider not in self._doubts):
            return
        before = [self.check_of(service) for service in member.services]
        if reason is None:
            del self._doubts[provider]
        else:
            known = self._doubts.get(provider)
            since = self._clock.seconds() if known is None else known.since
            self._doubts[provider] = Check(CheckState.DOUBTFUL, reason, since)
        changes: list[Change] = []
        for service, check in zip(member.services, before, strict=True):
            same = self._index[service.name, service.protocol]
            _, policy = self._checks.get(id(service), UNCHECKED)
            changes += self._rejudge(same, service, check, policy)
        self._notify(changes)

    def use_panic(self, share: float) -> None:
        """Set the share of failing services of one name and protocol, 0 to 1, above which none of them is hidden."""
        self._panic = share
        self._notify([change for same in list(self._judged) for change in self._settle(same)])

    # loads

    def load(self, provider: int, load: float, details: LoadDetails | None = None) -> None:
        load = checked_load(load)
        member = self._members.get(provider)
        if member is None:
            return
        member.load = load
        member.details = details
        member.heard = self._clock.seconds()
        if details is not None and details.requests is not None:
            member.count(details.requests, details.errors or 0, member.heard)
        # No `Change` unless a watcher needs it: loads are by far the most frequent changes.
        change = self._watches.record_load(provider, member.label, load, details)
        if change is not None:
            self._watches.announce(change)
        self._notifier.deliver()

    def beat(self, provider: int, sent: float | None = None) -> None:
        member = self._members.get(provider)
        if member is None:
            return
        member.heard = self._clock.seconds()
        # Not through the queue of notifications: that doubles the cost, and a heartbeat has no place among revisions.
        for watch in self._watches.beat_watchers:
            watch.report(provider, sent)

    def loads(self) -> Sequence[Load]:
        return [Load(m.id, m.label, m.load, m.details) for m in self._members.values() if m.id != BROKER]

    # waits and watches

    def wait(self, name: str, seconds: float | None) -> Deferred[Service]:
        def offered(service: Service) -> None:
            wait.cancel()
            found.callback(service)

        def ended() -> None:
            found.errback(Refusal(Reason.NO_SUCH_SERVICE, "no such service"))

        found: Deferred[Service] = Deferred(lambda _: wait.cancel())
        try:
            wait = self._waits.add(name, seconds, offered, ended, amended=True)
        except Refusal as refusal:
            found.errback(refusal)
        return found

    def monitor(
        self, name: str, seconds: float | None, offered: Callable[[Service], None], ended: Callable[[], None]
    ) -> IWait:
        return self._waits.add(name, seconds, offered, ended)

    def watch(
        self, changed: Callable[[Change], None], kinds: Collection[Kind] = tuple(Kind), own: bool = False
    ) -> IWait:
        return self._watches.add(changed, kinds, own)

    def watch_loads(self, on_report: Callable[[int, float, LoadDetails | None], None], own: bool = False) -> IWait:
        return self._watches.add_for_loads(on_report, own)

    def watch_beats(self, on_report: Callable[[int, float | None], None]) -> IWait:
        return self._watches.add_for_beats(on_report)

    def watch_reasons(self, on_report: Callable[[int, Service], None]) -> IWait:
        return self._watches.add_for_reasons(on_report)

    def changes_since(
        self, epoch: int, revision: int, kinds: Collection[Kind] = tuple(Kind), most: int | None = None
    ) -> Sequence[Change] | None:
        return self._watches.since(revision, kinds, most) if epoch == self.epoch else None

    def recent(self, kinds: Collection[Kind], most: int) -> Sequence[Change]:
        return self._watches.recent(kinds, most)

    # internal

    def _limit_changed(self) -> None:
        """No-op: there are no services that were left out, and may have room now."""

    def _add(self, member: ProviderEntry, services: Sequence[Service]) -> None:
        if not services:
            return
        member.services += services
        changes = self._enter(services)
        member.heard = self._clock.seconds()
        # Before the notifications, so that a `find` in a callback returns no restored copies of these services.
        self._restored.returned(member.id, member.label, member.wire, services, member.owner.entry)
        self._notify(changes)

    def _enter(self, services: Sequence[Service]) -> list[Change]:
        """Put services into the index. Returns the change of each, with the changes of health checks that follow it."""
        changes = []
        for service in services:
            key = (service.name, service.protocol)
            same = self._index.get(key)
            if same is None:
                same = self._index[key] = self.group()
                self._note_protocol(service.name, service.protocol)
            same.add(service)
            changes.append(self._watches.record(Kind.OFFERED, service.provider, service))
            if service.provider in self._doubts:
                changes += self._rejudge(same, service, None, Policy.SHOW)
            elif same.judged:
                changes += self._settle(same)
        self._service_count += len(services)
        return changes

    def _exchange(self, old: Service, new: Service) -> Change:
        """Put an amended service into the index in the place of the old one."""
        self._index[old.name, old.protocol].replace(old, new)
        judged = self._checks.pop(id(old), None)
        if judged is not None:
            self._checks[id(new)] = judged
        return self._watches.record(Kind.AMENDED, new.provider, new)

    def _notify(self, changes: Sequence[Change]) -> None:
        self._queue(changes)
        self._notifier.deliver()

    def _queue(self, changes: Sequence[Change]) -> None:
        """Queue the notifications of changes: of an offer or amendment, the waits precede the watchers."""
        for change in changes:
            if change.kind in (Kind.OFFERED, Kind.AMENDED) and isinstance(change.subject, Service):
                waits = self._waits.of(change.subject.name, amended=change.kind is Kind.AMENDED)
                if waits:
                    self._notifier.add_all(waits, change.subject)
            self._announce(change)

    def _remove(self, provider: int, services: Sequence[Service], why: str = "withdrawn") -> list[Change]:
        judged: dict[ServiceGroup, None] = {}
        changes: list[Change] = []
        for service in services:
            key = (service.name, service.protocol)
            same = self._index[key]
            self._checks.pop(id(service), None)
            if same.judged:
                judged[same] = None
            if same.remove(service):
                del self._index[key]
                self._forget_protocol(*key)
            changes.append(self._watches.record(Kind.WITHDRAWN, provider, service, why))
        self._service_count -= len(services)
        for same in judged:
            self._note(same)
            changes += self._settle(same)
        return changes

    def _judge(self, same: ServiceGroup, service: Service, check: Check | None, policy: Policy) -> list[Change]:
        """Set the result of the health checks of a service in a group. Returns the changes to announce."""
        before = self.check_of(service)
        self._checks.pop(id(service), None)
        if check is not None:
            self._checks[id(service)] = check, policy
        return self._rejudge(same, service, before, policy)

    def _rejudge(self, same: ServiceGroup, service: Service, before: Check | None, policy: Policy) -> list[Change]:
        """Put a service in its place by its present check, after ``before``. Returns the changes to announce."""
        now = self.check_of(service)
        state = _state(now)
        first = same.judgement(service) is Policy.SHOW
        if state is CheckState.DOUBTFUL:
            # Never hidden: that takes a failure. The policy of its rule matters unless the whole provider is in doubt.
            shown = policy is Policy.SHOW and service.provider not in self._doubts
            same.judge(service, Policy.SHOW if shown else Policy.LAST)
        else:
            same.judge(service, policy if state is CheckState.FAILING else Policy.SHOW)
        self._note(same)
        changes = []
        # Another policy alone changes the place, too, which watchers keep.
        if state is not _state(before) or first is not (same.judgement(service) is Policy.SHOW):
            changes.append(self._watches.record(Kind.CHECKED, service.provider, service, state))
        elif now is not None and before is not None and now.reason != before.reason:
            self.unnumbered += 1
            if state in BAD_STATES:
                self._notifier.add_all(self._watches.reason_watchers, (service.provider, service))
        return changes + self._settle(same)

    def _note(self, same: ServiceGroup) -> None:
        """Record if a failing check changes the order of a group."""
        if same.judged:
            self._judged[same] = None
        else:
            self._judged.pop(same, None)

    def _settle(self, same: ServiceGroup) -> list[Change]:
        """Hide and show the services of a group as their checks require. Returns the changes to announce.

        Notifications to waits are queued here: they precede those of the changes.
        """
        hidden, shown = same.settle(self._panic, self._waits.begun)
        changes = [self._watches.record(Kind.HIDDEN, service.provider, service) for service in hidden]
        for service, begun in shown:
            waits = self._waits.of(service.name, begun)
            if waits:
                self._notifier.add_all(waits, service)
            changes.append(self._watches.record(Kind.SHOWN, service.provider, service))
        return changes

    def _note_protocol(self, name: str, protocol: str) -> None:
        known = self._protocols.get(name)
        if known is None:
            self._protocols[name] = _only(protocol)
        elif isinstance(known, dict):
            known[protocol] = None
        else:
            self._protocols[name] = dict.fromkeys((*known, protocol))

    def _forget_protocol(self, name: str, protocol: str) -> None:
        known = self._protocols[name]
        if isinstance(known, dict):
            del known[protocol]
            if known:
                return
        del self._protocols[name]


@lru_cache(64)
def _only(protocol: str) -> tuple[str]:
    """Return a protocol alone, as the same object for all names."""
    return (protocol,)


def _state(check: Check | None) -> CheckState:
    return CheckState.UNTESTED if check is None else check.state


def _check_texts(service: Service) -> None:
    """Raise `Refusal` for a service with a text over its limit, or an address that no client can use."""
    check_hostport(service.hostport)
    check_labels(service)
    texts: tuple[object, ...] = (service.hostport, *service.descriptions.values())
    if service.auth is not None:
        auth = service.auth
        texts += (auth.mode, auth.code, auth.id)
    for text in texts:
        if isinstance(text, str) and len(text) > MAX_TEXT:
            raise Refusal(Reason.PARAMETER, f"service {service.name!r} has a text of more than {MAX_TEXT} characters")
    if service.info is not None and (fault := info_fault(service.info)):
        raise Refusal(Reason.PARAMETER, f"the information of service {service.name!r} {fault}")
