"""Pauses in which the journal's thread leaves the interpreter to the reactor.

A thread that works lets go of the interpreter in each call of the system. But most of those take some microseconds,
and a reactor that waits takes longer to wake up: it finds the interpreter taken again, and waits anew. That can go on
for as long as there is work, tens of milliseconds. So after a little work the thread sleeps, for longer than waking up
takes.
"""

from __future__ import annotations

import time

REST_SECONDS = 0.0002
"""Seconds of sleep: four times what waking up takes where a core is free, and less than the work before it."""


def rest() -> None:
    """Leave the interpreter to the reactor. To be called after each fraction of a millisecond of work."""
    time.sleep(REST_SECONDS)
