"""DEALER socket of a client: txzmq's connection, with bounded reads.

txzmq reads a socket until it is empty, sets no high-water mark, leaves an error of a read to the reactor, and schedules
reads with the global reactor. `Dealer` replaces these four; opening, closing and the reactor's descriptor are txzmq's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import zmq
from twisted.logger import Logger

from broker.address_faults import address_fault
from broker.client.settings import Keys, Settings
from broker.wires.mtl.codec.data_messages import MAX_HEADER


class _GlobalReactor(ModuleType):
    """The global reactor, which is imported with the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        from twisted.internet import reactor

        return getattr(reactor, name)


# txzmq imports the global reactor, and so Twisted would install one. A program with a blocking client, or with one of
# asyncio, may install its own later.
_late = _GlobalReactor("twisted.internet.reactor")
sys.modules.setdefault(_late.__name__, _late)
try:
    from txzmq import ZmqConnection, ZmqEndpoint, ZmqEndpointType, ZmqFactory
finally:
    if sys.modules[_late.__name__] is _late:
        del sys.modules[_late.__name__]

QUANTUM = 100
"""Messages received before other events of the reactor are handled: a few milliseconds of work."""

LINGER = 1_000
"""Time for which the last messages to a live broker may still be sent after the socket is closed, in milliseconds.
Terminating the context blocks for at most as long."""

RECONNECT = 100
RECONNECT_MOST = 2_000
"""Bounds of libzmq's own reconnect interval, in milliseconds: it doubles from the one to the other."""


class Dealer(ZmqConnection):  # type: ignore[misc]
    """A DEALER socket that connects to one endpoint, now or as soon as the peer is there.

    ``receive`` is called with the frames of each message, ``room`` when there is room again after a `send` that found
    none, and ``failed`` with a text for people when the socket has become unusable. None of them is called from within
    `send`. Raises ValueError for an invalid endpoint or key.
    """

    log = Logger()
    socket: Any = None
    socketType = zmq.DEALER
    reconnectInterval = RECONNECT
    reconnectIntervalMax = RECONNECT_MOST

    def __init__(
        self,
        transport: ZeroMQ,
        endpoint: str,
        keys: Keys | None,
        settings: Settings,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> None:
        self.messageReceived = receive
        self._room = room
        self._failed = failed
        self._reading = False
        self._full = False
        self._paused = False
        self.highWaterMark = settings.high_water
        try:
            super().__init__(transport)
            _configure(self.socket, endpoint, keys, settings)
            self.addEndpoints([ZmqEndpoint(ZmqEndpointType.connect, endpoint)])
            self._read_soon()
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise ValueError(f"cannot connect to {endpoint}: {error}") from None
            raise

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Returns False if there is no room; ``room`` is then called later."""
        if self.socket is None:
            return False
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._full = True
            return False
        finally:
            # any use of the socket may consume the signal of its edge-triggered descriptor
            if not self._reading:
                self._read_soon()
        return True

    def pause(self) -> None:
        """Stop receiving until `resume`. libzmq continues to receive up to its high-water mark."""
        self._paused = True

    def resume(self) -> None:
        """Receive again."""
        if self._paused:
            self._paused = False
            self._read_soon()

    def close(self, linger: int = 0) -> None:
        """Close the socket and stop all callbacks. Sent messages may still go out for ``linger`` milliseconds."""
        if self.socket is not None:
            if linger:
                self.socket.set(zmq.LINGER, linger)
            self.shutdown()

    def doRead(self) -> None:
        """Receive at most `QUANTUM` messages, after a signal."""
        if self.read_scheduled is None:  # else a read is scheduled already
            self._read_now()

    def connectionLost(self, reason: object) -> None:
        """Close the socket; called when the reactor drops the descriptor."""
        self.close()

    def _read_now(self) -> None:
        self.read_scheduled = None
        self._reading = True
        try:
            self._read()
        except zmq.Again:
            pass  # POLLIN may be reported where no whole message is there
        except zmq.ZMQError as error:
            self.close()
            self._failed(f"the socket failed: {error}")
        finally:
            self._reading = False

    def _read(self) -> None:
        left = QUANTUM
        while self.socket is not None:
            events = int(self.socket.get(zmq.EVENTS))
            if self._full and events & zmq.POLLOUT:
                self._full = False
                self._call(self._room)
            elif self._paused or not events & zmq.POLLIN:
                return
            elif not left:
                self._read_soon()
                return
            else:
                left -= 1
                self._call(self.messageReceived, self.socket.recv_multipart(zmq.NOBLOCK))

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            self.log.failure("the handler of a message from the broker failed")

    def _read_soon(self) -> None:
        if self.read_scheduled is None and self.socket is not None:
            self.read_scheduled = self.factory.reactor.callLater(0, self._read_now)


class ZeroMQ(ZmqFactory):  # type: ignore[misc]
    """Transport by libzmq's sockets. Without a ``context`` it creates its own on demand, and terminates it."""

    lingerPeriod = 0

    def __init__(self, keys: Keys | None, settings: Settings, context: zmq.Context[Any] | None = None) -> None:
        # not txzmq's, which creates a context at once: one that was created before a fork cannot be used
        self.connections: set[Dealer] = set()
        self.context = context
        self._own_context = context is None
        self._keys = keys
        self._settings = settings

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> Dealer:
        """Open a `Dealer`."""
        self.reactor = reactor
        if self.context is None:
            self.context = zmq.Context()
        return Dealer(self, endpoint, self._keys, self._settings, receive, room, failed)

    def fault(self, endpoint: str, seconds: float) -> str:
        """See `broker.client.transport.Transport`."""
        return address_fault(endpoint, self._keys is not None, seconds)

    def close(self) -> None:
        """Terminate the context, if it is the transport's own."""
        if self._own_context and self.context is not None:
            self.context.term()


def _configure(socket: zmq.Socket[bytes], endpoint: str, keys: Keys | None, settings: Settings) -> None:
    socket.set(zmq.MAXMSGSIZE, max(settings.max_body, MAX_HEADER))
    if "[" in endpoint:
        socket.set(zmq.IPV6, 1)
    if keys is not None:
        socket.set(zmq.CURVE_SERVERKEY, keys.server.encode())
        socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
