"""Time as the rollup counts it, and the five minutes that it falls into.

Times are arrays of whole microseconds, since 1970 where they are not lengths.
"""

from datetime import UTC, date, datetime, time

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

Floats = npt.NDArray[np.float64]

Flags = npt.NDArray[np.bool_]

SECOND = 1_000_000
"""Microseconds: times are whole numbers of them, so that sums do not depend on the order of their terms."""

FIVE_MINUTES = 300 * SECOND
"""The grain of the table."""

MINUTE = 60 * SECOND

MINUTES = FIVE_MINUTES // MINUTE
"""Minutes of a window of the table."""

DAY = 24 * 3600 * SECOND

WINDOWS = DAY // FIVE_MINUTES
"""Windows of a date."""

BROKER_SILENCE = 90 * SECOND
"""The broker writes a record each minute at least. After one and a half it was not there (docs/export.md)."""

SET_BACK = SECOND
"""Time by which a clock is set back at least if that is reported, as in the broker's own log: less is the ordinary
correction of a clock."""

LIVENESS = 3
"""Intervals after which a silent provider is no longer up: the wires' own measure of an end."""

GRACE = 60 * SECOND
"""Time for providers to return after a restart of the broker: they try again every few seconds, but not all at once."""

ABSENCE = DAY
"""An instance that is away for longer was taken away; it is no longer down."""

FAR = 2**60
"""A time in microseconds that is after everything."""

DIGITS = 6
"""Decimals of stored numbers. The last bits of a sum depend on the order of its terms; these do not."""


def midnight(day: date) -> int:
    """Return the start of a date."""
    return int(datetime.combine(day, time(), UTC).timestamp()) * SECOND


def window_of(at: Ints) -> Ints:
    """Return the five minutes in which a time is, by their start."""
    return at - at % FIVE_MINUTES


def windows(from_: Ints, to: Ints) -> tuple[Ints, Ints]:
    """Return the five minutes that times touch, each with the row of its time.

    A time that has no length touches the five minutes that it is in.
    """
    first = window_of(from_)
    rows, step = repeated((window_of(np.maximum(from_, to - 1)) - first) // FIVE_MINUTES + 1)
    return rows, first[rows] + step * FIVE_MINUTES


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """Return each row as often as its count says, and the number of each repetition, from 0."""
    rows = np.repeat(np.arange(len(counts)), counts)
    begin = np.cumsum(counts) - counts
    return rows, np.arange(len(rows)) - begin[rows]


def overlap(from_: Ints, to: Ints, w: Ints) -> Ints:
    """Return the part of a time that lies in the five minutes `w`."""
    shared: Ints = np.minimum(to, w + FIVE_MINUTES) - np.maximum(from_, w)
    return np.maximum(shared, 0)


# Moments in UTC. A moment without a zone is one of UTC.


def utc(moment: datetime) -> datetime:
    """Return the same moment in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
