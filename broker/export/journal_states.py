"""States of the journal (`broker.export.journal.Journal`), and the events that lead from one to another.

A pair that is not in `TRANSITIONS` is a defect, and raises. ADR 0028 has the diagram.

    NEW         until `start`: records wait in the queue
    RECOVERING  the thread puts in order what an earlier start left
    RUNNING     the thread writes, seals and deletes
    ENDING      `stop` came while the thread recovers
    LAST_WRITE  the thread writes what is left, with the record of the stop
    CLOSING     the thread seals what is there, and lets go of the directory
    CLOSED      nothing is done any more; the Deferred of the stop has fired

The thread has a state of its own (`JournalWorker`), since it does one job at a time in each of them. The kinds of work
that come again and again are `JournalWork`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class JournalState(enum.Enum):
    """State of a journal; see the head of this module."""

    NEW = enum.auto()
    RECOVERING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    LAST_WRITE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class JournalEvent(enum.Enum):
    """Event that may change the state."""

    START = enum.auto()
    STOP = enum.auto()
    RECOVERED = enum.auto()
    """The thread has recovered what it could."""
    WRITTEN = enum.auto()
    """The last write succeeded, or failed for the last time."""
    RELEASED = enum.auto()
    """The directory is free, or could not be closed in good order."""
    TIMEOUT = enum.auto()
    """The stop has taken `STOP_SECONDS`."""


TRANSITIONS: Mapping[tuple[JournalState, JournalEvent], JournalState] = {
    (JournalState.NEW, JournalEvent.START): JournalState.RECOVERING,
    (JournalState.NEW, JournalEvent.STOP): JournalState.CLOSED,
    (JournalState.RECOVERING, JournalEvent.RECOVERED): JournalState.RUNNING,
    (JournalState.RECOVERING, JournalEvent.STOP): JournalState.ENDING,
    (JournalState.RUNNING, JournalEvent.STOP): JournalState.LAST_WRITE,
    (JournalState.ENDING, JournalEvent.RECOVERED): JournalState.LAST_WRITE,
    (JournalState.ENDING, JournalEvent.TIMEOUT): JournalState.CLOSED,
    (JournalState.LAST_WRITE, JournalEvent.WRITTEN): JournalState.CLOSING,
    (JournalState.LAST_WRITE, JournalEvent.TIMEOUT): JournalState.CLOSED,
    (JournalState.CLOSING, JournalEvent.RELEASED): JournalState.CLOSED,
    (JournalState.CLOSING, JournalEvent.TIMEOUT): JournalState.CLOSED,
    # The thread may end a job after the stop has waited long enough.
    (JournalState.CLOSED, JournalEvent.RECOVERED): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.WRITTEN): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.RELEASED): JournalState.CLOSED,
}

STOPPING = frozenset((JournalState.ENDING, JournalState.LAST_WRITE, JournalState.CLOSING, JournalState.CLOSED))
"""The states after the stop: no record is taken in them."""


class JournalWorker(enum.Enum):
    """State of the thread: IDLE, then STARTING while a job is handed over, then WORKING until it has ended.

    A job may end while it is handed over: then the thread is IDLE again without having been WORKING.
    """

    IDLE = enum.auto()
    STARTING = enum.auto()
    WORKING = enum.auto()


class JournalWork(enum.Enum):
    """Kind of work that comes again and again."""

    WRITE = enum.auto()
    SEAL = enum.auto()
    DELETE = enum.auto()
