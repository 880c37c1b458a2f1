"""Passwords, tokens and certificates against the real etcd: each trap with its sentence."""

from __future__ import annotations

import os
import urllib.error
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from broker.cluster.etcd.etcd_client import connect
from broker.cluster.etcd.etcd_credentials import TlsFiles
from broker.cluster.etcd.etcd_interface import Denied, Ended, Put, Unavailable
from tests.cluster.etcd.authority import Authority
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.cluster.real_etcd import Etcd
from tests.patience import until


@pytest.mark.usefixtures("directory")
class PasswordTests(ClientCase):
    directory: Path

    async def test_a_user_may_do_what_its_role_says(self) -> None:
        with Etcd(self.directory) as etcd:
            etcd.enable_auth("broker", "secret", "/elkobroker/")
            client = self.client(etcd.url, user="broker", password="secret")
            lease = (await client.grant(60)).lease
            await client.txn([], [Put(b"/elkobroker/a", b"1", lease)])
            assert len((await client.range(b"/elkobroker/", b"/elkobroker0")).keys) == 1
            watcher = Recorder()
            client.watch(b"/elkobroker/", b"/elkobroker0", 1, watcher)
            await watcher.until(lambda: watcher.keys)
            assert await client.keep_alive(lease) == 60
            await self.fails(client.txn([], [Put(b"/other", b"", 0)]), Denied, "permission denied")
            await self.fails(client.range(b"/", b"0"), Denied, "permission denied")
            refused = Recorder()
            client.watch(b"/", b"0", 0, refused)
            reason, text = await refused.is_ended()
            assert reason is Ended.DENIED
            assert "refuses the watch" in text
            await client.revoke(lease)
            await watcher.until(lambda: len(watcher.keys) == 2)

    async def test_a_wrong_password_and_none(self) -> None:
        with Etcd(self.directory) as etcd:
            etcd.enable_auth("broker", "secret")
            for user, password in (("broker", "wrong"), ("nobody", "secret"), ("broker", "")):
                client = self.client(etcd.url, user=user, password=password)
                await self.fails(client.range(b"/"), Denied, etcd.url, "the user and the password")
                watcher = Recorder()
                client.watch(b"/", b"0", 0, watcher)
                reason, _text = await watcher.is_ended()
                assert reason is Ended.DENIED
            client = self.client(etcd.url)
            await self.fails(client.range(b"/"), Denied, "requires a user and a password")
            watcher = Recorder()
            client.watch(b"/", b"0", 0, watcher)
            reason, _text = await watcher.is_ended()
            assert reason is Ended.DENIED

    async def test_a_dead_token_is_replaced(self) -> None:
        with Etcd(self.directory) as etcd:
            etcd.enable_auth("broker", "secret")
            client = self.client(etcd.url, user="broker", password="secret")
            await client.range(b"/a")
            token = etcd.token("broker", "secret")
            # A change of the password ends all tokens of the user.
            etcd.ask("auth/user/changepw", {"name": "broker", "password": "secret"}, etcd.token())
            with self.assertRaises(urllib.error.HTTPError) as caught:
                etcd.ask("kv/range", {"key": "YQ=="}, token)
            caught.exception.close()
            assert caught.exception.code == 401
            await client.txn([], [Put(b"/a", b"", 0)])
            etcd.ask("auth/user/changepw", {"name": "broker", "password": "secret"}, etcd.token())
            watcher = Recorder()
            client.watch(b"/a", b"/b", 1, watcher)
            await watcher.until(lambda: watcher.keys == [b"/a"])

    async def test_authentication_that_is_enabled_later(self) -> None:
        """A user may be configured before: etcd without authentication needs no token."""
        with Etcd(self.directory) as etcd:
            client = self.client(etcd.url, user="broker", password="secret")
            await client.txn([], [Put(b"/a", b"", 0)])
            etcd.enable_auth("broker", "secret")
            await client.txn([], [Put(b"/a", b"", 0)])

    async def test_a_changed_password(self) -> None:
        with Etcd(self.directory) as etcd:
            etcd.enable_auth("broker", "secret")
            client = self.client(etcd.url, user="broker", password="secret")
            await client.range(b"/a")
            etcd.ask("auth/user/changepw", {"name": "broker", "password": "other"}, etcd.token())
            await self.fails(client.range(b"/a"), Denied, "does not accept the user and the password")
            other = self.client(etcd.url, user="broker", password="other")
            await other.range(b"/a")


