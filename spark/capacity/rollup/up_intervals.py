"""Pieces: the time after breaks, divided by the times in which the broker was there.

Rules:
- The state of a break holds until the next record, and no longer than the broker's start lives.
- A provider that beats is up for three intervals of known time after its last record, any other all the time. After
  more than 90 s without a broker, life is counted from the broker's return.
- Beats are expected in all of it; after such a return from a minute later on.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from spark.capacity.rollup.broker_presence import Span
from spark.capacity.rollup.lost_time import Hidden
from spark.capacity.rollup.registrations import Lived, Names
from spark.capacity.rollup.window_sums import FiveMinutes
from spark.capacity.tables.registration_ends import BROKER, CLOSED, OPEN, SILENT
from spark.capacity.tables.time_windows import FAR, FIVE_MINUTES, GRACE, LIVENESS, Ints, overlap, repeated, windows


@attrs.frozen
class Pieces:
    """Pieces, each of the break in `row`: from when to when the registration was connected, up to when it was up, from
    when on beats are expected of it, and how its up-time ended."""

    row: Ints
    from_: Ints
    until: Ints
    up_to: Ints
    expect_from: Ints
    how: Ints


def pieces_of(lives: Lived, names: Names, spans: Sequence[Span], hidden: Hidden) -> Pieces:
    """Divide the time after the breaks; the `spans` of a start are in order and apart."""
    records = lives.records
    breaks = np.flatnonzero(~lives.short & (records.ended == OPEN))
    at = records.at[breaks]
    to = np.maximum(np.where(lives.last[breaks], FAR, lives.next[breaks]), at)
    row, span = _crossed(records.start[breaks], at, to, names, spans)
    span_from, span_to = (np.array([one[place] for one in spans], np.int64)[span] for place in (2, 3))
    returned = np.array([one.returned for one in spans], bool)[span]
    row, at, to = breaks[row], at[row], to[row]
    from_, until = np.maximum(at, span_from), np.minimum(to, span_to)
    anew = returned & (span_from > at)
    base, interval, start = np.where(anew, span_from, at), records.interval[row], records.start[row]
    alive = hidden.when(start, base - hidden.lost(start, base) + interval * LIVENESS)
    up_to = np.where(interval > 0, np.minimum(until, alive), until)
    how = np.where(up_to < until, SILENT, np.where(until < to, BROKER, CLOSED))
    return Pieces(row, from_, until, up_to, np.where(anew, np.maximum(from_, span_from + GRACE), from_), how)


def _crossed(start: Ints, at: Ints, to: Ints, names: Names, spans: Sequence[Span]) -> tuple[Ints, Ints]:
    """Return pairs of times and the spans of their start that they touch, as two arrays of rows."""
    first, count = np.zeros_like(at), np.zeros_like(at)
    begin, end = (np.array([one[place] for one in spans], np.int64) for place in (2, 3))
    mine: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(spans):
        mine.setdefault((one.broker, one.boot), []).append(number)
    for number, name in enumerate(names.starts):
        if name in mine:
            rows, its = slice(*np.searchsorted(start, (number, number + 1))), slice(mine[name][0], mine[name][-1] + 1)
            before = np.searchsorted(end[its], at[rows], side="left")
            first[rows] = mine[name][0] + before
            count[rows] = np.maximum(np.searchsorted(begin[its], to[rows], side="right") - before, 0)
    row, step = repeated(count)
    return row, first[row] + step


def add_pieces(pieces: Pieces, lives: Lived, hidden: Hidden, rows: FiveMinutes) -> None:
    """Add the times of pieces to the five minutes that they touch."""
    piece, w = windows(pieces.from_, pieces.until)
    row, from_, until = pieces.row[piece], pieces.from_[piece], pieces.until[piece]
    records = lives.records
    start, load, interval = records.start[row], records.load[row], records.interval[row]
    up = overlap(from_, pieces.up_to[piece], w)
    expect_from = pieces.expect_from[piece]
    due = overlap(expect_from, until, w)
    inside = np.minimum(until, w + FIVE_MINUTES)
    hidden_so_far = hidden.lost(start, inside)
    due = np.where(due > 0, due - hidden_so_far + hidden.lost(start, np.maximum(expect_from, w)), 0)
    rows.add(
        records.site[row],
        w,
        connected=overlap(from_, until, w),
        up=up,
        loaded=np.where(np.isnan(load), 0, up),
        load=np.where(np.isnan(load), 0.0, up * load),
        load_max=np.where(up > 0, load, np.nan),
        expected=np.divide(due, interval, out=np.zeros(len(due)), where=interval > 0),
        gap=(inside - from_ - hidden_so_far + hidden.lost(start, from_)).astype(np.float64),
        full_load=records.full_load[row],
        beats=interval > 0,
    )
