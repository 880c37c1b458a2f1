"""Plain pyzmq sockets outside of the reactor, which never block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from twisted.internet.task import LoopingCall

from tests.net.waiting import LOOK_EVERY, reactor, until
from tests.patience import PATIENCE

PIECE = 100
"""Messages that a peer reads before the reactor turns again."""


class Peer:
    """A plain socket, connected, that never blocks. ``options`` are attributes of pyzmq's sockets."""

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        identity: bytes | None = None,
        kind: int = zmq.DEALER,
        **options: Any,
    ) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(kind)
        self.socket.linger = 0
        if identity is not None:
            self.socket.routing_id = identity
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(address)
        self.inbox: list[list[bytes]] = []

    def send(self, *frames: Any) -> None:
        """Send a message. Raises `zmq.Again` if there is no room for it."""
        self.socket.send_multipart(frames, zmq.NOBLOCK)

    def look(self) -> list[list[bytes]]:
        """All that came, as far as a piece goes."""
        with suppress(zmq.Again):
            for _ in range(PIECE):
                self.inbox.append(self.socket.recv_multipart(zmq.NOBLOCK))
        return self.inbox

    async def receive(self, count: int = 1, patience: float = PATIENCE) -> list[list[bytes]]:
        """Wait until so many messages came in all, and return them."""
        await until(lambda: len(self.look()) >= count, patience)
        return self.inbox

    def close(self) -> None:
        self.socket.close(0)


class PlainRouter:
    """A plain ROUTER at a port of 127.0.0.1, and the messages that came: identities and frames.

    The reactor looks at it every now and then, and calls ``react`` with each message.
    """

    def __init__(self, context: zmq.Context[Any], react: Callable[[bytes, list[bytes]], object] | None = None) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.identities: list[bytes] = []
        self.messages: list[list[bytes]] = []
        self.react = react
        self._looks = LoopingCall(self._look)
        self._looks.clock = reactor
        self._looks.start(LOOK_EVERY)

    def send(self, identity: bytes, frames: list[bytes]) -> None:
        """Send a message, if there is still a peer with that identity."""
        self.socket.send_multipart([identity, *frames], zmq.NOBLOCK)

    def echo(self, identity: bytes, frames: list[bytes]) -> None:
        """Send a message back: a reaction."""
        self.send(identity, frames)

    def forget(self) -> None:
        """Count messages from here."""
        self.identities.clear()
        self.messages.clear()

    def close(self) -> None:
        if self._looks.running:
            self._looks.stop()
        self.socket.close(0)

    def _look(self) -> None:
        with suppress(zmq.Again):
            for _ in range(PIECE):
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
                self.identities.append(identity)
                self.messages.append(frames)
                if self.react is not None:
                    self.react(identity, frames)
