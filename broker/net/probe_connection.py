"""One question to a peer: one outgoing ZMTP connection, which sends one message as a DEALER without keys.

States: connecting, handshake, question sent, closed. `ProbeConnection.close` is possible in each of them.

Rules:
- ``came`` is called once, when a whole message came back, whatever is in it.
- It makes one connection, and none after it. A peer that refuses it, ends it, uses another mechanism or socket type, or
  sends what is malformed or beyond `LIMITS` has not answered; nothing is called then.
- Input is read in small pieces and handled by the scheduler, as that of a stranger. All of it together is bounded by
  `LIMITS`: heartbeats and frames without an end are no answer.
- Output is given to the kernel when the read that caused it is handled. It is a few hundred bytes; a peer for which the
  kernel has no room does not read, and its connection is closed. So nothing waits here for a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twisted.internet.interfaces import IAddress, IConnector
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from broker.net.fast_write import send_now
from broker.net.scheduled_input import Scheduled
from broker.net.unfinished_input import SHORT
from broker.net.zmtp.errors import ZmtpError
from broker.net.zmtp.limits import FrameLimits
from broker.net.zmtp.machine import Machine, Output
from broker.net.zmtp.mechanism import Claim
from broker.net.zmtp.null import Null

MAX_ANSWER = 64 * 1024
"""Bytes of one frame of an answer. Those of DBP have some ten."""

LIMITS = FrameLimits.of_frame(MAX_ANSWER)
"""Bounds on an answer. ``message`` also bounds all input of the connection, handshake and heartbeats included."""

PEERS = frozenset([b"DEALER", b"REP", b"ROUTER"])
"""The socket types that a DEALER talks to (RFC 28)."""


class ProbeConnection(Scheduled, Protocol):
    """One question. ``factory`` is common to all of them: it gives what `Scheduled` needs, and is their lane."""

    transport: Any  # an ITCPTransport over a socket of its own
    stranger = True

    def __init__(self, factory: Any, host: str, frames: Sequence[bytes], came: Callable[[], object]) -> None:
        self.factory = factory
        self.host = host
        self._frames = frames
        self._came = came
        self._machine = Machine(Null(False), "DEALER", LIMITS, peers=PEERS)
        self._left = LIMITS.message
        """Bytes of input that are still allowed."""
        self._connector: Any = None
        """The connection in Twisted's hands; None before `open` and when it is closed, or about to be."""

    def open(self, reactor: Any, port: int) -> bool:
        """Begin to connect, over IPv4. Returns False if there is no descriptor for it."""
        # No time-out: `close` ends it, and a reactor that stood still runs timers before it sees the connection.
        connector = reactor.connectTCP(self.host, port, _Once(self), timeout=None)
        if connector.transport.fileno() < 0:  # the error itself is reported in the next turn only
            connector.stopConnecting()
            return False
        self._connector = connector
        return True

    def close(self) -> None:
        """Close, and call nothing any more. May be called in every state, and again."""
        self.drop()
        self._machine.fail()
        connector, self._connector = self._connector, None
        if connector is not None:
            connector.disconnect()

    # from the transport

    def connectionMade(self) -> None:
        """The connection is there: show our version."""
        self.transport.bufferSize = SHORT
        self.transport.setTcpNoDelay(True)  # what is sent next would wait for the peer's acknowledgement otherwise
        self._send(self._machine.begin())

    def dataReceived(self, data: bytes) -> None:
        """Bytes were read."""
        self._left -= len(data)
        if self._left < 0:
            self.close()
        else:
            self.take(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is gone. All that was read has been handled: the transport is not read from before."""
        self._connector = None
        self.drop()
        self._machine.fail()

    # from the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Handle what was read."""
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
        """Nothing holds it up: output never waits."""
        return False

    def pause_reading(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Read on, unless the connection is closed."""
        self.transport.resumeProducing()

    def abort(self) -> None:
        """Close at once: it failed."""
        self.close()

    # inside

    def _send(self, data: bytes) -> None:
        if data and self._connector is not None and send_now(self.transport, data):
            self.close()


class _Once(ClientFactory):
    """Gives Twisted the one protocol of one connection. It leaves no cycle of references behind."""

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
