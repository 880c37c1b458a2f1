"""What the journal is told: the changes of the registry, and heartbeats, as records.

Rules:
- Services of the broker itself are not told of: nobody plans their capacity.
- A service that is offered is a ``register``, one that goes an ``unregister``, or an ``expire`` if its provider was
  silent for too long.
- A load that is reported makes a record for each service of the provider; so does a heartbeat.
- Of each kind, a provider has `RECORDS` records a second, and some in advance. Faster reports *coalesce*: the
  newest one waits for its turn, and its records say how many others they stand for. So a flood costs its own
  provider's records, and leaves the journal's queue to the others. A report that waits when the provider goes is not
  told.
- A provider's label is the one that it had when it first offered something: later ones are for administrators.
- What a peer says of its own clock is left out where it is no time that readers have room for.
- `FullLoads` says at which load a provider of a service is full. Where it says nothing, the record does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate

from msgspec.structs import replace

from broker.core.interfaces import IRegistry
from broker.core.model import ANONYMOUS, BROKER, Change, Kind, Service
from broker.export.records import Record, microseconds

KEPT = 10_000
"""Names of which it is remembered at which load they are full: as many as a farm has; a few megabytes at most."""

RECORDS = 100
"""Records of loads, and of heartbeats, that a provider may have in the journal in a second, on the average: five times
what the shortest interval of heartbeats makes. The queue has room for 2,000 providers that flood for a second."""

IN_ADVANCE = 1_000
"""Those that may come at once: one report of a provider with a thousand services."""

LONGEST_WAIT = 60.0
"""Seconds until a report of whatever size has its turn, so that each service has a load in each five minutes."""

_STEP = 1_000_000 // RECORDS
"""Microseconds that a record takes of a provider's time."""

_AHEAD = IN_ADVANCE * _STEP
"""Microseconds of its time that it may use in advance."""

_LONGEST_WAIT = int(LONGEST_WAIT * 1_000_000)
"""The same in microseconds; no report takes more of its provider's time."""

_NEVER = 2**62
"""A ``ts`` that no clock says."""

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


class _Pace:
    """The budget of a provider for one kind of record, and the report that waits for its turn."""

    __slots__ = ("from_", "next", "waiting")

    def __init__(self) -> None:
        self.next = 0
        """The ``ts`` from which the next report may be told at once."""
        self.from_ = 0
        """The same while a report waits, which has the next turn: then no other one is told at once."""
        self.waiting: tuple[int, float | None, int] | None = None
        """When the newest report came, what it says, and how many came since the last one that was told."""


class _Provider:
    """What is known of a provider while it offers something."""

    __slots__ = ("beat_pace", "beats", "label", "load_pace", "offers", "step", "wire")

    def __init__(self, wire: str, label: str | None) -> None:
        self.wire = wire
        self.label = label
        self.offers: list[_Offer] = []
        self.step = 0
        """Microseconds that a report of its takes of its time."""
        self.beats = 0
        self.beat_pace = _Pace()
        self.load_pace = _Pace()

    def count(self) -> None:
        """Its services are other ones."""
        self.step = min(len(self.offers) * _STEP, _LONGEST_WAIT)


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
        self._waiting: dict[_Provider, None] = {}
        """Providers of which a report waits for its turn."""
        self._coalesced = 0
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
        """Hear nothing any more. Reports that wait for their turn are told now."""
        for watch in self._watches:
            watch.cancel()
        for known in self._waiting:
            self._tell_load(known)
            self._tell_beat(known)
        self._waiting.clear()

    def catch_up(self) -> None:
        """Tell what has waited for its turn. To be called every second or so."""
        ts = self._now()
        for known in list(self._waiting):
            if self._has_turn(known.load_pace, ts):
                self._tell_load(known)
            if self._has_turn(known.beat_pace, ts):
                self._tell_beat(known)
            if known.load_pace.waiting is None and known.beat_pace.waiting is None:
                del self._waiting[known]

    def counts(self) -> Mapping[str, int]:
        """What happened so far, by a name."""
        return {"journal_records.coalesced": self._coalesced}

    def beat(self, provider: int, sent: float | None) -> None:
        """A heartbeat came. ``sent`` is the time of the peer's own clock in it, in seconds of the epoch, if known."""
        known = self._providers.get(provider)
        if known is None:
            return
        known.beats = beats = known.beats + 1
        ts, put = self._now(), self._put
        pace = known.beat_pace
        next = pace.next
        if ts < next:
            self._wait(known, pace, ts, sent)
            return
        pace.next = (next if next > ts - _AHEAD else ts - _AHEAD) + known.step
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
        known.count()
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
            known.count()
            event = "expire" if change.why == "expired" else "unregister"
            self._put(replace(offer.beat, ts=self._now(), event=event, why=change.why))

    def _left(self, change: Change) -> None:
        known = self._providers.pop(change.provider, None)
        if known is not None:
            self._waiting.pop(known, None)

    def _loaded(self, provider: int, load: float) -> None:
        known = self._providers.get(provider)
        if known is None:
            return
        ts, put = self._now(), self._put
        pace = known.load_pace
        next = pace.next
        if ts < next:
            self._wait(known, pace, ts, load)
            return
        pace.next = (next if next > ts - _AHEAD else ts - _AHEAD) + known.step
        for offer in known.offers:
            put(replace(offer.load, ts=ts, load=load))

    # what comes too fast

    def _wait(self, known: _Provider, pace: _Pace, ts: int, value: float | None) -> None:
        """Have a report wait for its turn, in the place of the one that waits."""
        before = 0
        if pace.waiting is None:
            pace.from_, pace.next = pace.next, _NEVER
        else:
            before = pace.waiting[2]
            self._coalesced += len(known.offers)
        pace.waiting = (ts, value, before + 1)
        self._waiting[known] = None

    def _has_turn(self, pace: _Pace, ts: int) -> bool:
        if pace.from_ - ts > _LONGEST_WAIT:
            pace.from_ = ts - _AHEAD  # the clock was set back
        return pace.waiting is not None and pace.from_ <= ts

    def _tell_load(self, known: _Provider) -> None:
        if (told := self._turn(known, known.load_pace)) is not None:
            ts, load, coalesced = told
            for offer in known.offers:
                self._put(replace(offer.load, ts=ts, load=load, coalesced=coalesced))

    def _tell_beat(self, known: _Provider) -> None:
        if (told := self._turn(known, known.beat_pace)) is not None:
            ts, sent, coalesced = told
            sent_ts = None if sent is None or not 0 <= sent < LATEST else microseconds(sent)
            for offer in known.offers:
                self._put(replace(offer.beat, ts=ts, hb_seq=known.beats, sent_ts=sent_ts, coalesced=coalesced))

    def _turn(self, known: _Provider, pace: _Pace) -> tuple[int, float | None, int | None] | None:
        """Take the report that waits: its time, its value, and how many others it stands for."""
        if pace.waiting is None:
            return None
        ts, value, reports = pace.waiting
        pace.waiting = None
        pace.next = max(pace.from_, ts - _AHEAD) + known.step
        return ts, value, reports - 1 or None
