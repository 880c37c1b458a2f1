"""Absences: the times in which an instance was down, found by those in which it was up.

Rules:
- An instance is down from the end of its up-time under all its registrations until it is up again, for a day at most;
  not while its broker is down, and not after it withdrew.
- Whose up-time ended with the broker's has a minute to come back, of a start of the broker that lasts for one. Until
  then it is not down but awaited (`awaited_s`): an instance that had the broker for twenty seconds between two of its
  ends had no time to come back. Its load is not known, and not gone.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from spark.capacity.rollup.broker_presence import Span, Stay
from spark.capacity.rollup.window_sums import FiveMinutes
from spark.capacity.tables.column_reader import BROKER, WITHDRAWN
from spark.capacity.tables.time_windows import (
    ABSENCE,
    FAR,
    FIVE_MINUTES,
    GRACE,
    Flags,
    Ints,
    overlap,
    repeated,
    windows,
)


@attrs.frozen
class Stretches:
    """Times of being up: of which instance, with which site, whether it beats, from when to when, and how it ended."""

    instance: Ints
    site: Ints
    beats: Flags
    from_: Ints
    to: Ints
    how: Ints

    def take(self, rows: Ints | Flags) -> "Stretches":
        """Return some of them."""
        return Stretches(*(getattr(self, one.name)[rows] for one in attrs.fields(type(self))))


def together(*parts: Stretches) -> Stretches:
    """Concatenate stretches of several kinds."""
    return Stretches(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in attrs.fields(Stretches)))


@attrs.frozen
class Absent:
    """Times between stretches: up to when it was up, until when it is down, and from when it counts as that."""

    site: Ints
    beats: Flags
    from_: Ints
    to: Ints
    due: Ints


def absences(
    stretches: Stretches,
    brokers: Sequence[str],
    spans: Sequence[Span],
    stays: Mapping[str, Sequence[Stay]],
    end: int,
    rows: FiveMinutes,
) -> None:
    """Add the down time of instances to the rows. `brokers` are those of the sites, `end` is that of the date."""
    absent = _between(stretches, brokers, stays, end)
    for name in set(brokers):
        mine = [span for span in spans if span.broker == name]
        of_broker = np.flatnonzero(np.array([one == name for one in brokers])[absent.site])
        _add(absent, of_broker, mine, rows)


def _between(stretches: Stretches, brokers: Sequence[str], stays: Mapping[str, Sequence[Stay]], end: int) -> Absent:
    """Find the times in which an instance is not up, and was before."""
    own = stretches.take(np.lexsort((stretches.how, stretches.to, stretches.from_, stretches.instance)))
    number = np.arange(len(own.to))
    # The latest end so far: of the instance, since the places of another's are higher.
    ends = np.lexsort((own.how, own.to))
    place = np.empty_like(number)
    place[ends] = number
    latest = ends[np.maximum.accumulate(own.instance * len(number) + place) - own.instance * len(number)]
    up_to, how = own.to[latest], own.how[latest]
    another = np.append(own.instance[1:] == own.instance[:-1], False)[: len(number)]
    next_ = np.where(another, np.append(own.from_[1:], 0)[: len(number)], FAR)
    away = (how != WITHDRAWN) & (next_ > up_to)
    to = np.minimum(np.where(another, next_, end), up_to + ABSENCE)
    away &= up_to < to
    site, up_to, to, how = own.site[latest][away], up_to[away], to[away], how[away]
    due = up_to.copy()
    for name in set(brokers):
        mine = (how == BROKER) & np.array([one == name for one in brokers])[site]
        if mine.any():
            due[mine] = _due(up_to[mine], to[mine], stays.get(name, ()))
    return Absent(site, own.beats[latest][away], up_to, to, due)


def _due(up_to: Ints, to: Ints, stays: Sequence[Stay]) -> Ints:
    """Return the time at which providers that lost a broker are due: a minute after it, if it stays for that long."""
    due = np.full_like(up_to, FAR)
    for stay in stays:
        back = np.maximum(stay.stay_from, up_to) + GRACE
        due = np.minimum(due, np.where(back <= stay.stay_to, back, FAR))
    return np.where(due == FAR, to, due)


def _add(absent: Absent, rows_of: Ints, spans: Sequence[Span], rows: FiveMinutes) -> None:
    """Add the parts of some absences that lie in the up-spans of their broker, which are in order and apart."""
    if not len(rows_of) or not spans:
        return
    from_, to = absent.from_[rows_of], absent.to[rows_of]
    span_from, span_to = (np.array([span[place] for span in spans], np.int64) for place in (2, 3))
    first = np.searchsorted(span_to, from_, side="right")
    number, step = repeated(np.maximum(np.searchsorted(span_from, to, side="left") - first, 0))
    span = first[number] + step
    row, due = rows_of[number], absent.due[rows_of][number]
    begin, end = np.maximum(from_[number], span_from[span]), np.minimum(to[number], span_to[span])
    part, w = windows(begin, end)
    due, begin, end, since = due[part], begin[part], end[part], span_from[span][part]
    begins = (due >= np.maximum(since, w)) & (due < np.minimum(end, w + FIVE_MINUTES))
    rows.add(
        absent.site[row][part],
        w,
        down=overlap(np.maximum(begin, due), end, w),
        awaited=overlap(begin, np.minimum(end, due), w),
        outages=begins.astype(np.int64),
        absent_beats=absent.beats[row][part],
    )
