"""Registered services: those of one name, and those that a restart restored.

Services of one name and protocol, in the order of finds.

Rules:
- Finds return the services in the order in which they were offered. While no health check fails, that is all.
- A service with a failing check is *judged* by the policy of the check: it comes after the others, or it is hidden.
- Panic: if more than a share of the group is judged, no service is hidden, and all judged ones come last. A failure of
  so many at once is more likely one of the network, or of the check, than of each service; a find that returns nothing
  would turn it into an outage. (Envoy's panic threshold has the same reason, and the same default.)
- The order is computed at a change and cached: a find costs the same with and without failing services.

Restored services: services remembered from before a restart.

Rules:
- They answer finds that neither wait nor monitor, after the live services of that name and protocol.
- They are marked (`Service.restored`), and are in no listing, wait, monitor or watch.
- A restored service is removed as soon as a live provider on the same wire *replaces* it: with a service of the same
  name and protocol at the same host:port, or, at an endpoint that is not remembered, with a service of the same name
  and the entry of the same owner, or else with a label that exactly one remembered provider on that wire has. A label
  that several share identifies none of them, nor does the wire's name, nor any label of a provider with another entry.
- Without a record of the other brokers' registrations, a label of a provider that is registered at one of them when
  these are first read identifies none either: it may have been there before the restart.
- If a returned provider withdraws services or leaves, its remaining restored services are removed too.
- The owner of a remembered provider can withdraw it before it returns (`Restored.end`).
- If several remembered providers of one wire offered the same service at one endpoint, only the newest counts.
- A remembered provider stays in the store until all of its services are replaced or the grace period ends. Then all are
  removed, except that providers with a lasting service (`Service.lasting`) stay in the store for the next start: only
  their wire restores them, and it may be switched off at present.

The file is longer than others: a find returns the services of both tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.core.model import ANONYMOUS, NOBODY, Owner, Policy, Provider, Service

PANIC = 0.5
"""Default share of judged services above which none is hidden."""


_NONE_HIDDEN: dict[int, int] = {}
"""The hidden services of most groups: one empty table, never filled, so that it takes no memory for each group."""


class ServiceGroup:
    """The services of one name and protocol.

    The tuples are caches: finds are far more frequent than changes.
    """

    __slots__ = ("_behind", "_hidden", "_hides", "_judged", "_services", "_with_restored", "found")

    def __init__(self) -> None:
        self._services: dict[int, Service] = {}
        self.found: tuple[Service, ...] | None = None
        """The services of a find; None if they have to be gathered."""
        self._with_restored: tuple[Service, ...] = ()
        """The same, followed by the restored services."""
        self._behind: tuple[Service, ...] = ()
        """The restored services from which ``_with_restored`` was built."""
        self._judged: dict[int, Policy] | None = None
        """Policy of each service with a failing check, if that is not SHOW. None saves memory in most groups."""
        self._hidden = _NONE_HIDDEN
        """Each hidden service, with the number that `settle` got when it was hidden."""
        self._hides = 0
        """Number of services with the policy HIDE, hidden or not."""

    def __contains__(self, service: Service) -> bool:
        return self._services.get(id(service)) is service

    @property
    def judged(self) -> bool:
        """True if a failing check changes the order of finds: then `settle` is due after each change."""
        return self._judged is not None

    def add(self, service: Service) -> None:
        """Add a service at the end."""
        self._services[id(service)] = service
        self._changed()

    def remove(self, service: Service) -> bool:
        """Remove a service. Returns True if none is left."""
        del self._services[id(service)]
        self._hidden.pop(id(service), None)
        self.judge(service, Policy.SHOW)
        self._changed()
        return not self._services

    def replace(self, old: Service, new: Service) -> None:
        """Put ``new`` in the place of ``old``."""
        self._services = {id(each): each for each in (new if s is old else s for s in self._services.values())}
        if self._judged is not None and id(old) in self._judged:
            self._judged[id(new)] = self._judged.pop(id(old))
        if id(old) in self._hidden:
            self._hidden[id(new)] = self._hidden.pop(id(old))
        self._changed()

    def judge(self, service: Service, policy: Policy) -> None:
        """Set the policy of a service with a failing check; SHOW for any other. `settle` has to follow."""
        judged = self._judged
        if policy is not Policy.SHOW:
            if judged is None:
                judged = self._judged = {}
            before = judged.get(id(service))
            if before is not policy:
                self._hides += (policy is Policy.HIDE) - (before is Policy.HIDE)
                judged[id(service)] = policy
                self._changed()
        elif judged is not None and (before := judged.pop(id(service), None)) is not None:
            self._hides -= before is Policy.HIDE
            if not judged:
                self._judged = None
            self._changed()

    def settle(self, panic: float, number: int) -> tuple[list[Service], list[tuple[Service, int]]]:
        """Hide and show services. Returns those that are hidden from now on, and those that are shown again.

        ``panic`` is the share, 0 to 1, of judged services above which none is hidden. The ``number`` is returned with a
        service when it is shown again.
        """
        if not self._hides and not self._hidden:
            return [], []  # without this, many changes of one large group would take quadratic time
        judged = self._judged or {}
        wanted: list[int] = []
        if len(judged) <= panic * len(self._services):
            wanted = [key for key, policy in judged.items() if policy is Policy.HIDE]
        services = self._services
        new = [key for key in wanted if key not in self._hidden]
        old = self._hidden.keys() - wanted if self._hidden else ()
        if not new and not old:
            return [], []
        shown = [(services[key], self._hidden.pop(key)) for key in list(self._hidden) if key in old]
        self._hidden = self._hidden | dict.fromkeys(new, number)
        self._changed()
        return [services[key] for key in new], shown

    def judgement(self, service: Service) -> Policy:
        """Return the policy that `judge` has set; `policy_of` returns what follows from it."""
        return Policy.SHOW if self._judged is None else self._judged.get(id(service), Policy.SHOW)

    def policy_of(self, service: Service) -> Policy:
        """Return the effective place of a service in finds."""
        if self._judged is None or id(service) not in self._judged:
            return Policy.SHOW
        if id(service) in self._hidden:
            return Policy.HIDE
        return Policy.LAST

    def all(self) -> tuple[Service, ...]:
        """Return all services, the hidden ones included, in the order in which they were offered."""
        if self._judged is None:
            return self.gather() if self.found is None else self.found
        return tuple(self._services.values())

    def gather(self) -> tuple[Service, ...]:
        """Return the services of a find, and cache them."""
        judged = self._judged
        if judged is None:
            self.found = tuple(self._services.values())
        else:
            last = [each for key, each in self._services.items() if key in judged and key not in self._hidden]
            self.found = (*(each for key, each in self._services.items() if key not in judged), *last)
        return self.found

    def with_restored(self, restored: tuple[Service, ...]) -> tuple[Service, ...]:
        """Return the services of a find, followed by those of ``restored`` at other endpoints than all of the group."""
        if not self._with_restored or self._behind is not restored:
            places = {service.hostport for service in self._services.values()}
            live = self.gather() if self.found is None else self.found
            self._with_restored = (*live, *(service for service in restored if service.hostport not in places))
            self._behind = restored
        return self._with_restored

    def _changed(self) -> None:
        self.found = None
        self._with_restored = ()


_Key = tuple[str, str]
"""Name and protocol."""

_Place = tuple[str, str, str, str]
"""Wire, name, protocol and host:port: the identity of a service across a restart."""


class Restored:
    """Table of restored services. Each stays until its provider returns or ``grace`` seconds have passed on ``clock``;
    in a cluster they count from the first reading of the other brokers' registrations (`record`, `read`).

    ``forget`` is called with the ids of remembered providers that are no longer needed in the store.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        grace: float,
        clock: IReactorTime,
        forget: Callable[[Iterable[int]], None],
    ) -> None:
        self._clock = clock
        self._since = clock.seconds()
        self._grace = grace
        self._forget = forget
        self._providers = {provider.id: provider for provider in sorted(providers, key=lambda each: each.id)}
        self._services: dict[_Key, dict[_Place, Service]] = {}
        """All restored services."""
        self.some: Collection[object] = self._services
        """Empty if there are none, as after the grace period: a caller on a hot path checks it first."""
        self._of: dict[int, dict[_Place, Service]] = {}
        """The same by provider."""
        self._recorded: set[int] = set()
        """Providers of other brokers, which stay until `read`."""
        self._unread = False
        """True from `record` to `read`: there is no grace period."""
        self._unrecorded = False
        """True from `record` to `read` if there is no record."""
        self._back: dict[int, set[int]] = {}
        """Live providers that have returned, with the ids of their remembered counterparts."""
        self._answers: dict[_Key, tuple[Service, ...]] = {}
        """Cache of the answers of `lookup`."""
        self.ended: Callable[[Iterable[str], str], None] | None = None
        """Called with the names of restored services that were removed and not replaced, each once, and the reason:
        withdrawn, left or expired. Other services of these names may remain."""
        self.over: Callable[[], None] | None = None
        """Called when no provider is remembered any more."""
        places: dict[_Place, Service] = {}
        # In order of ids, so that the newest provider at an endpoint wins.
        for provider in self._providers.values():
            for service in provider.services:
                places[_place(provider.wire, service)] = _restored(service)
        for place, service in places.items():
            self._services.setdefault((service.name, service.protocol), {})[place] = service
            self._of.setdefault(service.provider, {})[place] = service
        self._protocols: dict[str, list[str]] = {}
        """The protocols by name."""
        for name, protocol in self._services:
            self._protocols.setdefault(name, []).append(protocol)
        self._doubled = {id for id, provider in self._providers.items() if provider.services and id not in self._of}
        """Providers whose endpoints all belong to newer remembered providers."""
        self._labels: dict[tuple[str, str], set[int]] = {}
        """Providers by wire and label. One that others share stays with all of them, replaced ones too: the last one
        of several is not identified by it either."""
        for provider in self._providers.values():
            self._note_label(provider)
        self._entries = {
            (provider.wire, provider.owner.entry): provider.id
            for provider in self._providers.values()
            if provider.owner.entry
        }
        self._timer = clock.callLater(grace, self.drop) if self._providers else None

    def lookup(self, name: str, protocol: str) -> tuple[Service, ...]:
        """Return the restored services of that name and protocol. The tuple is the same object until one of them is
        removed."""
        key = (name, protocol)
        if key not in self._services:
            return ()
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = tuple(self._services[key].values())
        return answer

    def names(self) -> Iterable[str]:
        """Return the names of the restored services, some of them several times."""
        return (name for name, _ in self._services)

    def protocols(self, name: str) -> Iterable[str]:
        """Return the protocols of the restored services of that name."""
        return self._protocols.get(name, ())

    def remembered(self) -> list[Provider]:
        """Return the remembered providers of this broker, with those of their services that are still restored: another
        provider may have taken the endpoint."""
        return [
            attrs.evolve(each, services=tuple(one for one in each.services if _place(each.wire, one) in self._of[id]))
            for id, each in self._providers.items()
            if self._of.get(id) and id not in self._recorded
        ]

    def owner(self, wire: str, entry: str) -> Owner:
        """Return the owner of the remembered provider with that entry on its wire; `NOBODY` if there is none."""
        id = self._entries.get((wire, entry), -1)
        return self._providers[id].owner if id in self._of else NOBODY

    def holder(self, wire: str, entry: str) -> str:
        """Return the other broker that has the remembered provider with that entry on its wire, by the record; empty
        if there is none."""
        id = self._entries.get((wire, entry), -1)
        return self._providers[id].broker if id in self._of and id in self._recorded else ""

    def provider(self, id: int) -> Provider | None:
        """Return the remembered provider of that id, with all services of before; None if there is none."""
        return self._providers.get(id)

    def returned(
        self, live: int, label: str, wire: str, services: Sequence[Service], entry: str = "", elsewhere: bool = False
    ) -> Sequence[tuple[Provider, Service]]:
        """A live provider offers these services, ``elsewhere`` at another broker: remove the restored services that
        they replace. ``entry`` is that of its owner, empty without one. Returns them with their providers."""
        if not self._services:
            return ()
        replaced: dict[_Place, None] = {}
        moved: Counter[_Key] = Counter()
        for service in services:
            key, place = (service.name, service.protocol), _place(wire, service)
            if place in self._services.get(key, ()):
                replaced[place] = None
            else:
                moved[key] += 1
        if elsewhere and self._unrecorded:
            self.share_label(live, label, wire)
        former: list[_Place] = []
        if moved and entry and (wire, entry) in self._entries:
            names = {service.name for service in services}
            own = self._of.get(self._entries[wire, entry], ())
            replaced |= dict.fromkeys(place for place in own if place[1] in names)
        elif moved:
            for place in self._labelled(wire, label, entry):
                key = place[1:3]
                if place not in replaced and moved[key]:  # the service now has the endpoint of one of the offered ones
                    moved[key] -= 1
                    former.append(place)
        places = (*replaced, *former)
        ended = self._at(places)
        self._remove(places, live)
        return ended

    def share_label(self, live: int, label: str, wire: str) -> None:
        """A provider at another broker has had this label since before: it identifies no remembered one."""
        if (wire, label) in self._labels:
            self._labels[wire, label].add(live)

    def withdrawn(self, live: int, names: Collection[str] | None = None) -> Sequence[tuple[Provider, Service]]:
        """A live provider withdraws these services, by default all: remove its restored services of these names.
        Returns them with their providers."""
        back = self._back.get(live)
        if back is None:
            return ()
        places = [place for id in back for place in self._of.get(id, ()) if names is None or place[1] in names]
        ended = self._at(places)
        self._remove(places, live)
        if names is None:
            self._back.pop(live, None)
        self._report(places, "left" if names is None else "withdrawn")
        return ended

    def end(self, wire: str, entry: str) -> Sequence[tuple[Provider, Service]]:
        """Remove the services of this broker's remembered provider with that entry on its wire, which its owner
        withdraws. Returns them with their provider."""
        id = self._entries.get((wire, entry), -1)
        if id in self._recorded:
            return ()
        places = list(self._of.get(id, ()))
        ended = self._at(places)
        self._remove(places)
        self._report(places, "withdrawn")
        return ended

    def drop(self) -> None:
        """End the grace period: remove all, and forget the providers without a lasting service."""
        self._timer = None
        places = list(chain.from_iterable(self._of.values()))
        passing = {id for id in self._providers if not any(each.lasting for each in self._of.get(id, {}).values())}
        for kept in (
            self._providers,
            self._services,
            self._of,
            self._back,
            self._answers,
            self._protocols,
            self._entries,
            self._labels,
            self._doubled,
        ):
            kept.clear()
        if passing:
            self._forget(passing)
        self._report(places, "expired")
        self._end()

    def has(self, wire: str, service: Service, entry: str) -> bool:
        """Return True if a service is restored that is the same one: that of the same ``entry``, or at the same
        place."""
        if entry:
            id = self._entries.get((wire, entry), -1)
            known = id not in self._recorded and any(place[1] == service.name for place in self._of.get(id, ()))
        else:
            place = _place(wire, service)
            there = self._services.get((service.name, service.protocol), {}).get(place)
            known = there is not None and there.provider not in self._recorded
        return known

    def remember(self, provider: Provider) -> None:
        """Add a provider whose broker is gone, or more services of one. The grace period begins again, for all that are
        still remembered."""
        self._add(provider)
        self._begin()

    def record(self, providers: Iterable[Provider] | None) -> None:
        """Add providers of other brokers, None without a record of them. All restored services stay until `read`: a
        provider that is remembered here may be registered at another broker meanwhile."""
        self.stop()
        self._unread, self._unrecorded = True, providers is None
        for provider in providers or ():
            self._recorded.add(provider.id)
            self._add(provider)

    def read(self) -> None:
        """The registrations of the other brokers have been read: remove what `record` has added, and begin the grace
        period. Idempotent."""
        if self._unread:
            self._unread = self._unrecorded = False
            before, self._recorded = self._recorded, set()
            places = [place for id in before for place in self._of.get(id, ())]
            self._discard(before)
            if self._providers:
                self._begin()
            self._report(places, "expired")

    def _begin(self) -> None:
        """Begin the grace period, again if it has begun before."""
        self._since = self._clock.seconds()
        if self._timer is not None:
            self._timer.reset(self._grace)
        elif not self._unread:
            self._timer = self._clock.callLater(self._grace, self.drop)

    def _labelled(self, wire: str, label: str, entry: str) -> Iterable[_Place]:
        """Return the services of the remembered provider that a label identifies, unless its entry is another one."""
        ids = self._labels.get((wire, label), ())
        if len(ids) != 1:
            return ()
        (id,) = ids
        known = self._providers.get(id)
        return () if known is None or (entry and known.owner.entry) else self._of.get(id, ())

    def _at(self, places: Iterable[_Place]) -> list[tuple[Provider, Service]]:
        """Return the services at these places, each with its provider."""
        services = [self._services[place[1:3]][place] for place in places]
        return [(self._providers[each.provider], each) for each in services]

    def _note_label(self, provider: Provider) -> None:
        if provider.label not in ("", ANONYMOUS, provider.wire):
            self._labels.setdefault((provider.wire, provider.label), set()).add(provider.id)

    def _add(self, provider: Provider) -> None:
        known = self._providers.get(provider.id)
        services = provider.services if known is None else (*known.services, *provider.services)
        same = {_place(provider.wire, service): service for service in services}
        self._providers[provider.id] = attrs.evolve(provider, services=tuple(same.values()))
        self._note_label(provider)
        if provider.owner.entry:
            self._entries[provider.wire, provider.owner.entry] = provider.id
        for service in provider.services:
            key, place = (service.name, service.protocol), _place(provider.wire, service)
            older = self._services.get(key, {}).get(place)
            if older is not None:
                del self._of[older.provider][place]
            restored = _restored(service)
            self._services.setdefault(key, {})[place] = restored
            self._of.setdefault(provider.id, {})[place] = restored
            self._answers.pop(key, None)
            protocols = self._protocols.setdefault(service.name, [])
            if service.protocol not in protocols:
                protocols.append(service.protocol)

    def _discard(self, ids: Iterable[int]) -> None:
        """Remove providers with all their services."""
        for id in ids:
            provider = self._providers.pop(id, None)
            for place in self._of.pop(id, ()):
                self._take(place)
            if provider is None:
                continue
            if self._entries.get((provider.wire, provider.owner.entry)) == id:
                del self._entries[provider.wire, provider.owner.entry]
            label = (provider.wire, provider.label)
            ids = self._labels.get(label, set())
            ids.discard(id)
            if not ids:
                self._labels.pop(label, None)

    def _take(self, place: _Place) -> Service:
        """Remove a service from the tables by name, and return it."""
        _, name, protocol, _ = place
        key = (name, protocol)
        same = self._services[key]
        service = same.pop(place)
        self._answers.pop(key, None)
        if not same:
            del self._services[key]
            self._protocols[name].remove(protocol)
            if not self._protocols[name]:
                del self._protocols[name]
        return service

    def last(self, grace: float) -> None:
        """Change the grace period. It counts from the start, or from the last `remember`."""
        self._grace = grace
        if self._timer is not None:
            self._timer.reset(max(0.0, self._since + grace - self._clock.seconds()))

    def stop(self) -> None:
        """Stop the timer when the broker stops. The remembered services stay in the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return len(self._providers)

    def _report(self, places: Iterable[_Place], why: str) -> None:
        """Pass on the end of these services."""
        if self.ended is not None:
            self.ended(dict.fromkeys(place[1] for place in places), why)

    def _remove(self, places: Iterable[_Place], live: int | None = None) -> None:
        """Remove these services, which the live provider replaced or withdrew; None if no live provider did."""
        gone = set()
        for place in places:
            id = self._take(place).provider
            if live is not None:
                self._back.setdefault(live, set()).add(id)
            del self._of[id][place]
            if not self._of[id]:
                del self._of[id]
                gone.add(id)
        if gone:
            gone |= self._doubled
            self._doubled = set()
            for id in gone:
                provider = self._providers.pop(id)
                if self._labels.get((provider.wire, provider.label)) == {id}:
                    del self._labels[provider.wire, provider.label]
            self._forget(gone)
            if not self._providers:
                self.stop()
                self._end()

    def _end(self) -> None:
        if self.over is not None:
            self.over()


_FIELDS = [field.name for field in attrs.fields(Service)]
_values = attrgetter(*_FIELDS)
_MARK = _FIELDS.index("restored")


def _restored(service: Service) -> Service:
    """Return a service marked as restored, in half the time of `attrs.evolve`: at a start there may be 100,000."""
    values = [*_values(service)]
    values[_MARK] = True
    return Service(*values)


def _place(wire: str, service: Service) -> _Place:
    return wire, service.name, service.protocol, service.hostport
