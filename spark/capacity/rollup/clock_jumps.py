"""Clocks: the places in a broker's records at which its clock was set back.

Rules:
- The order of a start's records is that of their numbers. If a record shows an earlier time than the one before it, the
  clock was set back between the two (`SET_BACK`): they are in two runs (`ingest/runs.py`).
- A drop record has the time at which it was written, and those behind it may have happened before that: they are not
  compared with it.
- A clock that was set forward looks like a broker that was not there (`broker_presence`).
- The finding changes no figure: five minutes that were there twice count once (`rollup`).
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import SILVER_SET_BACK
from spark.capacity.tables.time_windows import SET_BACK

MOST = 1000
"""Jumps reported of a date: bad input could have any number of them."""


class SetBack(NamedTuple):
    """Record `seq` of a start shows the time `after`; the one before it that is known, `since`, showed a later time."""

    broker: str
    boot: str
    seq: int
    since: int
    before: int
    after: int


class Run(NamedTuple):
    """Some records of a start that follow each other: the numbers and times of the first and the last of them, and the
    earliest and the latest time."""

    broker: str
    boot: str
    seq_from: int
    seq_to: int
    ts_from: int
    ts_to: int
    earliest: int
    latest: int


def set_back(runs: Iterable[Run]) -> list[SetBack]:
    """Return the places at which clocks were set back; `runs` are all but those of drop records."""
    jumps = (
        SetBack(*later[:3], sooner.seq_to, sooner.ts_to, later.ts_from)
        for sooner, later in pairwise(sorted(runs))
        if sooner[:2] == later[:2] and sooner.ts_to - later.ts_from >= SET_BACK
    )
    return list(islice(jumps, MOST))


def rows(day: date, found: Iterable[SetBack]) -> pa.Table:
    """Make rows of the table."""
    return pa.Table.from_pylist([{"date": day, **one._asdict()} for one in found], arrow_schema(SILVER_SET_BACK.schema))


def sentences(told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each broker whose clock was set back, from rows of the table."""
    by: dict[str, list[timedelta]] = {}
    for row in told:
        by.setdefault(row["broker"], []).append(row["before"] - row["after"])
    return [
        f"the clock of broker {broker!r} was set back {'once' if len(mine) == 1 else f'{len(mine):,} times'}, by "
        f"{max(mine).total_seconds():,.0f} s at most: times that it showed twice count once"
        for broker, mine in sorted(by.items())
    ]
