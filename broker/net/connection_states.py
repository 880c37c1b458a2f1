"""The state machines of one connection over a byte stream: tables of states and events, and nothing else.

A connection has four machines, which `broker.net.connection` and `broker.net.connection_output` drive:

- `life`: the connection from its first byte to its last, in both directions.
- `output`: the destination of the session's output, and the time of its flush.
- `quantum`: the handling of input in one turn of the scheduler.
- `reads`: the size of a read.

A transition is ``self.life = self.life.on_close``: one attribute lookup, since it is on the path of each read. A state
has an attribute for each event that its table lists, and no other: any other event raises AttributeError, and mypy
knows the events of each machine. An event that the transport or a deadline may cause at any time is listed in every
state, with the same state as the next one where it has no effect.

docs/adr/0029-connections-are-tables-of-states.md has the diagrams and the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar


class MachineState:
    """A state of one machine. Its subclass names the events of that machine."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


S = TypeVar("S", bound=MachineState)


class TransitionTable(Generic[S]):
    """The transitions of one machine: rows of a state, an event and the next state. The constructor sets the
    attributes."""

    def __init__(self, rows: Iterable[tuple[S, str, S]]) -> None:
        self.rows = tuple(rows)
        for state, event, after in self.rows:
            assert not hasattr(state, f"on_{event}"), (state, event)
            setattr(state, f"on_{event}", after)


# The life of a connection.


class LifeState(MachineState):
    """A state of a connection's life.

    ``closing``: the session may write no more. ``input_ended``: the peer sends no more.
    """

    __slots__ = (
        "closing",
        "input_ended",
        "on_abort",
        "on_close",
        "on_end_of_input",
        "on_identified",
        "on_linger",
        "on_lose",
    )

    on_identified: LifeState
    """The first input is of this protocol."""
    on_end_of_input: LifeState
    """The peer sends no more."""
    on_linger: LifeState
    """All input is handled, and answers are still to come."""
    on_close: LifeState
    """The session, a limit, a deadline or the operator ends the connection in good order."""
    on_abort: LifeState
    """The peer does not read."""
    on_lose: LifeState
    """The transport reports the end."""

    def __init__(self, name: str, closing: bool = False, input_ended: bool = False) -> None:
        super().__init__(name)
        self.closing = closing
        self.input_ended = input_ended


OPENING = LifeState("opening")
"""The protocol is not identified yet: too little input, or none."""
OPEN = LifeState("open")
"""Messages are handled."""
ENDED = LifeState("ended", input_ended=True)
"""The peer has ended its output. Messages that were read may still be handled."""
LINGERING = LifeState("lingering", input_ended=True)
"""The peer has ended its output, and waits for answers to requests that were handled."""
CLOSING = LifeState("closing", closing=True)
"""The broker has ended its output. Input is discarded until the peer ends its own."""
SHUT = LifeState("shut", closing=True, input_ended=True)
"""Both sides have ended their output. The transport sends the rest."""
ABORTED = LifeState("aborted", closing=True)
"""The connection is being cut, with unsent output."""
LOST = LifeState("lost", closing=True)
"""The transport is gone."""

LIFE = TransitionTable(
    [
        (OPENING, "identified", OPEN),
        (OPENING, "end_of_input", ENDED),
        (OPENING, "close", CLOSING),
        (OPENING, "abort", ABORTED),
        (OPENING, "lose", LOST),
        (OPEN, "end_of_input", ENDED),
        (OPEN, "close", CLOSING),
        (OPEN, "abort", ABORTED),
        (OPEN, "lose", LOST),
        # A transport that resumes reading after the end of input reports the end again.
        (ENDED, "end_of_input", ENDED),
        (ENDED, "linger", LINGERING),
        (ENDED, "close", SHUT),
        (ENDED, "abort", ABORTED),
        (ENDED, "lose", LOST),
        (LINGERING, "end_of_input", LINGERING),
        (LINGERING, "close", SHUT),
        (LINGERING, "abort", ABORTED),
        (LINGERING, "lose", LOST),
        (CLOSING, "end_of_input", SHUT),
        (CLOSING, "abort", ABORTED),
        (CLOSING, "lose", LOST),
        (SHUT, "end_of_input", SHUT),
        (SHUT, "abort", ABORTED),
        (SHUT, "lose", LOST),
        # An abort takes effect in a later turn of the reactor; any event may occur until then.
        (ABORTED, "end_of_input", ABORTED),
        (ABORTED, "abort", ABORTED),
        (ABORTED, "lose", LOST),
    ]
)

