"""A ROUTER on a port of its own, a recording conversation, and connecting peers."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs
import zmq
from nacl.bindings import crypto_box_keypair
from twisted.internet.interfaces import IReactorTime
from twisted.trial.unittest import SkipTest, TestCase

from broker import curve_keys
from broker.config import endpoint
from broker.core.errors import Reason
from broker.core.memory_budget import BY_ALL, MemoryBudget, MemoryLimits
from broker.net.connection_limits import ConnectionLimits
from broker.net.peer_interfaces import Sender, Sent
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.router.backlog import BACKLOG, HIGH_WATER, BacklogLimits
from broker.net.router.router import AllowList, Claim, KeyGate, Router
from broker.net.scheduler import Scheduler
from broker.net.zmtp.curve import Cookies, CurveClient, CurveServer, Security
from broker.net.zmtp.frames import FrameLimits
from broker.net.zmtp.machine import Claim as Claimed
from broker.net.zmtp.machine import Machine, Mechanism, Null, Output, ZmtpState
from broker.net.zmtp.sealing import SODIUM
from broker.wires.common.router_listener import RouterListener
from tests.net.pyzmq_peers import Peer
from tests.net.waiting import reactor, until
from tests.net.zmtp.curve_sides import helper, sealing_of
from tests.net.zmtp_peers import RawPeer
from tests.patience import PATIENCE

SERVER, SERVER_SECRET = crypto_box_keypair()

BULKY = bytes(60_000)
"""A frame of which the kernel does not take many, and that is not `broker.net.router.router.LARGE`."""

MEBIBYTE = 1024 * 1024

KERNEL = 32 * MEBIBYTE
"""More bytes than the kernel takes of one connection."""


@attrs.frozen
class Pair:
    """The keys of a client: 32 bytes each."""

    public: bytes
    secret: bytes = attrs.field(repr=False)

    @classmethod
    def new(cls) -> Pair:
        """Some keys."""
        return cls(*crypto_box_keypair())

    @property
    def shown(self) -> str:
        """The public key in Z85."""
        return curve_keys.encode(self.public)


OWN = Pair.new()
"""The keys of clients that have no reason for others."""


class Allowed(dict[str, str]):
    """Allowed keys: names by key (Z85)."""

    def name_of(self, key: str) -> str | None:
        """See `AllowList`."""
        return self.get(key)


@attrs.define(eq=False)
class To:
    """A receiver of messages, as sessions have them."""

    identity: bytes
    sequence: int = 0
    sent: float = 0.0


class Server:
    """A ROUTER that is bound, and a record of what it says to its conversation.

    ``told`` has it all in order: ``(identity, frames, connection)`` for a message, a number for a connection that
    ended, and bytes for a peer that has room again. ``react`` is called with each message, ``ended`` with each end, and
    ``roomy`` with each identity that has room. With ``needy``, all peers need their connections.
    """

    def __init__(self, router: Router, clock: Any) -> None:
        self.router = router
        self.told: list[Any] = []
        self.needy = False
        self.react: Callable[[bytes, list[bytes], int], object] = _ignore
        self.ended: Callable[[int], object] = _ignore
        self.roomy: Callable[[bytes], object] = _ignore
        self.listener = RouterListener(router, clock)
        self.address = ""

    def receive(self, identity: bytes, frames: list[bytes], connection: int) -> None:
        """See `broker.net.peer_interfaces.Conversation`."""
        self.told.append((identity, frames, connection))
        self.react(identity, frames, connection)

    def closed(self, connection: int) -> None:
        """See `broker.net.peer_interfaces.Conversation`."""
        self.told.append(connection)
        self.ended(connection)

    def needs(self, connection: int) -> bool:
        """See `broker.net.peer_interfaces.Conversation`."""
        return self.needy

    def room(self, identity: bytes) -> None:
        """See `broker.net.peer_interfaces.Conversation`."""
        self.told.append(identity)
        self.roomy(identity)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def messages(self) -> list[list[bytes]]:
        """The frames that came."""
        return [each[1] for each in self.told if isinstance(each, tuple)]

    @property
    def heard(self) -> list[tuple[bytes, list[bytes]]]:
        """The messages that came, with identities."""
        return [each[:2] for each in self.told if isinstance(each, tuple)]

    @property
    def identities(self) -> list[bytes]:
        return [identity for identity, _ in self.heard]

    @property
    def connections(self) -> list[int]:
        """The connection of each message."""
        return [each[2] for each in self.told if isinstance(each, tuple)]

    @property
    def ends(self) -> list[int]:
        """The connections that ended."""
        return [each for each in self.told if isinstance(each, int)]

    @property
    def rooms(self) -> list[bytes]:
        """The peers that had room again."""
        return [each for each in self.told if isinstance(each, bytes)]

    @property
    def open(self) -> int:
        """The number of open connections, let in or not."""
        return len(self.router.connections)

    def echo(self, identity: bytes, frames: list[bytes], connection: int) -> None:
        """Reply with what came: a reaction."""
        assert self.router.reply(identity, frames) is not Sent.GONE

    def choke(self, identity: bytes, frame: bytes = BULKY) -> int:
        """Send messages to a peer that does not read, until it is full. Returns how many it was sent."""
        count = 0
        while self.router.send(identity, [b"%d" % count, frame]) is Sent.SENT:
            count += 1
            assert count * (len(frame) + 1) < 2_000 * (len(BULKY) + 1) + KERNEL, "it is never full"
        return count


def _ignore(*_: object) -> None:
    pass


class Speaker:
    """A peer that is not libzmq: our codec over a socket that is read when `look` is called, and at no other time."""

    def __init__(self, raw: RawPeer, machine: Machine) -> None:
        self.raw = raw
        self.machine = machine
        self.inbox: list[list[bytes]] = []
        self._seen = 0
        raw.send(machine.begin())

    def look(self) -> list[list[bytes]]:
        """Read what there is, answer what the handshake asks for, and return all messages that came."""
        data = bytes(self.raw.look()[self._seen :])
        self._seen += len(data)
        for event in self.machine.feed(data) if data else ():
            if isinstance(event, Output):
                self.raw.send(event.data)
            elif isinstance(event, Claimed):
                self.raw.send(self.machine.accept())
            elif event is not None:
                self.inbox.append(event)
        return self.inbox

    def send(self, *frames: bytes) -> None:
        """Send one message."""
        self.raw.send(self.encoded(*frames))

    def encoded(self, *frames: bytes) -> bytes:
        """The octets of one message, which must be sent in the order in which they are made."""
        assert self.machine.encoder is not None
        return self.machine.encoder.message(frames)

    async def shake(self) -> Speaker:
        """Complete the handshake."""

        def done() -> bool:
            self.look()
            assert not self.raw.closed, "it was closed in the handshake"
            return self.machine.state is ZmtpState.TRAFFIC

        await until(done)
        return self

    async def receive(self, count: int = 1) -> list[list[bytes]]:
        """Wait until so many messages came in all, and return them."""
        await until(lambda: len(self.look()) >= count)
        return self.inbox

    async def wait_closed(self) -> None:
        """Read until the other side closed the connection."""
        await self.until(lambda: self.raw.closed)

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until it holds."""
        await until(lambda: (self.look(), condition())[1])

    def close(self) -> None:
        self.raw.close()


