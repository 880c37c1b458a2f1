"""Listening with the real reactor: what accepted sockets inherit, TLS, and certificates that are exchanged."""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from OpenSSL.SSL import Connection
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker.config import endpoint
from broker.net.listen import KEEPALIVE_IDLE, CannotListen, bound, listen
from broker.net.tls import Certificates
from tests.config.certificates import certificate
from tests.net.over_tls import over_tls


class Greeter(Protocol):
    def connectionMade(self) -> None:
        assert self.transport is not None
        self.factory.greeted.callback(self.transport)  # type: ignore[union-attr]


class Greeters(Factory):
    protocol = Greeter

    def __init__(self) -> None:
        self.greeted: Deferred[Any] = Deferred()


class Listening(TestCase):
    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor

    async def test_accepted_sockets_inherit_their_options(self) -> None:
        factory = Greeters()
        port = listen(self.reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), factory)
        self.addCleanup(port.stopListening)
        host, _, number = bound(port).rpartition(":")
        client: Any = await TCP4ClientEndpoint(self.reactor, host, int(number)).connect(Factory.forProtocol(Protocol))
        transport = await factory.greeted
        handle = transport.getHandle()
        self.assertTrue(handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        self.assertTrue(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        self.assertEqual(handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), KEEPALIVE_IDLE)
        client.transport.abortConnection()

    def test_a_port_in_use_is_named(self) -> None:
        port = listen(self.reactor, endpoint.parse("tcp:0:interface=127.0.0.1"), Greeters())
        self.addCleanup(port.stopListening)
        taken = bound(port)
        with self.assertRaisesRegex(CannotListen, f"cannot listen on {taken}: Address already in use"):
            listen(self.reactor, endpoint.parse(f"tcp:{taken.rpartition(':')[2]}:interface=127.0.0.1"), Greeters())

    def test_a_unix_socket_whose_folder_is_missing_is_named(self) -> None:
        with self.assertRaisesRegex(CannotListen, "cannot listen on /nowhere/elko.sock: No such file or directory"):
            listen(self.reactor, endpoint.parse("unix:/nowhere/elko.sock"), Greeters())

    async def test_certificates_are_exchanged_while_it_listens(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shown, key = certificate(folder, "first")
        certificates = Certificates(str(shown), str(key), None)
        self.assertEqual(await self._name_shown(certificates), "first")
        for old, new in zip((shown, key), certificate(folder, "second"), strict=True):
            new.replace(old)
        self.assertEqual(await self._name_shown(certificates), "first")
        certificates.use(certificates.read())
        self.assertEqual(await self._name_shown(certificates), "second")
        key.write_text("no key")
        with self.assertRaises(ValueError):
            certificates.use(certificates.read())
        self.assertEqual(await self._name_shown(certificates), "second")

    async def _name_shown(self, certificates: Certificates) -> str:
        factory = Greeters()
        where = endpoint.parse("tcp:0:interface=127.0.0.1")
        port = listen(self.reactor, where, over_tls(self.reactor, factory, certificates))
        host, _, number = bound(port).rpartition(":")
        shown: Deferred[str] = Deferred()

        class Client(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                shown.callback(self.transport.getPeerCertificate().to_cryptography().subject.rfc4514_string()[3:])  # type: ignore[attr-defined]

        factory.greeted.addCallback(lambda transport: transport.write(b"hello"))
        trusting = CertificateOptions(verify=False)
        plain = TCP4ClientEndpoint(self.reactor, host, int(number))
        client = await _tls(plain, trusting).connect(Factory.forProtocol(Client))
        name = await shown
        client.transport.abortConnection()
        await maybeDeferred(port.stopListening)
        return name


def _tls(plain: Any, options: CertificateOptions) -> Any:
    """A client endpoint that takes any certificate."""
    from OpenSSL.SSL import Connection

    @implementer(IOpenSSLClientConnectionCreator)
    class Creator:
        def clientConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> Connection:
            return Connection(options.getContext(), None)

    return wrapClientTLS(Creator(), plain)
