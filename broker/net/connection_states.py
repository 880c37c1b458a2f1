"""The state machines of one connection over a byte stream: tables of states and events, and nothing else.

A connection has four machines, which `broker.net.connection` and `broker.net.connection_output` drive:

- `life`: from the first byte to the last one, in both directions.
- `output`: where output goes that the session writes, and when it is flushed.
- `quantum`: the handling of input in one turn of the scheduler.
- `reads`: the size of a read.

A transition is ``self.life = self.life.on[CLOSE]``: two look-ups, since it is on the path of each read. An event that
its state does not list raises `IllegalTransition`. An event that the transport or a deadline may cause at any time is
listed in every state, with the same state as the next one where it means nothing.

docs/adr/0029-connections-are-tables-of-states.md has the diagrams and the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable


class IllegalTransition(Exception):
    """An event that the state does not allow: a defect."""


class Event:
    """An event. It is compared and hashed by identity, which costs less than an enumeration's members do."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class _Next(dict[Event, "State"]):
    """The next state for each event that one state allows."""

    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def __missing__(self, event: Event) -> State:
        raise IllegalTransition(f"{event} in state {self.state}")


class State:
    """A state of one machine. ``on`` maps each event that is allowed to the next state.

    ``closing`` and ``input_ended`` are of the machine `life`: the session may write no more, and the peer sends no
    more.
    """

    __slots__ = ("closing", "input_ended", "name", "on")

    def __init__(self, name: str, closing: bool = False, input_ended: bool = False) -> None:
        self.name = name
        self.closing = closing
        self.input_ended = input_ended
        self.on = _Next(self)

    def __repr__(self) -> str:
        return self.name


Row = tuple[State, Event, State]


def _fill(rows: Iterable[Row]) -> tuple[Row, ...]:
    rows = tuple(rows)
    for state, event, after in rows:
        assert event not in state.on, (state, event)
        state.on[event] = after
    return rows


# The life of a connection.

OPENING = State("opening")
"""Nothing was read, or too little to know that it is of this protocol."""
OPEN = State("open")
"""Messages are handled."""
ENDED = State("ended", input_ended=True)
"""The peer has ended its output. Messages that were read may still be handled."""
LINGERING = State("lingering", input_ended=True)
"""The peer has ended its output, and waits for answers to requests that were handled."""
CLOSING = State("closing", closing=True)
"""The broker has ended its output. Input is discarded until the peer ends its own."""
SHUT = State("shut", closing=True, input_ended=True)
"""Both sides have ended their output. The transport sends the rest."""
ABORTED = State("aborted", closing=True)
"""The connection is being cut, with unsent output."""
LOST = State("lost", closing=True)
"""The transport is gone."""

IDENTIFIED = Event("identified")
"""The first input is of this protocol."""
END_OF_INPUT = Event("end of input")
"""The peer sends no more."""
LINGER = Event("linger")
"""All input is handled, and answers are still to come."""
CLOSE = Event("close")
"""The session, a limit, a deadline or the operator ends the connection in good order."""
ABORT = Event("abort")
"""The peer does not read."""
LOSE = Event("lose")
"""The transport reports the end."""

LIFE = _fill(
    [
        (OPENING, IDENTIFIED, OPEN),
        (OPENING, END_OF_INPUT, ENDED),
        (OPENING, CLOSE, CLOSING),
        (OPENING, ABORT, ABORTED),
        (OPENING, LOSE, LOST),
        (OPEN, END_OF_INPUT, ENDED),
        (OPEN, CLOSE, CLOSING),
        (OPEN, ABORT, ABORTED),
        (OPEN, LOSE, LOST),
        # A transport that is told to read on after the end of input reports the end again.
        (ENDED, END_OF_INPUT, ENDED),
        (ENDED, LINGER, LINGERING),
        (ENDED, CLOSE, SHUT),
        (ENDED, ABORT, ABORTED),
        (ENDED, LOSE, LOST),
        (LINGERING, END_OF_INPUT, LINGERING),
        (LINGERING, CLOSE, SHUT),
        (LINGERING, ABORT, ABORTED),
        (LINGERING, LOSE, LOST),
        (CLOSING, END_OF_INPUT, SHUT),
        (CLOSING, ABORT, ABORTED),
        (CLOSING, LOSE, LOST),
        (SHUT, END_OF_INPUT, SHUT),
        (SHUT, ABORT, ABORTED),
        (SHUT, LOSE, LOST),
        # An abort takes effect in a later turn of the reactor; until then anything may still happen.
        (ABORTED, END_OF_INPUT, ABORTED),
        (ABORTED, ABORT, ABORTED),
        (ABORTED, LOSE, LOST),
    ]
)

