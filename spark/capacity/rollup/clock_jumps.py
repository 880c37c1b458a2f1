"""Clocks: the places in a broker's records at which its clock was set back.

Rules:
- The order of a start's records is that of their numbers. If a record shows an earlier time than one before it, the
  clock was set back between the two. Less than a second is the ordinary correction of a clock, and is not told.
- A drop record has the time at which it was written, and those behind it may have happened before that: they are not
  compared with it.
- A clock that was set forward looks like a broker that was not there (`broker_presence`).
- The finding changes no figure: five minutes that were there twice count once (`rollup`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark.capacity.tables.schema import Table, arrow_schema, columns
from spark.capacity.tables.time_windows import SECOND, Ints

SILVER_SET_BACK = Table(
    "silver_set_back",
    columns(
        date="date", broker="string", boot="string", seq="long", since="long", before="timestamp", after="timestamp"
    ),
    dated=True,
)
"""The records, `seq`, that show an earlier time, `after`, than the one before them, `since`, which showed `before`."""

TOLD = SECOND
"""By how much a clock is set back at least if that is told: as in the broker's own log."""

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


class Piece(NamedTuple):
    """Some records of a start, by the numbers and times of the first and the last of them."""

    broker: str
    boot: str
    seq_from: int
    seq_to: int
    first: int
    last: int


def within(start: Ints, seq: Ints, at: Ints, names: Sequence[tuple[str, str]]) -> tuple[list[Piece], list[SetBack]]:
    """Look at some records: return a piece for each start, and where clocks were set back within it."""
    if not len(seq):
        return [], []
    same = start[1:] == start[:-1]
    if not np.all((start[1:] > start[:-1]) | (same & (seq[1:] > seq[:-1]))):
        order = np.lexsort((seq, start))
        start, seq, at = start[order], seq[order], at[order]
        same = start[1:] == start[:-1]
    steps = np.flatnonzero(same & (at[:-1] - at[1:] >= TOLD))[:MOST]
    found = []
    for row in steps.tolist():
        broker, boot = names[start[row]]
        found.append(SetBack(broker, boot, int(seq[row + 1]), int(seq[row]), int(at[row]), int(at[row + 1])))
    ends = np.append(np.flatnonzero(~same), len(start) - 1)
    begins = np.append(0, ends[:-1] + 1)
    pieces = []
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        broker, boot = names[start[last]]
        pieces.append(Piece(broker, boot, int(seq[first]), int(seq[last]), int(at[first]), int(at[last])))
    return pieces, found


def set_back(pieces: Iterable[Piece], found: Iterable[SetBack]) -> list[SetBack]:
    """Return the places at which clocks were set back: found within pieces, and from one piece to the next.

    If records are divided at random, several pieces find the same jump.
    """
    told: list[SetBack] = []
    for one in sorted([*found, *_between(pieces)]):
        last = told[-1] if told else None
        if last is not None and one[:2] == last[:2] and one.since < last.seq:
            before, after = max(last.before, one.before), min(last.after, one.after)
            told[-1] = last._replace(since=max(last.since, one.since), before=before, after=after)
        else:
            told.append(one)
    return told[:MOST]


def _between(pieces: Iterable[Piece]) -> Iterator[SetBack]:
    for (broker, boot), mine in groupby(sorted(pieces), key=lambda piece: piece[:2]):
        for sooner, later in pairwise(mine):
            if sooner.seq_to < later.seq_from and sooner.last - later.first >= TOLD:
                yield SetBack(broker, boot, later.seq_from, sooner.seq_to, sooner.last, later.first)


def rows(day: date, found: Iterable[SetBack]) -> pa.Table:
    """Make rows of the table."""
    return pa.Table.from_pylist([{"date": day, **one._asdict()} for one in found], arrow_schema(SILVER_SET_BACK.schema))


def sentences(told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say of each broker how often its clock was set back, from rows of the table."""
    by: dict[str, list[timedelta]] = {}
    for row in told:
        by.setdefault(row["broker"], []).append(row["before"] - row["after"])
    return [
        f"the clock of broker {broker!r} was set back {'once' if len(mine) == 1 else f'{len(mine):,} times'}, by "
        f"{max(mine).total_seconds():,.0f} s at most: times that it showed twice count once"
        for broker, mine in sorted(by.items())
    ]
