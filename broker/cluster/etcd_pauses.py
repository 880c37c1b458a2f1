"""Pauses of a member before it repeats something at etcd, in seconds: all of them, so that they fit each other."""

from __future__ import annotations

from broker.backoff import Backoff

SESSION_RETRY = Backoff(first=0.1, most=2.0, factor=2.0, jitter=0.5)
"""Pause before another session. A recovering etcd gives one TTL to come back in, so it stays short."""

DENIED_RETRY = Backoff(first=2.0, most=30.0, factor=2.0, jitter=0.2)
"""Pause after refused credentials: an operator has to act, and each attempt costs etcd a tenth of a second."""

SESSION_STABLE = 10.0
"""Seconds after which a session counts as a success, and the pauses are short again."""

KEEPALIVE_RETRY = 0.5
"""Seconds after which a failed keepalive is repeated."""

SPACE_RETRY = 5.0
"""Seconds between attempts to write while etcd has no space. An operator has to act, so there is no hurry."""

REFUSED_RETRY = 60.0
"""Seconds after which a unit that etcd refuses as invalid is tried again: only its next value is likely to help."""

WRITE_RETRY = 0.1
"""Seconds after which a write is repeated whose condition did not hold, though the table says so: the event that tells
why takes some milliseconds."""

SILENCE = 4.0
"""Seconds after which a beat that has been written must have arrived. A slow disk delays etcd for some tenths of a
second; a failover must leave time within the TTL."""

WATCH_SILENT = Backoff(first=SILENCE, most=60.0, factor=2.0, jitter=0.2)
"""Pause in seconds without an event until a watch is replaced. The first is that of a missing beat; a watch in a minute
is no load of etcd, and an alarm lasts until an operator acts."""

WATCH_ENDED = Backoff(first=0.1, most=5.0, factor=2.0, jitter=0.5)
"""Pause in seconds after the end of a watch, for watches that end one after the other without an event."""
