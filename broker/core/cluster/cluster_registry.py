"""Registry of a member of a cluster: own providers, and those that other members hold.

Rules:
- Providers of other members are mirrored from etcd by `IMirror`. Finds, listings and watches have them like own ones;
  watches with ``own`` do not. Only this module changes them: the methods for peers refuse their ids.
- A step of `mirror` is one change: all of it is in the tables before the first notification, additions before removals.
- Finds are ordered by provider id, and for one provider by the order of offering, so that all members answer alike.
- An endpoint (wire, name, protocol, host:port) at which an own provider offers a service belongs to that provider:
  mirrored services at it are hidden. So a provider that comes back through this broker is found once, also before the
  entry of its earlier holder is gone.
- An own provider with a successor at another member is *superseded*: it has left for all peers but its own session. It
  comes back if the successor goes, or if its session offers a service.
- The holder checks the health of its services. A mirrored service that fails there is judged here by the same policy,
  among all services of its name and protocol, and with the panic threshold of this broker.
- All services together are bounded. Mirrored ones beyond the limit are left out, and counted.

The file is longer than others: its methods change the tables of the registry that they extend.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
from twisted.internet.interfaces import IReactorTime
from zope.interface import implementer

from broker.core.cluster.cluster_endpoints import Endpoint, Endpoints, Successors, differences, endpoint_of
from broker.core.cluster.cluster_interfaces import IMirror
from broker.core.errors import Reason, Refusal
from broker.core.interfaces import IRegistry, StoredMemory
from broker.core.model import (
    BAD_STATES,
    BROKER,
    MAX_TEXT,
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
    checked_load,
)
from broker.core.registered_services import Restored, ServiceGroup
from broker.core.registry import ProviderEntry, Registry

# A provider of another member in the registry, and the step in which several of them change.


@attrs.define(eq=False)
class Step:
    """Changes that are made in one step, and announced at its end."""

    changes: list[Change] = attrs.field(factory=list)
    offered: list[Service] = attrs.field(factory=list)
    loads: list[ProviderEntry] = attrs.field(factory=list)


@attrs.define(eq=False)
class Mirrored:
    """A provider of another member: its services as its holder has them. Its `ProviderEntry` has the visible ones.

    ``failing`` are the reports of the holder on its services, by their places; ``judged`` is True while one is in force
    for a visible service.
    """

    entry: ProviderEntry
    services: list[Service]
    failing: dict[int, FailingService] = attrs.field(factory=dict)
    judged: bool = False

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints of all its services."""
        return (endpoint_of(self.entry.wire, service) for service in self.services)


def set_load(entry: ProviderEntry, load: float, details: LoadDetails | None, step: Step) -> None:
    """Set the load of a mirrored provider, as a part of a step."""
    if entry.load != load or entry.details != details:
        entry.load, entry.details = load, details
        step.loads.append(entry)


# Services of one name and protocol in a cluster: all members order them alike.


class OrderedGroup(ServiceGroup):
    """Services of one name and protocol, ordered by provider id, and then by the order of offering."""

    __slots__ = ("_sorted",)

    def __init__(self) -> None:
        super().__init__()
        self._sorted = True

    def all(self) -> tuple[Service, ...]:
        """Return all services in that order."""
        self._sort()
        return super().all()

    def gather(self) -> tuple[Service, ...]:
        """Return the services of a find, and cache them."""
        self._sort()
        return super().gather()

    def arrange(self, services: Sequence[Service]) -> None:
        """Put services of one provider, which are in the group, into this order."""
        for service in services:
            self._services[id(service)] = self._services.pop(id(service))
        self._changed()

    def _sort(self) -> None:
        # At a read and not at each change: a group of thousands is filled one by one.
        if not self._sorted:
            # Stable: the services of one provider keep their order.
            self._services = dict(sorted(self._services.items(), key=lambda each: each[1].provider))
            self._sorted = True

    def _changed(self) -> None:
        self._sorted = False
        super()._changed()


