"""TLS on a listener, with certificates that a reload replaces.

Rules:
- The scheduler bounds decryption (`scheduled_input.py`): a handshake costs a millisecond of CPU, and waits for the
  rounds.
- Decrypted input goes to the protocol above within the same quantum. While that protocol is paused, nothing is
  decrypted for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, connectionDone
from twisted.internet.tcp import Connection
from twisted.protocols.tls import BufferingTLSTransport, TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from broker.net.fast_write import push
from broker.net.rate_limits import Complaints
from broker.net.scheduled_input import Scheduled, sliced
from broker.net.scheduler import Scheduler

READ = 4_096
"""Bytes of one read: a handshake takes at most three of them, and a queued connection holds no more."""

SESSIONS = b"elkobroker"
"""The session ID context of resumable sessions. Without one, OpenSSL refuses to resume sessions with a verified client
certificate, and closes their connections by an alert. Each context also has its own session keys: a session from before
a reload is not resumed but negotiated in full, under the current rules."""


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """The certificate chain, key and client CA in these PEM files, as of the last read.

    With ``ca``, clients must have a certificate of that authority. Raises ValueError or OSError if the files are
    unusable.
    """

    def __init__(self, certificate: str, key: str, ca: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self._ca = ca
        self._context = self.read()

    def use(self, context: SSL.Context) -> None:
        """Use the result of `read` for new connections. Earlier sessions cannot be resumed."""
        self._context = context

    def serverConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """Create a connection; see `IOpenSSLServerConnectionCreator`."""
        return SSL.Connection(self._context, None)

    def read(self) -> SSL.Context:
        """Read the files again. Raises as the constructor does."""
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_session_id(SESSIONS)
        try:
            context.use_certificate_chain_file(self._certificate)
            context.use_privatekey_file(self._key)
            context.check_privatekey()
            if self._ca is not None:
                context.load_verify_locations(self._ca)
                context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
        except SSL.Error:
            files = ", ".join(file for file in (self._certificate, self._key, self._ca) if file is not None)
            raise ValueError(f"these are no certificate and key that fit together: {files}") from None
        return context


class TlsConnection(Scheduled, BufferingTLSTransport):
    """One connection: the transport of the protocol above."""

    factory: TlsFactory
    transport: Any
    _reading = True  # the protocol above is not paused

    def makeConnection(self, transport: Any) -> None:
        self._socket = transport if isinstance(transport, Connection) else None
        if self._socket is not None:
            self._socket.bufferSize = READ
        self.host = getattr(transport.getPeer(), "host", "unix")
        super().makeConnection(transport)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        self.take(data, self._handshakeDone)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.drop()
        super().connectionLost(reason)

    def push(self) -> None:
        """Send buffered output now instead of in the next turn of the reactor."""
        self._aggregator.flush()
        push(self._socket)

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Decrypt one piece in each step."""
        for piece in sliced(data):
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            yield

    def held_up(self) -> bool:
        """Return True while the protocol above is paused."""
        return not self._reading

    def pause_reading(self) -> None:
        """Pause the transport's reads."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Resume the transport's reads, unless the protocol above is paused."""
        if self._reading:
            self.transport.resumeProducing()

    def abort(self) -> None:
        """Close at once."""
        self.abortConnection()  # type: ignore[no-untyped-call]

    # for the protocol above

    def pauseProducing(self) -> None:
        """Pause for the protocol above."""
        self._reading = False
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
    wire = "tls"

    def __init__(self, factory: Factory, certificates: Certificates, turns: Scheduler, complaints: Complaints) -> None:
        super().__init__(certificates, isClient=False, wrappedFactory=factory)
        self.turns = turns
        self.complaints = complaints
