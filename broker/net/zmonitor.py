"""Which connections a ZeroMQ socket has, as libzmq's monitor tells.

Its events come through a socket of their own, so they may be behind or before the messages of the same connection by
some turns of the reactor: what they say is right in the end, not at each moment. But libzmq's one thread tells of the
end of a connection before its descriptor can be used again. So whoever must know whether a message comes from a new
connection reads all news that there is when the identity is another one; see ``exact``.
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
from broker.net.zcontext import Options, ZContext
from broker.net.zsocket import ZSocket
from broker.session.router import Part

EVENTS = 100_000
"""Events that may wait to be read. libzmq's thread would stand still if there were more; each takes some 100 bytes."""

GENERATED = b"\0"
"""How the identities begin that a ROUTER gives: a new one to each connection."""

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

    Not so if this is ``exact``: then the end of a connection is told before the first message of the next one. A
    message has no descriptor if its connection was over before it said anything, or if somebody else has the
    descriptor by now. This leaves out only peers that chose their identity, and come again with both the same.
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
        exact: bool = False,
    ) -> None:
        self._socket = socket
        self._complaints = complaints
        self._clock = clock
        self._wire = wire
        self._handshake = handshake
        self._closed = closed
        self._open: set[int] = set()
        self._left: dict[int, bytes] = {}
        """Whose messages came through the last connection of a descriptor that is over."""
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
        if exact:
            socket.place = self._place

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
        self._socket.place = None
        if self._socket.socket is not None:
            self._socket.socket.monitor(None, 0)
        self._events.shutdown()

    def _place(self, identity: bytes, connection: int) -> int:
        """The descriptor that a message is given with, whose sender is not the one that it is known for."""
        self._events.read_all()
        is_last = self._left.get(connection) == identity
        if connection not in self._open:
            return connection if is_last else -1
        if is_last and (connection in self._socket.known or identity[:1] == GENERATED):
            return -1
        self._socket.known[connection] = identity
        self._left.pop(connection, None)
        return connection

    def _event(self, identity: bytes, frames: list[Part], source: int) -> None:
        number, value = _EVENT.unpack(frames[0])
        event = zmq.Event(number)
        if event is zmq.Event.ACCEPTED:
            self._complaints.count(f"{self._wire}_connections", "accepted")
            self._open.add(value)
        elif event is zmq.Event.DISCONNECTED:
            self._complaints.count(f"{self._wire}_connections", "closed")
            self._open.discard(value)
            if value in self._socket.known:
                self._left[value] = self._socket.known.pop(value)
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
