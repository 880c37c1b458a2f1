"""DEALER socket of a client, integrated with the reactor; and the endpoint of the data flow.

libzmq's descriptor is edge-triggered: it signals once that the state of the socket changed. So after each signal the
socket is polled until nothing is left. Any use of the socket may consume a signal: each send schedules another poll.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from twisted.internet.interfaces import IDelayedCall, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.client.errors import Lost
from broker.client.settings import Keys, Settings
from broker.wires.mtl.codec.data import MAX_HEADER

QUANTUM = 100
"""Messages received before other events of the reactor are handled: a few milliseconds of work."""

LINGER = 1_000
"""Time for which the last messages to a live broker may still be sent after the socket is closed, in milliseconds.
Terminating the context blocks for at most as long."""

RECONNECT = 100
RECONNECT_MOST = 2_000
"""Bounds of libzmq's own reconnect interval, in milliseconds: it doubles from the one to the other."""


def data_endpoint(control: str, port: int, endpoint: str | None = None) -> str:
    """Return the endpoint of the data flow: the one in the reply, else the port at the control flow's host, else the
    same.

    Raises `Lost` if the broker's reply makes no sense.
    """
    if endpoint is not None:
        return endpoint
    if port == 0:
        return control
    scheme, _, where = control.partition("://")
    host, colon, _ = where.rpartition(":")
    if scheme != "tcp" or not colon:
        raise Lost(f"the broker gives port {port} for data, but {control} has no ports")
    # libzmq's syntax "tcp://SOURCE;HOST:PORT": the part before ";" is the local address
    return f"tcp://{host.rpartition(';')[2]}:{port}"


@implementer(IReadDescriptor)
class Dealer:
    """A DEALER socket that connects to one endpoint, now or as soon as the peer is there.

    ``receive`` is called with the frames of each message, ``room`` when there is room again after a `send` that found
    none, and ``failed`` with a text for people when the socket has become unusable. None of them is called from within
    `send`. Raises ValueError for an invalid endpoint or key.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        context: zmq.Context[Any],
        endpoint: str,
        keys: Keys | None,
        settings: Settings,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> None:
        self._reactor = reactor
        self._receive = receive
        self._room = room
        self._failed = failed
        self._polling = False
        self._scheduled: IDelayedCall | None = None
        self._full = False
        self._paused = False
        self._socket: zmq.Socket[bytes] | None = None
        try:
            socket = context.socket(zmq.DEALER)
            try:
                _configure(socket, endpoint, keys, settings)
                socket.connect(endpoint)
            except BaseException:
                socket.close(0)
                raise
        except zmq.ZMQError as error:
            raise ValueError(f"cannot connect to {endpoint}: {error}") from None
        self._socket = socket
        self._fd: int = socket.get(zmq.FD)
        reactor.addReader(self)
        self._poll_soon()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Returns False if there is no room; ``room`` is then called later."""
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._full = True
            return False
        finally:
            if not self._polling:
                self._poll_soon()
        return True

    def pause(self) -> None:
        """Stop receiving until `resume`. libzmq continues to receive up to its high-water mark."""
        self._paused = True

    def resume(self) -> None:
        """Receive again."""
        if self._paused:
            self._paused = False
            self._poll_soon()

    def close(self, linger: int = 0) -> None:
        """Close the socket and stop all callbacks. Sent messages may still go out for ``linger`` milliseconds."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        self._reactor.removeReader(self)
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        socket.close(linger)

    # from the reactor

    def fileno(self) -> int:
        """Return the descriptor that signals changes of the socket's state."""
        return self._fd

    def doRead(self) -> None:
        """Poll the socket, after a signal."""
        if self._scheduled is None:  # else a poll is scheduled already
            self._poll_now()

    def _poll_now(self) -> None:
        self._scheduled = None
        self._polling = True
        try:
            self._poll()
        except zmq.Again:
            pass  # POLLIN may be reported where no whole message is there
        except zmq.ZMQError as error:
            self.close()
            self._failed(f"the socket failed: {error}")
        finally:
            self._polling = False

    def connectionLost(self, reason: Failure) -> None:
        """Close the socket; called when the reactor drops the descriptor."""
        self.close()

    def logPrefix(self) -> str:
        """Return the name used in logs."""
        return "mtl"

    def _poll(self) -> None:
        left = QUANTUM
        while self._socket is not None:
            events = int(self._socket.get(zmq.EVENTS))
            if self._full and events & zmq.POLLOUT:
                self._full = False
                self._call(self._room)
            elif self._paused or not events & zmq.POLLIN:
                return
            elif not left:
                self._poll_soon()
                return
            else:
                left -= 1
                self._call(self._receive, self._socket.recv_multipart(zmq.NOBLOCK))

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            self.log.failure("the handler of a message from the broker failed")

    def _poll_soon(self) -> None:
        if self._scheduled is None and self._socket is not None:
            self._scheduled = self._reactor.callLater(0, self._poll_now)


class ZeroMQ:
    """Transport by libzmq's sockets. Without a ``context`` it creates its own on demand, and terminates it."""

    def __init__(self, keys: Keys | None, settings: Settings, context: zmq.Context[Any] | None = None) -> None:
        self._keys = keys
        self._settings = settings
        self._own_context = context is None
        self._context = context

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> Dealer:
        """Open a `Dealer`."""
        if self._context is None:
            self._context = zmq.Context()
        return Dealer(reactor, self._context, endpoint, self._keys, self._settings, receive, room, failed)

    def close(self) -> None:
        """Terminate the context, if it is the transport's own."""
        if self._own_context and self._context is not None:
            self._context.term()


def _configure(socket: zmq.Socket[bytes], endpoint: str, keys: Keys | None, settings: Settings) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, settings.high_water)
    socket.set(zmq.RCVHWM, settings.high_water)
    socket.set(zmq.MAXMSGSIZE, max(settings.max_body, MAX_HEADER))
    socket.set(zmq.RECONNECT_IVL, RECONNECT)
    socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST)
    if "[" in endpoint:
        socket.set(zmq.IPV6, 1)
    if keys is not None:
        socket.set(zmq.CURVE_SERVERKEY, keys.server.encode())
        socket.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
