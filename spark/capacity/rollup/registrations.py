"""Registrations: the records of each of them, one after the other.

A *registration* is a provider of a service, as a broker's start knows it. Each of its records holds until the next
one.

Rules:
- Within a registration records are ordered by their number, and not by the clock, which may jump; a record that is
  there twice counts once.
- A record is *short* when its registration is up until the next one and no silence of the broker can lie between: most
  records are, and need no look at when the broker was there. All others are breaks. The records between two breaks are
  an island: the registration is up in it all the time.
- Names go by numbers: starts, registrations of these, and *sites*, which are a broker with a service and an instance of
  it. An instance may change within a registration.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np
import pyarrow as pa

from spark.capacity.rollup.date_survey import Pair, pairs_in
from spark.capacity.rollup.lost_time import Hidden
from spark.capacity.tables.column_reader import (
    OPEN,
    batches,
    codes,
    ends,
    groups_with,
    is_one,
    micros,
    of_providers,
    real,
    whole,
)
from spark.capacity.tables.time_windows import BROKER_SILENCE, DAY, LIVENESS, Flags, Floats, Ints

T = TypeVar("T")

COLUMNS = (
    "broker", "boot", "service", "provider", "instance", "event", "why", "seq", "ts", "interval_ms", "load",
    "full_load", "requests", "errors", "latency_ms", "in_flight", "rtt_ms",
)  # fmt: skip


class Names:
    """The numbers of all names of a part. Starts are in order, and the registrations of each follow each other."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        pairs = sorted(pairs)
        self.starts = sorted({(pair.broker, pair.boot) for pair in pairs})
        self.registrations = sorted({pair[:4] for pair in pairs})
        self.sites = sorted({(pair.broker, pair.service, pair.instance) for pair in pairs})
        self.instances = sorted({site[1:] for site in self.sites})
        """Services, each with an instance of it."""
        self._starts = _numbers(self.starts)
        self._services = _numbers(sorted({pair.service for pair in pairs}))
        self._instances = _numbers(sorted({pair.instance for pair in pairs}))
        self._providers = np.unique(np.array([pair.provider for pair in pairs], np.int64))
        self._pairs = _numbers(pairs)
        registrations, sites, instances = _numbers(self.registrations), _numbers(self.sites), _numbers(self.instances)
        self.start_of = np.array([self._starts[one[:2]] for one in self.registrations], np.int64)
        """The start of each registration."""
        self.instance_of = np.array([instances[site[1:]] for site in self.sites], np.int64)
        """The instance of each site."""
        self.registration = np.array([registrations[pair[:4]] for pair in pairs], np.int64)
        """The registration of each pair."""
        self.site = np.array([sites[pair.broker, pair.service, pair.instance] for pair in pairs], np.int64)
        """The site of each pair."""
        keys = self._keys_of(
            np.array([self._starts[pair[:2]] for pair in pairs], np.int64),
            np.array([self._services[pair.service] for pair in pairs], np.int64),
            np.array([self._instances[pair.instance] for pair in pairs], np.int64),
            np.searchsorted(self._providers, [pair.provider for pair in pairs]),
        )
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def _keys_of(self, start: Ints, service: Ints, instance: Ints, provider: Ints) -> Ints:
        """Make one number of four."""
        made = (start * len(self._services) + service) * len(self._instances) + instance
        return made * len(self._providers) + provider

    def of(self, batch: pa.RecordBatch) -> tuple[Flags, Ints]:
        """Return a mask of the records of the part, and the pairs of these."""
        (broker, brokers), (boot, boots) = codes(batch["broker"]), codes(batch["boot"])
        starts = np.array([[self._starts.get((one, other), -1) for other in boots] for one in brokers], np.int64)
        start = starts[broker, boot]
        service, instance = _known(batch["service"], self._services), _known(batch["instance"], self._instances)
        told = whole(batch["provider"], -1)
        provider = np.minimum(np.searchsorted(self._providers, told), len(self._providers) - 1)
        known = (start >= 0) & (service >= 0) & (instance >= 0) & (self._providers[provider] == told)
        mine = known & of_providers(batch)
        keys = self._keys_of(start, service, instance, provider)[mine]
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        there = self._keys[place] == keys
        mine[mine] = there
        return mine, self._order[place[there]]

    def numbers(self, pairs: Iterable[Pair]) -> Ints:
        """Return the numbers of pairs."""
        return np.array([self._pairs[pair] for pair in pairs], np.int64)


def _numbers(names: Sequence[T]) -> dict[T, int]:
    return {name: number for number, name in enumerate(names)}


def _known(column: pa.DictionaryArray, numbers: dict[str, int]) -> Ints:
    """Return the numbers of a column's names, -1 for those that are none of ours."""
    mine, names = codes(column)
    return np.array([*(numbers.get(name, -1) for name in names), -1], np.int64)[mine]


