"""Feed of the journal: changes and heartbeats of the registry, as records.

Rules:
- The broker's own services are omitted: they need no capacity planning.
- An offered service is a ``register`` record, a removed one an ``unregister``, or an ``expire`` if its provider was
  silent for too long.
- An interval that becomes longer is recorded at once, as an ``unregister`` and a ``register``: until the first
  heartbeat at the new one a reader would take the provider for silent. Any other counts from the next record on.
- Another zone is recorded likewise: only ``register`` records have it.
- A load report makes a record for each service of the provider; so does a heartbeat.
- Rate limit: of each kind, a provider has `RECORDS` records a second, and a burst. Faster reports *coalesce*: the
  newest one waits for its turn, and its records have the number of the reports that it replaces. So a flood costs its
  own provider's records, and leaves the journal's queue to the others. A report that waits when the provider leaves is
  discarded. The details of loads that coalesce are summed (`add_details`).
- A changed label of a provider makes no record: it counts from the next one on.
- A time of the peer's clock is omitted if it is outside of the range that readers can represent.
- `FullLoads` has the full load of a service. Services that are not in it have none in their records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate

from msgspec.structs import replace

from broker.core.detail_sums import add_details
from broker.core.interfaces import IRegistry
from broker.core.model import ANONYMOUS, BROKER, Change, Kind, LoadDetails, Service
from broker.export.journal_records import Record, microseconds, with_details, with_zone

KEPT = 10_000
"""Limit of the cache of full loads, in names: as many as a farm has; a few megabytes at most."""

RECORDS = 100
"""Rate limit of a provider, in records of loads, and of heartbeats, a second: five times the rate at the shortest
interval of heartbeats. The queue has room for 2,000 providers that flood for a second."""

IN_ADVANCE = 1_000
"""Burst of a provider, in records: one report of a provider with a thousand services."""

LONGEST_WAIT = 60.0
"""Longest wait of a report, in seconds, whatever its number of records, so that each service has a load in each five
minutes."""

_STEP = 1_000_000 // RECORDS
"""Cost of a record in the provider's budget, in microseconds (token bucket)."""

_AHEAD = IN_ADVANCE * _STEP
"""Size of the bucket, in microseconds."""

_LONGEST_WAIT = int(LONGEST_WAIT * 1_000_000)
"""Longest wait, and highest cost of a report, in microseconds."""

_NO_LABELS = frozenset(("", ANONYMOUS))
"""Labels that are placeholders and not from the provider."""

_NEVER = 2**62
"""A ``ts`` beyond that of any clock."""

LATEST = 253_402_300_800.0
"""The year 10000, in seconds since the epoch. Readers have no later dates, and far later ones overflow their
integers."""


class FullLoads:
    """Full loads by patterns of service names (shell patterns, case-sensitive).

    The first pattern that matches applies.
    """

    def __init__(self, table: Sequence[tuple[Sequence[str], float]]) -> None:
        self._table = [(re.compile("|".join(map(translate, patterns)) or r"(?!)"), load) for patterns, load in table]
        self._kept: dict[str, float | None] = {}

    def of(self, name: str) -> float | None:
        """Return the load at which a provider of that service is full; None if it is not configured."""
        try:
            return self._kept[name]
        except KeyError:
            load = next((load for pattern, load in self._table if pattern.match(name)), None)
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[name] = load
            return load


class _Provider:
    """Entry of a provider that offers services, or did earlier. Small, since each connection that offers has one."""

    __slots__ = ("label", "offers", "reports", "wire")

    def __init__(self, wire: str, label: str | None) -> None:
        self.wire = wire
        self.label = label
        self.offers: list[tuple[Service, Record]] = []
        """Each service, the registry's own object, and its ``register`` record."""
        self.reports: tuple[_Reports, ...] = ()
        """One for each kind that came. Created on demand: most short-lived connections report nothing."""


