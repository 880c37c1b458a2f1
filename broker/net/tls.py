"""TLS on a listener, with certificates that a reload replaces.

Rules:
- The scheduler bounds decryption (`scheduled_input.py`): a handshake costs a millisecond of CPU, and waits for the
  rounds.
- Decrypted input goes to the protocol above within the same quantum. While that protocol is paused, nothing is
  decrypted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
from cryptography import x509
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.tcp import Connection
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from broker import pem
from broker.access.identity import plain
from broker.blocking import blocking
from broker.core.errors import Reason, Refusal
from broker.core.memory_budget import Share
from broker.core.turns import for_each
from broker.net.epoll_streams import push
from broker.net.refusal_log import RefusalLog
from broker.net.scheduled_input import Scheduled, sliced
from broker.net.scheduler import Scheduler

# Names of the client certificate of a TLS connection.

MAX_NAMES = 20
"""Names of one certificate that are used: ordinary ones have one or two."""


def client_names(transport: Any) -> tuple[str, ...]:
    """Return the common name and the DNS names of the verified client certificate; empty without one, or without TLS.

    A listener asks for certificates only if it has a client CA, which has verified this one in the handshake.
    """
    peer = getattr(transport, "getPeerCertificate", lambda: None)()
    return certificate_names(peer.to_cryptography()) if isinstance(peer, X509) else ()


def certificate_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the common name and the DNS names of a certificate, each once. Malformed names are left out."""
    names: dict[str, None] = {}
    try:
        for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
            names[str(attribute.value)] = None
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names.update(dict.fromkeys(extension.value.get_values_for_type(x509.DNSName)))
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        pass
    return tuple(names)[:MAX_NAMES]


READ = 4_096
"""Bytes of one read: a handshake takes at most three of them, and a queued connection holds no more."""

STATE = 73_728
"""Bytes that the state of one connection takes in OpenSSL, its buffers included; measured with a thousand connections
in their handshake."""

SESSIONS = b"elkobroker"
"""The session ID context of resumable sessions. Without one, OpenSSL refuses to resume sessions with a verified client
certificate, and closes their connections by an alert. Each context also has its own session keys: a session from before
a reload is not resumed but negotiated in full, under the current rules."""


