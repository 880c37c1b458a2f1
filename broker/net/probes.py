"""Liveness probes of peers, each over a ZMTP connection of its own.

Rules:
- A question is one message to one address, which `broker.net.outgoing_addresses` must permit. Any whole message on its
  connection proves liveness.
- It ends with the answer or at its deadline, which counts from `Probes.ask`.
- If the reactor is late for the deadline, it was stalled and could not read: the deadline is extended once by the
  lateness, at most by its original duration. So an answer in the kernel's buffer counts. A punctual reactor adds one
  turn.
- There is one connection attempt. After a refusal or an early end there is no retry, and the deadline expires: a peer
  that announces a foreign address does not cause ten connections a second there, and the next question comes soon.
- At most `MOST` questions are open; the others queue in order. A question still queued at its deadline is put off: it
  proves nothing about the peer, and is reported and counted apart.
- No connection begins within ``ask``, and at most `AT_ONCE` in one turn of the reactor. Without a free descriptor, the
  question stays queued.

The caller bounds the number of queued questions: at most one for each peer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import attrs
from twisted.internet.interfaces import IAddress, IConnector, IDelayedCall, IReactorTCP, IReactorTime
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.memory_budget import SHORT
from broker.net.epoll_streams import send_now
from broker.net.outgoing_addresses import Outgoing
from broker.net.refusal_log import RefusalLog
from broker.net.scheduled_input import Scheduled
from broker.net.scheduler import Scheduler
from broker.net.zmtp.frames import FrameLimits, ZmtpError
from broker.net.zmtp.machine import Claim, Machine, Null, Output

# Liveness probe of one peer: one outgoing ZMTP connection that sends one message as a DEALER without keys.
#
# States: connecting, handshake, question sent, closed. `ProbeConnection.close` is possible in each of them.
#
# Rules:
# - ``came`` is called once, when a whole message arrives, with any content.
# - There is one connection attempt, without retries. A peer that refuses or ends it, uses another mechanism or socket
#   type, or sends malformed input or input beyond `LIMITS` has not answered; nothing is called then.
# - Input is read in small pieces and handled by the scheduler, always as that of a stranger. `LIMITS` bounds all of it
#   together: heartbeats and endless frames are no answer.
# - Output goes to the kernel when the read that caused it is handled. It is a few hundred bytes; if the kernel has no
#   room, the peer does not read, and its connection is closed. So no output is buffered here.

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


MOST = 200
"""Open questions at a time. Each takes a descriptor, and at most 576 KiB for an incomplete answer. A live peer answers
within milliseconds, so that only dead peers occupy the slots for long."""

AT_ONCE = 10
"""Connections begun in one turn of the reactor: about a millisecond."""

RETRY = 1.0
"""Seconds until the next connection attempt after descriptors were exhausted."""

PORTS = range(1, 65_536)


@attrs.define(eq=False)
class _Question:
    host: str
    port: int
    frames: Sequence[bytes]
    answered: Callable[[bool | None], object]
    seconds: float
    due: float
    """The deadline, in the clock's seconds."""
    timer: IDelayedCall | None = None
    connection: ProbeConnection | None = None
    """None while queued."""
    extended: bool = False
    """The deadline was extended by the reactor's lateness."""


