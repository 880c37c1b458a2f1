"""Hidden time: lost records of a broker's start, as a part of its time.

Rules:
- The records of a start are numbered in their order. If numbers are missing, nothing is known of the time from the
  record before them to the one after: it is hidden. So one record that is lost among many hides a fraction of a second,
  and n of them, where r come each second, hide n / r seconds.
- A provider that was there before is there in hidden time too. No beat is expected in it, and no life runs out in it.
- Of a silence that is longer than the broker's own nothing need be hidden: it counts as the broker's. Nor is any time
  hidden where the clock was set back.
- Losses before a start's first record, and after its last, hide nothing: no provider is known to be there then.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spark.capacity.tables.time_windows import BROKER_SILENCE, Ints

Start = tuple[str, str]
"""A broker and its boot: one start of it."""


class Missing(NamedTuple):
    """Numbers of records that are not there, the first and the last included."""

    broker: str
    boot: str
    seq_from: int
    seq_to: int


class Gap(NamedTuple):
    """A hidden time."""

    broker: str
    boot: str
    gap_from: int
    gap_to: int


def joined(loss: Iterable[Missing]) -> list[Missing]:
    """Join gaps that follow each other: of one gap, a part may be known and another not."""
    found: list[Missing] = []
    for row in sorted(loss):
        last = found[-1] if found and found[-1][:2] == row[:2] else None
        if last is not None and row.seq_from <= last.seq_to + 1:
            found[-1] = last._replace(seq_to=max(last.seq_to, row.seq_to))
        else:
            found.append(row)
    return found


def beside(loss: Iterable[Missing]) -> dict[Start, list[int]]:
    """Return the numbers of the records before and after each gap, by their start."""
    found: dict[Start, list[int]] = {}
    for row in loss:
        found.setdefault((row.broker, row.boot), []).extend((row.seq_from - 1, row.seq_to + 1))
    return found


def find_gaps(
    loss: Iterable[Missing], times: Mapping[tuple[str, str, int], int], before: Mapping[Start, int]
) -> list[Gap]:
    """Return the hidden times.

    `loss` is joined; `times` tells when the records `beside` it were. The record before it may be of the day before;
    then it was the last one, and `before` tells when that was.
    """
    made = []
    for row in loss:
        start = (row.broker, row.boot)
        first, last = times.get((*start, row.seq_from - 1), before.get(start)), times.get((*start, row.seq_to + 1))
        if first is not None and last is not None and 0 < last - first <= BROKER_SILENCE:
            made.append(Gap(*start, first, last))
    return apart(made)


def apart(gaps: Iterable[Gap]) -> list[Gap]:
    """Return the gaps in order, and none into another: after a clock was set back, some would be."""
    made: list[Gap] = []
    for gap in sorted(gaps):
        last = made[-1] if made and made[-1][:2] == gap[:2] else None
        first = gap.gap_from if last is None else max(gap.gap_from, last.gap_to)
        if first < gap.gap_to:
            made.append(gap._replace(gap_from=first))
    return made


class Clock:
    """A clock of one start that stands still in hidden time, made of the start's gaps, in order."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._from = np.array([gap.gap_from for gap in gaps], np.int64)
        self._to = np.array([gap.gap_to for gap in gaps], np.int64)
        self._lost = np.cumsum(np.concatenate(([0], self._to - self._from)))

    def lost(self, at: Ints) -> Ints:
        """Return the hidden time until some times."""
        gap = np.searchsorted(self._from, at, side="right") - 1
        inside = np.minimum(at, self._to[gap]) - self._from[gap]
        return np.where(gap < 0, 0, self._lost[gap] + inside)

    def when(self, known: Ints) -> Ints:
        """Return the first moments at which this clock has got so far."""
        gaps = np.searchsorted(self._from - self._lost[:-1], known, side="left")
        made: Ints = known + self._lost[gaps]
        return made


class Hidden:
    """The clocks of starts, which go by numbers; the rows that it is asked about are in the order of these."""

    def __init__(self, gaps: Iterable[Gap], starts: Sequence[Start]) -> None:
        mine: dict[Start, list[Gap]] = {}
        for gap in gaps:
            mine.setdefault((gap.broker, gap.boot), []).append(gap)
        self._clocks = {number: Clock(mine[start]) for number, start in enumerate(starts) if start in mine}

    def lost(self, start: Ints, at: Ints) -> Ints:
        """Return the hidden time of each row's start until a time."""
        made = np.zeros_like(at)
        for number, clock in self._clocks.items():
            rows = slice(*np.searchsorted(start, (number, number + 1)))
            made[rows] = clock.lost(at[rows])
        return made

    def when(self, start: Ints, known: Ints) -> Ints:
        """Return the time at which the clock of each row's start has got so far."""
        made = known.copy()
        for number, clock in self._clocks.items():
            rows = slice(*np.searchsorted(start, (number, number + 1)))
            made[rows] = clock.when(known[rows])
        return made
