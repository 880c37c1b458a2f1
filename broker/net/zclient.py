"""Outgoing ZeroMQ connections: one DEALER for each message, through txzmq and libzmq.

Rules:
- A `Dealer` sends one message to one address, and reports once that a whole message came back. It never receives that
  message: libzmq says that one is there. So a peer that floods costs one look, its messages wait in libzmq up to
  `HIGH_WATER`, and then in the kernel.
- It makes one connection: see `NEVER`.
- A look that fails counts as no message, and takes nothing out of the reactor.

txzmq's connection reads until nothing is left, sets no high-water mark, leaves the reactor at a failing read, and sends
with the process's reactor where here one is passed in: hence the subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.logger import Logger
from txzmq import ZmqConnection, ZmqEndpoint, ZmqEndpointType, ZmqFactory

SOCKETS = 4_096
"""Sockets that libzmq allows the process: the open ones, and those that it has not quite closed yet. Each costs eight
bytes."""

HIGH_WATER = 10
"""Messages that wait in libzmq before the first is seen; one is enough."""

MAX_ANSWER = 64 * 1024
"""Bytes of one frame that comes back, which is never read. libzmq drops the connection at a longer one."""

NEVER = 24 * 60 * 60 * 1000
"""Milliseconds until libzmq connects again after the end of a connection: longer than any socket is open. To forbid
that with -1 would not do: libzmq then drops the messages that came just before the end."""


class Dealer(ZmqConnection):  # type: ignore[misc]
    """One DEALER, made by `Dealers.open`. ``came`` is called once, when a whole message has come back."""

    socketType = zmq.DEALER
    highWaterMark = HIGH_WATER
    reconnectInterval = NEVER
    log = Logger()

    def __init__(self, factory: ZmqFactory, came: Callable[[], object]) -> None:
        self._came = came
        self._asked = False
        super().__init__(factory)
        self.socket.set(zmq.MAXMSGSIZE, MAX_ANSWER)

    def ask(self, address: str, frames: Sequence[bytes]) -> None:
        """Connect, and send the message as soon as the connection is there. Raises `zmq.ZMQError`."""
        self.addEndpoints([ZmqEndpoint(ZmqEndpointType.connect, address)])
        self._asked = True
        self.socket.send_multipart(frames, zmq.NOBLOCK)
        self.read_scheduled = self.factory.reactor.callLater(0, self.doRead)

    def answered(self) -> bool:
        """Return whether a whole message has come back."""
        try:
            return bool(self.socket.get(zmq.EVENTS) & zmq.POLLIN)
        except zmq.ZMQError as error:
            self.log.error("an outgoing ZeroMQ socket failed: {error}", error=str(error))
            return False

    def doRead(self) -> None:
        """Look for a message: libzmq's descriptor has a signal, or sending may have taken one away."""
        scheduled, self.read_scheduled = self.read_scheduled, None
        if scheduled is not None and scheduled.active():
            scheduled.cancel()
        if self._asked and self.answered():
            self._asked = False
            self._came()


class Dealers:
    """Opens DEALER sockets, in a libzmq context of its own with one thread.

    Made in the process that uses it: libzmq's thread does not survive a fork. Raises OSError if there are no
    descriptors for it.
    """

    def __init__(self, reactor: Any) -> None:
        try:
            self._factory = ZmqFactory()
            self._factory.context.set(zmq.MAX_SOCKETS, SOCKETS)
            # The first socket starts libzmq's threads, which aborts the process if two to four descriptors are left: so
            # that is done at the start, and not when the first question comes.
            self._factory.context.socket(zmq.DEALER).close(0)
        except zmq.ZMQError as error:
            raise OSError(error.errno, zmq.strerror(error.errno or 0)) from None
        self._factory.reactor = reactor
        self._factory.lingerPeriod = 0

    def __len__(self) -> int:
        return len(self._factory.connections or ())

    def open(self, address: str, frames: Sequence[bytes], came: Callable[[], object]) -> Dealer:
        """Connect to an address and send one message. ``came`` is called when something comes back.

        ``address`` is numeric: libzmq looks names up in the thread that does all of its input and output. Raises
        `zmq.ZMQError`, with nothing open.
        """
        dealer = Dealer(self._factory, came)
        try:
            dealer.ask(address, frames)
        except BaseException:
            dealer.shutdown()
            raise
        return dealer

    def close(self) -> None:
        """Close all sockets, unsent messages or not, and end libzmq's thread. It may be called again."""
        if self._factory.context is not None:
            self._factory.shutdown()
