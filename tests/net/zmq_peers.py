"""A stage for ZeroMQ sockets in the reactor, and the peers that they meet there.

Peers are plain sockets in a context of their own that never block, and TCP connections that speak ZMTP 3.0 by hand.
Whoever waits for something lets the reactor turn.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any

import zmq
from twisted.internet import reactor as _reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from broker.core.counters import Counters
from broker.net.allowed import AllowedKeys
from broker.net.limits import Complaints
from broker.net.turns import Turns
from broker.net.zap import ENDPOINT, Gate
from broker.net.zcontext import Options, ZContext
from broker.net.zmonitor import Connections
from broker.net.zsocket import ZSocket
from broker.session.router import Sent
from tests.patience import PATIENCE

reactor: Any = _reactor

LITTLE_PATIENCE = 3.0
"""Seconds after which a test that fails as expected gives up: the event is known not to come."""

LOOK_EVERY = 0.001
"""Seconds between two looks at whether it came."""

PIECE = 100
"""Messages that a peer reads before the reactor turns again."""

LARGE_WRITE = 1_000_000
"""Bytes given to the kernel in one go."""

BULKY = bytes(60_000)
"""A frame of which the kernel does not take many, and that is not large in the sense of the backlogs."""

SETTLED = 0.5
"""Seconds in which the kernel took nothing of a connection, after which it will take nothing more."""

GREETING = 64
"""Bytes of a ZMTP greeting."""

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
"""What a greeting begins with."""


async def turn() -> None:
    """Let the reactor turn once."""
    await deferLater(reactor, 0)


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Let the reactor turn until it holds."""
    end = reactor.seconds() + patience
    while not condition():
        if reactor.seconds() > end:
            raise AssertionError("it did not come")
        await deferLater(reactor, LOOK_EVERY)


def there_are(count: int, things: Sized) -> Callable[[], bool]:
    """The condition that there are so many of them, or more."""
    return lambda: len(things) >= count


class Server:
    """A socket under test that is bound, and what it received: identities, frames, descriptors, one of each a message.

    ``react`` is called with each message besides.
    """

    connections: Connections

    def __init__(self, context: ZContext, options: Options, turns: Turns, name: str) -> None:
        self.identities: list[bytes] = []
        self.messages: list[list[Any]] = []
        self.sources: list[int] = []
        self.react: Callable[[bytes, list[Any], int], object] = _ignore
        self.socket = ZSocket(context, options, turns, name)
        self.address = ""

    def bind(self, address: str) -> None:
        self.address = self.socket.bind(address, self._receive)

    def _receive(self, identity: bytes, frames: list[Any], source: int) -> None:
        self.identities.append(identity)
        self.messages.append(frames)
        self.sources.append(source)
        self.react(identity, frames, source)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def plain(self) -> list[tuple[bytes, list[bytes]]]:
        """What came from whom, all of it as bytes."""
        both = zip(self.identities, self.messages, strict=True)
        return [(identity, list(map(bytes, frames))) for identity, frames in both]

    def forget(self) -> None:
        """Count from here."""
        self.identities.clear()
        self.messages.clear()
        self.sources.clear()


def _ignore(identity: bytes, frames: list[Any], source: int) -> None:
    pass


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


class RawPeer:
    """A TCP connection that sends what it is told, and keeps what comes. It is made to a port, or was accepted."""

    def __init__(self, port: int | socket.socket) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port)) if isinstance(port, int) else port
        self.socket.setblocking(False)
        self.data = bytearray()
        self.closed = False
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        """Send this, as far as the kernel takes it now; the rest goes with `look`."""
        self._unsent += data
        self.look()

    def look(self) -> bytearray:
        """Send what is left, and return all that came."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent[:LARGE_WRITE])]
        except BlockingIOError:
            pass
        except ConnectionError:
            self._unsent.clear()
        try:
            while not self.closed:
                piece = self.socket.recv(LARGE_WRITE)
                self.data += piece
                self.closed = not piece
        except BlockingIOError:
            pass
        except ConnectionError:
            self.closed = True
        return self.data

    @property
    def unsent(self) -> int:
        """How many bytes the kernel did not take yet."""
        self.look()
        return len(self._unsent)

    async def wait_closed(self, patience: float = PATIENCE) -> None:
        """Wait until the other side closed the connection."""

        def closed() -> bool:
            self.look()
            return self.closed

        await until(closed, patience)

    async def greet(self) -> None:
        """Exchange greetings."""
        self.send(greeting())
        await until(lambda: len(self.look()) >= GREETING)

    async def handshake(self, identity: bytes = b"", kind: bytes = b"DEALER", **properties: bytes) -> None:
        """Shake hands without keys, as a DEALER if nothing else is said; the names of properties have - for _."""
        await self.greet()
        named = {name.replace("_", "-").encode(): value for name, value in properties.items()}
        self.send(ready({b"Socket-Type": kind, b"Identity": identity, **named}))
        await until(lambda: b"READY" in self.look()[GREETING:] or self.closed)

    def close(self) -> None:
        self.socket.close()


class RawListener:
    """A TCP port that takes connections, and leaves them alone."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port = int(self.socket.getsockname()[1])
        self.accepted: list[RawPeer] = []

    def look(self) -> list[RawPeer]:
        """All connections that came."""
        with suppress(BlockingIOError):
            while True:
                self.accepted.append(RawPeer(self.socket.accept()[0]))
        return self.accepted

    async def accept(self) -> RawPeer:
        """Wait for the next connection."""
        count = len(self.accepted)
        await until(lambda: len(self.look()) > count)
        return self.accepted[count]

    def close(self) -> None:
        self.socket.close()
        for raw in self.accepted:
            raw.close()


