"""Liveness probe of one peer: one outgoing ZMTP connection that sends one message as a DEALER without keys.

States: connecting, handshake, question sent, closed. `ProbeConnection.close` is possible in each of them.

Rules:
- ``came`` is called once, when a whole message arrives, with any content.
- There is one connection attempt, without retries. A peer that refuses or ends it, uses another mechanism or socket
  type, or sends malformed input or input beyond `LIMITS` has not answered; nothing is called then.
- Input is read in small pieces and handled by the scheduler, as that of a stranger. `LIMITS` bounds all of it together:
  heartbeats and endless frames are no answer.
- Output goes to the kernel when the read that caused it is handled. It is a few hundred bytes; if the kernel has no
  room, the peer does not read, and its connection is closed. So no output is buffered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from broker.core.memory_budget import SHORT
from broker.net.fast_write import send_now
from broker.net.scheduled_input import Scheduled
from broker.net.zmtp.errors import ZmtpError
from broker.net.zmtp.limits import FrameLimits
from broker.net.zmtp.machine import Machine, Output
from broker.net.zmtp.mechanism import Claim
from broker.net.zmtp.null import Null

MAX_ANSWER = 64 * 1024
"""Bytes of one frame of an answer. Frames of DBP have some ten."""

LIMITS = FrameLimits.of_frame(MAX_ANSWER)
"""Bounds on an answer. ``message`` also bounds all input of the connection, handshake and heartbeats included."""

PEERS = frozenset([b"DEALER", b"REP", b"ROUTER"])
"""The socket types that a DEALER may connect to (RFC 28)."""


class ProbeConnection(Scheduled, Protocol):
    """One probe. All probes share ``factory``, which provides the needs of `Scheduled` and is their lane."""

    transport: Any  # an ITCPTransport over a socket of its own

    def __init__(self, factory: Any, host: str, frames: Sequence[bytes], came: Callable[[], object]) -> None:
        self.factory = factory
        self.host = host
        self._frames = frames
        self._came = came
        self._machine = Machine(Null(False), "DEALER", LIMITS, peers=PEERS)
        self._left = LIMITS.message
        """Remaining input allowance in bytes."""
        self._connector: Any = None
        """The connector of Twisted; None before `open` and once the connection is closed or closing."""

    @property
    def stranger(self) -> bool:
        """See `Scheduled`: no service authenticates to a probe."""
        return True

    def open(self, reactor: Any, port: int) -> bool:
        """Begin to connect, over IPv4. Returns False if no descriptor is available."""
        # No connect timeout: `close` ends the attempt, and a stalled reactor runs timers before it sees the connection.
        connector = reactor.connectTCP(self.host, port, _Once(self), timeout=None)
        if connector.transport.fileno() < 0:  # the reactor reports the error itself only in the next turn
            connector.stopConnecting()
            return False
        self._connector = connector
        return True

    def close(self) -> None:
        """Close, and suppress all later calls. Idempotent, and allowed in every state."""
        self.drop()
        self._machine.fail()
        connector, self._connector = self._connector, None
        if connector is not None:
            connector.disconnect()

    # from the transport

    def connectionMade(self) -> None:
        """Connection established: send the signature and version."""
        self.transport.bufferSize = SHORT
        # otherwise Nagle's algorithm delays the next output until the peer acknowledges this one
        self.transport.setTcpNoDelay(True)
        self._send(self._machine.begin())

    def dataReceived(self, data: bytes) -> None:
        """Handle bytes within the input allowance."""
        self._left -= len(data)
        if self._left < 0:
            self.close()
        else:
            self.take(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Connection lost. All input was handled before: the transport is paused until then."""
        self._connector = None
        self.drop()
        self._machine.fail()

    # from the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Decode input, and answer the handshake."""
        machine = self._machine
        output: list[bytes] = []
        try:
            for event in machine.feed(data):
                if isinstance(event, list):
                    self._came()
                    return
                if isinstance(event, Output):
                    output.append(event.data)
                elif isinstance(event, Claim):
                    output.append(machine.accept())
                    assert machine.encoder is not None
                    output.append(machine.encoder.message(self._frames))
                yield
        except ZmtpError as error:
            self._send(b"".join([*output, error.reply]))
            self.close()
        else:
            self._send(b"".join(output))

    def held_up(self) -> bool:
        """Return False: output is never buffered."""
        return False

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads, unless the connection is closed."""
        self.transport.resumeProducing()

    def abort(self) -> None:
        """Close at once after a failure."""
        self.close()

    # inside

    def _send(self, data: bytes) -> None:
        if data and self._connector is not None and send_now(self.transport, data):
            self.close()


class _Once(ClientFactory):
    """Single-use factory for one protocol. It drops its reference, which avoids a reference cycle."""

    noisy = False

    def __init__(self, protocol: ProbeConnection) -> None:
        self._protocol: ProbeConnection | None = protocol

    def buildProtocol(self, addr: IAddress | None) -> ProbeConnection | None:
        protocol, self._protocol = self._protocol, None
        return protocol

    def clientConnectionFailed(self, connector: IConnector, reason: Failure) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connectionLost(reason)

    def clientConnectionLost(self, connector: Any, reason: Failure) -> None:
        connector.transport = None
