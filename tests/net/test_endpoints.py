"""Listeners with the real reactor: inherited socket options, TLS, and certificate replacement."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import zmq
from OpenSSL.SSL import Connection
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, wrapClientTLS
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from broker import pem
from broker.config import endpoint
from broker.net.listeners import CannotListen, bound, listen
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

    def test_a_socket_file_that_no_process_listens_on_is_replaced(self) -> None:
        path = self._path()
        _leave(path)
        self._listens(path)

    def test_a_socket_file_beside_a_lock_of_a_dead_process_is_replaced(self) -> None:
        path = self._path()
        _leave(path)
        os.symlink(str(_dead_process()), f"{path}.lock")
        self._listens(path)

    def test_a_lock_of_a_dead_process_with_our_number_is_replaced(self) -> None:
        path = self._path()
        _leave(path)
        os.symlink(str(os.getpid()), f"{path}.lock")
        self._listens(path)

    def test_a_socket_file_is_kept_while_another_process_has_the_lock(self) -> None:
        path = self._path()
        _leave(path)
        os.symlink(str(os.getppid()), f"{path}.lock")
        self._refused(path, "Address already in use")

    def test_a_socket_that_a_process_listens_on_is_kept(self) -> None:
        path = self._path()
        with socket.socket(socket.AF_UNIX) as living:
            living.bind(path)
            living.listen(0)
            self._refused(path, "Address already in use")
            self._refused(path, "Address already in use")  # its queue, which takes one connection, is full now
        self.assertFalse(os.path.lexists(f"{path}.lock"))

    def test_a_listener_of_ours_is_kept(self) -> None:
        path = self._path()
        self._listens(path)
        self._refused(path, "Address already in use")

    def test_a_file_that_is_no_socket_is_kept(self) -> None:
        path = Path(self._path())
        path.write_text("precious")
        self._refused(str(path), "there is a file that is no socket")
        os.symlink(str(_dead_process()), f"{path}.lock")
        self._refused(str(path), "there is a file that is no socket")
        self.assertEqual(path.read_text(), "precious")

    def _path(self) -> str:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return f"{folder}/elko.sock"

    def _listens(self, path: str) -> None:
        port = listen(self.reactor, endpoint.parse(f"unix:{path}"), Greeters())
        self.addCleanup(port.stopListening)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    def _refused(self, path: str, why: str) -> None:
        with self.assertRaisesRegex(CannotListen, f"cannot listen on {path}: {why}"):
            listen(self.reactor, endpoint.parse(f"unix:{path}"), Greeters())
        self.assertTrue(os.path.lexists(path))

    async def test_libzmq_reaches_what_a_zeromq_endpoint_opens(self) -> None:
        path = self._path()
        for text in (
            "tcp://127.0.0.1:0",
            "tcp://localhost:*",
            "tcp://*:0",
            "tcp://[::1]:0",
            "tcp://[::]:0",
            f"ipc://{path}",
            f"ipc://@{os.path.basename(os.path.dirname(path))}",
        ):
            where = endpoint.parse_zmq(text)
            if text.startswith("tcp://[") and not _has_ipv6():
                continue
            factory = Greeters()
            port = listen(self.reactor, where.stream, factory)
            address = f"{where.kind}://{bound(port)}"
            with zmq.Context() as context, context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.ipv6 = True
                client.connect(address)
                transport = await factory.greeted
                transport.abortConnection()
            if where.path is not None:
                self.assertEqual(address, text)
            else:
                taken = endpoint.parse_zmq(address)
                self.assertTrue(taken.port)
                self.assertEqual((taken.loopback, taken.wildcard), (where.loopback, where.wildcard))
            await maybeDeferred(port.stopListening)

    def test_a_unix_socket_of_a_zeromq_endpoint_is_for_user_and_group(self) -> None:
        path = self._path()
        port = listen(self.reactor, endpoint.parse_zmq(f"ipc://{path}").stream, Greeters())
        self.addCleanup(port.stopListening)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o660)

    def test_an_abstract_name_in_use_is_shown_with_an_at_sign(self) -> None:
        where = endpoint.parse_zmq(f"ipc://@{os.path.basename(os.path.dirname(self._path()))}")
        port = listen(self.reactor, where.stream, Greeters())
        self.addCleanup(port.stopListening)
        self.assertEqual(bound(port), where.path)
        with self.assertRaisesRegex(CannotListen, f"cannot listen on {where.path}: Address already in use"):
            listen(self.reactor, where.stream, Greeters())

    async def test_certificates_are_exchanged_while_it_listens(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        shown, key = certificate(folder, "first")
        certificates = Certificates(pem.Files(str(shown), str(key)))
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


def _leave(path: str) -> None:
    """Leave a socket file as a killed process does."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
        killed.listen()


def _dead_process() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as ended:
        pass
    return ended.pid


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


def _tls(plain: Any, options: CertificateOptions) -> Any:
    """A client endpoint that takes any certificate."""
    from OpenSSL.SSL import Connection

    @implementer(IOpenSSLClientConnectionCreator)
    class Creator:
        def clientConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> Connection:
            return Connection(options.getContext(), None)

    return wrapClientTLS(Creator(), plain)
