"""Rules of a good record, shared by the two readers of segments (`fast_reader` and `line_reader`)."""

from datetime import UTC, datetime, timedelta

REQUIRED = ("v", "ts", "broker", "boot", "seq", "event")
"""Members that each record has."""

OF_BROKER = ("alive", "drop")
"""Events of a broker; all others are of a provider, and name it and its service."""

MEASURES = ("load", "full_load", "latency_ms", "rtt_ms", "requests", "errors", "in_flight")
"""Members that are no less than 0, and not infinite."""

POSITIVE = ("interval_ms", "full_load", "dropped")
"""Members that say nothing if they are 0 or less."""

DISTINCT = ("ts", "seq", "hb_seq", "sent_ts")
"""Columns that have another value in each record: Parquet would make a dictionary of them first, and throw it away."""

EARLIEST = datetime(2001, 1, 1, tzinfo=UTC)
"""No broker is older; a clock that says so was never set."""

FUTURE = timedelta(days=1)
"""Tolerance for a broker's clock that is ahead: more than this is a wrong clock, and would move every forecast."""

LATEST_SENT = datetime(2200, 1, 1, tzinfo=UTC)
"""A provider's own clock may be wrong, but not so that later readers cannot show the date."""

LINE_LIMIT = 1 << 20
"""Bytes of a line that are surely read: a record has some hundred. A longer one may be passed over, which shows as
loss."""


def micros(when: datetime) -> int:
    """Tell a time as the journal does."""
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
