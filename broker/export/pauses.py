"""Pauses in which the journal's thread leaves the interpreter lock to the reactor.

A busy thread releases the lock in each system call. But most of these take some microseconds, and a waiting reactor
takes longer to wake up: it finds the lock taken again, and keeps waiting, possibly for as long as there is work, tens
of milliseconds. So after a little work the thread sleeps for longer than a wake-up takes.
"""

from __future__ import annotations

import time

from broker.blocking import blocking

PAUSE_SECONDS = 0.0002
"""Length of a pause in seconds: four times a wake-up on an idle core, and less than the work before it."""


@blocking
def pause() -> None:
    """Yield the interpreter lock. To be called after each fraction of a millisecond of work."""
    time.sleep(PAUSE_SECONDS)
