"""A DEALER socket of a client, in the reactor, and where it connects to.

libzmq's descriptor is edge-triggered: it tells that something changed, once. So whoever was told has to look until
there is nothing more. Any use of the socket may take the signal away: after sending, a look is scheduled.
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
"""Messages that are received before others in the reactor have their turn: some milliseconds' work."""

LINGER = 1_000
"""Milliseconds for which the last words to a broker that is there may go out. Who ends the context waits for them."""

RECONNECT = 100
RECONNECT_MOST = 2_000
"""Milliseconds between libzmq's own attempts to connect, which double from the one to the other."""


def data_endpoint(control: str, port: int, endpoint: str | None = None) -> str:
    """Where the data flow is: what the broker said, or the port at the host of the control flow, or the very same.

    Raises `Lost` if the broker said what makes no sense.
    """
    if endpoint is not None:
        return endpoint
    if port == 0:
        return control
    scheme, _, where = control.partition("://")
    host, colon, _ = where.rpartition(":")
    if scheme != "tcp" or not colon:
        raise Lost(f"the broker gives a port, {port}, but {control} has none")
    # what stands before ";" is the address to connect from
    return f"tcp://{host.rpartition(';')[2]}:{port}"


@implementer(IReadDescriptor)
class Dealer:
    """One socket, connected to one endpoint now or whenever the other side is there.

    ``receive`` is given the frames of each message, ``room`` is called when there is room again after a `send` that
    found none, and ``failed`` with words for people when the socket is of no use any more. None of them is called from
    within `send`. Raises ValueError where the endpoint or a key is none.
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
        self._looking = False
        self._soon: IDelayedCall | None = None
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
            raise ValueError(f"{endpoint} cannot be connected to: {error}") from None
        self._socket = socket
        self._fd: int = socket.get(zmq.FD)
        reactor.addReader(self)
        self._look_soon()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Returns False if there is no room; then ``room`` will be called."""
        if self._socket is None:
            return False
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._full = True
            return False
        finally:
            if not self._looking:
                self._look_soon()
        return True

    def pause(self) -> None:
        """Receive nothing until `resume`. libzmq goes on until it holds as much as it may."""
        self._paused = True

    def resume(self) -> None:
        """Receive again."""
        if self._paused:
            self._paused = False
            self._look_soon()

    def close(self, linger: int = 0) -> None:
        """Close the socket. Nothing is called any more. What was sent may still go out for so many milliseconds."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        self._reactor.removeReader(self)
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        socket.close(linger)

    # from the reactor

    def fileno(self) -> int:
        """The descriptor that tells of changes."""
        return self._fd

    def doRead(self) -> None:
        """Something may have changed."""
        if self._soon is None:  # else somebody looks already
            self._look_now()

    def _look_now(self) -> None:
        self._soon = None
        self._looking = True
        try:
            self._look()
        except zmq.Again:
            pass  # it looked as if there were something
        except zmq.ZMQError as error:
            self.close()
            self._failed(f"the socket failed: {error}")
        finally:
            self._looking = False

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has no use for it any more."""
        self.close()

    def logPrefix(self) -> str:
        """What it is called in logs."""
        return "mtl"

    def _look(self) -> None:
        left = QUANTUM
        while self._socket is not None:
            events = int(self._socket.get(zmq.EVENTS))
            if self._full and events & zmq.POLLOUT:
                self._full = False
                self._call(self._room)
            elif self._paused or not events & zmq.POLLIN:
                return
            elif not left:
                self._look_soon()
                return
            else:
                left -= 1
                self._call(self._receive, self._socket.recv_multipart(zmq.NOBLOCK))

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception:
            self.log.failure("a message of the broker made the client fail")

    def _look_soon(self) -> None:
        if self._soon is None and self._socket is not None:
            self._soon = self._reactor.callLater(0, self._look_now)


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
