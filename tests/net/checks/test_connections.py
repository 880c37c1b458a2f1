"""TCP and HTTP checks over real sockets, of servers of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet import reactor as twisted_reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IHostResolution
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker.core.checks.check_rules import CheckKind, CheckRule, Outcome, Question
from broker.net.check_connections import HOST_BURST, LOOKUPS, MAX_INPUT, ConnectionChecks
from broker.net.outgoing_addresses import Outgoing

reactor: Any = twisted_reactor

TCP = CheckRule(("*",), CheckKind.TCP, timeout=5.0)
HTTP = attrs.evolve(TCP, kind=CheckKind.HTTP, path="/health", statuses=(200, 299))


class Answering(Protocol):
    """A server that answers the first bytes with fixed ones, and may close then."""

    answer = b""
    close = True

    def __init__(self) -> None:
        self.received = b""
        self.ended: Deferred[None] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if self.received.endswith(b"\r\n\r\n") and self.answer:
            assert self.transport is not None
            self.transport.write(self.answer)
            if self.close:
                self.transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        self.ended.callback(None)


@implementer(IHostResolution)
class Lookup:
    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Lookups cannot be cancelled."""


class FakeResolver:
    """The name servers of a test: answers that are given at once, or never."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.pending: list[Any] = []
        self.silent = False

    def resolveHostName(self, receiver: Any, name: str, port: int = 0, *rest: Any) -> Lookup:
        receiver.resolutionBegan(Lookup(name))
        if self.silent:
            self.pending.append(receiver)
        else:
            for address in self.addresses:
                receiver.addressResolved(IPv4Address("TCP", address, port))
            receiver.resolutionComplete()
        return Lookup(name)


class Reactor:
    """The reactor, with a resolver of the test, and with a clock that can be stopped."""

    def __init__(self, resolver: FakeResolver) -> None:
        self.nameResolver = resolver
        self.stopped_at: float | None = None

    def seconds(self) -> float:
        return float(reactor.seconds() if self.stopped_at is None else self.stopped_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)


class ConnectionTests(TestCase):
    """Each check ends with an outcome, and with no connection left."""

    timeout = 30

    def setUp(self) -> None:
        self.resolver = FakeResolver("127.0.0.1")
        self.reactor = Reactor(self.resolver)
        self.checks = ConnectionChecks(self.reactor, Outgoing(["127.0.0.0/8", "::1/128"], list, lambda kind: None))
        self.made: list[Answering] = []

    def serve(self, answer: bytes = b"", close: bool = True) -> int:
        """Listen. Returns the port."""

        def build(_: Any) -> Answering:
            protocol = Answering()
            protocol.answer, protocol.close = answer, close
            self.made.append(protocol)
            return protocol

        factory: Any = Factory()
        factory.buildProtocol = build
        factory.noisy = False
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def outcome(self, rule: CheckRule, hostport: str, local: bool = True) -> Outcome:
        """Make a check, and wait until its connection is closed at the server too."""
        found: Deferred[Outcome] = Deferred()
        self.checks.ask(Question(rule, hostport=hostport, local=local), found.callback)
        assert not found.called, "never within ask"
        outcome = await found
        await gatherResults([each.ended for each in self.made])
        return outcome

    async def test_tcp(self) -> None:
        port = self.serve()
        assert (await self.outcome(TCP, f"127.0.0.1:{port}")).alive
        assert self.made[0].received == b""

    async def test_a_name(self) -> None:
        port = self.serve()
        assert (await self.outcome(TCP, f"inn.example:{port}")).alive

    async def test_a_name_with_a_foreign_address(self) -> None:
        port = self.serve()
        self.resolver.addresses = ("169.254.169.254", "8.8.8.8")
        outcome = await self.outcome(TCP, f"inn.example:{port}")
        assert outcome.alive is None
        assert self.made == []

    async def test_a_loopback_address_of_a_peer_elsewhere(self) -> None:
        port = self.serve()
        outcome = await self.outcome(TCP, f"127.0.0.1:{port}", local=False)
        assert outcome.alive is None
        assert self.made == []

    async def test_a_closed_port(self) -> None:
        outcome = await self.outcome(TCP, "127.0.0.1:1")
        assert outcome.alive is False
        assert "refused" in outcome.reason

    async def test_an_invalid_hostport(self) -> None:
        for hostport in ("nonsense", "h:0", "\x00:1", "h" * 300 + ":1", "h\udc80:1"):
            assert (await self.outcome(HTTP, hostport)).alive is None

    async def test_http(self) -> None:
        port = self.serve(b"HTTP/1.1 204 No Content\r\n\r\n")
        outcome = await self.outcome(HTTP, f"inn.example:{port}")
        assert outcome == Outcome(True, "status 204")
        request = self.made[0].received
        assert request.startswith(b"GET /health HTTP/1.1\r\n")
        assert f"Host: inn.example:{port}\r\n".encode() in request

    async def test_statuses_that_are_no_success(self) -> None:
        for status in (b"302 Found\r\nLocation: http://127.0.0.1:1/", b"500 Oh", b"199 Odd"):
            port = self.serve(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            assert (await self.outcome(HTTP, f"127.0.0.1:{port}")).alive is False
        assert len(self.made) == 3, "redirects are not followed"

    async def test_an_endless_body_is_not_read(self) -> None:
        port = self.serve(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 10_000_000, close=False)
        assert (await self.outcome(HTTP, f"127.0.0.1:{port}")).alive

    async def test_endless_headers(self) -> None:
        header = b"X: " + b"y" * 1_000 + b"\r\n"
        port = self.serve(b"HTTP/1.1 200 OK\r\n" + header * (2 * MAX_INPUT // len(header)), close=False)
        assert (await self.outcome(HTTP, f"127.0.0.1:{port}")).alive is False

    async def test_what_is_not_http(self) -> None:
        for answer in (b"SSH-2.0-x\r\n", b"\x00\xff" * 100, b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n:\r\n"):
            port = self.serve(answer)
            assert (await self.outcome(HTTP, f"127.0.0.1:{port}")).alive is False, answer

    async def test_the_end_of_a_check_closes_its_connection(self) -> None:
        for rule in (HTTP, TCP):
            port = self.serve()
            outcomes: list[Outcome] = []
            end = self.checks.ask(Question(rule, hostport=f"127.0.0.1:{port}", local=True), outcomes.append)
            while not self.made or (rule is HTTP and not self.made[-1].received):
                await self.turn()
            end()
            end()
            await gatherResults([each.ended for each in self.made])
            assert rule is TCP or outcomes == []
            self.made.clear()

    async def test_lookups_are_bounded(self) -> None:
        self.resolver.silent = True
        ends: list[Callable[[], None]] = []
        question = Question(TCP, hostport="inn.example:1", local=True)
        for _ in range(LOOKUPS):
            ends.append(self.checks.ask(question, lambda outcome: None))  # noqa: PERF401
        outcome = await self.outcome(TCP, "inn.example:1")
        assert outcome == Outcome(None, "not checked: put off, since too many names are being looked up")
        for end in ends:
            end()  # the lookups themselves go on
        assert (await self.outcome(TCP, "inn.example:1")).alive is None
        self.resolver.silent = False
        for receiver in self.resolver.pending:
            receiver.resolutionComplete()
        assert (await self.outcome(TCP, "inn.example:1")).alive is False

    async def test_checks_of_one_address_are_bounded(self) -> None:
        self.serve()
        # However long that takes, it is one moment for the rate.
        self.reactor.stopped_at = reactor.seconds()
        found = [await self.outcome(TCP, "127.0.0.1:1") for _ in range(HOST_BURST + 1)]
        assert [each.alive for each in found] == [*[False] * HOST_BURST, None]
        assert "very often" in found[-1].reason

    async def turn(self) -> None:
        """Wait for a turn of the reactor."""
        turned: Deferred[None] = Deferred()
        reactor.callLater(0.01, turned.callback, None)
        await turned
