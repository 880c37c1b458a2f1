"""Which connections a ZeroMQ socket has, as libzmq's monitor tells.

Its events come through a socket of their own, so they may be behind or before the messages of the same connection by
some turns of the reactor: what they say is right in the end, not at each moment.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from itertools import count

import zmq
from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Reason, Refusal
from broker.net.limits import Complaints
from broker.net.turns import Turns
from broker.net.zsocket import Options, ZContext, ZSocket
from broker.session.router import Part

EVENTS = 100_000
"""Events that may wait to be read. libzmq's thread would stand still if there were more; each takes some 100 bytes."""

_EVENT = struct.Struct("=Hi")
_NUMBERS = count()

_HANDSHAKE_FAILURES = {
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: "a handshake was broken off, or took too long",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: "a handshake was not that of this socket: no ZeroMQ, other keys, or no keys",
    zmq.Event.HANDSHAKE_FAILED_AUTH: "a handshake was refused",
}

_WATCHED = (
    zmq.Event.ACCEPTED
    | zmq.Event.ACCEPT_FAILED
    | zmq.Event.DISCONNECTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
)


class Connections:
    """The open connections of ``socket``, by descriptor. Counts what goes wrong with them under ``wire``.

    ``handshake`` is how many seconds a handshake may take. ``closed`` is called with the descriptor of each connection
    that ended; a message of the next connection that has this descriptor may have been received by then.
    """

    def __init__(
        self,
        context: ZContext,
        socket: ZSocket,
        turns: Turns,
        complaints: Complaints,
        clock: IReactorTime,
        wire: str,
        handshake: float,
        closed: Callable[[int], object] | None = None,
    ) -> None:
        self._socket = socket
        self._complaints = complaints
        self._clock = clock
        self._wire = wire
        self._handshake = handshake
        self._closed = closed
        self._open: set[int] = set()
        self._let_in = 0
        self._failed = 0
        """Handshakes that failed, and whose connections are not closed yet."""
        self._admitted: deque[float] = deque()
        """When those were admitted whose handshakes have not ended yet."""
        # libzmq gives a name free some time after the end only.
        address = f"inproc://monitor-{wire}-{next(_NUMBERS)}"
        socket.socket.monitor(address, int(_WATCHED))
        self._events = ZSocket(context, Options(zmq.PAIR, EVENTS), turns, f"{wire} monitor")
        self._events.connect(address, self._event)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    def admit(self, most: int) -> bool:
        """Whether one more may be let in, if there may be so many. It counts from now on."""
        now, admitted = self._clock.seconds(), self._admitted
        while admitted and not 0 <= now - admitted[0] < self._handshake:
            admitted.popleft()
        if self._let_in + len(admitted) >= most:
            return False
        admitted.append(now)
        return True

    def close(self) -> None:
        """Watch no more."""
        if self._socket.socket is not None:
            self._socket.socket.monitor(None, 0)
        self._events.shutdown()

    def _event(self, identity: bytes, frames: list[Part], source: int) -> None:
        number, value = _EVENT.unpack(frames[0])
        event = zmq.Event(number)
        if event is zmq.Event.ACCEPTED:
            self._complaints.count(f"{self._wire}_connections", "accepted")
            self._open.add(value)
        elif event is zmq.Event.DISCONNECTED:
            self._complaints.count(f"{self._wire}_connections", "closed")
            self._open.discard(value)
            # A handshake that fails is told of first, and each connection had one. Neither event has a descriptor.
            if self._failed:
                self._failed -= 1
            else:
                self._let_in -= 1
            if self._closed is not None:
                self._closed(value)
        elif event is zmq.Event.HANDSHAKE_SUCCEEDED:
            self._let_in += 1
            if self._admitted:
                self._admitted.popleft()
        elif event is zmq.Event.ACCEPT_FAILED:
            self._complain(Reason.TOO_MANY_CONNECTIONS, f"a connection could not be accepted (error {value})")
        else:
            self._failed += 1
            self._complain(Reason.HANDSHAKE, _HANDSHAKE_FAILURES[event])

    def _complain(self, reason: Reason, text: str) -> None:
        self._complaints.add(self._wire, "unknown", Refusal(reason, text))
