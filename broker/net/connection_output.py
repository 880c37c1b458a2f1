"""The output of one connection: gathered while input is handled, and written in batches.

`ConnectionOutput` is the base of `broker.net.connection.StreamConnection`; `broker.net.connection_states` has its
states (`output`, `quantum`).

Rules:
- Output is gathered while messages are handled (a quantum), and written at once when that is done, or when a batch is
  full. Output that is added at other times, such as a notice that another connection caused, is flushed in the next
  turn of the reactor.
- Output that another connection must receive first (`write_first`) is flushed before anything else is written.
- While the peer does not read, output waits. Over the limit ``write_buffer``, the connection is cut.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from broker.net.connection_states import BLOCKED, CLEAR, DUE, IDLE, OPEN, URGENT, LifeState, OutputState, QuantumState
from broker.net.fast_write import send_now
from broker.net.scheduled_input import Scheduled

if TYPE_CHECKING:
    from broker.net.admission import ConnectionFactory

BATCH = 65_536
"""Bytes of output after which it is written, and a quantum ends: one full send, and no more than a few ms of work."""


class ConnectionOutput(Scheduled):
    """The output of one connection. A subclass has `not_reading`, and drives the states by the transport's events."""

    factory: ConnectionFactory
    transport: Any  # an ITCPTransport that is a producer and a consumer

    # Class attributes: most connections never change them, which makes an idle one small.
    life: LifeState = OPEN
    output: OutputState = CLEAR
    quantum: QuantumState = IDLE
    _out_size = 0
    _direct = False  # a plain socket: output may be given to the kernel at once

    def __init__(self) -> None:
        self._out: list[bytes] = []

    def not_reading(self) -> None:
        """Cut the connection, since its peer does not read."""
        raise NotImplementedError

    @property
    def behind(self) -> bool:
        """True if the peer has still to read much of its output."""
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
        elif handling:
            # A peer with that much output has had its share of this turn.
            self.quantum = self.quantum.on_stop
            self.flush()
        elif output is CLEAR:
            self.output = output.on_gather
            self.factory.turns.flush_later(self)

    def write_first(self, data: bytes) -> None:
        """Send one encoded message before all that any connection is sent from now on."""
        self.write(data)
        # A peer that does not read keeps its output, and must not delay the others.
        if self._out and (self.output is CLEAR or self.output is DUE):
            self.output = self.output.on_hurry
            self.factory.turns.flush_before(self)

    def flush(self) -> None:
        """Write gathered output, unless the peer does not read. Output that others must receive first goes before."""
        before = self.output
        # Before the writes: each of them may block the output.
        self.output = before.on_flush
        if self.factory.turns.first:
            self.factory.turns.flush_first()
        while self._out and self.output is not BLOCKED and not self.life.closing:
            data = self._take()
            if self._direct:
                data = send_now(self.transport, data)
            if data:
                self.transport.write(data)
        if before is URGENT and not self._direct:
            # A TLS transport sends in the next turn, which would be after what others are written now.
            push = getattr(self.transport, "push", None)
            if push is not None:
                push()

    def _take(self) -> bytes:
        """Take a batch of gathered output, or all of it: a peer that reads slowly costs no copies of the rest."""
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