class Probes:
    """Liveness probes over ZeroMQ. ``wire`` names them in the counters and the log.

    The connections use ``reactor``, with the time of ``clock``; both are one object in the broker.
    """

    log = Logger()

    def __init__(
        self,
        reactor: IReactorTCP,
        clock: IReactorTime,
        turns: Scheduler,
        refusal_log: RefusalLog,
        outgoing: Outgoing,
        wire: str,
    ) -> None:
        self._reactor = reactor
        self._outgoing = outgoing
        self._clock = clock
        self.turns = turns
        self.refusal_log = refusal_log
        self.wire = wire
        self._waiting: OrderedDict[_Question, None] = OrderedDict()
        self._open: set[_Question] = set()
        self._opening: IDelayedCall | None = None
        self._failing = False
        self._closed = False
        self._asked = 0
        self._answered = 0
        self._unanswered = 0
        self._put_off = 0

    def ask(
        self,
        host: str,
        port: int,
        frames: Sequence[bytes],
        seconds: float,
        answered: Callable[[bool | None], object],
        local: bool = False,
    ) -> None:
        """Send these frames there, and call ``answered`` once: True at the first answer, False if none arrives within
        ``seconds``, None if the frames could not be sent in that time. ``local`` is True if a peer of this machine gave
        the address.

        Raises `Refusal` if the address is not permitted, and ValueError unless ``host`` is a numeric IPv4 address: a
        name lookup may take longer than the deadline. No-op after `close`.
        """
        address = str(IPv4Address(host))
        if port not in PORTS or not frames:
            raise ValueError("a question needs a port and a frame")
        if self._closed:
            return
        self._outgoing.permitted([address], port, local)
        question = _Question(address, port, tuple(frames), answered, seconds, self._clock.seconds() + seconds)
        question.timer = self._clock.callLater(seconds, self._over, question)
        self._asked += 1
        self._waiting[question] = None
        self._open_soon()

    def close(self) -> None:
        """Stop asking, and close all connections. Open questions are never answered."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        for question in [*self._waiting, *self._open]:
            _stop(question)
        self._waiting.clear()
        self._open.clear()

    def counts(self) -> Mapping[str, int]:
        """Return counters by name: questions asked, and outcomes of finished ones."""
        return {
            f"{self.wire}_probes.asked": self._asked,
            f"{self.wire}_probes.answered": self._answered,
            f"{self.wire}_probes.unanswered": self._unanswered,
            f"{self.wire}_probes.put_off": self._put_off,
        }

    # opening

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._open) < MOST

    def _open_soon(self, seconds: float = 0) -> None:
        if self._opening is None and self._has_room():
            self._opening = self._clock.callLater(seconds, self._open_some)

    def _open_some(self) -> None:
        """Begin connections for the oldest queued questions."""
        self._opening = None
        left = AT_ONCE
        while left and self._has_room():
            left -= 1
            question = next(iter(self._waiting))
            came = partial(self._end, question, True)
            connection = ProbeConnection(self, question.host, question.frames, came)
            if not connection.open(self._reactor, question.port):
                if not self._failing:
                    self.log.error("no descriptor is left for a probe of {wire}: it waits", wire=self.wire)
                self._failing = True
                self._open_soon(RETRY)
                return
            question.connection = connection
            self._failing = False
            del self._waiting[question]
            self._open.add(question)
        self._open_soon()

    # ending

    def _over(self, question: _Question) -> None:
        """Handle a deadline, which is extended once if the reactor is late: see the head of this module."""
        question.timer = None
        if question.connection is None:
            self._end(question, None)
        elif question.extended:
            self._end(question, False)
        else:
            question.extended = True
            late = self._clock.seconds() - question.due
            # A clock step back is no lateness; a step forward can look like any lateness, hence the upper bound.
            more = min(max(0.0, late), question.seconds)
            question.timer = self._clock.callLater(more, self._over, question)

    def _end(self, question: _Question, alive: bool | None) -> None:
        if alive is None:
            del self._waiting[question]
            self._put_off += 1
        else:
            self._open.remove(question)
            if alive:
                self._answered += 1
            else:
                self._unanswered += 1
        _stop(question)
        self._open_soon()
        with self.log.failureHandler("the outcome of a probe made the broker fail"):
            question.answered(alive)


def _stop(question: _Question) -> None:
    """Cancel the timer of a question, and close its connection."""
    if question.timer is not None:
        question.timer.cancel()
        question.timer = None
    if question.connection is not None:
        question.connection.close()
        question.connection = None  # breaks the reference cycle, so that no garbage collection is needed
