"""States of the journal (`broker.export.journal.Journal`), and the events that lead from one to another.

A pair that is not in `TRANSITIONS` is a defect, and raises. ADR 0028 has the diagram.

    NEW         until `start`: records wait in the queue
    RECOVERING  the thread puts in order what an earlier start left
    RUNNING     the thread writes, seals and deletes
    ENDING      `stop` came while the thread recovers
    LAST_WRITE  the thread writes what is left, with the record of the stop
    CLOSING     the thread seals what is there, and lets go of the directory
    CLOSED      nothing is done any more; the Deferred of the stop has fired

Besides, the thread has a state of its own (`Worker`), since it does one job at a time in each of them; and ``_due``
has the kinds of work that may be done now.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class State(enum.Enum):
    """State of a journal; see the head of this module."""

    NEW = enum.auto()
    RECOVERING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    LAST_WRITE = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


class Event(enum.Enum):
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


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (State.NEW, Event.START): State.RECOVERING,
    (State.NEW, Event.STOP): State.CLOSED,
    (State.RECOVERING, Event.RECOVERED): State.RUNNING,
    (State.RECOVERING, Event.STOP): State.ENDING,
    (State.RUNNING, Event.STOP): State.LAST_WRITE,
    (State.ENDING, Event.RECOVERED): State.LAST_WRITE,
    (State.ENDING, Event.TIMEOUT): State.CLOSED,
    (State.LAST_WRITE, Event.WRITTEN): State.CLOSING,
    (State.LAST_WRITE, Event.TIMEOUT): State.CLOSED,
    (State.CLOSING, Event.RELEASED): State.CLOSED,
    (State.CLOSING, Event.TIMEOUT): State.CLOSED,
    # The thread may end a job after the stop has waited long enough.
    (State.CLOSED, Event.RECOVERED): State.CLOSED,
    (State.CLOSED, Event.WRITTEN): State.CLOSED,
    (State.CLOSED, Event.RELEASED): State.CLOSED,
}

STOPPING = frozenset((State.ENDING, State.LAST_WRITE, State.CLOSING, State.CLOSED))
"""The states after the stop: no record is taken in them."""


class Worker(enum.Enum):
    """State of the thread: IDLE, then STARTING while a job is handed over, then WORKING until it has ended.

    A job may end while it is handed over: then the thread is IDLE again without having been WORKING.
    """

    IDLE = enum.auto()
    STARTING = enum.auto()
    WORKING = enum.auto()


class Work(enum.Enum):
    """Kind of work that comes again and again."""

    WRITE = enum.auto()
    SEAL = enum.auto()
    DELETE = enum.auto()
