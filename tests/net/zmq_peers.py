"""A stage for ZeroMQ sockets in the reactor, and the peers that they meet there.

Peers are plain sockets in a context of their own that never block, and TCP connections that speak ZMTP 3.0 by hand.
Whoever waits for something lets the reactor turn.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import zmq
from broker.net.zap import ENDPOINT, Gate
from broker.net.zcontext import Options, ZContext
from broker.net.zmonitor import Connections
from broker.net.zsocket import ZSocket
from twisted.trial.unittest import TestCase

from broker.core.counters import Counters
from broker.net.allowed import AllowedKeys
from broker.net.limits import Complaints
from broker.net.turns import Turns
from broker.session.router import Sent
from tests.net.process import descriptors as descriptors
from tests.net.process import resident as resident
from tests.net.process import script as script
from tests.net.pyzmq_peers import Peer as Peer
from tests.net.waiting import LITTLE_PATIENCE as LITTLE_PATIENCE
from tests.net.waiting import LOOK_EVERY as LOOK_EVERY
from tests.net.waiting import reactor as reactor
from tests.net.waiting import there_are as there_are
from tests.net.waiting import turn as turn
from tests.net.waiting import until as until
from tests.net.zmtp_peers import GREETING as GREETING
from tests.net.zmtp_peers import SIGNATURE as SIGNATURE
from tests.net.zmtp_peers import RawListener as RawListener
from tests.net.zmtp_peers import RawPeer as RawPeer
from tests.net.zmtp_peers import greeting as greeting
from tests.net.zmtp_peers import message as message
from tests.net.zmtp_peers import part as part
from tests.net.zmtp_peers import ready as ready

BULKY = bytes(60_000)
"""A frame of which the kernel does not take many, and that is not large in the sense of the backlogs."""

SETTLED = 0.5
"""Seconds in which the kernel took nothing of a connection, after which it will take nothing more."""


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
