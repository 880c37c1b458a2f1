"""Credentials for etcd: the user's tokens, one for each endpoint, and TLS with an own certificate."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import attrs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from OpenSSL import SSL, crypto
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.protocols.tls import TLSMemoryBIOProtocol
from zope.interface import implementer

MAX_PEM = 1024 * 1024
"""Bytes of a PEM file: the authorities of a whole system are 250 kB."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

NOT_YET_VALID, EXPIRED = 9, 10
"""Results of OpenSSL's verification."""


@attrs.frozen
class TlsFiles:
    """Files in PEM: ``ca`` has the authorities that are trusted, None for those of the system.

    ``certificate`` with its chain, and ``key``, are this broker's own, None without any.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


class Tls:
    """Settings of TLS for the connections to all endpoints. Raises ValueError if the files are unusable.

    Changed files are read again before the next connection; as long as they are unusable, their old content is used.
    """

    def __init__(self, files: TlsFiles, now: Callable[[], float]) -> None:
        self._files = files
        self._now = now
        """Returns seconds of the epoch: certificates are the only things here that depend on it."""
        self._stamp = self._stamped()
        self._read()
        self._found: list[int] = []
        """Results of verifications other than 0, newest last."""

    def creator(self, host: str) -> IOpenSSLClientConnectionCreator:
        """Return the settings for a connection to a host, whose certificate must have its name."""
        stamp = self._stamped()
        if stamp != self._stamp:
            try:
                self._read()
                self._stamp = stamp
            except ValueError:
                pass  # half written: the next connection looks again
        self._found.clear()
        options = ssl.optionsForClientTLS(host, self._trusted, self._own, extraCertificateOptions=self._extra)
        return _Watched(options, self._found)

    def sentence(self, where: str, reason: str) -> str:
        """Return the sentence for operators for a failed handshake."""
        if self._found:
            if self._found[-1] == EXPIRED:
                return f"the certificate of {where} has expired"
            if self._found[-1] == NOT_YET_VALID:
                return f"the certificate of {where} is not valid yet"
            return f"the certificate of {where} is not of an authority that this broker trusts ({reason})"
        if "wrong version number" in reason or "packet length too long" in reason or "record layer failure" in reason:
            return f"{where} does not use TLS: its address may be http"
        if "alert" not in reason:
            return f"TLS with {where} fails: {reason}"
        if self._ends is None:
            return f"{where} requires a client certificate ({reason})"
        if self._ends <= self._now():
            day = datetime.fromtimestamp(self._ends, UTC).date()
            return f"the client certificate in {self._files.certificate} expired on {day}, and {where} refuses it"
        return f"{where} refuses the client certificate in {self._files.certificate} ({reason})"

    def _stamped(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in (self._files.ca, self._files.certificate, self._files.key):
            try:
                state = os.stat(path) if path is not None else None
            except OSError:
                state = None
            found.append((0, 0) if state is None else (state.st_mtime_ns, state.st_size))
        return tuple(found)

    def _read(self) -> None:
        files = self._files
        trusted, own, extra, ends = None, None, {}, None
        if files.ca is not None:
            trusted = ssl.trustRootFromCertificates([_loaded(files.ca, pem) for pem in _certificates(files.ca)])
        if files.certificate is not None:
            leaf, *chain = _certificates(files.certificate)
            own = _private(files, leaf)
            extra = {"extraCertChain": [_loaded(files.certificate, pem).original for pem in chain]}
            ends = x509.load_pem_x509_certificate(leaf).not_valid_after_utc.timestamp()
        self._trusted: Any = trusted
        self._own, self._extra, self._ends = own, extra, ends


@implementer(IOpenSSLClientConnectionCreator)
class _Watched:
    """Settings for connections, of which the results of verifications are kept: OpenSSL's error does not name them."""

    def __init__(self, options: IOpenSSLClientConnectionCreator, found: list[int]) -> None:
        self._options, self._found = options, found

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Create a connection; see `IOpenSSLClientConnectionCreator`."""
        connection: SSL.Connection = self._options.clientConnectionForTLS(tlsProtocol)

        def verified(_connection: Any, _certificate: Any, number: int, _depth: int, valid: int) -> bool:
            if not valid:
                self._found.append(number)
            return bool(valid)

        connection.set_verify(SSL.VERIFY_PEER, verified)
        return connection


def _private(files: TlsFiles, leaf: bytes) -> ssl.PrivateCertificate:
    assert files.certificate is not None
    path = files.key or files.certificate
    data = _content(path)
    _loaded(files.certificate, leaf)
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(f"{path} has no private key, or one with a passphrase, which is not supported") from None
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        found: ssl.PrivateCertificate = ssl.PrivateCertificate.loadPEM(leaf + b"\n" + plain)
        return found
    except VerifyError:
        raise ValueError(
            f"the private key in {path} does not belong to the certificate in {files.certificate}"
        ) from None


def _certificates(path: str) -> list[bytes]:
    found = _CERTIFICATE.findall(_content(path))
    if not found:
        raise ValueError(f"{path} has no certificate in PEM")
    return found


def _loaded(path: str, pem: bytes) -> Any:
    try:
        return ssl.Certificate.loadPEM(pem)
    except (crypto.Error, ValueError):
        raise ValueError(f"{path} has a certificate that cannot be read") from None


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_PEM + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_PEM:
        raise ValueError(f"{path} is larger than {MAX_PEM} bytes")
    return data


class Token:
    """The token of a user at one endpoint. etcd keeps a token alive by its use at that very member.

    ``authenticate`` asks the endpoint for a new one: it costs etcd a tenth of a second, so only one request is under
    way at a time. It returns "" if etcd has no authentication enabled.
    """

    def __init__(self, authenticate: Callable[[], Awaitable[str]]) -> None:
        self._authenticate = authenticate
        self._value: str | None = None
        self._waiting: list[Deferred[str]] | None = None

    async def get(self) -> str:
        """Return the present token, or a new one."""
        if self._value is not None:
            return self._value
        if self._waiting is not None:
            waiting: Deferred[str] = Deferred(self._waiting.remove)
            self._waiting.append(waiting)
            return await waiting
        self._waiting = []
        try:
            self._value = value = await self._authenticate()
        except Exception as error:
            failed = error
            self._finish(lambda each: each.errback(failed))
            raise
        self._finish(lambda each: each.callback(value))
        return value

    def _finish(self, call: Callable[[Deferred[str]], object]) -> None:
        waiting, self._waiting = self._waiting, None
        while waiting:
            call(waiting.pop(0))

    def refused(self, value: str) -> None:
        """Forget a token that the endpoint refused, unless there is a newer one."""
        if self._value == value:
            self._value = None
