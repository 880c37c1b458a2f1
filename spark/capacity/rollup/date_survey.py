"""The survey: facts about all records of a date that the count of any of them needs.

Every record is a sign of its broker's boot (`broker_presence`). The records beside lost ones give the lost time
(`lost_time`), registrations that share an instance stay in one partition (`partitioning`), and records with times out
of the order of their numbers show a clock that was set back (`clock_jumps`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark.capacity.rollup import clock_jumps
from spark.capacity.rollup.broker_presence import Signs
from spark.capacity.rollup.clock_jumps import Piece, SetBack
from spark.capacity.rollup.lost_time import Start
from spark.capacity.tables.column_reader import batches, codes, is_one, micros, numbered, of_providers, together, whole
from spark.capacity.tables.time_windows import SECOND, Ints

COLUMNS = ("broker", "boot", "seq", "ts", "event", "service", "provider", "instance")

MINUTE = 60 * SECOND
"""Signs of the same minute are one: no silence of a broker fits into it."""


class Pair(NamedTuple):
    """A registration, a provider of a service as a broker's start knows it, and an instance that it is of.

    Nearly all registrations are of one instance all the time.
    """

    broker: str
    boot: str
    service: str
    provider: int
    instance: str


@dataclass
class Survey:
    """Survey of a date, or of a part of its records."""

    minutes: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """The first and the last sign of each start in each minute."""
    pairs: Counter[Pair] = field(default_factory=Counter)
    """Number of records of each."""
    times: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Times of the records beside lost ones, by start and number."""
    pieces: list[Piece] = field(default_factory=list)
    within: list[SetBack] = field(default_factory=list)
    """Clock jumps within pieces."""

    @property
    def signs(self) -> list[Signs]:
        """The signs of all starts."""
        return [Signs(broker, boot, *ends) for (broker, boot, _), ends in self.minutes.items()]

    @property
    def set_back(self) -> list[SetBack]:
        """Return the clock jumps."""
        return clock_jumps.set_back(self.pieces, self.within)

    def add(self, other: "Survey") -> None:
        """Add the survey of another part of the records."""
        for minute, (first, last) in other.minutes.items():
            mine = self.minutes.get(minute, (first, last))
            self.minutes[minute] = (min(mine[0], first), max(mine[1], last))
        self.pairs.update(other.pairs)
        self.times.update(other.times)
        self.pieces += other.pieces
        self.within = (self.within + other.within)[: clock_jumps.MOST]


def survey(files: Sequence[str], wanted: Mapping[Start, Sequence[int]]) -> Survey:
    """Look at the records of some files; `wanted` are the numbers of those whose times are asked for."""
    made = Survey()
    for batch in batches(files, COLUMNS):
        made.add(_of(batch, wanted))
    return made


def _of(batch: pa.RecordBatch, wanted: Mapping[Start, Sequence[int]]) -> Survey:
    (broker, brokers), (boot, boots) = codes(batch["broker"]), codes(batch["boot"])
    at = micros(batch["ts"])
    start, which = numbered(broker * len(boots) + boot)
    names = [(brokers[one // len(boots)], boots[one % len(boots)]) for one in which.tolist()]
    seq = whole(batch["seq"], 0)
    timely = ~is_one(batch["event"], "drop")
    return Survey(
        _minutes(start, at, names),
        _pairs(batch, start, names),
        _times(start, seq, at, names, wanted),
        *clock_jumps.within(start[timely], seq[timely], at[timely], names),
    )


def _minutes(start: Ints, at: Ints, names: Sequence[Start]) -> dict[tuple[str, str, int], tuple[int, int]]:
    minute = at // MINUTE
    group = together(start, minute)
    row = _any_row(group)
    first, last = at[row], at[row]
    np.minimum.at(first, group, at)
    np.maximum.at(last, group, at)
    found = zip(start[row].tolist(), minute[row].tolist(), first.tolist(), last.tolist(), strict=True)
    return {(*names[one], which): (begin, end) for one, which, begin, end in found}


def _pairs(batch: pa.RecordBatch, start: Ints, names: Sequence[Start]) -> Counter[Pair]:
    mine = of_providers(batch)
    if not mine.any():
        return Counter()
    (service, services), (instance, instances) = codes(batch["service"]), codes(batch["instance"])
    provider = whole(batch["provider"], 0)
    start, service, instance, provider = start[mine], service[mine], instance[mine], provider[mine]
    group = together(start, service, instance, provider)
    row = _any_row(group)
    found = zip(
        *(array[row].tolist() for array in (start, service, provider, instance)),
        np.bincount(group).tolist(),
        strict=True,
    )
    return Counter(
        {
            Pair(names[one][0], names[one][1], services[its_service], its_provider, instances[its_instance]): records
            for one, its_service, its_provider, its_instance, records in found
        }
    )


def _times(
    start: Ints, seq: Ints, at: Ints, names: Sequence[Start], wanted: Mapping[Start, Sequence[int]]
) -> dict[tuple[str, str, int], int]:
    found = {}
    for number, name in enumerate(names):
        if name in wanted:
            rows = np.flatnonzero((start == number) & np.isin(seq, wanted[name]))
            found.update({(*name, one): when for one, when in zip(seq[rows].tolist(), at[rows].tolist(), strict=True)})
    return found


def _any_row(group: Ints) -> Ints:
    """Return a row of each group."""
    rows = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    rows[group] = np.arange(len(group))
    return rows
