"""Suites, and resuming sessions of TLS: by both versions, with and without certificates of clients, after a reload."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from broker import pem
from broker.config import endpoint
from broker.net.listeners import bound, listen
from broker.net.tls import Certificates
from tests.config.certificates import certificate, unverified
from tests.net.over_tls import over_tls
from tests.patience import PATIENCE

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class Echo(Protocol):
    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Client:
    """Connects by one version, with a certificate or none, and resumes the session of its last connection."""

    def __init__(self, port: int, version: ssl.TLSVersion, certificate: tuple[Path, Path] | None) -> None:
        self._port = port
        self._context = unverified()
        self._context.minimum_version = self._context.maximum_version = version
        if certificate is not None:
            self._context.load_cert_chain(*certificate)
        self._session: ssl.SSLSession | None = None

    def resumes(self) -> bool:
        """True if a new connection, which must be answered, resumes the session. Raises `ssl.SSLError`. Blocks."""
        with (
            socket.create_connection(("127.0.0.1", self._port), PATIENCE) as plain,
            self._context.wrap_socket(plain, session=self._session) as connection,
        ):
            connection.sendall(b"hello")
            assert connection.recv(100) == b"hello"
            self._session = connection.session
            assert connection.session_reused is not None
            return connection.session_reused


class Resuming(TestCase):
    def setUp(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.server = certificate(self.folder, "server")
        self.client = certificate(self.folder, "client")

    def listen(self, ca: Path | None) -> Certificates:
        certificates = Certificates(
            pem.Files(str(self.server[0]), str(self.server[1]), ca=None if ca is None else str(ca))
        )
        where = endpoint.parse("tcp:0:interface=127.0.0.1")
        port = listen(self.reactor, where, over_tls(self.reactor, Factory.forProtocol(Echo), certificates))
        self.addCleanup(port.stopListening)
        self.port = int(bound(port).rpartition(":")[2])
        return certificates

    def client_of(self, version: ssl.TLSVersion, ca: Path | None) -> Client:
        return Client(self.port, version, None if ca is None else self.client)

    async def resumed(self, client: Client) -> bool:
        """See `Client.resumes`."""
        resumes: bool = await deferToThread(client.resumes)
        return resumes

    async def test_a_session_is_resumed(self) -> None:
        for version in VERSIONS:
            for ca in (None, self.client[0]):
                with self.subTest(version=version, ca=ca):
                    self.listen(ca)
                    client = self.client_of(version, ca)
                    self.assertEqual([await self.resumed(client) for _ in range(3)], [False, True, True])

    async def test_after_a_reload_a_session_is_begun_again(self) -> None:
        for version in VERSIONS:
            for ca in (None, self.client[0]):
                with self.subTest(version=version, ca=ca):
                    certificates = self.listen(ca)
                    client = self.client_of(version, ca)
                    await self.resumed(client)
                    certificates.use(certificates.read())
                    self.assertEqual([await self.resumed(client) for _ in range(2)], [False, True])

    async def test_tls_1_2_has_suites_with_forward_secrecy_and_authenticated_encryption_only(self) -> None:
        def suite(ciphers: str) -> str:
            context = unverified()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(ciphers)
            with (
                socket.create_connection(("127.0.0.1", self.port), PATIENCE) as plain,
                context.wrap_socket(plain) as connection,
            ):
                found = connection.cipher()
                assert found is not None
                return found[0]

        self.listen(None)
        for ciphers in ("ECDHE+AESGCM", "ECDHE+CHACHA20", "DEFAULT"):
            found = await deferToThread(suite, ciphers)
            self.assertRegex(found, "^ECDHE-.*(GCM|CHACHA20)")
        # Static RSA, and CBC with SHA-1 and with SHA-256.
        for ciphers in ("kRSA", "ECDHE+AES+SHA1", "ECDHE+AES+SHA256:@SECLEVEL=0", "aNULL:@SECLEVEL=0"):
            with self.subTest(ciphers=ciphers), self.assertRaises(ssl.SSLError):
                await deferToThread(suite, ciphers)

    async def test_a_session_does_not_outlive_the_authority_that_let_it_in(self) -> None:
        for version in VERSIONS:
            with self.subTest(version=version):
                authority = self.folder / "authority.pem"
                shutil.copy(self.client[0], authority)
                certificates = self.listen(authority)
                client = self.client_of(version, authority)
                await self.resumed(client)
                shutil.copy(certificate(self.folder, "other")[0], authority)
                certificates.use(certificates.read())
                with self.assertRaises(ssl.SSLError):
                    await self.resumed(client)
