"""State machine of the journal (`broker.export.journal.Journal`): states, events and transitions.

A pair that is not in `TRANSITIONS` is a defect, and raises. ADR 0028 has the diagram.

    NEW         before `start`: records wait in the queue
    RECOVERING  the thread repairs and seals the files of earlier starts
    RUNNING     the thread writes, seals and deletes
    ENDING      `stop` was called while the thread recovers
    LAST_WRITE  the thread writes the rest, with the record of the stop
    CLOSING     the thread seals all files, and releases the directory
    CLOSED      terminal; the Deferred of the stop has fired

The thread has states of its own (`JournalWorker`), since it does one job at a time in each state of the journal.
`JournalWork` has the recurring kinds of work.
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
    """The thread has completed the recovery, as far as possible."""
    WRITTEN = enum.auto()
    """The last write succeeded, or failed for the last time."""
    RELEASED = enum.auto()
    """The directory was released, or could not be closed in good order."""
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
    # A job may end after the timeout of the stop.
    (JournalState.CLOSED, JournalEvent.RECOVERED): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.WRITTEN): JournalState.CLOSED,
    (JournalState.CLOSED, JournalEvent.RELEASED): JournalState.CLOSED,
}

STOPPING = frozenset((JournalState.ENDING, JournalState.LAST_WRITE, JournalState.CLOSING, JournalState.CLOSED))
"""States after the stop: no record is accepted."""


class JournalWorker(enum.Enum):
    """State of the thread: IDLE, then STARTING while a job is handed over, then WORKING until it ends.

    A job may end during its hand-over: then the thread is IDLE again without having been WORKING.
    """

    IDLE = enum.auto()
    STARTING = enum.auto()
    WORKING = enum.auto()


class JournalWork(enum.Enum):
    """Recurring kind of work."""

    WRITE = enum.auto()
    SEAL = enum.auto()
    DELETE = enum.auto()
