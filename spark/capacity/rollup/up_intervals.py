"""Pieces, and the minutes in them: the time after breaks, divided by the times in which the broker was there.

The state of a break holds until the next record, and no longer than the broker's start lives (`date_rollup`).
"""

from collections.abc import Sequence

import attrs
import numpy as np

from spark.capacity.rollup.broker_presence import Span
from spark.capacity.rollup.lost_time import Hidden
from spark.capacity.rollup.registrations import Lived, Names
from spark.capacity.rollup.window_sums import FiveMinutes, Minutes
from spark.capacity.tables.column_reader import BROKER, CLOSED, OPEN, SILENT
from spark.capacity.tables.time_windows import (
    DAY,
    FAR,
    FIVE_MINUTES,
    GRACE,
    LIVENESS,
    MINUTE,
    MINUTES,
    WINDOWS,
    Floats,
    Ints,
    overlap,
    repeated,
    windows,
)


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


# Minutes: by how much the load of an instance was above or below the mean of its five minutes, in each of them.
#
# The load that a registration reports is a step function. Where the same registrations report theirs for all of a
# window, the changes within it are enough: the mean is known, and a change at some time raises the rest of the window.
# So there is a row for each change of a load, whatever the number of records.
#
# Rules:
# - A window in which an instance registers, ends, is silent, reports its first load, or loses its broker has no
#   minutes: a load that is not known in one of them must not look like one that rose in another. The five minutes
#   stand.
# - Of an instance with two registrations, with one broker or two, the loads are averaged, as those of the window are.
# - A window without a change has no minutes either: they are all the same.


def minutes_of(lives: Lived, pieces: Pieces, names: Names, begin: int) -> Minutes:
    """Find the minutes of the date that begins at `begin`."""
    row, from_, to = _told(lives, pieces)
    records = lives.records
    instance, registration, load = names.instance_of[records.site[row]], records.registration[row], records.load[row]
    # One load follows another without a break.
    goes_on = (instance[1:] == instance[:-1]) & (registration[1:] == registration[:-1]) & (from_[1:] == to[:-1])
    first, last = np.append(True, ~goes_on)[: len(row)], np.append(~goes_on, True)[: len(row)]
    broken = _keys(
        np.append(instance[first], instance[last]), np.append(from_[first], to[last]), np.ones(2 * first.sum()), begin
    )[0]
    next_ = np.flatnonzero(goes_on) + 1
    keys, at, by = _keys(instance[next_], from_[next_], load[next_] - load[next_ - 1], begin)
    whole = ~np.isin(keys, broken)
    return _rises(keys[whole], at[whole], by[whole])


def _told(lives: Lived, pieces: Pieces) -> tuple[Ints, Ints, Ints]:
    """Return the times for which a load is reported, in the order of the records: the record, from when, and to when.

    Records that follow each other with the same load are one: there are many beats for each load.
    """
    records, short = lives.records, lives.short & ~np.isnan(lives.records.load)
    load, site = records.load, records.site
    goes_on = short[1:] & short[:-1] & (load[1:] == load[:-1]) & (site[1:] == site[:-1])
    first = np.flatnonzero(short & np.append(True, ~goes_on)[: len(short)])
    last = np.flatnonzero(short & np.append(~goes_on, True)[: len(short)])
    longer = np.flatnonzero(~np.isnan(load[pieces.row]))
    row = np.append(first, pieces.row[longer])
    from_, to = np.append(records.at[first], pieces.from_[longer]), np.append(lives.next[last], pieces.up_to[longer])
    order = np.argsort(row, kind="stable")
    order = order[to[order] > from_[order]]
    return row[order], from_[order], to[order]


def _keys(instance: Ints, at: Ints, by: Floats, begin: int) -> tuple[Ints, Ints, Floats]:
    """Return the windows in which something changes, when in them, and by how much.

    What changes with the beginning of a window changes nothing within it.
    """
    window, inside = (at - begin) // FIVE_MINUTES, at % FIVE_MINUTES
    within = (by != 0) & (inside > 0) & (at >= begin) & (at < begin + DAY)
    return (instance * WINDOWS + window)[within], inside[within], by[within]


def _rises(keys: Ints, inside: Ints, by: Floats) -> Minutes:
    """Add up the changes of each window: one is there for a part of its minute, and for all later ones."""
    of, number = np.unique(keys, return_inverse=True)
    place, shape = number * MINUTES + inside // MINUTE, (len(of), MINUTES)
    made = np.bincount(place, by * (1 - inside % MINUTE / MINUTE), minlength=len(of) * MINUTES).reshape(shape)
    whole = np.bincount(place, by, minlength=len(of) * MINUTES).reshape(shape)
    made[:, 1:] += np.cumsum(whole, axis=1)[:, :-1]
    # Divided first: the sum of the largest numbers would be none.
    return Minutes(of, made - (made / MINUTES).sum(axis=1, keepdims=True))
