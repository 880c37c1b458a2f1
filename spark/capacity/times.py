"""Time as the rollup counts it, and the five minutes that it falls into."""

from pyspark.sql import Column
from pyspark.sql import functions as F

SECOND = 1_000_000
"""Microseconds: times are whole numbers of them, so that sums do not depend on the order of their terms."""

FIVE_MINUTES = 300 * SECOND
"""The grain of the table."""

DAY = 24 * 3600 * SECOND

BROKER_SILENCE = 90 * SECOND
"""The broker writes a record each minute at least. After one and a half it was not there (docs/export.md)."""

LIVENESS = 3
"""Intervals after which a silent provider is no longer up: the wires' own measure of an end."""

GRACE = 60 * SECOND
"""What providers have to come back after the broker did: they try again every few seconds, but not all at once."""

ABSENCE = DAY
"""An instance that is away for longer was taken away; it is no longer down."""

FAR = 2**60
"""A time in microseconds that is after everything."""

DIGITS = 6
"""Decimals of what is stored. The last bits of a sum depend on the order of its terms; these do not."""


def window_of(at: Column) -> Column:
    """Return the five minutes in which a time is, by their start."""
    return at - at % FIVE_MINUTES


def windows(from_: Column, to: Column) -> Column:
    """Return the five minutes that a time touches; one that has no length touches the one that it is in."""
    last = window_of(F.greatest(from_, to - 1))
    return F.sequence(window_of(from_), last, F.lit(FIVE_MINUTES).cast("long"))


def overlap(from_: Column, to: Column) -> Column:
    """Return how much of a time lies in the five minutes `w`."""
    end = F.least(to, F.col("w") + FIVE_MINUTES)
    return F.greatest(end - F.greatest(from_, F.col("w")), F.lit(0))
