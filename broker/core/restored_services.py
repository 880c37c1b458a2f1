"""Services remembered from before a restart.

Rules:
- They answer finds that neither wait nor monitor, behind the live services of that name and protocol.
- They are marked (`Service.restored`), and are in no listing, wait, monitor or watch.
- Each goes by itself, as soon as a live provider on the same wire *replaces* it. That provider offers a service of the
  same name and protocol, at the same host:port; or, at a place that is not remembered, with a label that only one
  remembered provider on that wire has. A label that several share identifies none of them, nor does the wire's name.
- A provider that came back and then withdraws, or leaves, takes with it what is still remembered of it.
- A place that several remembered providers of one wire name is remembered once, as that of the newest.
- A remembered provider stays in the store until all of its services are replaced, or the grace ends. Then all go. Those
  with a lasting service (`Service.lasting`) stay in the store even so, for the next start: nothing but their wire
  brings them back, and that may be switched off just now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.core.model import ANONYMOUS, Provider, Service

_Key = tuple[str, str]
"""Name and protocol."""

_Place = tuple[str, str, str, str]
"""Wire, name, protocol and host:port: what is the same before and after a restart."""


class Restored:
    """Services that are remembered, each until its provider comes back or ``grace`` seconds have passed on ``clock``.

    ``forget`` is called with the ids of remembered providers that need not stay in the store any more.
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
        self._forget = forget
        self._providers = {provider.id: provider for provider in sorted(providers, key=lambda each: each.id)}
        self._services: dict[_Key, dict[_Place, Service]] = {}
        """All that is remembered."""
        self._of: dict[int, dict[_Place, Service]] = {}
        """The same by provider."""
        self._back: dict[int, set[int]] = {}
        """Live providers that have come back, with the remembered ones that they were."""
        self._answers: dict[_Key, tuple[Service, ...]] = {}
        """The answers of `lookup`, until they change."""
        places: dict[_Place, Service] = {}
        for provider in self._providers.values():
            for service in provider.services:
                places[_place(provider.wire, service)] = attrs.evolve(service, restored=True)
        for place, service in places.items():
            self._services.setdefault((service.name, service.protocol), {})[place] = service
            self._of.setdefault(service.provider, {})[place] = service
        self._doubled = {id for id, provider in self._providers.items() if provider.services and id not in self._of}
        """Providers at whose places newer ones are remembered."""
        self._labelled = _labelled(self._providers.values())
        self._timer = clock.callLater(grace, self.drop) if self._providers else None

    def lookup(self, name: str, protocol: str) -> tuple[Service, ...]:
        """The remembered services of that name and protocol: the very same tuple until one of them goes."""
        key = (name, protocol)
        if key not in self._services:
            return ()
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = tuple(self._services[key].values())
        return answer

    def returned(self, live: int, label: str, wire: str, services: Sequence[Service]) -> None:
        """The live provider of that id offers these services: what they replace goes."""
        if not self._services:
            return
        replaced: dict[_Place, None] = {}
        moved: Counter[_Key] = Counter()
        for service in services:
            key, place = (service.name, service.protocol), _place(wire, service)
            if place in self._services.get(key, ()):
                replaced[place] = None
            else:
                moved[key] += 1
        if moved:
            before = self._of.get(self._labelled.get((wire, label), -1), {})
            for place in before:
                key = place[1:3]
                if place not in replaced and moved[key]:  # it is now at the place that came first
                    moved[key] -= 1
                    replaced[place] = None
        self._remove(replaced, live)

    def withdrawn(self, live: int, names: Collection[str] | None = None) -> None:
        """The live provider of that id withdraws these services, by default all: it will not offer them again."""
        back = self._back.get(live)
        if back is None:
            return
        self._remove(
            [place for id in back for place in self._of.get(id, ()) if names is None or place[1] in names], live
        )
        if names is None:
            self._back.pop(live, None)

    def drop(self) -> None:
        """The grace is over: all go, and those without a lasting service from the store as well."""
        self._timer = None
        lasting = {id for id, services in self._of.items() if any(service.lasting for service in services.values())}
        passing = set(self._providers) - lasting
        for kept in (self._providers, self._services, self._of, self._back, self._answers):
            kept.clear()
        if passing:
            self._forget(passing)

    def last(self, grace: float) -> None:
        """Another grace, counted from the start."""
        if self._timer is not None:
            self._timer.reset(max(0.0, self._since + grace - self._clock.seconds()))

    def stop(self) -> None:
        """The broker stops: the timer goes, what is remembered stays remembered in the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return len(self._providers)

    def _remove(self, places: Iterable[_Place], live: int) -> None:
        """Forget these places, since the live provider says what became of them."""
        gone = set()
        for place in places:
            key = place[1:3]
            service = self._services[key].pop(place)
            if not self._services[key]:
                del self._services[key]
            self._answers.pop(key, None)
            id = service.provider
            self._back.setdefault(live, set()).add(id)
            del self._of[id][place]
            if not self._of[id]:
                del self._of[id]
                gone.add(id)
        if gone:
            gone |= self._doubled
            self._doubled = set()
            for id in gone:
                del self._providers[id]
            if not self._providers:
                self.stop()
            self._forget(gone)


def _place(wire: str, service: Service) -> _Place:
    return wire, service.name, service.protocol, service.hostport


def _labelled(providers: Collection[Provider]) -> dict[tuple[str, str], int]:
    """The providers that are the only ones with their label on their wire."""
    shared = Counter((provider.wire, provider.label) for provider in providers)
    return {
        (provider.wire, provider.label): provider.id
        for provider in providers
        if shared[provider.wire, provider.label] == 1 and provider.label not in ("", ANONYMOUS, provider.wire)
    }
