"""Ports and accepted connections in the set of the reactor, over real sockets."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
from itertools import count
from typing import Any

from twisted.internet import tcp
from twisted.internet.defer import Deferred, DeferredQueue, maybeDeferred, succeed
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IHalfCloseableProtocol, IReactorFDSet
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from broker.config import endpoint
from broker.net.epoll_streams import ACCEPT_SECONDS, ACCEPTS, BATCH, CROWDED_READ
from broker.net.listeners import listen

LARGE = 8 * 1024 * 1024
"""Bytes that no pair of sockets takes at once."""


class Defect(Exception):
    """Raised on purpose."""


@implementer(IHalfCloseableProtocol)
class Recording(Protocol):
    """One accepted connection, which puts its events into its queue."""

    def __init__(self) -> None:
        self.events: DeferredQueue[Any] = DeferredQueue()
        self._reason: Any = None
        self._waiting: list[Deferred[Any]] = []

    def connectionMade(self) -> None:
        self.factory.accepted.put(self)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        if data == b"fail":
            raise Defect
        if data == b"vanish":
            self.transport.connectionLost(connectionDone)  # type: ignore[union-attr]
            return
        self.events.put(data)

    def readConnectionLost(self) -> None:
        self.events.put("end of input")

    def writeConnectionLost(self) -> None:
        self.events.put("end of output")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._reason = type(reason.value)
        for waiting in self._waiting:
            waiting.callback(self._reason)

    def lost(self) -> Deferred[Any]:
        """Fires when the connection is lost, with the class of the reason."""
        if self._reason is not None:
            return succeed(self._reason)
        self._waiting.append(Deferred())
        return self._waiting[-1]


class Accepting(Factory):
    protocol = Recording
    noisy = False

    def __init__(self) -> None:
        self.accepted: DeferredQueue[Recording] = DeferredQueue()


class Crowd:
    """A queue that is crowded, or is not."""

    def __init__(self, crowded: bool) -> None:
        self.crowded = crowded


class OverSockets(TestCase):
    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.factory = Accepting()

    def listening(self, where: str = "tcp:0:interface=127.0.0.1") -> Any:
        port = listen(self.reactor, endpoint.parse(where), self.factory)
        self.addCleanup(port.stopListening)
        return port

    async def connected(self, port: Any) -> tuple[socket.socket, Recording]:
        """A client's socket, and the other end of it."""
        unix = not hasattr(port.getHost(), "port")
        client = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        client.connect(port.getHost().name if unix else ("127.0.0.1", port.getHost().port))
        client.settimeout(10)
        self.addCleanup(client.close)
        accepted = await self.factory.accepted.get()
        self.addCleanup(self.gone, client, accepted)
        await deferLater(self.reactor, 0)  # it is still being accepted
        return client, accepted

    def gone(self, client: socket.socket, accepted: Recording) -> Deferred[Any]:
        """Have a connection end before the test does."""
        client.close()
        assert accepted.transport is not None
        accepted.transport.abortConnection()  # type: ignore[attr-defined]
        return accepted.lost()

    async def test_input_and_output_are_carried(self) -> None:
        for where in ("tcp:0:interface=127.0.0.1", f"unix:{self.folder}/socket"):
            client, accepted = await self.connected(self.listening(where))
            client.send(b"question")
            self.assertEqual(await accepted.events.get(), b"question")
            accepted.transport.write(b"answer")  # type: ignore[union-attr]
            client.setblocking(False)
            answer: Deferred[bytes] = Deferred()
            _Readable(self.reactor, client, answer)
            self.assertEqual(await answer, b"answer")

    async def test_output_that_the_kernel_does_not_take_follows(self) -> None:
        client, accepted = await self.connected(self.listening())
        accepted.transport.write(bytes(LARGE))  # type: ignore[union-attr]
        accepted.transport.loseConnection()  # type: ignore[union-attr]
        client.setblocking(False)
        received = 0
        while received < LARGE:
            more: Deferred[bytes] = Deferred()
            _Readable(self.reactor, client, more)
            received += len(await more)
        self.assertIs(await accepted.lost(), ConnectionDone)
        self.assertEqual(received, LARGE)

    async def test_a_connection_that_is_not_read_gets_nothing(self) -> None:
        client, accepted = await self.connected(self.listening())
        other, beside = await self.connected(self.listening())
        accepted.transport.pauseProducing()  # type: ignore[union-attr]
        client.send(b"first")
        other.send(b"mark")
        self.assertEqual(await beside.events.get(), b"mark")
        self.assertEqual(accepted.events.pending, [])
        accepted.transport.resumeProducing()  # type: ignore[union-attr]
        self.assertEqual(await accepted.events.get(), b"first")

    async def test_reads_are_small_while_many_wait(self) -> None:
        client, accepted = await self.connected(self.listening())
        accepted.transport.crowd = Crowd(True)  # type: ignore[union-attr]
        accepted.transport.pauseProducing()  # type: ignore[union-attr]
        client.sendall(bytes(3 * CROWDED_READ))
        accepted.transport.resumeProducing()  # type: ignore[union-attr]
        self.assertEqual(len(await accepted.events.get()), CROWDED_READ)
        self.assertEqual(len(await accepted.events.get()), CROWDED_READ)
        accepted.transport.crowd = Crowd(False)  # type: ignore[union-attr]
        accepted.transport.pauseProducing()  # type: ignore[union-attr]
        client.sendall(bytes(CROWDED_READ))
        accepted.transport.resumeProducing()  # type: ignore[union-attr]
        received = 0
        while received < 2 * CROWDED_READ:
            received += len(await accepted.events.get())
        self.assertEqual(received, 2 * CROWDED_READ)

    async def test_after_the_end_of_input_output_goes_on(self) -> None:
        client, accepted = await self.connected(self.listening())
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(await accepted.events.get(), "end of input")
        accepted.transport.write(b"last words")  # type: ignore[union-attr]
        accepted.transport.loseConnection()  # type: ignore[union-attr]
        self.assertIs(await accepted.lost(), ConnectionDone)
        self.assertEqual(client.recv(100), b"last words")

    async def test_a_reset_ends_a_connection_that_is_not_read(self) -> None:
        client, accepted = await self.connected(self.listening())
        accepted.transport.pauseProducing()  # type: ignore[union-attr]
        accepted.transport.write(bytes(LARGE))  # type: ignore[union-attr]
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        self.assertIs(await accepted.lost(), ConnectionLost)

    async def test_an_abort_discards_input_and_output(self) -> None:
        client, accepted = await self.connected(self.listening())
        transport: Any = accepted.transport
        transport.write(bytes(LARGE))
        client.send(b"unread")
        transport.abortConnection()
        transport.abortConnection()
        self.assertEqual((transport.dataBuffer, transport._tempDataBuffer), (b"", []))
        transport.resumeProducing()
        transport.write(b"late")
        self.assertIs(await accepted.lost(), ConnectionAborted)
        self.assertEqual(accepted.events.pending, [])
        with self.assertRaises(ConnectionResetError):
            while client.recv(LARGE):
                pass

    async def test_a_connection_that_reading_closes_is_not_written(self) -> None:
        client, accepted = await self.connected(self.listening())
        accepted.transport.write(bytes(LARGE))  # type: ignore[union-attr]
        await deferLater(self.reactor, 0)
        await deferLater(self.reactor, 0)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.recv(LARGE):  # so that the other end is readable and writable in the same turn
                pass
        client.send(b"vanish")
        self.assertIs(await accepted.lost(), ConnectionDone)
        self.assertEqual(self.flushLoggedErrors(), [])

    async def test_a_defect_ends_one_connection_alone(self) -> None:
        port = self.listening()
        client, accepted = await self.connected(port)
        other, beside = await self.connected(port)
        client.send(b"fail")
        self.assertIs(await accepted.lost(), Defect)
        self.assertEqual(len(self.flushLoggedErrors(Defect)), 1)
        other.send(b"still here")
        self.assertEqual(await beside.events.get(), b"still here")
        client, again = await self.connected(port)
        client.send(b"new")
        self.assertEqual(await again.events.get(), b"new")

    async def test_a_closed_port_leaves_nothing_with_the_reactor(self) -> None:
        streams = self.reactor.streams
        before = streams.getReaders()
        port: Any = listen(self.reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), self.factory)
        client, accepted = await self.connected(port)
        self.assertEqual(set(streams.getReaders()) - set(before), {port, accepted.transport})
        await maybeDeferred(port.stopListening)
        client.send(b"still here")
        self.assertEqual(await accepted.events.get(), b"still here")
        self.assertEqual(set(streams.getReaders()) - set(before), {accepted.transport})
        client.close()
        self.assertEqual(await accepted.events.get(), "end of input")
        accepted.transport.loseConnection()  # type: ignore[union-attr]
        await accepted.lost()
        self.assertEqual(set(streams.getReaders()), set(before))

    def burst(self, port: Any, stack: contextlib.ExitStack, number: int = 3 * ACCEPTS) -> None:
        """So many clients connect, and are in the queue of the kernel."""
        for _ in range(number):
            stack.enter_context(socket.create_connection(("127.0.0.1", port.getHost().port)))

    async def all_gone(self) -> None:
        while self.factory.accepted.pending:
            accepted = await self.factory.accepted.get()
            accepted.transport.abortConnection()  # type: ignore[union-attr]
            await accepted.lost()

    def accepts_take(self, seconds: float) -> None:
        """Each reading of the CPU time is so much later than the one before."""
        readings = count()
        self.patch(self.reactor.streams.accepts, "cpu", lambda: next(readings) * seconds)

    async def test_a_burst_of_connections_is_accepted_over_several_turns(self) -> None:
        self.accepts_take(0.0)
        port = self.listening()
        with contextlib.ExitStack() as stack:
            self.burst(port, stack)
            for turn in range(1, 4):
                self.reactor.doIteration(0)
                self.assertEqual(len(self.factory.accepted.pending), turn * ACCEPTS)
            await self.all_gone()

    async def test_a_turn_accepts_as_many_as_its_cpu_time_allows(self) -> None:
        port = self.listening()
        with contextlib.ExitStack() as stack:
            self.burst(port, stack)
            self.reactor.streams.accepts.next_turn()  # what other tests accepted does not count
            for seconds, accepted in ((ACCEPT_SECONDS / 2, 2 * BATCH), (ACCEPT_SECONDS, 3 * BATCH)):
                self.accepts_take(seconds)
                self.reactor.doIteration(0)
                self.assertEqual(len(self.factory.accepted.pending), accepted)
            await self.all_gone()

    async def test_ports_with_newcomers_share_the_cpu_time(self) -> None:
        ports = [self.listening(), self.listening()]
        with contextlib.ExitStack() as stack:
            for port in ports:
                self.burst(port, stack)
            self.accepts_take(ACCEPT_SECONDS)
            self.reactor.doIteration(0)
            self.assertEqual(len(self.factory.accepted.pending), 2 * BATCH)
            self.accepts_take(ACCEPT_SECONDS / 4)
            self.reactor.doIteration(0)
            self.assertEqual(len(self.factory.accepted.pending), 2 * BATCH + 2 * 2 * BATCH)
            await self.all_gone()

    def test_it_is_what_it_stands_for(self) -> None:
        verifyObject(IReactorFDSet, self.listening().reactor)

    async def test_a_connection_is_what_twisted_makes_of_it(self) -> None:
        """`TcpStream` sets all that `tcp.Server` sets, but for the texts, which are the same."""
        ours = self.listening()
        _, accepted = await self.connected(ours)
        theirs = await TCP4ServerEndpoint(self.reactor, 0, interface="127.0.0.1").listen(self.factory)
        self.addCleanup(theirs.stopListening)
        _, usual = await self.connected(theirs)
        stream: Any = accepted.transport
        server: Any = usual.transport
        self.assertIs(type(server), tcp.Server)
        self.assertEqual(set(vars(server)) - set(vars(stream)), {"logstr", "repstr"})
        self.assertEqual(set(vars(stream)) - set(vars(server)), set())
        self.assertEqual(stream.logPrefix(), server.logPrefix())
        number = ours.getHost().port
        self.assertEqual(repr(stream), repr(server).replace(str(theirs.getHost().port), str(number)))


class _Readable:
    """Reads a socket once, as soon as it can."""

    def __init__(self, reactor: Any, sock: socket.socket, received: Deferred[bytes]) -> None:
        self.fileno = sock.fileno
        self._reactor = reactor
        self._sock = sock
        self._received = received
        reactor.addReader(self)

    def doRead(self) -> None:
        self._reactor.removeReader(self)
        self._received.callback(self._sock.recv(1 << 20))

    def connectionLost(self, reason: Failure) -> None: ...

    def logPrefix(self) -> str:
        return "client"