# The output of a connection.


class OutputState(MachineState):
    """A state of a connection's output."""

    __slots__ = ("on_flush", "on_gather", "on_hurry", "on_pause", "on_resume")

    on_gather: OutputState
    """Output is added outside a quantum."""
    on_hurry: OutputState
    """Output is added that later output of other connections must not overtake."""
    on_flush: OutputState
    """Output is being written."""
    on_pause: OutputState
    """The transport has more than it can send."""
    on_resume: OutputState
    """The transport has room."""


CLEAR = OutputState("clear")
"""No flush is due."""
DUE = OutputState("due")
"""Output will be flushed in the next turn of the reactor."""
URGENT = OutputState("urgent")
"""Output will be flushed before anything else is written to any connection."""
BLOCKED = OutputState("blocked")
"""The peer does not read: output waits, up to a limit."""

OUTPUT = TransitionTable(
    [
        (CLEAR, "gather", DUE),
        (CLEAR, "hurry", URGENT),
        (CLEAR, "flush", CLEAR),
        (CLEAR, "pause", BLOCKED),
        (CLEAR, "resume", CLEAR),
        (DUE, "hurry", URGENT),
        (DUE, "flush", CLEAR),
        (DUE, "pause", BLOCKED),
        (DUE, "resume", DUE),
        (URGENT, "flush", CLEAR),
        (URGENT, "pause", BLOCKED),
        (URGENT, "resume", URGENT),
        (BLOCKED, "flush", BLOCKED),
        (BLOCKED, "pause", BLOCKED),
        (BLOCKED, "resume", CLEAR),
    ]
)

# The handling of input in one turn.


class QuantumState(MachineState):
    """A state of the handling of input."""

    __slots__ = ("on_begin", "on_end", "on_stop")

    on_begin: QuantumState
    """The scheduler grants a quantum."""
    on_stop: QuantumState
    """A batch of output was written, the peer does not read, or the connection is closed."""
    on_end: QuantumState
    """Handling ends, and gathered output is written."""


IDLE = QuantumState("idle")
"""No message is being handled."""
SERVING = QuantumState("serving")
"""Messages are handled; output is gathered."""
OVER = QuantumState("over")
"""The message that is being handled is the last one of this turn."""

QUANTUM = TransitionTable(
    [
        (IDLE, "begin", SERVING),
        (IDLE, "stop", IDLE),
        (SERVING, "stop", OVER),
        (SERVING, "end", IDLE),
        (OVER, "stop", OVER),
        (OVER, "end", IDLE),
    ]
)

# The size of a read.


class ReadState(MachineState):
    """A state of the size of a read."""

    __slots__ = ("on_authenticate", "on_full_read", "on_partial_read")

    on_authenticate: ReadState
    """The peer has authenticated."""
    on_full_read: ReadState
    """A read filled its buffer while no other connection had to wait."""
    on_partial_read: ReadState
    """Any other read."""


STRANGER = ReadState("stranger")
"""The peer has not authenticated: it has little to send, and reads are short."""
TRUSTED = ReadState("trusted")
"""The peer has authenticated."""
BULK = ReadState("bulk")
"""The last read was full, and no other connection waits: reads are larger."""

READS = TransitionTable(
    [
        (STRANGER, "authenticate", TRUSTED),
        (TRUSTED, "authenticate", TRUSTED),
        (TRUSTED, "full_read", BULK),
        (TRUSTED, "partial_read", TRUSTED),
        (BULK, "authenticate", TRUSTED),
        (BULK, "full_read", BULK),
        (BULK, "partial_read", TRUSTED),
    ]
)
