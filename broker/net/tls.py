"""TLS on a listener, with certificates that can be exchanged while it runs.

Rules:
- Records are decrypted in turns (`scheduled_input.py`): a handshake costs a millisecond of CPU, and waits for the
  rounds.
- What a record holds is handed to the protocol above within the same quantum. While that protocol reads no more,
  nothing is decrypted for it.
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
from broker.net.scheduler import Turns

READ = 4_096
"""Bytes of one read: a handshake takes three of them at most, and a peer waits with as little as this."""

SESSIONS = b"elkobroker"
"""Under this name OpenSSL keeps the sessions that clients resume; without one it refuses those that it verified a
client's certificate for, and closes their connections by an alert. Each context has session keys of its own besides: a
session from before a reload is not resumed but begun again, under the rules that hold by then."""


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """The certificate (with its chain), key and client CA in these PEM files, as they were when last read.

    ``ca`` set means that clients must have a certificate of that authority. Raises ValueError or OSError where the
    files cannot be used.
    """

    def __init__(self, certificate: str, key: str, ca: str | None) -> None:
        self._certificate = certificate
        self._key = key
        self._ca = ca
        self._context = self.read()

    def use(self, context: SSL.Context) -> None:
        """Serve connections from now on with what `read` gave. Sessions from before it cannot be resumed."""
        self._context = context

    def serverConnectionForTLS(self, protocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        """A new connection; see `IOpenSSLServerConnectionCreator`."""
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
    _reading = True  # the protocol above reads

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
        """Send now what was written, not in the next turn of the reactor."""
        self._aggregator.flush()
        push(self._socket)

    # for the scheduler

    def steps(self, data: bytes) -> Iterator[None]:
        """Decrypt a piece in each step."""
        for piece in sliced(data):
            super().dataReceived(piece)  # type: ignore[no-untyped-call]
            yield

    def held_up(self) -> bool:
        """True if the protocol above reads no more for now."""
        return not self._reading

    def pause_reading(self) -> None:
        """Read no more for now."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Read on."""
        if self._reading:
            self.transport.resumeProducing()

    def abort(self) -> None:
        """Close at once."""
        self.abortConnection()  # type: ignore[no-untyped-call]

    # for the protocol above

    def pauseProducing(self) -> None:
        """Read no more for now."""
        self._reading = False
        self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Read on."""
        self._reading = True
        if self._rest is not None:
            self.go_on()
        else:
            self._stopped_reading = False
            self.transport.resumeProducing()


class TlsFactory(TLSMemoryBIOFactory):
    """A listener's factory, spoken to over TLS."""

    protocol = TlsConnection
    wire = "tls"

    def __init__(self, factory: Factory, certificates: Certificates, turns: Turns, complaints: Complaints) -> None:
        super().__init__(certificates, isClient=False, wrappedFactory=factory)
        self.turns = turns
        self.complaints = complaints
