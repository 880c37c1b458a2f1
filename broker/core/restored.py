"""Services remembered from before a restart.

Rules:
- They answer finds that neither wait nor monitor, where no live service of that name and protocol is known.
- They are marked (`Service.restored`), and are in no listing, wait, monitor or watch.
- They go, all of one provider together, as soon as that provider is back: when a live provider on the same wire offers
  a service of the same name and protocol at the same host:port, or with the same label of its own.
- All go when the grace ends. Those with a lasting service (`Service.lasting`) stay in the store even so, for the next
  start: nothing but their wire brings them back, and that may be switched off just now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.core.model import ANONYMOUS, Provider, Service

_Key = tuple[str, str]


class Restored:
    """What is remembered, until its provider comes back or ``grace`` seconds have passed on ``clock``.

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
        self._providers: dict[int, Provider] = {}
        by_key: dict[_Key, list[Service]] = {}
        for provider in providers:
            services = tuple(attrs.evolve(s, restored=True) for s in provider.services)
            self._providers[provider.id] = attrs.evolve(provider, services=services)
            for service in services:
                by_key.setdefault((service.name, service.protocol), []).append(service)
        self._services = {key: tuple(services) for key, services in by_key.items()}
        self._timer = clock.callLater(grace, self.drop) if self._providers else None

    def lookup(self, name: str, protocol: str) -> tuple[Service, ...]:
        """The remembered services of that name and protocol."""
        return self._services.get((name, protocol), ())

    def returned(self, label: str, wire: str, services: Iterable[Service]) -> None:
        """A live provider offers these services: what it was before the restart is not needed any more."""
        if not self._providers:
            return
        back: set[int] = set()
        for service in services:
            for known in self._services.get((service.name, service.protocol), ()):
                provider = self._providers[known.provider]
                same_label = label not in ("", ANONYMOUS) and provider.label == label
                if provider.wire == wire and (known.hostport == service.hostport or same_label):
                    back.add(provider.id)
        if back:
            self._remove(back)
            self._forget(back)

    def drop(self) -> None:
        """The grace is over: all go, and those without a lasting service from the store as well."""
        self._timer = None
        passing = {id for id, p in self._providers.items() if not any(service.lasting for service in p.services)}
        self._remove(set(self._providers))
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

    def _remove(self, ids: set[int]) -> None:
        for provider in [self._providers.pop(i) for i in ids]:
            for service in provider.services:
                key = (service.name, service.protocol)
                left = tuple(s for s in self._services.get(key, ()) if s.provider != provider.id)
                if left:
                    self._services[key] = left
                else:
                    self._services.pop(key, None)
        if not self._providers and self._timer is not None:
            self._timer.cancel()
            self._timer = None
