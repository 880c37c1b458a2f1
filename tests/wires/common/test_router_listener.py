"""The limits of ROUTERs, as they are configured, and as their connections meet them."""

from __future__ import annotations

import shutil
import socket
import tempfile
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, UNIXClientEndpoint
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, TestCase

from broker.config.endpoint import parse_zmq
from broker.config.key import declared
from broker.net.connection_limits import RouterLimits
from broker.net.router.router import Router
from broker.net.zmtp.frames import SHORT
from broker.wires.common.router_listener import RouterListener, make_router
from broker.wires.dbp.dbp_settings import Dbp
from broker.wires.mc0.mc0_settings import Mc0
from broker.wires.mtl.mtl_settings import Mtl
from tests.patience import PATIENCE
from tests.wires.contexts import context

LIMITS = RouterLimits(handshake=3.0, max_message=1_024)


def router(clock: Any, of_one: int) -> Router:
    made = make_router("mc0", attrs.evolve(LIMITS, connections_per_address=of_one), None, None, context(clock).network)
    made.serve(Conversation())
    return made


class Conversation:
    """A session that receives nothing."""

    def receive(self, identity: bytes, frames: object, connection: int) -> None:
        raise AssertionError("no peer completes its handshake")

    def closed(self, connection: int) -> None:
        raise AssertionError("no peer completes its handshake")

    def needs(self, connection: int) -> bool:
        raise AssertionError("no peer completes its handshake")

    def room(self, identity: bytes) -> None:
        raise AssertionError("no peer completes its handshake")


class Greeted(Protocol):
    """A peer that waits for the greeting, or for the end."""

    def connectionMade(self) -> None:
        self.heard: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        heard, self.heard = self.heard, Deferred()
        heard.callback(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.heard.callback(b"")


class Peers(TestCase):
    """Peers of a ROUTER where each address may have one connection. Closed connections do not count."""

    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor

    async def test_a_user_at_a_unix_socket(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = f"{folder}/mc0"
        self._listen(f"ipc://{path}")
        await self._one_at_a_time(UNIXClientEndpoint(self.reactor, path))

    async def test_an_ipv4_address_at_a_socket_of_ipv6(self) -> None:
        if not has_ipv6():
            raise SkipTest("there is no IPv6 here, or its sockets do not take IPv4")
        port = self._listen("tcp://[::]:0").rpartition(":")[2]
        await self._one_at_a_time(TCP4ClientEndpoint(self.reactor, "127.0.0.1", int(port)))

    def _listen(self, endpoint: str) -> str:
        made = router(self.reactor, of_one=1)
        for deadlines in (made.logins, made.closes):
            self.addCleanup(deadlines.stop)
        listener = RouterListener(made, self.reactor)
        address = listener.bind(parse_zmq(endpoint))
        assert listener.port is not None
        self.addCleanup(listener.port.stopListening)
        return address

    async def _one_at_a_time(self, endpoint: Any) -> None:
        for _ in range(3):
            first = await endpoint.connect(Factory.forProtocol(Greeted))
            self.assertTrue(await first.heard)
            second = await endpoint.connect(Factory.forProtocol(Greeted))
            self.assertEqual(await second.heard, b"")
            ended = first.heard
            first.transport.loseWriteConnection()
            self.assertEqual(await ended, b"")


class Unbound(TestCase):
    """A ROUTER that listens no more."""

    def test_its_port_is_free_before_the_reactor_turns(self) -> None:
        from twisted.internet import reactor

        clock: Any = reactor
        listener = RouterListener(router(clock, of_one=1), clock)
        address = listener.bind(parse_zmq("tcp://127.0.0.1:0"))
        listener.unbind()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), PATIENCE)
        self.assertEqual(listener.bind(parse_zmq(address)), address)
        listener.unbind()


def has_ipv6() -> bool:
    """Return True if a socket at ``::`` can be bound, and takes connections of IPv4 addresses."""
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::", 0))
            return not trial.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    except OSError:
        return False


@pytest.mark.parametrize("settings", [Mc0, Dbp, Mtl])
def test_no_configuration_forbids_short_frames_which_the_codec_does_not_measure(
    settings: type[RouterLimits],
) -> None:
    [within] = (each.key.within for each in declared(settings) if each.name == "max_message")
    assert within is not None
    assert within[0] >= SHORT - 1