class _Reports:
    """Reports of one kind from a provider: rate limit, waiting report, and record templates."""

    __slots__ = ("details", "from_", "next", "number", "offers", "records", "step", "waiting")

    def __init__(self, offers: list[tuple[Service, Record]]) -> None:
        self.offers = offers
        """The provider's own list, which changes."""
        self.number = 0
        """Number of heartbeats received."""
        self.next = 0
        """The ``ts`` from which the next report is recorded at once."""
        self.from_ = 0
        """The same while a report waits, which comes first: until then no other one is recorded at once."""
        self.details: LoadDetails | None = None
        """Details of the loads since the last recorded one, all together."""
        self.waiting: tuple[int, float | None, int] | None = None
        """Time and value of the newest report, and the number of reports since the last recorded one."""
        self.records: Sequence[Record] = ()
        """Template of the record of each service, without the members that differ between reports. Empty until a report
        needs them, and again when the services change."""
        self.step = 0
        """Cost of a report in microseconds. Set together with ``records``."""

    def use(self, records: Sequence[Record]) -> Sequence[Record]:
        """Set ``records`` and ``step``. Returns the records."""
        self.records = records
        self.step = min(len(records) * _STEP, _LONGEST_WAIT)
        return records


class JournalFeed:
    """Feed of a journal from ``registry``. ``put`` adds a record; ``now`` returns the ``ts``."""

    def __init__(
        self, registry: IRegistry, put: Callable[[Record], None], now: Callable[[], int], full_loads: FullLoads
    ) -> None:
        self._registry = registry
        self._put = put
        self._now = now
        self._full_loads = full_loads
        self._providers: dict[int, _Provider] = {}
        self._beats: dict[int, _Reports] = {}
        """Heartbeats of each provider that sent one."""
        self._loads: dict[int, _Reports] = {}
        """Loads of each provider that reported one."""
        self._waiting: dict[int, None] = {}
        """Providers with a waiting report."""
        self._coalesced = 0
        callbacks = {
            Kind.OFFERED: self._offered,
            Kind.AMENDED: self._amended,
            Kind.WITHDRAWN: self._withdrawn,
            Kind.LEFT: self._left,
            Kind.RELABELLED: self._relabelled,
        }
        self._watches = [registry.watch(tell, (kind,), own=True) for kind, tell in callbacks.items()]
        self._watches.append(registry.watch_loads(self._loaded, own=True))
        self._watches.append(registry.watch_beats(self._beat))

    def use(self, full_loads: FullLoads) -> None:
        """Replace the table of full loads."""
        self._full_loads = full_loads
        for loads in self._loads.values():
            loads.records = ()

    def stop(self) -> None:
        """Cancel all watches, and record the waiting reports."""
        for watch in self._watches:
            watch.cancel()
        for provider in self._waiting:
            self._record_load(self._loads.get(provider))
            self._record_beat(self._beats.get(provider))
        self._waiting.clear()

    def catch_up(self) -> None:
        """Record the waiting reports that are due. To be called about once a second."""
        ts = self._now()
        for provider in list(self._waiting):
            loads, beats = self._loads.get(provider), self._beats.get(provider)
            if _has_turn(loads, ts):
                self._record_load(loads)
            if _has_turn(beats, ts):
                self._record_beat(beats)
            if not (_waits(loads) or _waits(beats)):
                del self._waiting[provider]

    def counts(self) -> Mapping[str, int]:
        """Return the counters by name."""
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
                return  # left before this notification was delivered
            wire, label = origin
            known = self._providers[id] = _Provider(wire, _label(label))
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
        self._register(service, record)

    def _register(self, service: Service, record: Record) -> None:
        self._put(record if service.zone is None else with_zone(record, service.zone))

    def _amended(self, change: Change) -> None:
        known, service = self._providers.get(change.provider), change.subject
        assert isinstance(service, Service)
        if known is not None:
            key = (service.name, service.protocol)
            for place, (offered, record) in enumerate(known.offers):
                if (offered.name, offered.protocol) == key:
                    ts = self._now()
                    amended = replace(record, ts=ts, interval_ms=_milliseconds(service.interval))
                    known.offers[place] = (service, amended)
                    for reports in known.reports:
                        reports.records = ()
                    if service.zone != offered.zone or _is_longer(service.interval, offered.interval):
                        self._put(replace(record, ts=ts, event="unregister", why="amended"))
                        self._register(service, amended)
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

    def _relabelled(self, change: Change) -> None:
        known, label = self._providers.get(change.provider), change.subject
        assert isinstance(label, str)
        if known is not None:
            known.label = _label(label)
            # In place: the reports have the same list.
            known.offers[:] = [(service, replace(record, label=known.label)) for service, record in known.offers]
            for reports in known.reports:
                reports.records = ()

    def _loaded(self, provider: int, load: float, details: LoadDetails | None) -> None:
        loads = self._loads.get(provider) or self._first(self._loads, provider)
        if loads is None:
            return
        ts, put = self._now(), self._put
        next = loads.next
        if ts < next:
            loads.details = add_details(loads.details, details)
            self._wait(provider, loads, ts, load)
            return
        records = loads.records or self._load_records(loads)
        # Token bucket in units of time: unused time counts, up to `_AHEAD`.
        loads.next = (next if next > ts - _AHEAD else ts - _AHEAD) + loads.step
        if details is None:
            for record in records:
                put(replace(record, ts=ts, load=load))
        else:
            for record in records:
                put(with_details(replace(record, ts=ts, load=load), details))

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
        """Create the entry of a provider in that table; None if the provider never offered anything."""
        known = self._providers.get(provider)
        if known is None:
            return None
        reports = table[provider] = _Reports(known.offers)
        known.reports += (reports,)
        return reports

    def _beat_records(self, beats: _Reports) -> Sequence[Record]:
        """Create the record templates of heartbeats."""
        return beats.use([replace(record, event="hb") for _, record in beats.offers])

    def _load_records(self, loads: _Reports) -> Sequence[Record]:
        """Create the record templates of loads."""
        full = self._full_loads.of
        return loads.use(
            [
                replace(record, event="load", interval_ms=None, full_load=full(service.name))
                for service, record in loads.offers
            ]
        )

    # rate limit

    def _wait(self, provider: int, reports: _Reports, ts: int, value: float | None) -> None:
        """Make a report wait for its turn, in place of the one that waits."""
        before = 0
        if reports.waiting is None:
            # A ``next`` beyond all times sends later reports here, where they coalesce.
            reports.from_, reports.next = reports.next, _NEVER
        else:
            before = reports.waiting[2]
            self._coalesced += len(reports.offers)
        reports.waiting = (ts, value, before + 1)
        self._waiting[provider] = None

    def _record_load(self, loads: _Reports | None) -> None:
        if loads is not None and loads.waiting is not None:
            records = loads.records or self._load_records(loads)
            ts, load, coalesced = _turn(loads, loads.waiting)
            details, loads.details = loads.details, None
            for record in records:
                made = replace(record, ts=ts, load=load, coalesced=coalesced)
                self._put(made if details is None else with_details(made, details))

    def _record_beat(self, beats: _Reports | None) -> None:
        if beats is not None and beats.waiting is not None:
            records = beats.records or self._beat_records(beats)
            ts, sent, coalesced = _turn(beats, beats.waiting)
            sent_ts = None if sent is None or not 0 <= sent < LATEST else microseconds(sent)
            for record in records:
                self._put(replace(record, ts=ts, hb_seq=beats.number, sent_ts=sent_ts, coalesced=coalesced))


def _label(label: str) -> str | None:
    return None if label in _NO_LABELS else label


def _waits(reports: _Reports | None) -> bool:
    return reports is not None and reports.waiting is not None


def _has_turn(reports: _Reports | None, ts: int) -> bool:
    if reports is None or reports.waiting is None:
        return False
    if reports.from_ - ts > _LONGEST_WAIT:
        reports.from_ = ts - _AHEAD  # the clock was set back
    return reports.from_ <= ts


def _turn(reports: _Reports, waiting: tuple[int, float | None, int]) -> tuple[int, float | None, int | None]:
    """Remove the waiting report. Returns its time, its value, and the number of reports that it replaces."""
    ts, value, count = waiting
    reports.waiting = None
    reports.next = max(reports.from_, ts - _AHEAD) + reports.step
    return ts, value, count - 1 or None


def _is_longer(interval: float | None, before: float | None) -> bool:
    """Return True if less often a heartbeat is due than before."""
    return before is not None and (interval is None or interval > before)


def _milliseconds(interval: float | None) -> int | None:
    return None if interval is None else round(interval * 1000)
