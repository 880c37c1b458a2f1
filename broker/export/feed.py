"""What the journal is told: the changes of the registry, and heartbeats, as records.

Rules:
- Services of the broker itself are not told of: nobody plans their capacity.
- A service that is offered is a ``register``, one that goes an ``unregister``, or an ``expire`` if its provider was
  silent for too long.
- A load that is reported makes a record for each service of the provider; so does a heartbeat.
- A provider's label is the one that it had when it first offered something: later ones are for administrators.
- What a peer says of its own clock is left out where it is no time that readers have room for.
- `FullLoads` says at which load a provider of a service is full. Where it says nothing, the record does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate

from msgspec.structs import replace

from broker.core.interfaces import IRegistry
from broker.core.model import ANONYMOUS, BROKER, Change, Kind, Service
from broker.export.records import Record, microseconds

KEPT = 10_000
"""Names of which it is remembered at which load they are full: as many as a farm has; a few megabytes at most."""

LATEST = 253_402_300_800.0
"""The year 10000, in seconds of the epoch. Readers have no later dates, and far later ones not even as integers."""


class FullLoads:
    """Patterns of service names (shell patterns, with case), with the load at which a provider of those is full.

    The first pattern that matches counts.
    """

    def __init__(self, table: Sequence[tuple[Sequence[str], float]]) -> None:
        self._table = [(re.compile("|".join(map(translate, patterns)) or r"(?!)"), load) for patterns, load in table]
        self._kept: dict[str, float | None] = {}

    def of(self, name: str) -> float | None:
        """The load at which a provider of that service is full; None where that is not known."""
        try:
            return self._kept[name]
        except KeyError:
            load = next((load for pattern, load in self._table if pattern.match(name)), None)
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[name] = load
            return load


class _Offer:
    """A service that is offered, and its records but for what differs from one to the next."""

    __slots__ = ("beat", "load", "service")

    def __init__(self, known: _Provider, service: Service, full_load: float | None) -> None:
        interval = None if service.interval is None else round(service.interval * 1000)
        self.service = service
        self.beat = Record(
            0,
            "hb",
            known.wire,
            service.name,
            service.provider,
            known.label,
            service.hostport,
            service.protocol,
            interval_ms=interval,
        )
        self.load = replace(self.beat, event="load", interval_ms=None, full_load=full_load)


class _Provider:
    """What is known of a provider while it offers something."""

    __slots__ = ("beats", "label", "offers", "wire")

    def __init__(self, wire: str, label: str | None) -> None:
        self.wire = wire
        self.label = label
        self.offers: list[_Offer] = []
        self.beats = 0


class Feed:
    """Puts a record for whatever ``registry`` tells, and for heartbeats, from now on. ``now`` gives the ``ts``."""

    def __init__(
        self, registry: IRegistry, put: Callable[[Record], None], now: Callable[[], int], full_loads: FullLoads
    ) -> None:
        self._registry = registry
        self._put = put
        self._now = now
        self._full_loads = full_loads
        self._providers: dict[int, _Provider] = {}
        told = {
            Kind.OFFERED: self._offered,
            Kind.AMENDED: self._amended,
            Kind.WITHDRAWN: self._withdrawn,
            Kind.LEFT: self._left,
        }
        self._watches = [registry.watch(tell, (kind,)) for kind, tell in told.items()]
        self._watches.append(registry.watch_loads(self._loaded))

    def use(self, full_loads: FullLoads) -> None:
        """Take another table."""
        self._full_loads = full_loads
        for known in self._providers.values():
            for offer in known.offers:
                offer.load = replace(offer.load, full_load=full_loads.of(offer.service.name))

    def stop(self) -> None:
        """Hear nothing any more."""
        for watch in self._watches:
            watch.cancel()

    def beat(self, provider: int, sent: float | None) -> None:
        """A heartbeat came. ``sent`` is the time of the peer's own clock in it, in seconds of the epoch, if known."""
        known = self._providers.get(provider)
        if known is None:
            return
        known.beats = beats = known.beats + 1
        ts, put = self._now(), self._put
        sent_ts = None if sent is None or not 0 <= sent < LATEST else microseconds(sent)
        for offer in known.offers:
            put(replace(offer.beat, ts=ts, hb_seq=beats, sent_ts=sent_ts))

    # from the registry

    def _offered(self, change: Change) -> None:
        service, id = change.subject, change.provider
        assert isinstance(service, Service)
        if id == BROKER:
            return
        known = self._providers.get(id)
        if known is None:
            provider = self._registry.provider(id)
            if provider is None:
                return  # gone again before this was told
            label = None if provider.label in ("", ANONYMOUS) else provider.label
            known = self._providers[id] = _Provider(provider.wire, label)
        offer = _Offer(known, service, self._full_loads.of(service.name))
        known.offers.append(offer)
        self._put(replace(offer.beat, ts=self._now(), event="register"))

    def _amended(self, change: Change) -> None:
        known, service = self._providers.get(change.provider), change.subject
        assert isinstance(service, Service)
        if known is not None:
            key = (service.name, service.protocol)
            place = next((n for n, o in enumerate(known.offers) if (o.service.name, o.service.protocol) == key), None)
            if place is not None:
                known.offers[place] = _Offer(known, service, self._full_loads.of(service.name))

    def _withdrawn(self, change: Change) -> None:
        known = self._providers.get(change.provider)
        if known is None:
            return
        offer = next((offer for offer in known.offers if offer.service == change.subject), None)
        if offer is not None:
            known.offers.remove(offer)
            event = "expire" if change.why == "expired" else "unregister"
            self._put(replace(offer.beat, ts=self._now(), event=event, why=change.why))

    def _left(self, change: Change) -> None:
        self._providers.pop(change.provider, None)

    def _loaded(self, provider: int, load: float) -> None:
        known = self._providers.get(provider)
        if known is None:
            return
        ts, put = self._now(), self._put
        for offer in known.offers:
            put(replace(offer.load, ts=ts, load=load))
