"""Credentials for etcd: the user's tokens, one for each endpoint, and TLS with an own certificate."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import attrs
from OpenSSL import SSL, crypto
from service_identity.cryptography import verify_certificate_hostname, verify_certificate_ip_address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IReactorTime
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from broker import pem
from broker.access.identity import is_address
from broker.blocking import blocking
from broker.cluster.etcd.failures import is_cancelled
from broker.core.interfaces import InThread
from broker.wall_clock import wall

LOOK_WITHIN = 1.0
"""Seconds for reading the files before a connection. Another file, on a file system that does not answer, may occupy
the thread; a lease in etcd must be renewed all the same, in some seconds."""


@attrs.frozen
class TlsFiles:
    """Files in PEM: ``ca`` has the authorities that are trusted, None means the system's.

    ``certificate`` with its chain, and ``key`` with its ``passphrase_file``, are this broker's own, None without any.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    passphrase_file: str | None = None


@attrs.frozen(eq=False)
class _Reading:
    """The content of the files at one reading."""

    stamp: object
    """Times and sizes of the files."""
    context: SSL.Context
    ends: float | None
    """End of the client certificate in seconds since the epoch; None without one."""


class Tls:
    """Settings of TLS for the connections to all endpoints. Raises ValueError if the files are unusable.

    Changed files are read again before the next connection, ``in_thread``; as long as they are unusable, or the thread
    is busy, their old content is used.
    """

    def __init__(self, files: TlsFiles, clock: IReactorTime, in_thread: InThread) -> None:
        self._files = files
        self._clock = clock
        self._in_thread = in_thread
        self._reading = _read(files)
        self._refused: list[str] = []
        """Reason of the last refusal of the server's certificate; empty if it was not refused."""

    def creator(self, host: str) -> Deferred[IOpenSSLClientConnectionCreator]:
        """Return the settings for a connection to a host, whose certificate must have its name."""

        def looked(found: _Reading | Failure | None) -> IOpenSSLClientConnectionCreator:
            # A failure: the files are half written, or do not come, and the next connection looks again.
            if isinstance(found, _Reading):
                self._reading = found
            self._refused.clear()
            return _Verifying(self._reading.context, host, self._refused)

        looking: Deferred[_Reading | None] = self._in_thread(_changed, self._files, self._reading.stamp)
        return looking.addTimeout(LOOK_WITHIN, self._clock).addBoth(looked)

    def sentence(self, where: str, reason: str) -> str:
        """Return the sentence for operators for a failed handshake."""
        if self._refused:
            return f"the certificate of {where} {self._refused[-1]}"
        if any(each in reason for each in ("wrong version number", "packet length too long", "record layer failure")):
            return f"{where} does not use TLS: its address may be http"
        if "alert" not in reason:
            return f"TLS with {where} fails: {reason}"
        if self._reading.ends is None:
            return f"{where} requires a client certificate ({reason})"
        if self._reading.ends <= wall(self._clock):
            day = datetime.fromtimestamp(self._reading.ends, UTC).date()
            return f"the client certificate in {self._files.certificate} expired on {day}, and {where} refuses it"
        return f"{where} refuses the client certificate in {self._files.certificate} ({reason})"


def _changed(files: TlsFiles, stamp: object) -> _Reading | None:
    """Read the files if their stamp is another one. Raises ValueError if they are unusable: half written, perhaps."""
    return None if _stamped(files) == stamp else _read(files)


@blocking
def _stamped(files: TlsFiles) -> tuple[tuple[int, int], ...]:
    found = []
    for path in attrs.astuple(files):
        try:
            state = os.stat(path) if path is not None else None
        except OSError:
            state = None
        found.append((0, 0) if state is None else (state.st_mtime_ns, state.st_size))
    return tuple(found)


def _read(files: TlsFiles) -> _Reading:
    stamp = _stamped(files)
    context = pem.context()
    if files.ca is None:
        context.set_default_verify_paths()
    else:
        pem.trust(context, pem.certificates(files.ca))
    ends = None
    if files.certificate is not None:
        chain, key = pem.chain_and_key(files.certificate, files.key or files.certificate, files.passphrase_file)
        pem.present(context, chain, key)
        ends = chain[0].not_valid_after_utc.timestamp()
    return _Reading(stamp, context, ends)


@implementer(IOpenSSLClientConnectionCreator)
class _Verifying:
    """Settings for connections to a host. ``refused`` gets the reason for which its certificate is refused.

    Twisted's own settings do the same, but OpenSSL's error does not name the reason.
    """

    def __init__(self, context: SSL.Context, host: str, refused: list[str]) -> None:
        self._context, self._host, self._refused = context, host, refused

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Create a connection; see `IOpenSSLClientConnectionCreator`."""
        connection = SSL.Connection(self._context, None)
        if not is_address(self._host):
            connection.set_tlsext_host_name(self._host.encode("idna"))
        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._verified)
        return connection

    def _verified(self, _connection: Any, certificate: crypto.X509, number: int, depth: int, valid: int) -> bool:
        if not valid:
            self._refused.append(
                _REFUSED.get(number, f"is not of an authority that this broker trusts (X509 {number})")
            )
            return False
        if depth == 0:
            check = verify_certificate_ip_address if is_address(self._host) else verify_certificate_hostname
            try:
                check(certificate.to_cryptography(), self._host)
            except Exception:  # an exception would be lost in OpenSSL, and the certificate accepted
                self._refused.append("is for another name")
                return False
        return True


_REFUSED = {9: "is not valid yet", 10: "has expired"}
"""Results of OpenSSL's verification with sentences of their own."""


class Token:
    """The token of a user at one endpoint. etcd keeps a token alive by its use at that very member.

    ``authenticate`` asks the endpoint for a new one: it costs etcd a tenth of a second, so only one request is under
    way at a time. It returns "" if etcd has no authentication enabled. Where its call is given up, the next one asks.
    """

    def __init__(self, authenticate: Callable[[], Awaitable[str]]) -> None:
        self._authenticate = authenticate
        self._value: str | None = None
        self._waiting: list[Deferred[None]] | None = None

    async def get(self) -> str:
        """Return the present token, or a new one."""
        while self._value is None and self._waiting is not None:
            waiting: Deferred[None] = Deferred(self._waiting.remove)
            self._waiting.append(waiting)
            await waiting
        if self._value is not None:
            return self._value
        self._waiting = []
        try:
            value = self._value = await self._authenticate()
        except Exception as error:
            # Each call has a time of its own: the end of this one is no failure of the others.
            self._finish(None if is_cancelled(error) else error)
            raise
        self._finish()
        return value

    def _finish(self, failed: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, None
        while waiting:
            each = waiting.pop(0)
            each.callback(None) if failed is None else each.errback(failed)

    def forget(self) -> None:
        """Forget the present token."""
        self._value = None

    def refused(self, value: str) -> None:
        """Forget a token that the endpoint refused, unless there is a newer one."""
        if self._value == value:
            self._value = None