@attrs.frozen(eq=False)
class Identity:
    """The content of the files at one reading.

    ``names`` are those of the certificate; ``expires`` is the time in seconds since the epoch at which the first
    certificate of its chain expires. ``revoked`` has the serial numbers of the revocation list.
    """

    context: SSL.Context
    names: tuple[str, ...]
    expires: float
    revoked: frozenset[int] = frozenset()


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """The certificate chain, key, client CA and revocation list in these PEM files, as of the last read.

    With ``ca``, clients must have a certificate of that authority, and with ``crl`` one that its list does not name.
    Raises ValueError if the files are unusable.
    """

    def __init__(self, files: pem.Files) -> None:
        self.path = files.certificate
        self._files = files
        self.changed: list[Callable[[], object]] = []
        """Callbacks after `use`."""
        self._identity = self.read()

    @property
    def expires(self) -> float:
        """The time in seconds since the epoch at which the first certificate of the chain expires."""
        return self._identity.expires

    @property
    def names(self) -> tuple[str, ...]:
        """The common name and the DNS names of the certificate."""
        return self._identity.names

    @property
    def asks_clients(self) -> bool:
        """True if clients must have a certificate."""
        return self._files.ca is not None

    def use(self, identity: Identity) -> None:
        """Use the result of `read` for new connections. Earlier sessions cannot be resumed.

        Connections stay, except those whose client certificate is revoked now.
        """
        self._identity = identity
        for call in tuple(self.changed):
            call()

    def is_revoked(self, connection: Any) -> bool:
        """Return True if the client certificate of a TLS connection is revoked."""
        if not self._identity.revoked:
            return False
        certificate = connection.getPeerCertificate()
        return certificate is not None and certificate.get_serial_number() in self._identity.revoked

    def serverConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Create a connection; see `IOpenSSLServerConnectionCreator`."""
        return SSL.Connection(self._identity.context, None)

    @blocking
    def read(self) -> Identity:
        """Read the files again. Raises as the constructor does."""
        found = self._files.read()
        context = pem.context()
        context.set_session_id(SESSIONS)
        pem.present(context, found.chain, found.key)
        if found.authorities:
            pem.trust(context, found.authorities)
            context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
        if found.crl is not None:
            store = context.get_cert_store()
            assert store is not None
            store.add_crl(found.crl)
            store.set_flags(X509StoreFlags.CRL_CHECK)
        revoked = frozenset(revoked.serial_number for revoked in found.crl or ())
        return Identity(context, certificate_names(found.chain[0]), pem.expiry(found.chain), revoked)


class NothingGathered:
    """Null object in place of the gathering of writes, after the end of a connection."""

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""


NOTHING_GATHERED = NothingGathered()


class TlsConnection(Scheduled, BufferingTLSTransport):
    """One connection: the transport of the protocol above."""

    factory: TlsFactory
    transport: Any
    _reading = True  # the protocol above is not paused

    def makeConnection(self, transport: Any) -> None:
        self._socket = transport if isinstance(transport, Connection) else None
        if self._socket is not None:
            self._socket.bufferSize = READ
        self.host = plain(getattr(transport.getPeer(), "host", "unix"))
        super().makeConnection(transport)  # type: ignore[no-untyped-call]
        self.turns.memory.hold(self, Share.SESSIONS, STATE)

    def dataReceived(self, data: bytes) -> None:
        self.take(data, self._handshakeDone)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.drop()
        self.turns.memory.forget(self)
        super().connectionLost(reason)
        # They refer to this connection: without the cycles, no garbage collection is needed.
        self._aggregator, self._producer = NOTHING_GATHERED, None  # type: ignore[assignment]

    @property
    def stranger(self) -> bool:
        """See `Scheduled`: True in the handshake."""
        return not self._handshakeDone

    @property
    def trusted(self) -> bool:
        """See `broker.core.memory_budget.Consumer`."""
        return False  # it counts in its handshake only

    def evict(self, refusal: Refusal) -> None:
        """Close at once: see `MemoryBudget`. A peer in its handshake understands no refusal."""
        self._refused(refusal)
        self.abort()

    def _refused(self, refusal: Refusal) -> None:
        """Count and log the end of the connection. TLS sends the peer an alert, which has a number and no text."""
        self.factory.refusal_log.add(self.factory.wire, self.host, refusal)

    def _tlsShutdownFinished(self, reason: Failure | None) -> None:
        """Handle the end of TLS. (The name is Twisted's, which has no public hook for this.)"""
        if reason is not None:
            # Not for its subclasses: a peer that only disconnects is no failure.
            if not self._handshakeDone and type(reason.value) is SSL.Error and reason.value.args:
                self._refused(Refusal(Reason.HANDSHAKE, f"no TLS: {_reasons(reason.value)}"))
            # Its traceback refers to this connection: without the cycle, no garbage collection is needed.
            reason.cleanFailure()
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]

    def push(self) -> None:
        """Send buffered output now instead of in the next turn of the reactor."""
        self._aggregator.flush()
        push(self._socket)

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Decrypt one piece in each step."""
        shaking_hands = not self._handshakeDone
        for piece in sliced(data):
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            if shaking_hands and self._handshakeDone:
                shaking_hands = False
                self.turns.memory.drop(self, Share.SESSIONS)
            yield

    def held_up(self) -> bool:
        """Return True while the protocol above is paused. Before the end of the handshake nothing is held up: output of
        that protocol, such as a greeting, waits for the peer's part of it, and the protocol is paused meanwhile."""
        return not self._reading and self._handshakeDone

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads, unless the protocol above is paused."""
        if not self.held_up():
            self.transport.resumeProducing()

    def abort(self) -> None:
        """Close at once."""
        self.abortConnection()  # type: ignore[no-untyped-call]

    # for the protocol above

    def pauseProducing(self) -> None:
        """Pause for the protocol above."""
        self._reading = False
        if self.held_up():
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume for the protocol above: pending input first."""
        self._reading = True
        if self._rest is not None:
            self.go_on()
        else:
            self._stopped_reading = False
            self.transport.resumeProducing()


class TlsFactory(TLSMemoryBIOFactory):
    """TLS wrapper of a listener's factory."""

    protocol = TlsConnection

    def __init__(self, factory: Factory, certificates: Certificates, turns: Scheduler, refusal_log: RefusalLog) -> None:
        super().__init__(certificates, isClient=False, wrappedFactory=factory)
        self.wire: str = getattr(factory, "wire", "tls")
        """Wire of the listener, for counters and the log."""
        self.turns = turns
        self.refusal_log = refusal_log
        self._certificates = certificates
        certificates.changed.append(self._review)

    def _review(self) -> None:
        """Close the connections whose client certificate was revoked: many are examined in several turns."""
        self.turns.background.run(for_each(list(self.protocols), self._end_revoked))

    def _end_revoked(self, connection: Any) -> None:
        if connection in self.protocols and self._certificates.is_revoked(connection):
            refusal = Refusal(Reason.REVOKED, "the client certificate of this connection was revoked")
            self.refusal_log.add(self.wire, connection.host, refusal)
            connection.abort()


def _reasons(error: SSL.Error) -> str:
    """Return the reasons of OpenSSL: `http request`, `certificate verify failed`, an alert of the peer."""
    (entries,) = error.args
    return ", ".join(dict.fromkeys(reason for _, _, reason in entries)) or "unknown reason"