@implementer(IRegistry, IMirror)
class ClusterRegistry(Registry):
    """`IRegistry` and `IMirror`. The arguments are those of `Registry`.

    ``unannounced`` are called with the id of an own provider of which the other members must know something that is no
    change of this registry: another label, or, of a superseded one, withdrawn services or its end. ``restated`` are
    called with the id of an own provider if a service of it that fails its check already has another reason or policy:
    that is no change of the registry either. ``departing`` are called with an own provider that is about to leave, and
    with the reason.
    """

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
        self._mirrors: dict[int, Mirrored] = {}
        self._leaving: set[int] = set()
        """Mirrored providers that go in the present step: their changes are still to be announced."""
        self._endpoints = Endpoints()
        self._superseded: dict[int, ProviderEntry] = {}
        """Own providers with a successor. Their services are in no index."""
        self._successors = Successors()
        self.left_out = 0
        """Mirrored services that were left out, since there are too many."""
        self.unannounced: list[Callable[[int], object]] = []
        self.restated: list[Callable[[int], object]] = []
        self.departing: list[Callable[[Provider, str], object]] = []

    # own providers

    def join(self, label: str, wire: str, address: str, owner: Owner = NOBODY, payer: str = "") -> int:
        id = super().join(label, wire, address, owner, payer)
        # Ids of other members may be higher.
        insort(self._ids, self._ids.pop())
        return id

    def relabel(self, provider: int, label: str) -> None:
        self._refuse_foreign(provider)
        hidden = self._superseded.get(provider)
        if hidden is not None:
            hidden.label = label[:MAX_TEXT]
        else:
            super().relabel(provider, label)
        self._tell_unannounced(provider)

    def leave(self, provider: int, why: str = "left") -> None:
        self._refuse_foreign(provider)
        hidden = self._superseded.pop(provider, None)
        if hidden is not None:
            if hidden.payer is not None:
                hidden.payer.end()
            self._successors.unfollow(provider)
            self._restored.withdrawn(provider)
            self._tell_unannounced(provider)
            return
        member = self._members.get(provider)
        if member is not None:
            for told in self.departing:
                told(member.value(), why)
        places = self._places_of(provider)
        super().leave(provider, why)
        self._leave_places(places)

    def offer(self, services: Sequence[Service], rights: Rights) -> None:
        if services:
            self._refuse_foreign(services[0].provider)
            self._revive(services[0].provider)
        super().offer(services, rights)

    def withdraw(self, provider: int, names: Iterable[str]) -> None:
        self._refuse_foreign(provider)
        unwanted = set(names)
        hidden = self._superseded.get(provider)
        if hidden is not None:
            if hidden.payer is not None:
                hidden.payer.give(service for service in hidden.services if service.name in unwanted)
            hidden.services = [service for service in hidden.services if service.name not in unwanted]
            self._tell_unannounced(provider)
            return
        places = [place for place in self._places_of(provider) if place[1] in unwanted]
        super().withdraw(provider, unwanted)
        self._leave_places(places)

    def amend(self, service: Service) -> None:
        self._refuse_foreign(service.provider)
        # A superseded provider that amends a service is alive, and keeps the latest word on it.
        self._revive(service.provider)
        super().amend(service)

    def load(self, provider: int, load: float, details: LoadDetails | None = None) -> None:
        self._refuse_foreign(provider)
        hidden = self._superseded.get(provider)
        if hidden is None:
            super().load(provider, load, details)
        else:
            hidden.load, hidden.details, hidden.heard = checked_load(load), details, self._clock.seconds()

    def beat(self, provider: int, sent: float | None = None) -> None:
        if provider not in self._mirrors:
            super().beat(provider, sent)

    def set_check(self, service: Service, check: Check | None, policy: Policy = Policy.SHOW) -> None:
        before = self._report_of(service)
        super().set_check(service, check, policy)
        after = self._report_of(service)
        if before is not None and after is not None and before != after:
            for told in self.restated:
                told(service.provider)

    def wire_and_label(self, provider: int) -> tuple[str, str] | None:
        hidden = self._superseded.get(provider)
        return super().wire_and_label(provider) if hidden is None else (hidden.wire, hidden.label)

    def services_of(self, provider: int) -> Sequence[Service]:
        hidden = self._superseded.get(provider)
        return super().services_of(provider) if hidden is None else tuple(hidden.services)

    # listings, in the order of the ids

    def providers(self) -> Sequence[Provider]:
        return [member.value() for member in self._in_order() if member.id != BROKER]

    def loads(self) -> Sequence[Load]:
        return [Load(m.id, m.label, m.load, m.details) for m in self._in_order() if m.id != BROKER]

    def services(self, name: str | None = None, protocol: str | None = None) -> Sequence[Service]:
        if name is not None and protocol is not None:
            return super().services(name, protocol)
        return [s for member in self._in_order() for s in member.services if name is None or s.name == name]

    def failing(self, provider: int) -> Sequence[FailingService]:
        """See `IMirror`."""
        member = self._members.get(provider)
        if (not self._checks and not self._doubts) or member is None:
            return ()
        return tuple(
            FailingService(
                place,
                check.reason,
                self._index[service.name, service.protocol].judgement(service),
                check.state is CheckState.DOUBTFUL,
            )
            for place, service in enumerate(member.services)
            if (check := self.check_of(service)) is not None and check.state in BAD_STATES
        )

    # the other members

    def mirror(
        self,
        present: Sequence[Provider],
        gone: Sequence[tuple[int, str]] = (),
        replaced: Mapping[int, int] | None = None,
    ) -> None:
        """See `IMirror`."""
        step = Step()
        for provider in present:
            # An id that this broker issued is its own.
            if not self._is_own(provider.id):
                self._update(provider, step)
        going = dict(gone)
        for old in replaced or {}:
            if old in self._mirrors:
                going.setdefault(old, "left")
        for id, why in going.items():
            self._forget(id, why, step)
        # After the removals: a superseded provider shows what it hides, and that may go in this step.
        for old, new in (replaced or {}).items():
            if self._is_own(old):
                self._supersede(old, new, step)
            self._successors.follow(self._successors.of(old), new)
        self._finish(step)
        for id in going:
            for own in self._successors.of(id):
                self._revive(own)

    def mirror_loads(self, loads: Sequence[tuple[int, float, LoadDetails | None]]) -> None:
        """See `IMirror`."""
        step = Step()
        for id, load, details in loads:
            mirrored = self._mirrors.get(id)
            if mirrored is not None:
                set_load(mirrored.entry, load, details, step)
        self._finish(step)

    def mirrored(self, broker: str | None = None) -> Sequence[int]:
        """See `IMirror`."""
        return [id for id, each in self._mirrors.items() if broker is None or each.entry.broker == broker]

    def superseded(self, provider: int) -> Provider | None:
        """See `IMirror`."""
        hidden = self._superseded.get(provider)
        return None if hidden is None else hidden.value()

    # inside

    def _tell_unannounced(self, provider: int) -> None:
        for told in self.unannounced:
            told(provider)

    def _announce_to_some(self, change: Change) -> None:
        self._watches.announce(change, change.provider in self._mirrors or change.provider in self._leaving)

    def _is_own(self, provider: int) -> bool:
        return provider in self._superseded or (provider in self._members and provider not in self._mirrors)

    def _refuse_foreign(self, provider: int) -> None:
        """Raise `Refusal` for a provider that another member holds."""
        mirrored = self._mirrors.get(provider)
        if mirrored is not None:
            holder = mirrored.entry.broker
            raise Refusal(Reason.FORBIDDEN, f"provider {provider} is registered at the broker {holder!r}: ask there")

    def _in_order(self) -> Iterator[ProviderEntry]:
        members = self._members
        yield members[BROKER]
        for id in self._ids:
            member = members.get(id)
            if member is not None:
                yield member

    def _places_of(self, provider: int) -> list[Endpoint]:
        """Return the endpoints of an own provider."""
        member = self._members.get(provider)
        return [] if member is None else [endpoint_of(member.wire, service) for service in member.services]

    def _add(self, member: ProviderEntry, services: Sequence[Service]) -> None:
        """Add own services, and hide the mirrored ones at their endpoints in the same step."""
        if member.id == BROKER:
            super()._add(member, services)
            return
        places = [endpoint_of(member.wire, service) for service in services]
        self._endpoints.take(places)
        covered = self._endpoints.mirrored_at(places)
        if not covered:
            super()._add(member, services)
            return
        step = Step()
        member.services += services
        member.heard = self._clock.seconds()
        self._put(services, step)
        for id in covered:
            self._show(self._mirrors[id], step)
        self._finish(step)

    def _leave_places(self, places: Sequence[Endpoint]) -> None:
        """An own provider has left these endpoints: show the mirrored services there again."""
        step = Step()
        self._vacate(places, step)
        self._finish(step)

    def _vacate(self, places: Sequence[Endpoint], step: Step) -> None:
        self._endpoints.vacate(places)
        for id in self._endpoints.mirrored_at(places):
            self._show(self._mirrors[id], step)

    def _put(self, services: Sequence[Service], step: Step) -> None:
        step.offered += services
        step.changes += self._enter(services)

    def _finish(self, step: Step) -> None:
        """Announce the changes of a step, in their order."""
        for service in step.offered:
            member = self._members[service.provider]
            self._restored.returned(member.id, member.label, member.wire, (service,))
        self._queue(sorted(step.changes, key=lambda each: each.revision))
        for entry in step.loads:
            change = self._watches.record_load(entry.id, entry.label, entry.load, entry.details, mirrored=True)
            if change is not None:
                self._announce(change)
        self._leaving.clear()
        self._notifier.deliver()

    def _update(self, provider: Provider, step: Step) -> None:
        """Add or change a mirrored provider."""
        mirrored = self._mirrors.get(provider.id)
        now = self._clock.seconds()
        if mirrored is None:
            entry = ProviderEntry(provider.id, provider.label, provider.wire, provider.address, now, provider.broker)
            mirrored = self._mirrors[provider.id] = Mirrored(entry, [])
            self._members[provider.id] = entry
            insort(self._ids, provider.id)
            step.changes.append(self._watches.record(Kind.JOINED, provider.id, provider.label))
        entry = mirrored.entry
        entry.label, entry.address, entry.broker, entry.heard = provider.label, provider.address, provider.broker, now
        entry.owner = provider.owner
        self._endpoints.remove(provider.id, mirrored.endpoints())
        mirrored.services = list(provider.services)
        mirrored.failing = {each.place: each for each in provider.failing}
        self._endpoints.put(provider.id, mirrored.endpoints())
        self._show(mirrored, step)
        set_load(entry, provider.load, provider.details, step)

    def _show(self, mirrored: Mirrored, step: Step) -> None:
        """Bring the visible services of a mirrored provider to what they should be."""
        entry = mirrored.entry
        own = self._endpoints.own
        places = [n for n, s in enumerate(mirrored.services) if endpoint_of(entry.wire, s) not in own]
        wanted = [mirrored.services[place] for place in places]
        services, offered, amended, withdrawn = differences(entry.services, wanted)
        failing = {}
        if mirrored.failing:
            failing = {
                id(s): mirrored.failing[n] for n, s in zip(places, services, strict=True) if n in mirrored.failing
            }
        room = max(0, self.most_services - self._service_count + len(withdrawn))
        if len(offered) > room:
            left = set(map(id, offered[room:]))
            self.left_out += len(left)
            offered = offered[:room]
            services = [service for service in services if id(service) not in left]
        entry.services = services
        step.changes += [self._exchange(old, new) for old, new in amended]
        if offered:
            self._put(offered, step)
            # A service that was hidden is offered after those that were shown meanwhile.
            moved: dict[tuple[str, str], list[Service]] = {(each.name, each.protocol): [] for each in offered}
            for service in services:
                if (service.name, service.protocol) in moved:
                    moved[service.name, service.protocol].append(service)
            for key, same in moved.items():
                group = self._index[key]
                assert isinstance(group, OrderedGroup)
                group.arrange(same)
        if withdrawn:
            step.changes += self._remove(entry.id, withdrawn, "left")
        if failing or mirrored.judged:
            mirrored.judged = bool(failing)
            for service in services:
                self._take_report(service, failing.get(id(service)), entry.broker, step)

    def _report_of(self, service: Service) -> tuple[str, Policy] | None:
        """Return the reason and the policy of a service that fails its check or is doubtful, None for any other."""
        check = self.check_of(service)
        if check is None or check.state not in BAD_STATES:
            return None
        return check.reason, self._index[service.name, service.protocol].judgement(service)

    def _take_report(self, service: Service, report: FailingService | None, broker: str, step: Step) -> None:
        """Judge a mirrored service by the report of its holder, None if its check does not fail there."""
        same = self._index[service.name, service.protocol]
        before = self._checks.get(id(service))
        fails = before is not None and before.state in BAD_STATES
        now = self._clock.seconds()
        if report is not None:
            state = CheckState.DOUBTFUL if report.doubtful else CheckState.FAILING
            since = before.since if before is not None and before.state is state else now
            check = Check(state, report.reason, since)
            if check != before or same.judgement(service) is not report.policy:
                step.changes += self._judge(same, service, check, report.policy)
        elif fails:
            # Not untested: receivers of the notification of the failure need that of its end.
            check = Check(CheckState.PASSING, f"it does not fail any more at the broker {broker!r}", now)
            step.changes += self._judge(same, service, check, Policy.SHOW)

    def _forget(self, provider: int, why: str, step: Step) -> None:
        """Remove a mirrored provider."""
        mirrored = self._mirrors.get(provider)
        if mirrored is None:
            return
        self._endpoints.remove(provider, mirrored.endpoints())
        self._leaving.add(provider)
        del self._mirrors[provider]
        entry = self._drop(provider)
        lasting = tuple(service for service in entry.services if service.lasting)
        step.changes += self._remove(provider, entry.services, why)
        step.changes.append(self._watches.record(Kind.LEFT, provider, entry.label, why))
        if lasting and why == "expired":
            self._restored.remember(attrs.evolve(entry.value(), services=lasting))

    def _supersede(self, provider: int, successor: int, step: Step) -> None:
        """Hide an own provider, which is registered at another member now."""
        if provider in self._superseded:
            self._successors.follow([provider], successor)
            return
        member = self._superseded[provider] = self._drop(provider)
        # The successor is at the same endpoints, and was hidden while this provider was shown.
        self._vacate([endpoint_of(member.wire, service) for service in member.services], step)
        step.changes += self._remove(provider, member.services, "left")
        step.changes.append(self._watches.record(Kind.LEFT, provider, member.label, "left"))
        self._successors.follow([provider], successor)

    def _revive(self, provider: int) -> None:
        """Show a superseded provider again."""
        member = self._superseded.pop(provider, None)
        if member is None:
            return
        self._successors.unfollow(provider)
        self._members[provider] = member
        insort(self._ids, provider)
        services, member.services = member.services, []
        self._tell([self._watches.record(Kind.JOINED, provider, member.label)])
        if services:
            self._add(member, services)

    def _drop(self, provider: int) -> ProviderEntry:
        """Remove a provider from the table, and its id from the list, since the same id may come back."""
        del self._ids[bisect_left(self._ids, provider)]
        return self._members.pop(provider)