# The output of a connection.

CLEAR = State("clear")
"""No flush is due."""
DUE = State("due")
"""Output will be flushed in the next turn of the reactor."""
URGENT = State("urgent")
"""Output will be flushed before anything else is written to any connection."""
BLOCKED = State("blocked")
"""The peer does not read: output waits, up to a limit."""

GATHER = Event("gather")
"""Output is added outside a quantum."""
HURRY = Event("hurry")
"""Output is added that others must not overtake."""
FLUSH = Event("flush")
"""Output is being written."""
PAUSE = Event("pause")
"""The transport has more than it can send."""
RESUME = Event("resume")
"""The transport has room."""

OUTPUT = _fill(
    [
        (CLEAR, GATHER, DUE),
        (CLEAR, HURRY, URGENT),
        (CLEAR, FLUSH, CLEAR),
        (CLEAR, PAUSE, BLOCKED),
        (CLEAR, RESUME, CLEAR),
        (DUE, HURRY, URGENT),
        (DUE, FLUSH, CLEAR),
        (DUE, PAUSE, BLOCKED),
        (DUE, RESUME, DUE),
        (URGENT, FLUSH, CLEAR),
        (URGENT, PAUSE, BLOCKED),
        (URGENT, RESUME, URGENT),
        (BLOCKED, FLUSH, BLOCKED),
        (BLOCKED, PAUSE, BLOCKED),
        (BLOCKED, RESUME, CLEAR),
    ]
)

# The handling of input in one turn.

IDLE = State("idle")
"""No message is being handled."""
SERVING = State("serving")
"""Messages are handled; output is gathered."""
OVER = State("over")
"""The message that is being handled is the last one of this turn."""

BEGIN = Event("begin")
"""The scheduler grants a quantum."""
STOP = Event("stop")
"""A batch of output was written, the peer does not read, or the connection is closed."""
END = Event("end")
"""Handling ends, and gathered output is written."""

QUANTUM = _fill(
    [
        (IDLE, BEGIN, SERVING),
        (IDLE, STOP, IDLE),
        (SERVING, STOP, OVER),
        (SERVING, END, IDLE),
        (OVER, STOP, OVER),
        (OVER, END, IDLE),
    ]
)

# The size of a read.

STRANGER = State("stranger")
"""The peer has not authenticated: it has little to send, and reads are short."""
TRUSTED = State("trusted")
"""The peer has authenticated."""
BULK = State("bulk")
"""The last read was full, and no other connection waits: reads are larger."""

AUTHENTICATE = Event("authenticate")
"""The peer has authenticated."""
FULL_READ = Event("full read")
"""A read filled its buffer while no other connection had to wait."""
PARTIAL_READ = Event("partial read")
"""Any other read."""

READS = _fill(
    [
        (STRANGER, AUTHENTICATE, TRUSTED),
        (TRUSTED, AUTHENTICATE, TRUSTED),
        (TRUSTED, FULL_READ, BULK),
        (TRUSTED, PARTIAL_READ, TRUSTED),
        (BULK, AUTHENTICATE, TRUSTED),
        (BULK, FULL_READ, BULK),
        (BULK, PARTIAL_READ, TRUSTED),
    ]
)
