"""Feed of the journal: changes and heartbeats of the registry, as records.

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

_NO_LABELS = frozenset(("", ANONYMOUS))
"""Labels that the provider did not give itself."""

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


class _Provider:
    """A provider that offers something, or did. One is made for each connection that offers, so it is small."""

    __slots__ = ("label", "offers", "reports", "wire")

    def __init__(self, wire: str, label: str | None) -> None:
        self.wire = wire
        self.label = label
        self.offers: list[tuple[Service, Record]] = []
        """Each service, as the very object that the registry has, and its ``register`` record."""
        self.reports: tuple[_Reports, ...] = ()
        """One for each kind that came: most connections that come and go report nothing, and cost less without."""


class _Reports:
    """The reports of one kind from a provider: their budget, the one that waits for its turn, and their records."""

    __slots__ = ("from_", "next", "number", "offers", "records", "step", "waiting")

    def __init__(self, offers: list[tuple[Service, Record]]) -> None:
        self.offers = offers
        """The provider's own list, which changes."""
        self.number = 0
        """Of heartbeats: how many came."""
        self.next = 0
        """The ``ts`` from which the next report may be told at once."""
        self.from_ = 0
        """The same while a report waits, which has the next turn: then no other one is told at once."""
        self.waiting: tuple[int, float | None, int] | None = None
        """When the newest report came, what it says, and how many came since the last one that was told."""
        self.records: Sequence[Record] = ()
        """The record of each service, without the members that differ from one report to the next. Empty until a
        report needs them, and again when the services change."""
        self.step = 0
        """Microseconds of its provider's time that a report takes. It is set with ``records``."""

    def use(self, records: Sequence[Record]) -> Sequence[Record]:
        """Set ``records``, and ``step`` with them. Returns the records."""
        self.records = records
        self.step = min(len(records) * _STEP, _LONGEST_WAIT)
        return records


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
        self._beats: dict[int, _Reports] = {}
        """The heartbeats of each provider that sent one."""
        self._loads: dict[int, _Reports] = {}
        """The loads of each provider that reported one."""
        self._waiting: dict[int, None] = {}
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
        self._watches.append(registry.watch_beats(self._beat))

    def use(self, full_loads: FullLoads) -> None:
        """Take another table."""
        self._full_loads = full_loads
        for loads in self._loads.values():
            loads.records = ()

    def stop(self) -> None:
        """Hear nothing any more. Reports that wait for their turn are told now."""
        for watch in self._watches:
            watch.cancel()
        for provider in self._waiting:
            self._tell_load(self._loads.get(provider))
            self._tell_beat(self._beats.get(provider))
        self._waiting.clear()

    def catch_up(self) -> None:
        """Tell what has waited for its turn. To be called every second or so."""
        ts = self._now()
        for provider in list(self._waiting):
            loads, beats = self._loads.get(provider), self._beats.get(provider)
            if _has_turn(loads, ts):
                self._tell_load(loads)
            if _has_turn(beats, ts):
                self._tell_beat(beats)
            if not (_waits(loads) or _waits(beats)):
                del self._waiting[provider]

    def counts(self) -> Mapping[str, int]:
        """Counts of what happened so far, by name."""
        return {"journal_records.coalesced": self._coalesced}

    # from the registry

    def _offered(self, change: Change) -> None:
        service, id = change.subject, change.provider
        assert isinstance(service, Service)
        known = self._providers.get(id)
        if known is None:
            if id == BROKER:
                return
            origin = self._registry.wire_and_label(id)
            if origin is None:
                return  # gone again before this was told
            wire, label = origin
            known = self._providers[id] = _Provider(wire, None if label in _NO_LABELS else label)
        for reports in known.reports:
            reports.records = ()
        record = Record(
            self._now(),
            "register",
            known.wire,
            service.name,
            id,
            known.label,
            service.hostport,
            service.protocol,
            interval_ms=_milliseconds(service.interval),
        )
        known.offers.append((service, record))
        self._put(record)

    def _amended(self, change: Change) -> None:
        known, service = self._providers.get(change.provider), change.subject
        assert isinstance(service, Service)
        if known is not None:
            key = (service.name, service.protocol)
            for place, (offered, record) in enumerate(known.offers):
                if (offered.name, offered.protocol) == key:
                    known.offers[place] = (service, replace(record, interval_ms=_milliseconds(service.interval)))
                    for reports in known.reports:
                        reports.records = ()
                    return

    def _withdrawn(self, change: Change) -> None:
        known = self._providers.get(change.provider)
        if known is None:
            return
        subject, why = change.subject, change.why
        for place, (service, record) in enumerate(known.offers):
            if service is subject:
                del known.offers[place]
                for reports in known.reports:
                    reports.records = ()
                event = "expire" if why == "expired" else "unregister"
                self._put(replace(record, ts=self._now(), event=event, why=why))
                return

    def _left(self, change: Change) -> None:
        id = change.provider
        known = self._providers.pop(id, None)
        if known is not None and known.reports:
            for table in (self._beats, self._loads, self._waiting):
                table.pop(id, None)

    def _loaded(self, provider: int, load: float) -> None:
        loads = self._loads.get(provider) or self._first(self._loads, provider)
        if loads is None:
            return
        ts, put = self._now(), self._put
        next = loads.next
        if ts < next:
            self._wait(provider, loads, ts, load)
            return
        records = loads.records or self._load_records(loads)
        loads.next = (next if next > ts - _AHEAD else ts - _AHEAD) + loads.step
        for record in records:
            put(replace(record, ts=ts, load=load))

    def _beat(self, provider: int, sent: float | None) -> None:
        beats = self._beats.get(provider) or self._first(self._beats, provider)
        if beats is None:
            return
        beats.number = number = beats.number + 1
        ts, put = self._now(), self._put
        next = beats.next
        if ts < next:
            self._wait(provider, beats, ts, sent)
            return
        records = beats.records or self._beat_records(beats)
        beats.next = (next if next > ts - _AHEAD else ts - _AHEAD) + beats.step
        sent_ts = None if sent is None or not 0 <= sent < LATEST else microseconds(sent)
        for record in records:
            put(replace(record, ts=ts, hb_seq=number, sent_ts=sent_ts))

    # reports

    def _first(self, table: dict[int, _Reports], provider: int) -> _Reports | None:
        """The new entry of a provider in that table; None if the provider never offered anything."""
        known = self._providers.get(provider)
        if known is None:
            return None
        reports = table[provider] = _Reports(known.offers)
        known.reports += (reports,)
        return reports

    def _beat_records(self, beats: _Reports) -> Sequence[Record]:
        """Make the ``records`` of heartbeats."""
        return beats.use([replace(record, event="hb") for _, record in beats.offers])

    def _load_records(self, loads: _Reports) -> Sequence[Record]:
        """Make the ``records`` of loads."""
        full = self._full_loads.of
        return loads.use(
            [
                replace(record, event="load", interval_ms=None, full_load=full(service.name))
                for service, record in loads.offers
            ]
        )

    # what comes too fast

    def _wait(self, provider: int, reports: _Reports, ts: int, value: float | None) -> None:
        """Have a report wait for its turn, in the place of the one that waits."""
        before = 0
        if reports.waiting is None:
            reports.from_, reports.next = reports.next, _NEVER
        else:
            before = reports.waiting[2]
            self._coalesced += len(reports.offers)
        reports.waiting = (ts, value, before + 1)
        self._waiting[provider] = None

    def _tell_load(self, loads: _Reports | None) -> None:
        if loads is not None and loads.waiting is not None:
            records = loads.records or self._load_records(loads)
            ts, load, coalesced = _turn(loads, loads.waiting)
            for record in records:
                self._put(replace(record, ts=ts, load=load, coalesced=coalesced))

    def _tell_beat(self, beats: _Reports | None) -> None:
        if beats is not None and beats.waiting is not None:
            records = beats.records or self._beat_records(beats)
            ts, sent, coalesced = _turn(beats, beats.waiting)
            sent_ts = None if sent is None or not 0 <= sent < LATEST else microseconds(sent)
            for record in records:
                self._put(replace(record, ts=ts, hb_seq=beats.number, sent_ts=sent_ts, coalesced=coalesced))


def _waits(reports: _Reports | None) -> bool:
    return reports is not None and reports.waiting is not None


def _has_turn(reports: _Reports | None, ts: int) -> bool:
    if reports is None or reports.waiting is None:
        return False
    if reports.from_ - ts > _LONGEST_WAIT:
        reports.from_ = ts - _AHEAD  # the clock was set back
    return reports.from_ <= ts


def _turn(reports: _Reports, waiting: tuple[int, float | None, int]) -> tuple[int, float | None, int | None]:
    """Take the report that waits: its time, its value, and how many others it stands for."""
    ts, value, count = waiting
    reports.waiting = None
    reports.next = max(reports.from_, ts - _AHEAD) + reports.step
    return ts, value, count - 1 or None


def _milliseconds(interval: float | None) -> int | None:
    return None if interval is None else round(interval * 1000)
