"""TLS on a listener, with certificates that can be exchanged while it runs."""

from __future__ import annotations

from typing import Any

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from zope.interface import implementer

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
        """What is in the files now. Raises as the constructor does."""
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


def over_tls(factory: Factory, certificates: Certificates) -> Any:
    """The same factory, spoken to over TLS."""
    return TLSMemoryBIOFactory(certificates, isClient=False, wrappedFactory=factory)