@pytest.mark.usefixtures("directory")
class CertificateTests(ClientCase):
    directory: Path

    def setUp(self) -> None:
        self.authority = Authority(self.directory)

    def trusting(self, own: tuple[Path, Path] | None = None, ca: Path | None = None) -> TlsFiles:
        certificate, key = (None, None) if own is None else (str(own[0]), str(own[1]))
        return TlsFiles(str(ca or self.authority.file), certificate, key)

    async def test_tls_with_a_client_certificate_without_a_common_name(self) -> None:
        own = self.authority.client()
        with Etcd(self.directory, tls=self.authority.server(), client_ca=self.authority.file, own=own) as etcd:
            # etcd checks the name only where authentication is enabled.
            etcd.enable_auth("broker", "secret")
            user = {"user": "broker", "password": "secret"}
            client = self.client(etcd.url, tls=self.trusting(own), **user)
            lease = (await client.grant(60)).lease
            watcher = Recorder()
            result = await client.txn([], [Put(b"/t", b"1", lease)])
            client.watch(b"/t", b"/u", result.revision, watcher)
            await watcher.until(lambda: watcher.keys == [b"/t"])

            named = self.authority.client("named", common_name="broker-a")
            client = self.client(etcd.url, tls=self.trusting(named), **user)
            await self.fails(client.range(b"/t"), Denied, etcd.url, "common name (CN)")
            watcher = Recorder()
            client.watch(b"/t", b"/u", 0, watcher)
            reason, text = await watcher.is_ended()
            assert reason is Ended.DENIED
            assert "common name (CN)" in text

            client = self.client(etcd.url, tls=self.trusting(), **user)
            await self.fails(client.range(b"/t"), Denied, etcd.url, "requires a client certificate")

            expired = self.authority.client("expired", ends=-1)
            client = self.client(etcd.url, tls=self.trusting(expired), **user)
            await self.fails(client.range(b"/t"), Denied, "expired.cert.pem expired on ")

            stranger = Authority(self.directory, "stranger").client("foreign")
            client = self.client(etcd.url, tls=self.trusting(stranger), **user)
            await self.fails(client.range(b"/t"), Denied, "refuses the client certificate in ", "foreign.cert.pem")

    async def test_certificates_of_the_server_that_are_not_accepted(self) -> None:
        with Etcd(self.directory, tls=self.authority.server()) as etcd:
            await self.client(etcd.url, tls=self.trusting()).status()
            other = Authority(self.directory, "other")
            client = self.client(etcd.url, tls=self.trusting(ca=other.file))
            error = await self.fails(
                client.range(b"/"), Denied, etcd.url, "not of an authority that this broker trusts"
            )
            assert "expired" not in str(error)
            # The authorities of the system do not know it either.
            await self.fails(self.client(etcd.url).range(b"/"), Denied, "not of an authority")
            by_name = etcd.url.replace("127.0.0.1", "localhost")
            await self.fails(self.client(by_name, tls=self.trusting()).range(b"/"), Denied, by_name, "another name")
            watcher = Recorder()
            self.client(etcd.url).watch(b"/", b"0", 0, watcher)
            reason, text = await watcher.is_ended()
            assert reason is Ended.DENIED
            assert "not of an authority" in text

    async def test_an_expired_certificate_of_the_server_and_one_of_the_future(self) -> None:
        for name, begins, ends, sentence in (("old", -20, -10, "has expired"), ("new", 10, 20, "is not valid yet")):
            server = self.authority.server(name, begins=begins, ends=ends)
            with Etcd(self.directory / name, tls=server, healthy=False) as etcd:
                client = self.client(etcd.url, tls=self.trusting())
                until(etcd.members[0].listening)
                await self.fails(client.range(b"/"), Denied, etcd.url, sentence)

    async def test_a_server_certificate_without_client_authentication(self) -> None:
        """The gateway connects to its own endpoint with the server's certificate."""
        server = self.authority.server(usages=(ExtendedKeyUsageOID.SERVER_AUTH,))
        own = self.authority.client()
        with Etcd(self.directory, tls=server, client_ca=self.authority.file, own=own, healthy=False) as etcd:
            client = self.client(etcd.url, tls=self.trusting(own))
            until(etcd.members[0].listening)
            await self.fails(client.range(b"/"), Unavailable, etcd.url, "cannot connect to itself", "clientAuth")

    async def test_http_to_a_port_of_tls_and_the_reverse(self) -> None:
        with Etcd(self.directory, tls=self.authority.server()) as etcd:
            plain = self.client(etcd.url.replace("https", "http"))
            await self.fails(plain.range(b"/"), Unavailable, "expect TLS")
        with Etcd(self.directory / "plain") as etcd:
            secure = self.client(etcd.url.replace("http", "https"), tls=self.trusting())
            await self.fails(secure.range(b"/"), Unavailable, "does it use TLS?")

    async def test_changed_files_are_used_for_the_next_connection(self) -> None:
        own = self.authority.client()
        with Etcd(self.directory, tls=self.authority.server(), client_ca=self.authority.file, own=own) as etcd:
            certificate, key = self.authority.client("rotated", ends=-1)
            client = self.client(etcd.url, tls=self.trusting((certificate, key)))
            await self.fails(client.range(b"/"), Denied, "expired")
            certificate.write_text("half written")
            await self.fails(client.range(b"/"), Denied, "expired")
            self.authority.client("rotated")
            os.utime(certificate, ns=(0, 0))
            await client.range(b"/")

    def test_files_that_cannot_be_used(self) -> None:
        certificate, key = self.authority.client()
        _, other = self.authority.client("other")
        for files, sentence in (
            (TlsFiles(ca="/no/such/file"), "/no/such/file cannot be read"),
            (TlsFiles(ca=str(key)), "has no certificate in PEM"),
            (self.trusting((certificate, other)), "does not belong to the certificate"),
            (self.trusting((certificate, certificate)), "has no private key"),
            (self.trusting((key, key)), "has no certificate in PEM"),
        ):
            with self.assertRaises(ValueError) as caught:
                connect(reactor, deferToThread, ["https://etcd1:2379"], files)
            assert sentence in str(caught.exception)
        with self.assertRaises(ValueError) as caught:
            connect(reactor, deferToThread, ["http://etcd1:2379"], self.trusting())
        assert "no endpoint is https" in str(caught.exception)
