"""Output buffer of one connection: gathered while input is handled, written in batches.

`ConnectionOutput` is the base of `broker.net.connection.StreamConnection`; `broker.net.connection_states` has its
states (`output`, `quantum`).

Rules:
- Output is gathered during a quantum, and written at its end or when a batch is full. Output that is added at other
  times, such as a notice caused by another connection, is flushed in the next turn of the reactor.
- Output that another connection must receive first (`write_first`) is flushed before any other write.
- While the peer does not read, output waits. Over the limit ``write_buffer``, the connection is aborted.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from broker.core.errors import Refusal
from broker.core.memory_budget import SHORT, Share
from broker.net.connection_states import BLOCKED, CLEAR, DUE, IDLE, OPEN, URGENT, LifeState, OutputState, QuantumState
from broker.net.epoll_streams import await_room, send_now, unsent
from broker.net.scheduled_input import Scheduled

if TYPE_CHECKING:
    from broker.net.admission import ConnectionFactory

BATCH = 65_536
"""Bytes of output that end a quantum and start a write: one full send, and at most a few ms of work."""


class ConnectionOutput(Scheduled):
    """The output of one connection. A subclass has `not_reading`, and drives the states by the transport's events."""

    factory: ConnectionFactory
    transport: Any  # an ITCPTransport that is a producer and a consumer

    # Class attributes as defaults: an idle connection has no instance entries for them, which saves memory.
    life: LifeState = OPEN
    output: OutputState = CLEAR
    quantum: QuantumState = IDLE
    _socket: Any = None  # the connection at the bottom of the transport stack, if that is a plain socket
    _out_size = 0
    _direct = False  # a plain socket: output may go to the kernel at once

    def __init__(self) -> None:
        self._out: list[bytes] = []

    @property
    def trusted(self) -> bool:
        """See `broker.core.memory_budget.Consumer`."""
        raise NotImplementedError

    def evict(self, refusal: Refusal) -> None:
        """See `broker.core.memory_budget.Consumer`."""
        raise NotImplementedError

    def not_reading(self) -> None:
        """Abort the connection, since its peer does not read."""
        raise NotImplementedError

    @property
    def behind(self) -> bool:
        """Return True if much output is still unread by the peer."""
        return self.output is BLOCKED or self._out_size >= BATCH or getattr(self.transport, "behind", False)

    def write(self, data: bytes) -> None:
        """Send one encoded message."""
        self._out.append(data)
        self._out_size += len(data)
        handling = self.quantum is not IDLE
        if handling and self._out_size < BATCH:
            return
        output = self.output
        if self.life.closing:
            self._out.clear()
        elif output is BLOCKED:
            if self._out_size > self.factory.limits.write_buffer:
                self.not_reading()
            else:
                self.hold_output()
        elif handling:
            # A full batch of output is the fair share of one turn.
            self.quantum = self.quantum.on_stop
            self.flush()
        elif output is CLEAR:
            self.output = output.on_gather
            self.factory.turns.flush_later(self)

    def write_first(self, data: bytes) -> None:
        """Send one encoded message before all later writes of any connection."""
        self.write(data)
        # A peer that does not read keeps its output buffered, and must not delay other connections.
        if self._out and (self.output is CLEAR or self.output is DUE):
            self.output = self.output.on_hurry
            self.factory.turns.flush_before(self)

    def flush(self) -> None:
        """Write gathered output, unless the peer does not read. Urgent output of other connections is written first."""
        before = self.output
        # The transition precedes the writes, since each write may block the output.
        self.output = before.on_flush
        if self.factory.turns.first:
            self.factory.turns.flush_first()
        while self._out and self.output is not BLOCKED and not self.life.closing:
            data = self._take()
            if self._direct:
                data = send_now(self.transport, data)
            if data:
                self.transport.write(data)
                if self._direct and len(data) > SHORT:
                    await_room(self.transport)
        if before is URGENT and not self._direct:
            # A TLS transport sends in the next turn, which would be after the writes to other connections in this one.
            push = getattr(self.transport, "push", None)
            if push is not None:
                push()

    def hold_output(self) -> None:
        """Account for the output that the peer has not read. This may disconnect it."""
        below = getattr(self.transport, "unread", 0) if self._socket is None else unsent(self._socket)
        self.factory.memory.hold(self, Share.OUTPUT, self._out_size + below)

    def _take(self) -> bytes:
        """Take one batch of gathered output, or all of it if it is small: a slow reader costs no copy of the rest."""
        out = self._out
        if self._out_size <= 2 * BATCH:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
        else:
            sizes = accumulate(len(part) for part in out)
            count = next((i for i, size in enumerate(sizes, 1) if size >= BATCH), len(out))
            data = b"".join(out[:count])
            del out[:count]
        self._out_size -= len(data)
        return data