class Rig(TestCase):
    """Tests of a ROUTER. ``form`` is the way in which CURVE is sealed; empty for NULL."""

    form = ""

    def setUp(self) -> None:
        if self.form == "compiled" and helper() is None:
            raise SkipTest("there is no C compiler for the helper of sealing")
        self.counters = Counters()
        self.refusal_log = RefusalLog(self.counters, reactor)
        self.context: zmq.Context[Any] = zmq.Context()
        self.addCleanup(self.context.destroy, 0)
        self._kept: list[Any] = []

    def serve(
        self,
        address: str = "tcp://127.0.0.1:*",
        keys: AllowList | None = None,
        limits: ConnectionLimits | None = None,
        zmtp: FrameLimits | None = None,
        high_water: int = HIGH_WATER,
        all_sizes: int = BY_ALL,
        turns: Scheduler | None = None,
        clock: IReactorTime = reactor,
        claim: Claim | None = None,
        wire: str = "test",
    ) -> Server:
        """A ROUTER that is bound."""
        mechanism: Callable[[], Mechanism] = partial(Null, as_server=True)
        sealing = None
        if self.form:
            sealing = sealing_of(self.form)
            security = Security(SODIUM, sealing, SERVER, SERVER_SECRET)
            mechanism = partial(CurveServer, security, Cookies(SODIUM, reactor.seconds))
        router = Router(
            wire,
            mechanism,
            KeyGate(wire, keys, self.refusal_log, reactor),
            limits or ConnectionLimits(authenticate_within=PATIENCE),
            zmtp or FrameLimits(),
            turns or Scheduler(reactor, memory=MemoryBudget(MemoryLimits(all_sizes, all_sizes), reactor.seconds)),
            self.refusal_log,
            clock,
            BacklogLimits(high_water, BACKLOG),
            sealing,
        )
        server = Server(router, reactor)
        if claim is None:
            router.serve(server)
        else:
            router.serve(server, claim)
        for deadlines in (router.logins, router.stalls, router.closes, router.lingering):
            self.addCleanup(deadlines.stop)
        self.addCleanup(server.listener.close)
        server.address = server.listener.bind(endpoint.parse_zmq(address))
        return server

    def peer(self, server: Server, identity: bytes | None = None, pair: Pair = OWN, **options: Any) -> Peer:
        """A peer of libzmq; a DEALER unless the options say otherwise."""
        if self.form:
            options = {
                "curve_serverkey": curve_keys.encode(SERVER).encode(),
                "curve_publickey": curve_keys.encode(pair.public).encode(),
                "curve_secretkey": curve_keys.encode(pair.secret).encode(),
            } | options
        peer = Peer(self.context, server.address, identity, **options)
        self._kept.append(peer)  # pyzmq closes what nothing refers to
        return peer

    def raw(self, server: Server, source: str = "127.0.0.1") -> RawPeer:
        """A TCP connection from that address."""
        raw = RawPeer(socket.create_connection(("127.0.0.1", server.port), source_address=(source, 0)))
        self.addCleanup(raw.close)
        return raw

    def speaker(self, server: Server, identity: bytes = b"", pair: Pair = OWN, source: str = "127.0.0.1") -> Speaker:
        """A peer that reads only when it is looked at. Its handshake has begun."""
        mechanism: Mechanism = Null(as_server=False)
        if self.form:
            security = Security(SODIUM, sealing_of(self.form), pair.public, pair.secret)
            mechanism = CurveClient(security, SERVER)
        return Speaker(self.raw(server, source), Machine(mechanism, "DEALER", FrameLimits(), identity))

    async def known(self, server: Server, identity: bytes = b"", pair: Pair = OWN) -> Speaker:
        """A peer that reads only when it is looked at, and that the ROUTER has let in."""
        return await self.speaker(server, identity, pair).shake()

    async def answers(self, server: Server, **options: Any) -> None:
        """Check that a newcomer is served."""
        before, server.react = server.react, server.echo
        peer = self.peer(server, **options)
        peer.send(b"", b"still there?")
        self.assertEqual(await peer.receive(), [[b"", b"still there?"]])
        server.react = before
        peer.close()

    def refusals(self, reason: Reason) -> int:
        """The number of refusals for that reason."""
        return self.counters.get("test_refused", reason.code)

    def count(self, reason: str) -> int:
        """The number of accepted or closed connections."""
        return self.counters.get("test_connections", reason)

    def folder(self) -> str:
        """A directory for this test."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return folder


def senders(server: Server) -> list[Sender]:
    """A list that will have the sender of each message."""
    seen: list[Sender] = []
    server.react = lambda *_: seen.append(server.router.sender())
    return seen


def numbers(messages: list[list[bytes]]) -> Iterator[int]:
    """The numbers that messages begin with."""
    return (int(frames[0]) for frames in messages)