@attrs.frozen
class Records:
    """Records of registrations. Nothing is known of numbers that are NaN, and of intervals that are 0."""

    start: Ints
    registration: Ints
    site: Ints
    seq: Ints
    at: Ints
    ended: Ints
    interval: Ints
    load: Floats
    full_load: Floats
    hb: Ints
    requests: Floats
    errors: Floats
    latency: Floats
    in_flight: Floats
    rtt: Floats

    def take(self, rows: Ints | Flags) -> "Records":
        """Return some of the records."""
        return Records(*(getattr(self, one.name)[rows] for one in attrs.fields(type(self))))


def read(files: Sequence[str], names: Names, carried: Records) -> Records:
    """Read the records of a part, behind those carried over."""
    read_ = batches(files, COLUMNS, lambda metadata: groups_with(metadata, names.instances))
    parts = [carried, *(_of(batch, names) for batch in read_ if len(batch))]
    return Records(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in attrs.fields(Records)))


def of_state(state: pa.Table, names: Names) -> Records:
    """Return the rows of a state (`end_state`) as records: the last ones of the day before."""
    pair = names.numbers(pairs_in(state))
    registration, nothing = names.registration[pair], np.full(len(state), np.nan)
    return Records(
        names.start_of[registration],
        registration,
        names.site[pair],
        whole(state["seq"], 0),
        whole(state["at"], 0),
        whole(state["ended"], OPEN),
        whole(state["interval"], 0),
        real(state["load"]),
        real(state["full_load"]),
        np.zeros(len(state), np.int64),
        *[nothing] * 5,
    )


def _of(batch: pa.RecordBatch, names: Names) -> Records:
    mine, pair = names.of(batch)
    registration = names.registration[pair]
    return Records(
        names.start_of[registration],
        registration,
        names.site[pair],
        whole(batch["seq"], 0)[mine],
        micros(batch["ts"])[mine],
        ends(batch)[mine],
        np.maximum(whole(batch["interval_ms"], 0)[mine], 0) * 1000,
        real(batch["load"])[mine],
        real(batch["full_load"])[mine],
        is_one(batch["event"], "hb")[mine].astype(np.int64),
        real(batch["requests"])[mine],
        real(batch["errors"])[mine],
        real(batch["latency_ms"])[mine],
        real(batch["in_flight"])[mine],
        real(batch["rtt_ms"])[mine],
    )


@attrs.frozen
class Lived:
    """Records in the order of their registrations and numbers, with the state from each of them on.

    `first` is the row of the first record of the registration, `next` when the next record came, 0 where there is
    none; `lost` how much was hidden until the record, and `known` how much of the time until the next one was not.
    """

    records: Records
    first: Ints
    last: Flags
    next: Ints
    lost: Ints
    known: Ints
    short: Flags


def lived(records: Records, hidden: Hidden) -> Lived:
    """Sort the records, and find the state from each of them until the next one."""
    records = records.take(np.lexsort((records.seq, records.registration)))
    same = records.registration[1:] == records.registration[:-1]
    again = np.append(same & (records.seq[1:] == records.seq[:-1]), False)
    if again.any():
        records = records.take(~again)
        same = records.registration[1:] == records.registration[:-1]
    row = np.arange(len(records.at))
    first = np.maximum.accumulate(np.where(np.append(False, same)[: len(row)], 0, row))
    last = ~np.append(same, False)[: len(row)]
    records = attrs.evolve(
        records,
        interval=_held(records.interval, records.interval > 0, first, 0),
        load=_held(records.load, ~np.isnan(records.load), first, np.nan),
        full_load=_held(records.full_load, ~np.isnan(records.full_load), first, np.nan),
    )
    at = records.at
    next_ = np.where(last, 0, np.append(at[1:], 0)[: len(row)])
    lost = hidden.lost(records.start, at)
    length = next_ - at
    known = length - np.maximum(np.append(lost[1:], 0)[: len(row)] - lost, 0)
    alive = (records.interval == 0) | (known <= records.interval * LIVENESS)
    short = (
        ~last
        & (records.ended == OPEN)
        & (length >= 0)
        & (length <= BROKER_SILENCE)
        & alive
        & (at // DAY == next_ // DAY)
    )
    return Lived(records, first, last, next_, lost, np.maximum(known, 0), short)


def _held(values: Any, told: Flags, first: Ints, missing: float) -> Any:
    """Return the last reported value in each registration, up to each row."""
    row = np.maximum.accumulate(np.where(told, np.arange(len(values)), -1))
    return np.where(row >= first, values[row], missing).astype(values.dtype)