def greeting(mechanism: bytes = b"NULL") -> bytes:
    """The greeting of a client of ZMTP 3.0."""
    return SIGNATURE + b"\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def ready(properties: dict[bytes, bytes]) -> bytes:
    """The command with which a handshake without keys ends."""
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value for name, value in properties.items()
    )
    return _piece(body, 4)


def message(*frames: bytes) -> bytes:
    """A message as it stands on the wire."""
    return b"".join(map(part, frames[:-1])) + _piece(frames[-1], 0)


def part(frame: bytes) -> bytes:
    """A frame that another one follows."""
    return _piece(frame, 1)


def _piece(body: bytes, flags: int) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | 2]) + len(body).to_bytes(8, "big") + body


def readable(socket: ZSocket) -> bool:
    """Whether the kernel would wake the reactor for that socket now."""
    return bool(select.select([socket.fileno()], [], [], 0)[0])


class Receiver:
    """Somebody to send to, as sessions are."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.held = False
        self.sent = 0.0


class Stage(TestCase):
    """A test case with a context, turns in trial's reactor, and peers; all are closed in the end."""

    def setUp(self) -> None:
        self.counters = Counters()
        self.complaints = Complaints(self.counters, reactor)
        self.context = ZContext(reactor)
        self.turns = Turns(reactor)
        self.peers: zmq.Context[Any] = zmq.Context()
        self._plain: list[Peer] = []
        self.addCleanup(self.peers.destroy, 0)
        self.addCleanup(self._close)

    def _close(self) -> None:
        if self.context.factory.context is not None:
            self.context.close()

    def serve(
        self,
        address: str = "tcp://127.0.0.1:*",
        name: str = "test",
        watch: bool = False,
        turns: Turns | None = None,
        closed: Callable[[int], object] | None = None,
        exact: bool = False,
        **options: Any,
    ) -> Server:
        """A bound socket, a ROUTER unless the options say otherwise.

        With ``watch`` its connections are watched, and ``closed`` is told of those that end.
        """
        server = Server(self.context, Options(**options), self.turns if turns is None else turns, name)
        if watch:
            handshake = Options(**options).handshake
            server.connections = Connections(
                self.context, server.socket, self.turns, self.complaints, reactor, name, handshake, closed, exact
            )
        server.bind(address)
        return server

    def gate(self, domain: str, keys: AllowedKeys | None = None, any_key: bool = False) -> None:
        """Open the handler of handshakes, with one domain."""
        gate = Gate(self.complaints, reactor)
        gate.domain(domain.encode(), keys, any_key)
        handler = ZSocket(self.context, Options(), self.turns, "zap")
        gate.serve(handler)
        handler.bind(ENDPOINT, gate.receive)

    def peer(self, server: Server | str, identity: bytes | None = None, **options: Any) -> Peer:
        """A plain socket; a DEALER unless the options say otherwise."""
        peer = Peer(self.peers, server if isinstance(server, str) else server.address, identity, **options)
        self._plain.append(peer)  # pyzmq closes what nobody refers to
        return peer

    async def known(self, server: Server, identity: bytes, **options: Any) -> Peer:
        """A plain socket that the server has heard of; what it heard is forgotten."""
        peer = self.peer(server, identity, **options)
        peer.send(b"", b"hello")
        await until(lambda: identity in server.identities)
        server.forget()
        return peer

    async def choked(self, server: Server, identity: bytes) -> None:
        """Have a peer that does not read, to which nothing can be sent, and with which nothing happens any more."""
        await self.known(server, identity, rcvhwm=1, rcvbuf=10_000)
        taken = reactor.seconds()
        while reactor.seconds() < taken + SETTLED:
            if server.socket.send(identity, [BULKY]) is Sent.SENT:
                taken = reactor.seconds()
            await turn()

    def raw(self, server: Server) -> RawPeer:
        """A TCP connection."""
        raw = RawPeer(server.port)
        self.addCleanup(raw.close)
        return raw

    async def answers(self, server: Server, **options: Any) -> None:
        """See that a newcomer is served."""
        before = server.react
        server.react = lambda identity, frames, source: server.socket.send(identity, frames)
        peer = self.peer(server, **options)
        peer.send(b"", b"still there?")
        await peer.receive()
        self.assertEqual(peer.inbox, [[b"", b"still there?"]])
        server.react = before
        peer.close()


def script(text: str, *arguments: str, patience: float = PATIENCE) -> str:
    """Run a program in a process of its own, which must end well. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=patience,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
